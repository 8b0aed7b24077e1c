//! The engine as the rest of the program sees it: start it, submit requests, ask for its health.

use std::{
    sync::{Arc, atomic::Ordering, mpsc},
    time::Instant,
};

use candlepower_checkpoint::Checkpoint;
use candlepower_scheduler::CallerId;

use crate::{
    EngineConfig, EngineInfo, Pin, PromptImage, Request, Result, StartProgress, TokenStream,
    engine::{Message, Shared, Submission},
    error::SubmitError,
    gate::EngineHealth,
    pin::PinIds,
    queue::QueueSlot,
    sequence::StreamSender,
    start::start,
};

/// A running engine. Cheap to clone; the engine ends when the last handle is dropped and its
/// sequences are done.
#[derive(Clone, Debug)]
pub struct EngineHandle {
    shared: Arc<Shared>,
    messages: mpsc::Sender<Message>,
    pin_ids: PinIds,
}

impl EngineHandle {
    /// Loads the model, plans the KV cache, runs the model once, and starts the engine thread. Blocks
    /// until all of that is done.
    ///
    /// # Errors
    /// If the checkpoint cannot be loaded, memory does not suffice, or a setting is out of range.
    pub fn start(
        checkpoint: &Checkpoint,
        config: EngineConfig,
        progress: &mut (dyn FnMut(StartProgress) + Send),
    ) -> Result<Self> {
        let (sender, receiver) = mpsc::channel();
        let shared = start(checkpoint, config, receiver, progress)?;
        Ok(Self { shared, messages: sender, pin_ids: PinIds::default() })
    }

    /// The values found and chosen at start.
    pub fn info(&self) -> &EngineInfo {
        &self.shared.info
    }

    /// Hands a request to the engine; one stream per choice comes back.
    ///
    /// # Errors
    /// If the queue is full, the request cannot run on this engine, or the engine has ended.
    pub fn submit(&self, request: Request) -> Result<Vec<TokenStream>, SubmitError> {
        self.check(&request)?;
        let slots = self.shared.gate.queue.take(request.caller.id, request.n)?;
        self.enter(request, slots)
    }

    /// Gives up a sequence for a request of one choice that continues it. The request takes over its queue slot.
    ///
    /// # Errors
    /// If the request cannot run on this engine, or the engine has ended.
    pub fn go_on(
        &self,
        given_up: TokenStream,
        request: Request,
    ) -> Result<Vec<TokenStream>, SubmitError> {
        self.check(&request)?;
        let slot = self.shared.gate.queue.take_over(request.caller.id, given_up.slot());
        drop(given_up);
        self.enter(request, vec![slot])
    }

    fn enter(
        &self,
        request: Request,
        slots: Vec<Arc<QueueSlot>>,
    ) -> Result<Vec<TokenStream>, SubmitError> {
        let seed = request
            .sampling
            .seed
            .unwrap_or_else(|| self.shared.next_seed.fetch_add(SEED_STRIDE, Ordering::Relaxed));
        let (streams, readers) = slots
            .into_iter()
            .map(|slot| {
                let (events, reader) = TokenStream::channel(Arc::downgrade(&slot));
                (StreamSender::new(events, slot), reader)
            })
            .unzip();
        let submission = Submission { request, streams, seed, submitted_at: Instant::now() };
        match self.messages.send(Message::Submit(Box::new(submission))) {
            Ok(()) => Ok(readers),
            Err(_) => Err(self.shared.gate.dead()),
        }
    }

    /// Keeps the prefix of these tokens, as far as it is computed for a caller, in the cache while the pin lives. The pin yields to
    /// running and waiting sequences, and to newer pins where all of them would hold more than `max_pinned_bytes`.
    pub fn pin(&self, token_ids: Vec<u32>, caller: CallerId, cache_salt: Option<Arc<str>>) -> Pin {
        let (pin, message) = self.pin_ids.pin(token_ids, caller, cache_salt, self.messages.clone());
        // An engine that has ended keeps nothing. The next request gets the reason.
        let _ = self.messages.send(message);
        pin
    }

    /// The health of the engine.
    pub fn health(&self) -> EngineHealth {
        self.shared.gate.health()
    }

    /// Most sequences of one caller that may run or wait.
    pub fn in_flight_limit(&self) -> usize {
        self.shared.gate.queue.limit()
    }

    /// Sequences running or waiting.
    pub fn num_in_flight(&self) -> usize {
        self.shared.gate.queue.num_taken()
    }

    /// Checks that the queue has slots for `n` sequences of a caller.
    ///
    /// # Errors
    /// [`SubmitError::QueueFull`] if not.
    pub fn check_queue(&self, caller: CallerId, n: usize) -> Result<(), SubmitError> {
        self.shared.gate.queue.check(caller, n)
    }

    fn check(&self, request: &Request) -> Result<(), SubmitError> {
        let info = &self.shared.info;
        let scored_only = request.sampling.max_tokens == 0;
        let longest = info.max_model_len - usize::from(!scored_only);
        let problem = if request.n == 0 {
            "n must be at least 1".to_owned()
        } else if scored_only && request.n > 1 {
            "n must be 1 where max_tokens is 0".to_owned()
        } else if request.prompt.is_empty() {
            "the prompt has no tokens".to_owned()
        } else if request.prompt.len() > longest {
            format!("the prompt has {} tokens; at most {longest} fit", request.prompt.len())
        } else if request.prompt_logprobs_from >= request.prompt.len() {
            format!("the prompt has {} tokens: none is left to score", request.prompt.len())
        } else if let Some(most) = info.max_logprobs.filter(|most| {
            let asked = request.sampling.logprobs.max(request.prompt_logprobs);
            asked.is_some_and(|asked| asked > *most)
        }) {
            format!("at most {most} alternatives can have log-probabilities on a GPU")
        } else if let Some(id) = request.prompt.iter().find(|&&id| id as usize >= info.vocab_size) {
            format!("token id {id} is outside the vocabulary of {}", info.vocab_size)
        } else if let Some(problem) = self.problem_of_images(request) {
            problem
        } else if request.sampling.allowed_token_ids.as_ref().is_some_and(|ids| ids.is_empty()) {
            "no token is allowed".to_owned()
        } else if request.num_generated > 0
            && request.num_generated >= request.prompt.len().min(request.sampling.max_tokens)
        {
            format!("{} tokens of the prompt cannot have been generated", request.num_generated)
        } else {
            return Ok(());
        };
        Err(SubmitError::Invalid(problem))
    }

    /// The reason why the engine cannot take the images of a request.
    fn problem_of_images(&self, request: &Request) -> Option<String> {
        let info = &self.shared.info;
        if request.images.is_empty() {
            return None;
        }
        let Some(vision) = &info.vision else {
            return Some("this engine takes no images".to_owned());
        };
        let mut before = 0;
        for PromptImage { start, len, image } in &request.images {
            let (start, end) = (*start, start.saturating_add(*len));
            if start < before || end <= start || end > request.prompt.len() {
                return Some(format!(
                    "an image is at {start}..{end}, outside of the prompt or not in order"
                ));
            }
            before = end;
            let pixels = image.image().pixels();
            let count = vision.tokens.num_embeddings(pixels.width(), pixels.height());
            let most = info.max_image_embeddings;
            if count > most {
                return Some(format!("an image has {count} embeddings; at most {most} fit"));
            }
            let placeholder = vision.tokens.placeholder;
            let ids = &request.prompt[start..end];
            let found = ids.iter().filter(|id| **id == placeholder).count();
            if found != count {
                return Some(format!(
                    "an image has {count} embeddings, but {found} tokens for them"
                ));
            }
        }
        None
    }
}

/// Distance between the seeds of two requests, so that their choices (seed + i) do not meet.
const SEED_STRIDE: u64 = 1 << 20;
