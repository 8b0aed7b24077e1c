//! Operands of the operations: their types, shapes and checks, shared by operations and kernels.

mod attention;
#[cfg(any(feature = "cuda", test))]
mod decode_pieces;
mod experts;
mod fp8;
mod fp8_decode;
mod fusions;
mod latent;
mod linear_attention;
mod norm;
#[cfg(any(feature = "cuda", test))]
mod ordered_attention;
mod packed;
mod paged_cache;
mod prefill;
mod qkv;
mod sampling;
mod state;

pub use attention::{AttentionSpec, AttentionStep, LaunchShape, PlanCapacity};
pub(crate) use attention::{
    KERNEL as ATTENTION, check_cache, check_spec, check_step, check_window,
};
#[cfg(feature = "cuda")]
pub(crate) use decode_pieces::{Pieces, Workers};
pub(crate) use experts::check_rows;
pub use experts::{ExpertMatrices, Routing};
#[cfg(feature = "cuda")]
pub(crate) use experts::{ExpertTable, tile_rows};
pub(crate) use fp8::FP8_BLOCK;
#[cfg(feature = "cuda")]
pub(crate) use fp8::block_stride;
pub use fp8::{
    Fp8Matrix, Fp8Product, Fp8Rows, Fp8Weights, RowsOut, fp8_capability, fp8_fault, fp8_product,
};
#[cfg(feature = "cuda")]
pub(crate) use fp8_decode::fp8_decode_obstacle;
pub use fp8_decode::{DecodeKernelOfFp8, Fp8DecodeChoice, fp8_decode_kernel};
pub use fusions::Fusions;
pub use latent::LatentsToCache;
pub(crate) use latent::{HEAD_PRODUCT, HeadShape, LATENTS, LatentShape};
pub(crate) use linear_attention::{GATE_AXES, SIGMOID_GATE, gate_dims};
pub(crate) use norm::has_normed_rows;
pub use norm::{LayerNorm, NormWeight, NormedRows, RmsNorm};
#[cfg(feature = "cuda")]
pub(crate) use ordered_attention::{Division, Item, NARROW_ROWS, RESIDENT_BLOCKS, Work};
pub(crate) use packed::{E2M1_FACTOR, quant_index};
pub use packed::{HeadPadding, Matrix, PackedMatrix};
pub use paged_cache::{PagedCache, PagedLayer};
pub use prefill::{PrefillChoice, PrefillKernel, PromptLayers, prefill_kernel};
#[cfg(feature = "cuda")]
pub(crate) use prefill::{hopper_fits, hopper_obstacle, hopper_takes};
pub use qkv::{NO_SLOT, QkNorm, QkNormOperands, QkvToCache, ValueNorm};
pub(crate) use qkv::{QKV_AXES, QkvShape, SQUARE_SUMS, head_dim_of};
pub(crate) use sampling::{FROM_PROMPT, NONE};
pub use sampling::{
    MAX_LOGPROBS, REPORT_HEAD, SamplerRow, SamplingBatch, SamplingOutput, SamplingScratch,
    TokenCounts,
};
pub(crate) use state::{INPUTS_AXES, MATRICES_AXES};
pub use state::{RECURRENT_KEY_DIMS, StatePool, StateTables};
