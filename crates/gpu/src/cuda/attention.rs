//! Causal attention over the paged cache on the GPU: FlashInfer's kernels and their planners, a kernel for decodes over an FP8
//! cache, and a kernel in a fixed order.

mod ffi;
mod fp8_decode;
mod fp8_decode_trial;
mod hopper;
mod ordered;
mod plan;
mod support;
mod tables;

pub use fp8_decode_trial::{fp8_decode_fault, fp8_decode_trial};
pub use hopper::{hopper_capability, hopper_fault, hopper_trial, trial_difference};
pub use ordered::OrderedAttentionPlan;
pub use plan::{AttentionPlan, DecodeKernel};
