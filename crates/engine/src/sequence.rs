//! What the engine keeps of a sequence beside its tokens and blocks, which are the scheduler's.

use std::{
    cell::RefCell,
    collections::HashMap,
    rc::Rc,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Instant,
};

use candlepower_grammar::{Grammar, Mask};
use candlepower_kernels::sampling::{Penalties, SampledRow, SamplingRow};
use tokio::sync::mpsc::UnboundedSender;

use crate::{FinishReason, Request, SamplingParams, TokenEvent, TokenLogprobs};

/// One choice of a request while it waits or runs.
pub(crate) struct Sequence {
    params: Rc<SamplingParams>,
    stream: StreamSender,
    seed: u64,
    prompt_len: usize,
    num_output_tokens: usize,
    /// How often each token of prompt and output was generated; kept only where a penalty needs it.
    seen: Option<HashMap<u32, u32>>,
    /// Most output tokens, by `max_tokens` and by the context's length.
    output_limit: usize,
    prompt_sent: bool,
    scores: Option<Rc<RefCell<PromptScores>>>,
    constraint: Option<ConstraintState>,
    /// When it was submitted; taken by the first step that computes it.
    submitted_at: Option<Instant>,
}

/// What a sequence's output must be, and what that allows next.
pub(crate) struct ConstraintState {
    grammar: Grammar,
    /// Of the token that is drawn next; computed once per token.
    mask: Option<Mask>,
    /// Why the grammar cannot go on.
    failure: Option<String>,
}

impl ConstraintState {
    /// Computes what is allowed next, unless that is known. Takes its time: up to some milliseconds.
    pub(crate) fn compute_mask(&mut self) {
        if self.mask.is_some() || self.failure.is_some() {
            return;
        }
        match self.grammar.allowed() {
            Ok(mask) => self.mask = Some(mask),
            Err(error) => self.failure = Some(error.to_string()),
        }
    }

    /// Takes the token that was drawn. True if nothing may follow.
    fn accept(&mut self, token_id: u32) -> Result<bool, String> {
        self.mask = None;
        self.grammar.accept(token_id).map_err(|error| error.to_string())?;
        Ok(self.grammar.is_finished())
    }
}

/// The log-probabilities of a prompt, as its chunks are computed; one for all choices of a request.
pub(crate) struct PromptScores {
    pub(crate) top: usize,
    /// One place per prompt token; the first stays empty.
    pub(crate) tokens: Vec<Option<TokenLogprobs>>,
}

/// Counts one sequence as running or waiting for as long as it lives.
pub(crate) struct InFlight(pub(crate) Arc<AtomicUsize>);

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The engine thread's end of a [`TokenStream`](crate::TokenStream).
pub(crate) struct StreamSender {
    events: UnboundedSender<TokenEvent>,
    in_flight: Option<InFlight>,
}

impl StreamSender {
    pub(crate) fn new(events: UnboundedSender<TokenEvent>, in_flight: InFlight) -> Self {
        Self { events, in_flight: Some(in_flight) }
    }

    /// Sends an event. True if the sequence goes on: somebody listens, and this was not the last event.
    fn send(&mut self, event: TokenEvent) -> bool {
        let last = match &event {
            TokenEvent::Prompt { finish, .. } | TokenEvent::Token { finish, .. } => {
                finish.is_some()
            }
            TokenEvent::Failed { .. } => true,
        };
        if last {
            // Whoever hears of the end may rely on the place being free.
            self.in_flight = None;
        }
        self.events.send(event).is_ok() && !last
    }
}

impl Sequence {
    /// The choices of a request, one per stream; choice `i` draws with `seed + i`.
    pub(crate) fn choices(
        request: Request,
        streams: Vec<StreamSender>,
        seed: u64,
        max_model_len: usize,
        submitted_at: Instant,
    ) -> impl Iterator<Item = Self> {
        let params = Rc::new(request.sampling);
        let penalised = params.repetition_penalty != 1.0
            || params.presence_penalty != 0.0
            || params.frequency_penalty != 0.0;
        let seen = penalised
            .then(|| request.prompt.iter().map(|&id| (id, 0)).collect::<HashMap<u32, u32>>());
        let prompt_len = request.prompt.len();
        let scores = request
            .prompt_logprobs
            .map(|top| Rc::new(RefCell::new(PromptScores { top, tokens: vec![None; prompt_len] })));
        let grammar = request.grammar;
        streams.into_iter().enumerate().map(move |(choice, stream)| Self {
            constraint: grammar.clone().map(|grammar| ConstraintState {
                grammar,
                mask: None,
                failure: None,
            }),
            stream,
            seed: seed.wrapping_add(choice as u64),
            prompt_len,
            num_output_tokens: 0,
            seen: seen.clone(),
            output_limit: params.max_tokens.min(max_model_len - prompt_len),
            prompt_sent: false,
            scores: scores.clone(),
            submitted_at: Some(submitted_at),
            params: Rc::clone(&params),
        })
    }

    /// Whether nobody reads this sequence's stream any more.
    pub(crate) fn is_cancelled(&self) -> bool {
        self.stream.events.is_closed()
    }

    /// Where the prompt's log-probabilities go, until the prompt is reported.
    pub(crate) fn scores(&self) -> Option<&Rc<RefCell<PromptScores>>> {
        self.scores.as_ref()
    }

    /// What its output must be.
    pub(crate) fn constraint_mut(&mut self) -> Option<&mut ConstraintState> {
        self.constraint.as_mut()
    }

    /// Seconds that it waited, the first time that it is asked.
    pub(crate) fn take_queue_time(&mut self) -> Option<f64> {
        self.submitted_at.take().map(|at| at.elapsed().as_secs_f64())
    }

    /// Ends the sequence with an error of its own.
    pub(crate) fn fail(mut self, message: String) {
        self.stream.send(TokenEvent::Failed { message });
    }

    /// How this sequence's next token is to be drawn.
    pub(crate) fn sampling_row<'a>(&'a self, eos_token_ids: &[u32]) -> SamplingRow<'a> {
        let params = &*self.params;
        let mut banned = Vec::new();
        if self.num_output_tokens < params.min_tokens {
            banned.extend_from_slice(eos_token_ids);
            banned.extend_from_slice(&params.stop_token_ids);
        }
        SamplingRow {
            temperature: params.temperature,
            top_k: params.top_k,
            top_p: params.top_p,
            min_p: params.min_p,
            uniform: uniform(self.seed, self.num_output_tokens as u64),
            penalties: self.seen.as_ref().map(|seen| Penalties {
                repetition: params.repetition_penalty,
                presence: params.presence_penalty,
                frequency: params.frequency_penalty,
                seen,
            }),
            logit_bias: &params.logit_bias,
            banned,
            mask: self.constraint.as_ref().and_then(|state| Some(state.mask.as_ref()?.words())),
            logprobs: params.logprobs,
        }
    }

    /// Reports the prompt, once. True if the sequence goes on.
    pub(crate) fn send_prompt(&mut self, num_cached_tokens: usize) -> bool {
        if self.prompt_sent {
            return true;
        }
        self.prompt_sent = true;
        let finish = (self.output_limit == 0).then_some(FinishReason::Length);
        let logprobs = self.scores.take().map(|scores| scores.borrow().tokens.clone());
        self.stream.send(TokenEvent::Prompt { num_cached_tokens, logprobs, finish })
    }

    /// Takes the token that was drawn and reports it. True if the sequence goes on.
    pub(crate) fn push(&mut self, sampled: SampledRow, eos_token_ids: &[u32]) -> bool {
        if let Some(message) = self.constraint.as_ref().and_then(|state| state.failure.clone()) {
            return self.stream.send(TokenEvent::Failed { message });
        }
        let Some(token_id) = sampled.token_id else {
            let message = "the model gave no finite probability to any allowed token".to_owned();
            return self.stream.send(TokenEvent::Failed { message });
        };
        self.num_output_tokens += 1;
        if let Some(seen) = &mut self.seen {
            *seen.entry(token_id).or_default() += 1;
        }
        let mut finish = self.finish_reason(token_id, eos_token_ids);
        if let Some(constraint) = &mut self.constraint
            && !matches!(finish, Some(FinishReason::EndOfSequence(_) | FinishReason::StopToken(_)))
        {
            match constraint.accept(token_id) {
                Ok(true) => finish = Some(FinishReason::GrammarEnd),
                Ok(false) => {}
                Err(message) => return self.stream.send(TokenEvent::Failed { message }),
            }
        }
        let logprobs = sampled.logprobs.map(|row| TokenLogprobs {
            token_id,
            logprob: row.logprob,
            top: row.top,
        });
        self.stream.send(TokenEvent::Token { token_id, logprobs, finish })
    }

    fn finish_reason(&self, token_id: u32, eos_token_ids: &[u32]) -> Option<FinishReason> {
        if self.params.stop_token_ids.contains(&token_id) {
            Some(FinishReason::StopToken(token_id))
        } else if !self.params.ignore_eos && eos_token_ids.contains(&token_id) {
            Some(FinishReason::EndOfSequence(token_id))
        } else if self.num_output_tokens >= self.output_limit {
            Some(FinishReason::Length)
        } else {
            None
        }
    }

    pub(crate) fn prompt_len(&self) -> usize {
        self.prompt_len
    }
}

/// A number in [0, 1) that depends on the seed and the token's place alone, so that neither the rest of
/// the batch nor a recomputation changes it. Source: SplitMix64, Steele et al., OOPSLA 2014.
fn uniform(seed: u64, index: u64) -> f64 {
    let mix = |z: u64| {
        let z = z.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    };
    (mix(mix(seed) ^ index) >> 11) as f64 / (1u64 << 53) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn draws_are_uniform_and_differ_by_seed_and_place() {
        let draws: Vec<f64> = (0..10_000).map(|i| uniform(i % 100, i / 100)).collect();
        let mean = draws.iter().sum::<f64>() / draws.len() as f64;
        assert!((mean - 0.5).abs() < 0.01, "{mean}");
        assert!(draws.iter().all(|draw| (0.0..1.0).contains(draw)));
        assert_ne!(uniform(1, 2), uniform(2, 1));
        assert_eq!(uniform(5, 6), uniform(5, 6));
    }
}
