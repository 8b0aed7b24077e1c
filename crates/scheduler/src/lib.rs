//! The choice of the tokens that run next, and of their KV blocks: pure and synchronous, without tensors, clock, IO
//! or randomness.
//!
//! There is no prefill phase and no decode phase. A sequence has `num_tokens` and `num_computed_tokens`, and each
//! [`Step`] computes some of the tokens in between for some sequences, within one token budget. Chunked prefill,
//! prefix-cache hits, preemption and running ahead of the sampler all follow from this arithmetic.
//!
//! ```
//! use candlepower_scheduler::{
//!     NewSequence, PrefixCacheScope, Sampled, Scheduler, SchedulerConfig, SchedulingPolicy,
//! };
//!
//! let mut scheduler = Scheduler::new(SchedulerConfig {
//!     block_size: 16,
//!     num_blocks: 64,
//!     max_num_seqs: 8,
//!     max_num_batched_tokens: 32,
//!     max_model_len: 256,
//!     enable_prefix_caching: true,
//!     prefix_cache_scope: PrefixCacheScope::Server,
//!     policy: SchedulingPolicy::Fcfs,
//!     max_pinned_blocks: 32,
//!     num_swap_blocks: 0,
//!     num_state_slots: 0,
//!     row_multiple: 1,
//!     max_graph_rows: 0,
//!     num_encoder_embeddings: 0,
//! })?;
//! let ids = scheduler.add(NewSequence::new(vec![1, 2, 3]))?;
//! let step = scheduler.schedule();
//! assert_eq!(step.rows[0].samples, ids);
//! scheduler.commit(&step, &[Sampled { seq: ids[0], token: 4 }])?;
//! assert_eq!(scheduler.tokens(ids[0]), [1, 2, 3, 4]);
//! scheduler.remove(ids[0]);
//! # Ok::<(), candlepower_scheduler::Error>(())
//! ```

mod admission;
mod batch;
mod block_manager;
mod callers;
mod check;
mod config;
mod encoder_cache;
mod encoding;
mod error;
mod fairness;
mod item;
mod lru;
mod pins;
mod prefix_cache;
mod prompt_items;
mod scheduler;
mod sequence;
mod state_slots;
mod step;
mod swap_space;
mod symbol;

pub use callers::{Caller, CallerId};
pub use config::{PrefixCacheScope, SchedulerConfig, SchedulingPolicy};
pub use error::Error;
pub use item::{Encode, EncoderSlot, Item, RopePositions};
pub use pins::PinId;
pub use scheduler::{Scheduler, SchedulerStats};
pub use sequence::NewSequence;
pub use step::{
    BlockCopy, BlockId, LogitsFor, Sampled, SeqId, StateCopy, StateSlot, Step, StepRow, Swap,
    SwapSlot, TokenSource,
};
