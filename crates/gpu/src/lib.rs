//! Operations of a decoder on a device. Each operation writes into tensors of the caller.
//!
//! On a GPU an operation launches a kernel of the module `cuda`, which exists with the feature `cuda`. On the CPU it
//! runs the kernel's reference implementation, element by element and slowly, with the same checks of dtypes, shapes
//! and alignment. A model's order of operations, its buffers and its tables can therefore be tested on any machine.
//!
//! An operand named `out` is written although it is a shared reference. Clones of the tensor see the change.
//!
//! The module `operands` has the types and checks that operations and kernels share; it depends on neither. The module
//! `ops` has one function per operation.

#[cfg(feature = "cuda")]
pub mod cuda;
#[cfg(test)]
mod cuda_arithmetic;
mod operands;
mod ops;
#[cfg(test)]
mod tests;

pub use candlepower_kernels::{Error, Result};
pub use operands::{
    AttentionSpec, AttentionStep, DecodeKernelOfFp8, ExpertMatrices, Fp8DecodeChoice, Fp8Matrix,
    Fp8Product, Fp8Rows, Fp8Weights, Fusions, HeadPadding, LatentsToCache, LaunchShape, LayerNorm,
    MAX_LOGPROBS, Matrix, NO_SLOT, NormWeight, NormedRows, PackedMatrix, PagedCache, PagedLayer,
    PlanCapacity, PrefillChoice, PrefillKernel, PromptLayers, QkNorm, QkNormOperands, QkvToCache,
    RECURRENT_KEY_DIMS, REPORT_HEAD, RmsNorm, Routing, RowsOut, SamplerRow, SamplingBatch,
    SamplingOutput, SamplingScratch, StatePool, StateTables, TokenCounts, ValueNorm,
    fp8_capability, fp8_decode_kernel, fp8_fault, fp8_product, prefill_kernel,
};
pub use ops::{
    AttentionPlan, Factor, Fill, GatedProduct, Graph, HostBlocks, Matmul, PartialTensor, Readback,
    Staging, Uploads, activation, activation_times, add, add_rms_norm, combine_experts,
    copy_states, embedding, expert_product, gated_activation, gather_rows, head_product,
    latents_to_cache, layer_norm, linear_attention, qkv_to_cache, resolve_tokens, rms_norm,
    round_activations, route, sample, scale_and_cap, short_conv, sigmoid_gate, square_sums,
};
