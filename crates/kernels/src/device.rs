//! The operations of a decoder whose tensors stay on a device: each writes into the caller's tensors.
//!
//! On a GPU they launch the kernels of the module `cuda`. On the CPU they run the kernels' definitions, element by
//! element and slowly, with the same checks of dtypes, shapes and alignment: what is built of them, the order of
//! operations, the buffers and the tables, is tested on any machine before it runs on a GPU.
//!
//! An operand named `out` is written although it is borrowed shared, as with any candle tensor: clones see the change.

mod attention;
mod experts;
mod graph;
mod latent;
mod matmul;
mod packed;
mod paged_cache;
mod qkv;
mod recurrence;
mod reference;
mod rows;
mod sampling;
mod short_conv;
mod staging;
mod state;
#[cfg(test)]
mod tests;

pub use attention::{AttentionPlan, AttentionSpec, AttentionStep, LaunchShape, PlanCapacity};
#[cfg(feature = "cuda")]
pub(crate) use attention::{check_cache, check_spec, check_step, check_window};
pub use experts::{ExpertMatrices, Routing, combine_experts, expert_product, route};
#[cfg(feature = "cuda")]
pub(crate) use experts::{check_rows, tile_rows};
pub use graph::Graph;
#[cfg(feature = "cuda")]
pub(crate) use latent::{HEAD_PRODUCT, HeadShape, LATENTS, LatentShape};
pub use latent::{LatentsToCache, head_product, latents_to_cache};
pub use matmul::Matmul;
#[cfg(test)]
pub(crate) use packed::code_place;
pub use packed::{HeadPadding, Matrix, PackedMatrix};
pub use paged_cache::{HostBlocks, PagedCache, PagedLayer};
pub use qkv::{NO_SLOT, QkNorm, QkNormSpan, QkvToCache, ValueNorm, qkv_to_cache, square_sums};
#[cfg(feature = "cuda")]
pub(crate) use qkv::{QKV_AXES, QkvShape, SQUARE_SUMS, head_dim_of};
#[cfg(feature = "cuda")]
pub(crate) use recurrence::{GATE_AXES, SIGMOID_GATE, gate_dims};
pub use recurrence::{recurrence, sigmoid_gate};
pub use rows::{
    LayerNorm, NormWeight, RmsNorm, activation, activation_times, add, add_rms_norm, embedding,
    gated_activation, gather_rows, layer_norm, resolve_tokens, rms_norm, scale_and_cap,
};
pub use sampling::{
    MOST_LOGPROBS, SamplerRow, SamplingBatch, SamplingOutput, SamplingScratch, TokenCounts, sample,
};
pub use short_conv::short_conv;
pub use staging::{Readback, Staging};
#[cfg(feature = "cuda")]
pub(crate) use state::{INPUTS_AXES, MATRICES_AXES};
pub use state::{RECURRENT_KEY_DIMS, StatePool, StateTables, copy_states};

/// Launches on a GPU, and goes on to the definition elsewhere.
#[cfg(feature = "cuda")]
macro_rules! launch_on_gpu {
    ($first:expr, $launch:expr) => {
        if $first.device().is_cuda() {
            return $launch;
        }
    };
}

/// Without CUDA nothing lies on a GPU.
#[cfg(not(feature = "cuda"))]
macro_rules! launch_on_gpu {
    ($first:expr, $launch:expr) => {};
}
use launch_on_gpu;
