//! The operations: one function each, which launches a kernel or runs its reference implementation.

mod attention;
mod experts;
mod fp8;
mod graph;
mod latent;
mod linear_attention;
mod matmul;
mod packed;
mod paged_cache;
mod qkv;
mod reference;
mod rows;
mod sampling;
mod short_conv;
mod staging;
mod state;
mod uploads;

pub use attention::AttentionPlan;
pub use experts::{combine_experts, expert_product, route};
pub use fp8::round_activations;
pub use graph::Graph;
pub use latent::{head_product, latents_to_cache};
pub use linear_attention::{linear_attention, sigmoid_gate};
pub use matmul::{Factor, GatedProduct, Matmul};
pub use paged_cache::HostBlocks;
pub use qkv::{qkv_to_cache, square_sums};
pub use rows::{
    activation, activation_times, add, add_rms_norm, embedding, gated_activation, gather_rows,
    layer_norm, resolve_tokens, rms_norm, scale_and_cap,
};
pub use sampling::sample;
pub use short_conv::short_conv;
pub use staging::{Readback, Staging};
pub use state::copy_states;
#[cfg(feature = "cuda")]
pub(crate) use uploads::PIECE_BYTES;
pub use uploads::{Fill, PartialTensor, Uploads};

/// Launches a kernel for tensors on a GPU, and continues with the reference implementation otherwise.
#[cfg(feature = "cuda")]
macro_rules! launch_on_gpu {
    ($first:expr, $launch:expr) => {
        if $first.device().is_cuda() {
            return $launch;
        }
    };
}

/// Without the feature `cuda` no tensor is on a GPU.
#[cfg(not(feature = "cuda"))]
macro_rules! launch_on_gpu {
    ($first:expr, $launch:expr) => {};
}
use launch_on_gpu;
