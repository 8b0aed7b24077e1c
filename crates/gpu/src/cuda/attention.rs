//! Causal attention over the paged cache on the GPU: FlashInfer's kernels and their planners, and a kernel in a fixed order.

mod ffi;
mod ordered;
mod plan;
mod tables;

pub use ordered::OrderedAttentionPlan;
pub use plan::{AttentionPlan, DecodeKernel};
