//! The engine as the rest of the program sees it: start it, submit requests, ask how it is.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
        mpsc,
    },
    time::{Duration, Instant},
};

use candlepower_checkpoint::{Checkpoint, KvDtype};
use candlepower_models::LoadOptions;
use candlepower_scheduler::{CallerId, PrefixCacheScope, SchedulingPolicy};

use crate::{
    EngineMetrics, Pin, RankKind, Request, Result, TokenStream,
    engine::{Message, StepClock, Submission},
    pin::PinIds,
    queue::{Places, TakenPlace},
    rank_process::Death,
    sequence::StreamSender,
    start::start,
};

/// What the engine is started with. Sizes are checked by [`EngineHandle::start`].
#[derive(Clone, Debug)]
pub struct EngineConfig {
    /// Device, weights' type and source, and `max_model_len`: the longest sequence, prompt and
    /// output together.
    pub load: LoadOptions,
    /// Bytes for the paged KV cache of each rank; `None` takes a quarter of the free memory on the CPU, what
    /// `gpu_memory_utilization` leaves on a GPU, and no more than `max_num_seqs` sequences of `max_model_len` need.
    pub kv_cache_bytes: Option<u64>,
    /// In which keys and values are kept; `None` takes what
    /// [`Checkpoint::kv_dtype`](candlepower_checkpoint::Checkpoint::kv_dtype) says.
    pub kv_cache_dtype: Option<KvDtype>,
    /// Bytes of the host's memory for the blocks of preempted sequences, which are recomputed without; not on the CPU,
    /// whose cache lies in that memory itself.
    pub swap_bytes: u64,
    /// The part of a GPU's free memory that may be taken, above 0 and at most 1.
    pub gpu_memory_utilization: f64,
    /// Launch every operation of a GPU on its own, without CUDA graphs.
    pub enforce_eager: bool,
    /// Compute on the CPU what a GPU would, by the definitions of its kernels: very slow, for tests of what surrounds
    /// them.
    pub device_reference: bool,
    /// Positions in one KV block.
    pub block_size: usize,
    /// Most sequences at once, if what each keeps beside keys and values leaves room for so many: [`EngineInfo::max_num_seqs`].
    pub max_num_seqs: usize,
    /// Most tokens in one step; `None` takes the default of the device: [`EngineInfo::max_num_batched_tokens`].
    pub max_num_batched_tokens: Option<usize>,
    /// Sequences of one caller that may wait beyond `max_num_seqs`; more are refused with [`SubmitError::QueueFull`]. All
    /// callers together have at most twice the places of one.
    pub max_queued_seqs: usize,
    /// Whether computed blocks are kept for later requests with the same prefix.
    pub enable_prefix_caching: bool,
    /// Among whom whole blocks of these are shared.
    pub prefix_cache_scope: PrefixCacheScope,
    /// Which waiting request runs next.
    pub scheduling_policy: SchedulingPolicy,
    /// Whether tokens that a grammar leaves no choice about are appended without being drawn. Changes no output.
    pub jump_forward: bool,
    /// Most bytes of the KV cache that pins hold; `None` is half of it.
    pub max_pinned_bytes: Option<u64>,
    /// Threads that compute; `None` takes one per physical core that the process may use. Ranks share them, with at least one each.
    pub num_threads: Option<usize>,
    /// Ranks over which each layer is split: on GPUs each has one.
    pub tensor_parallel_size: usize,
    /// What they are, but for the first.
    pub rank_kind: RankKind,
    /// Seeds the draws of requests that bring no seed of their own.
    pub seed: u64,
    /// A step that takes longer than this makes [`EngineHandle::health`] report `Stuck`; a rank that does not answer another
    /// for so long ends the engine.
    pub stuck_after: Duration,
    /// Where the engine counts what it does.
    pub metrics: EngineMetrics,
}

/// How far [`EngineHandle::start`] has come.
#[derive(Clone, Copy, Debug)]
pub enum StartProgress {
    /// Weights are being read.
    Loading {
        /// Bytes read so far.
        bytes_done: u64,
        /// Bytes in all.
        bytes_total: u64,
    },
    /// The first forward runs.
    WarmingUp,
    /// Decodes are recorded as CUDA graphs.
    CapturingGraphs {
        /// Graphs recorded so far.
        done: usize,
        /// Graphs in all.
        total: usize,
    },
}

/// What was found and chosen at start; fixed afterwards.
#[derive(Clone, Debug)]
pub struct EngineInfo {
    /// Architecture name, as in `config.json`.
    pub architecture: String,
    /// Longest sequence, prompt and output together.
    pub max_model_len: usize,
    /// Size of the model's output; every token id is below it.
    pub vocab_size: usize,
    /// Tokens that end a sequence.
    pub eos_token_ids: Vec<u32>,
    /// Most tokens in one step.
    pub max_num_batched_tokens: usize,
    /// Most concurrent sequences.
    pub max_num_seqs: usize,
    /// States of sequences, those included that are kept for later requests; 0 where layers keep keys and values alone.
    pub num_states: usize,
    /// KV blocks.
    pub num_blocks: usize,
    /// Positions in a block.
    pub block_size: usize,
    /// Bytes of the KV cache, on all ranks.
    pub kv_cache_bytes: u64,
    /// Bytes of these states, on all ranks.
    pub state_bytes: u64,
    /// In which keys and values are kept, such as `bfloat16`.
    pub kv_cache_dtype: &'static str,
    /// Bytes of the weights as they lie in memory, on all ranks.
    pub weights_bytes: u64,
    /// How most weights are kept: their type, such as `bf16`, or the method of their quantization, such as `awq`.
    pub weights_dtype: String,
    /// Bytes of the tables of which each token needs a row alone.
    pub looked_up_bytes: u64,
    /// Where it runs: `cpu` or `cuda`.
    pub device: String,
    /// Most alternatives that log-probabilities can have; `None`: any number.
    pub max_logprobs: Option<usize>,
    /// Threads that compute.
    pub num_threads: usize,
}

/// Why a request was not taken.
#[derive(Debug, thiserror::Error)]
pub enum SubmitError {
    /// As many sequences wait as may wait.
    #[error(
        "the queue is full: {in_flight} of your sequences are running or waiting, at most {limit} may be; try again later"
    )]
    QueueFull {
        /// Sequences of the caller that run or wait.
        in_flight: usize,
        /// `max_num_seqs + max_queued_seqs`, or less where other callers leave less.
        limit: usize,
    },
    /// The request cannot run on this engine whatever the load.
    #[error("{0}")]
    Invalid(String),
    /// The engine has ended.
    #[error("the engine is not running: {0}")]
    Dead(String),
}

/// How the engine is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EngineHealth {
    /// It runs.
    Healthy,
    /// A step has been running for too long.
    Stuck {
        /// For so many seconds.
        seconds: u64,
    },
    /// The engine thread has ended, with the reason in words.
    Dead(String),
}

/// A running engine. Cheap to clone; the engine ends when the last handle is dropped and its
/// sequences are done.
#[derive(Clone, Debug)]
pub struct EngineHandle {
    shared: Arc<Shared>,
    messages: mpsc::Sender<Message>,
    pin_ids: PinIds,
}

/// What the handles and the engine thread both see.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) info: EngineInfo,
    pub(crate) clock: StepClock,
    pub(crate) stuck_after: Duration,
    pub(crate) places: Arc<Places>,
    /// Gives requests without a seed one of their own.
    pub(crate) next_seed: AtomicU64,
    /// Why the engine thread, or another rank, has ended.
    pub(crate) death: Death,
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

    /// What was found and chosen at start.
    pub fn info(&self) -> &EngineInfo {
        &self.shared.info
    }

    /// Hands a request to the engine; one stream per choice comes back.
    ///
    /// # Errors
    /// If the queue is full, the request cannot run on this engine, or the engine has ended.
    pub fn submit(&self, request: Request) -> Result<Vec<TokenStream>, SubmitError> {
        self.check(&request)?;
        let places = self.shared.places.take(request.caller.id, request.n)?;
        self.enter(request, places)
    }

    /// Gives up a sequence for a request of one choice that continues it. The request takes over its place in the queue.
    ///
    /// # Errors
    /// If the request cannot run on this engine, or the engine has ended.
    pub fn go_on(
        &self,
        given_up: TokenStream,
        request: Request,
    ) -> Result<Vec<TokenStream>, SubmitError> {
        self.check(&request)?;
        let place = self.shared.places.take_over(request.caller.id, given_up.place());
        drop(given_up);
        self.enter(request, vec![place])
    }

    fn enter(
        &self,
        request: Request,
        places: Vec<Arc<TakenPlace>>,
    ) -> Result<Vec<TokenStream>, SubmitError> {
        let seed = request
            .sampling
            .seed
            .unwrap_or_else(|| self.shared.next_seed.fetch_add(SEED_STRIDE, Ordering::Relaxed));
        let (streams, readers) = places
            .into_iter()
            .map(|place| {
                let (events, reader) = TokenStream::channel(Arc::downgrade(&place));
                (StreamSender::new(events, place), reader)
            })
            .unzip();
        let submission = Submission { request, streams, seed, submitted_at: Instant::now() };
        match self.messages.send(Message::Submit(Box::new(submission))) {
            Ok(()) => Ok(readers),
            Err(_) => Err(SubmitError::Dead(self.death())),
        }
    }

    /// Keeps in the cache what was computed of these tokens for a caller, for as long as the pin lives. It yields to running and
    /// waiting sequences, and to newer pins where all of them would hold more than `max_pinned_bytes`.
    pub fn pin(&self, token_ids: Vec<u32>, caller: CallerId, cache_salt: Option<Arc<str>>) -> Pin {
        let (pin, message) = self.pin_ids.pin(token_ids, caller, cache_salt, self.messages.clone());
        // An engine that has ended keeps nothing; whoever asks it next learns why.
        let _ = self.messages.send(message);
        pin
    }

    /// How the engine is.
    pub fn health(&self) -> EngineHealth {
        if let Some(reason) = self.shared.death.get() {
            return EngineHealth::Dead(reason.clone());
        }
        match self.shared.clock.step_seconds() {
            Some(time) if time > self.shared.stuck_after => {
                EngineHealth::Stuck { seconds: time.as_secs() }
            }
            _ => EngineHealth::Healthy,
        }
    }

    /// Most sequences of one caller that may run or wait.
    pub fn in_flight_limit(&self) -> usize {
        self.shared.places.limit()
    }

    /// Sequences running or waiting.
    pub fn num_in_flight(&self) -> usize {
        self.shared.places.num_taken()
    }

    /// Whether the queue has places for `n` sequences of a caller.
    ///
    /// # Errors
    /// [`SubmitError::QueueFull`] if not.
    pub fn check_places(&self, caller: CallerId, n: usize) -> Result<(), SubmitError> {
        self.shared.places.check(caller, n)
    }

    fn death(&self) -> String {
        self.shared.death.get().cloned().unwrap_or_else(|| "it is stopping".into())
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
}

/// Distance between the seeds of two requests, so that their choices (seed + i) do not meet.
const SEED_STRIDE: u64 = 1 << 20;
