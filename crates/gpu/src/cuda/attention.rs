//! Causal attention over the paged cache on the GPU: FlashInfer's kernels and their planners, and a kernel in a fixed order.

mod ffi;
mod hopper;
mod ordered;
mod plan;
mod support;
mod tables;

pub use hopper::{hopper_capability, hopper_fault, hopper_trial, trial_difference};
pub use ordered::OrderedAttentionPlan;
pub use plan::{AttentionPlan, DecodeKernel};
