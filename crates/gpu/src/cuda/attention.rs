//! Causal attention over the paged cache on the GPU: FlashInfer's kernels and their planners.

mod ffi;
mod plan;
mod tables;

pub use plan::{AttentionPlan, DecodeKernel};
