//! Limits of FlashInfer's kernels, and the kernel for decodes that is expected to be the fastest.

use candle_core::DType;
use candlepower_kernels::{Error, KvCacheConfig, Result};
use candlepower_layout::DEVICE_LATENT_DIMS;

use super::ffi::{Functions, Kernel};
use super::plan::{DecodeKernel, KERNEL};
use crate::operands::{AttentionSpec, PlanCapacity, check_spec};

/// Heads that read one row, at most.
const MAX_LATENT_HEADS: usize = 128;
/// Shared memory in bytes of FlashInfer's kernel for FP8 latents, which converts them to 16 bits there.
const FP8_LATENT_BYTES: i32 = 184_832;

/// Chooses tensor cores for groups of four and more and for an FP8 cache, because arithmetic on CUDA cores would take
/// longer than the memory accesses. On an H200 with groups of four, they take 262 instead of 375 us for 256 sequences,
/// and 17.6 instead of 23.8 us for one sequence of 8,000 tokens. Heads above 256 elements stay on CUDA cores, because
/// their tensor core tiles have few queries. SGLang and vLLM choose likewise.
pub(super) fn decode_kernel(spec: &AttentionSpec, cache: &KvCacheConfig) -> DecodeKernel {
    let group = spec.heads / cache.num_kv_heads.max(1);
    let small = group < 4 && spec.cache_dtype != DType::F8E4M3;
    if small || cache.head_dim > 256 { DecodeKernel::CudaCores } else { DecodeKernel::TensorCores }
}

/// Refuses layers that FlashInfer's kernels do not support.
pub(super) fn check(spec: &AttentionSpec, cache: &KvCacheConfig) -> Result<()> {
    check_spec(spec, cache)?;
    if !matches!(spec.dtype, DType::BF16 | DType::F16) {
        let (kernel, operand, expected) = (KERNEL, "dtype", "bf16 or f16");
        return Err(Error::DType { kernel, operand, expected, found: spec.dtype });
    }
    if let Some(value) = cache.latent {
        if (value, cache.head_dim) != DEVICE_LATENT_DIMS {
            let expected = "512, and head_dim 576, on a GPU";
            return Err(Error::Parameter { parameter: "latent", value, expected });
        }
        return Ok(());
    }
    if Functions::of(Kernel::Prefill, cache.head_dim).is_none() {
        let (parameter, value) = ("head_dim", cache.head_dim);
        return Err(Error::Parameter {
            parameter,
            value,
            expected: "64, 128, 256 or 512 on a GPU",
        });
    }
    Ok(())
}

/// Refuses what FlashInfer's kernel for latents does not support on a device whose thread blocks have `block_bytes`
/// bytes of shared memory.
pub(super) fn check_latent(
    spec: &AttentionSpec,
    capacity: &PlanCapacity,
    block_bytes: i32,
) -> Result<()> {
    let error = |parameter, value, expected| Err(Error::Parameter { parameter, value, expected });
    if spec.heads > MAX_LATENT_HEADS {
        return error("heads", spec.heads, "at most 128 on a GPU where latents are kept");
    }
    if capacity.sink_tokens > 0 {
        return error("sink_tokens", capacity.sink_tokens, "0 on a GPU where latents are kept");
    }
    let fits = spec.dtype == DType::BF16 && block_bytes >= FP8_LATENT_BYTES;
    if spec.cache_dtype == DType::F8E4M3 && !fits {
        let (operand, found) = ("cache_dtype", spec.cache_dtype);
        let expected =
            "that of q: latents of FP8 need queries of bf16, and the shared memory of an H100";
        return Err(Error::DType { kernel: KERNEL, operand, expected, found });
    }
    Ok(())
}
