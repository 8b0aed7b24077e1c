//! Every operation on the CPU: a readable reference and a fast path.
//!
//! Each kernel is one function over [`candle_core::Tensor`]. It checks dtype, shape, contiguity and device before it
//! touches memory, and works on plain slices inside. Activations are `f32`. Weights keep the checkpoint's dtype, or
//! its quantized weights, inside a packed [`Weight`]. Kernels run on the threads of [`WarmThreads::run`], and outside
//! of it on rayon's current pool.
//!
//! The crate `gpu` has the operations of a decoder on a GPU. It shares the checks in [`operands`].
//!
//! Two promises hold for all CPU kernels:
//! - a row's result does not depend on the other rows of the batch, nor on the number of threads;
//! - `*_reference` is the reference implementation of a kernel, written to be read, and the fast path is tested
//!   against it.

mod activation;
mod attention;
mod axial_rope;
mod cpu_features;
mod embedding;
mod error;
mod experts;
mod fp8;
mod gather;
mod heads;
mod kv_cache;
mod layer_norm;
mod linear;
mod linear_attention;
mod norm;
pub mod operands;
mod parallel;
mod patch_attention;
mod rope;
pub mod sampling;
mod short_conv;
mod sigmoid_gate;
mod simd;
mod state;
mod tensor;
mod threads;
mod weight;

pub use activation::{
    Activation, activation, activation_reference, activation_times, activation_times_reference,
    gated_activation, gated_activation_reference,
};
pub use attention::{
    AttentionMetadata, CacheView, DistanceBias, FullAttention, PagedAttention, full_attention,
    full_attention_reference, paged_attention, paged_attention_reference,
};
pub use axial_rope::{AxialRope, axial_rope, axial_rope_reference};
pub use cpu_features::{CpuFeatures, cpu_features};
pub use embedding::{VocabPart, embedding, embedding_part, embedding_reference};
pub use error::{Error, Result};
pub use experts::{
    ExpertGroups, Experts, Gating, GatingFunction, GroupScore, experts, experts_reference,
};
pub use fp8::{E4M3_MAX, Fp8Rounding, e4m3_bits, e4m3_rounded};
pub use gather::{gather_rows, gather_rows_reference};
pub use heads::linear_heads;
pub use kv_cache::{
    CacheOrder, KvCache, KvCacheConfig, KvLayer, KvScales, copy_blocks, reshape_and_cache,
    reshape_and_cache_reference,
};
pub use layer_norm::{add_layer_norm, layer_norm, layer_norm_reference};
pub use linear::{gated_linear, linear, linear_reference};
pub use linear_attention::{
    LinearAttention, LinearAttentionDims, SequenceState, UpdateRule, linear_attention,
    linear_attention_reference,
};
pub use norm::{
    add, add_rms_norm, add_rms_norm_reference, add_scaled, rms_norm, rms_norm_part,
    rms_norm_reference, square_sums,
};
pub use patch_attention::PatchAttention;
pub use rope::{RopeStyle, RopeTable, rope, rope_queries, rope_reference, scale_queries};
pub use short_conv::{ConvDims, ShortConv, short_conv, short_conv_reference};
pub use sigmoid_gate::{sigmoid_gate, sigmoid_gate_reference};
pub use state::{RecurrentState, StateConfig, StateDims, StateRows, copy_states};
pub use threads::WarmThreads;
pub use weight::{
    Blocks, Dtype, OffsetForm, Offsets, QuantFormat, QuantizedRows, ScaleForm, SparseRows,
    SubScaleForm, SubScales, Weight, WeightBuilder, WeightRows,
};
