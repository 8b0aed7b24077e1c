//! Settings of engines, their progress while they start, and the values that they have found.

use std::{sync::Arc, time::Duration};

use candlepower_checkpoint::{ImageMemory, KvDtype, Pooling, VisionSpec};
use candlepower_models::{LoadDtype, LoadFormat, LoadOptions, LoadProgress};
use candlepower_scheduler::{PrefixCacheScope, SchedulingPolicy};

use crate::{EngineMetrics, followers::RankKind};

/// Settings of an engine. Sizes are checked by [`EngineHandle::start`](crate::EngineHandle::start).
#[derive(Clone, Debug)]
pub struct EngineConfig {
    /// Device, weights' type and source, and `max_model_len`: the longest sequence, prompt and
    /// output together.
    pub load: LoadOptions,
    /// Bytes for the paged KV cache of each rank; `None` takes a quarter of the free memory on the CPU, what
    /// `gpu_memory_utilization` leaves on a GPU, and no more than `max_num_seqs` sequences of `max_model_len` need.
    pub kv_cache_bytes: Option<u64>,
    /// The dtype of the KV cache; `None` takes that of
    /// [`Checkpoint::kv_dtype`](candlepower_checkpoint::Checkpoint::kv_dtype).
    pub kv_cache_dtype: Option<KvDtype>,
    /// Bytes of host memory for the blocks of preempted sequences. Without it these sequences are recomputed. It has no effect
    /// on the CPU, whose cache lies in host memory itself.
    pub swap_bytes: u64,
    /// The part of a GPU's free memory that may be taken, above 0 and at most 1.
    pub gpu_memory_utilization: f64,
    /// Launch every operation of a GPU on its own, without CUDA graphs.
    pub enforce_eager: bool,
    /// Compute each token on a GPU independently of the other tokens of its step, to the bit. The CPU does so in any case.
    pub deterministic: bool,
    /// Compute on the CPU like a GPU, by the reference implementations of its kernels. It is very slow, and meant for tests.
    pub device_reference: bool,
    /// Positions in one KV block.
    pub block_size: usize,
    /// Most concurrent sequences. Recurrent states may leave room for fewer: [`EngineInfo::max_num_seqs`].
    pub max_num_seqs: usize,
    /// Most tokens in one step; `None` takes the default of the device: [`EngineInfo::max_num_batched_tokens`].
    pub max_num_batched_tokens: Option<usize>,
    /// Sequences of one caller that may wait beyond `max_num_seqs`; more are refused with [`SubmitError::QueueFull`](crate::SubmitError::QueueFull). All
    /// callers together have at most twice the queue slots of one.
    pub max_queued_seqs: usize,
    /// Whether computed blocks are kept for later requests with the same prefix.
    pub enable_prefix_caching: bool,
    /// Among whom whole blocks of these are shared.
    pub prefix_cache_scope: PrefixCacheScope,
    /// Which waiting request runs next.
    pub scheduling_policy: SchedulingPolicy,
    /// Whether a token is appended without being sampled where a grammar allows no other. Changes no output.
    pub jump_forward: bool,
    /// How long a step waits for the masks of constrained sequences. It runs without those that take longer. Changes no output.
    pub mask_patience: Duration,
    /// Memory for images. Its bound on waiting images is counted, and held by an [`ImageBudget`](candlepower_media::ImageBudget).
    pub images: ImageMemory,
    /// Most bytes of the KV cache that pins hold; `None` is half of it.
    pub max_pinned_bytes: Option<u64>,
    /// Threads that compute; `None` takes one per physical core that the process may use. Ranks share them, with at least one each.
    pub num_threads: Option<usize>,
    /// Ranks over which each layer is split: on GPUs each has one.
    pub tensor_parallel_size: usize,
    /// The kind of the ranks beside rank 0.
    pub rank_kind: RankKind,
    /// Seed for requests that have no seed of their own.
    pub seed: u64,
    /// A step that takes longer than this makes [`EngineHandle::health`](crate::EngineHandle::health) report `Stuck`; a rank that does not answer another
    /// for so long ends the engine.
    pub stuck_after: Duration,
    /// Where the engine counts what it does.
    pub metrics: EngineMetrics,
}

/// Progress of [`EngineHandle::start`](crate::EngineHandle::start).
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

/// Values found and chosen at start, which stay as they are.
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
    /// Recurrent states, with the state snapshots for later requests; 0 where all layers are attention.
    pub num_states: usize,
    /// KV blocks.
    pub num_blocks: usize,
    /// Positions in a block.
    pub block_size: usize,
    /// Bytes of the KV cache, on all ranks.
    pub kv_cache_bytes: u64,
    /// Bytes of the recurrent states, on all ranks.
    pub state_bytes: u64,
    /// The dtype of the KV cache, such as `bfloat16`.
    pub kv_cache_dtype: &'static str,
    /// Bytes of the weights as they lie in memory, on all ranks.
    pub weights_bytes: u64,
    /// The dtype of most weights, such as `bf16`, or their quantization method, such as `awq`.
    pub weights_dtype: String,
    /// Bytes of the embedding tables, of which each token reads one row.
    pub looked_up_bytes: u64,
    /// Where it runs: `cpu` or `cuda`.
    pub device: String,
    /// Most alternatives that log-probabilities can have; `None`: any number.
    pub max_logprobs: Option<usize>,
    /// Threads that compute.
    pub num_threads: usize,
    /// The part for images, where the engine takes them.
    pub vision: Option<Arc<VisionSpec>>,
    /// Embeddings that the cache of the encoder holds, which is the most that one image may have.
    pub max_image_embeddings: usize,
}

/// Settings of the engine of a model that gives vectors or scores.
#[derive(Clone, Debug)]
pub struct EmbedderConfig {
    /// Longest input, in tokens; the checkpoint's own where `None`.
    pub max_model_len: Option<usize>,
    /// The pooling that makes one vector of hidden states; the checkpoint's own where `None`.
    pub pooling: Option<Pooling>,
    /// The dtype of a decoder's matrices; an encoder's are in f32.
    pub dtype: LoadDtype,
    /// The source of a decoder's weights; an encoder's come from its files.
    pub load_format: LoadFormat,
    /// Most tokens in one batch, padding included; one text may have more.
    pub max_num_batched_tokens: usize,
    /// Requests of one caller that may be computed or wait. All callers together may have twice as many.
    pub max_in_flight: usize,
    /// Threads that compute; `None` takes one per physical core that the process may use.
    pub num_threads: Option<usize>,
    /// A round that takes longer than this makes [`Embedder::health`](crate::Embedder::health) report `Stuck`.
    pub stuck_after: Duration,
    /// Where the engine counts what it does.
    pub metrics: EngineMetrics,
}

/// Values found and chosen at start, which stay as they are.
#[derive(Clone, Debug)]
pub struct EmbedderInfo {
    /// Architecture name, as in `config.json`.
    pub architecture: String,
    /// Longest input, in tokens.
    pub max_model_len: usize,
    /// Size of the vocabulary; every token id is below it.
    pub vocab_size: usize,
    /// Elements of a vector; `None` where the model gives scores of pairs.
    pub dimensions: Option<usize>,
    /// The pooling that makes one vector of hidden states.
    pub pooling: Pooling,
    /// Whether vectors are normalized to length one.
    pub normalizes: bool,
    /// Bytes of the weights as they lie in memory.
    pub weights_bytes: u64,
    /// The dtype that most matrices are kept in: `f32`, `f16` or `bf16`.
    pub weights_dtype: &'static str,
    /// Threads that compute.
    pub num_threads: usize,
}

impl From<LoadProgress> for StartProgress {
    fn from(LoadProgress { bytes_done, bytes_total }: LoadProgress) -> Self {
        Self::Loading { bytes_done, bytes_total }
    }
}
