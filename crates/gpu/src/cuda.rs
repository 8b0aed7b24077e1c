//! The kernels for NVIDIA GPUs, with one checked wrapper each.
//!
//! Activations and weights are bf16 or f16, row-major and contiguous; sums are f32. Every kernel runs on candle's own
//! stream of the device. It allocates nothing, waits for nothing, and writes into a tensor of the caller, so a step can
//! be captured as a CUDA graph. Values that change from step to step are in device tensors. The host cannot check those
//! values, so each kernel's documentation says how it handles invalid ones.
//!
//! An operand named `out` is written although it is a shared reference. Clones of the tensor see the change. Use one
//! stream per device (`Device::new_cuda_with_stream`).

mod activation;
mod attention;
mod cublas_lt;
mod elements;
mod experts;
mod fp8;
mod fp8_trial;
mod gather;
mod gemv;
mod graph;
mod latent;
mod launch;
mod linear_attention;
mod matmul;
mod nccl;
mod norm;
mod normed_gemv;
mod open;
mod packed;
mod paged_cache;
mod prefetch;
mod qkv;
mod rows_product;
mod sampling;
mod short_conv;
mod staging;
mod uploads;

pub use activation::{activation, activation_times, gated_activation};
pub use attention::{
    AttentionPlan, DecodeKernel, OrderedAttentionPlan, fp8_decode_fault, fp8_decode_trial,
    hopper_capability, hopper_fault, hopper_trial, trial_difference,
};
pub use cublas_lt::has_fp8_matmul;
pub use elements::{add, resolve_tokens, scale_and_cap, sigmoid_gate};
pub(crate) use experts::expert_table;
pub use experts::{combine_experts, expert_product, route};
pub use fp8::{fp8_product, quantize_activations, round_activations};
pub use fp8_trial::fp8_fault;
pub use gather::{embedding, gather_rows};
pub use gemv::{FEW_ROWS, GEMV_MAX_ROWS, GemvBlocks, GemvForm, gemv, gemv_as};
pub(crate) use graph::Graph;
pub use latent::{head_product, latents_to_cache};
pub use linear_attention::{copy_states, linear_attention};
pub use matmul::Cublas;
pub use nccl::{Nccl, NcclId};
pub use norm::{add_rms_norm, layer_norm, rms_norm};
pub use normed_gemv::normed_gemv;
pub use open::{PoolUse, compiled_for, memory, open, pool_use, watch_pool};
pub use packed::{packed_embedding, packed_max_rows};
pub(crate) use paged_cache::{PinnedBlocks, copy_blocks};
pub use qkv::{qkv_to_cache, square_sums};
pub use rows_product::MAX_PRODUCT_ROWS;
pub(crate) use sampling::count_tokens;
pub use sampling::sample;
pub use short_conv::short_conv;
pub(crate) use staging::{PinnedReadback, PinnedUploads};
pub(crate) use uploads::PinnedPieces;
