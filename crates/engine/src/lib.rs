//! Runs a model step by step for many concurrent sequences: the engine thread, the runners of steps, the sampling inputs.
//!
//! [`EngineHandle::start`] loads a checkpoint and starts the engine thread. [`EngineHandle::submit`]
//! hands a [`Request`] over to it and returns a [`TokenStream`] per choice. The thread's loop is:
//! schedule a [`Step`](candlepower_scheduler::Step), launch it on the ranks, wait for its output,
//! commit it to the scheduler, send each sampled token straight to its sequence's stream.
//! Dropping a stream cancels its sequence: there is no other abort message. [`EngineHandle::pin`] keeps a computed
//! prefix in the cache for as long as its [`Pin`] lives and no sequence needs the memory.
//!
//! Models that give vectors have an engine of their own, [`Embedder`]: it has no cache and no sequences.
//!
//! The files of a step, from below: `step_io`, `orders`, `cpu_runner` and `device_runner`, `runner`, `rank_model`, `follower`,
//! `followers`, `ranks`, `start`.

mod config;
mod constraint;
mod cores;
mod cpu_runner;
mod device;
mod device_counts;
mod device_graphs;
mod device_runner;
mod device_tables;
mod embedder;
mod engine;
mod error;
mod follower;
mod followers;
mod gate;
mod handle;
mod idle;
mod image_slots;
mod metrics;
mod orders;
mod pin;
mod pooled;
mod queue;
mod rank_model;
mod rank_process;
mod ranks;
mod request;
mod rope_positions;
mod runner;
mod running;
mod sequence;
mod start;
mod step_io;
mod warm_up;

pub use candle_core::Device;
pub use candlepower_models::{EncoderInput, LoadDtype, LoadFormat, LoadOptions};
pub use candlepower_scheduler::{Caller, CallerId, PrefixCacheScope, SchedulingPolicy};
pub use config::{EmbedderConfig, EmbedderInfo, EngineConfig, EngineInfo, StartProgress};
pub use constraint::MASK_PATIENCE;
pub use device::{ChosenDevice, DeviceChoice, check_gpus, choose_device, free_bytes};
pub use embedder::{Embedder, Vectors};
pub use error::{Error, NoGpu, Result, SubmitError};
pub use followers::RankKind;
pub use gate::EngineHealth;
pub use handle::EngineHandle;
pub use idle::return_memory_when_idle;
pub use metrics::EngineMetrics;
pub use pin::Pin;
pub use pooled::PoolingSource;
pub use rank_process::{RANK_COMMAND, run_rank};
pub use request::{
    FinishReason, PromptImage, Request, SamplingParams, TokenEvent, TokenLogprobs, TokenStream,
};
pub use running::wait_for_engines;
