//! A trial of our kernel for decodes over an FP8 cache against FlashInfer's, before a model relies on it.

use std::sync::OnceLock;

use candle_core::{DType, Device, Tensor};
use candlepower_kernels::{AttentionMetadata, KvCacheConfig, KvScales, PagedAttention, Result};
use float8::F8E4M3;

use super::hopper::{trial_difference, value};
use crate::operands::{
    AttentionSpec, AttentionStep, DecodeKernelOfFp8, LaunchShape, PagedCache, PagedLayer,
    PlanCapacity,
};
use crate::ops::AttentionPlan;

/// Head widths of the kernel.
const HEAD_DIMS: [usize; 3] = [64, 128, 256];
/// Query heads of a KV head: up to 8 of them are a row each of one product, and more take two.
const GROUPS: [usize; 2] = [7, 12];
const DTYPES: [DType; 2] = [DType::BF16, DType::F16];

/// Positions of the sequences in the cache. Most of them end within a block.
const CONTEXTS: [usize; 4] = [300, 1, 517, 39];
const KV_HEADS: usize = 2;
const BLOCK_SIZE: usize = 16;
/// A prime, so that multiples of another number are a permutation of the blocks.
const NUM_BLOCKS: usize = 61;
const BLOCK_STEP: usize = 23;

/// Largest difference of a row, as a part of its largest element. Both kernels round softmax weights and outputs to 16 bits.
const TOLERANCE: f32 = 0.02;

/// The fault of `fp8_decode.cu` on `device` for such layers; `None` if it is right. It cannot be launched, or its result differs
/// from that of FlashInfer's kernel. Each kind of heads is tried once in a process.
///
/// An invalid access in the kernel would also end the later work of the process, and a kernel without an end would stop it.
pub fn fp8_decode_fault(
    device: &Device,
    spec: &AttentionSpec,
    cache: &KvCacheConfig,
) -> Option<String> {
    type Fault = OnceLock<Option<String>>;
    static FAULTS: [[[Fault; GROUPS.len()]; DTYPES.len()]; HEAD_DIMS.len()] =
        [const { [const { [const { OnceLock::new() }; GROUPS.len()] }; DTYPES.len()] };
            HEAD_DIMS.len()];
    let Some(width) = HEAD_DIMS.iter().position(|known| *known == cache.head_dim) else {
        return Some(format!("it has no heads of {} elements", cache.head_dim));
    };
    let Some(dtype) = DTYPES.iter().position(|known| *known == spec.dtype) else {
        return Some(format!("it has no queries of {:?}", spec.dtype));
    };
    let tiles = usize::from(spec.heads / cache.num_kv_heads > 8);
    let fault = FAULTS[width][dtype][tiles].get_or_init(|| {
        let heads = (GROUPS[tiles], cache.head_dim);
        let result = |kernel| fp8_decode_trial(device, heads, spec.dtype, kernel);
        let difference = result(DecodeKernelOfFp8::Own).and_then(|found| {
            let expected = result(DecodeKernelOfFp8::FlashInfer)?;
            Ok(trial_difference(&found, &expected, cache.head_dim))
        });
        match difference {
            Ok(difference) if difference <= TOLERANCE => None,
            Ok(difference) => Some(format!("a trial of it differs by {difference:.3}")),
            Err(error) => Some(format!("a trial of it failed: {error}")),
        }
    });
    fault.clone()
}

/// The outputs of a trial on `device`, `[tokens, heads, head_dim]`: decodes of four sequences whose blocks are scattered, with
/// scales of keys and values. The heads are `group` for each KV head, of `head_dim` elements. On the CPU, the reference
/// implementation computes them.
///
/// # Errors
/// The kernel does not support these heads, or CUDA or FlashInfer refused.
pub fn fp8_decode_trial(
    device: &Device,
    (group, head_dim): (usize, usize),
    dtype: DType,
    kernel: DecodeKernelOfFp8,
) -> Result<Vec<f32>> {
    let cache = KvCacheConfig {
        num_layers: 1,
        num_blocks: NUM_BLOCKS,
        block_size: BLOCK_SIZE,
        num_kv_heads: KV_HEADS,
        head_dim,
        latent: None,
    };
    let heads = group * KV_HEADS;
    let spec = AttentionSpec { heads, window: None, dtype, cache_dtype: DType::F8E4M3 };
    let capacity = PlanCapacity {
        max_seqs: CONTEXTS.len(),
        max_pages: NUM_BLOCKS,
        partials_bytes: 32 << 20,
        sink_tokens: 0,
    };
    let mut plan = AttentionPlan::new(device, spec, &cache, capacity)?;
    if kernel == DecodeKernelOfFp8::Own {
        plan = plan.with_fp8_decode()?;
    }
    let meta = metadata();
    let tokens = CONTEXTS.len();
    plan.prepare(&AttentionStep { meta: &meta, tokens, launch: LaunchShape::Fitted })?;
    let of = |seed: u32, dims: &[usize]| -> Vec<f32> {
        let count = dims.iter().product::<usize>() as u32;
        (0..count).map(|at| value(at.wrapping_add(seed << 24))).collect()
    };
    let cache_dims = PagedCache::dims(&cache);
    let cached = |seed: u32| -> Result<Tensor> {
        // The second KV head has values below the normal range of e4m3. A GPU that took them for zero would show here.
        let factor = |at: usize| match at / (BLOCK_SIZE * head_dim) % KV_HEADS {
            0 => 4.0,
            _ => 1.0 / 64.0,
        };
        let codes: Vec<F8E4M3> = of(seed, &cache_dims)
            .into_iter()
            .enumerate()
            .map(|(at, value)| F8E4M3::from_f32(factor(at) * value))
            .collect();
        Ok(Tensor::from_vec(codes, &cache_dims, &Device::Cpu)?.to_device(device)?)
    };
    let layer = PagedLayer {
        keys: cached(1)?,
        values: cached(2)?,
        scales: KvScales { key: 0.125, value: 0.5 },
    };
    let dims = [tokens, heads, head_dim];
    let mut q = of(3, &dims);
    // Its queries are larger, so that scores of both have the same size.
    for (at, value) in q.iter_mut().enumerate() {
        *value *= if at / (group * head_dim) % KV_HEADS == 0 { 1.0 } else { 256.0 };
    }
    let q = Tensor::from_vec(q, &dims, &Device::Cpu)?.to_dtype(dtype)?.to_device(device)?;
    let out = Tensor::zeros(&dims, dtype, device)?;
    // A few positions count for most of a row then, so that each of them matters.
    let scale = 12.0 / (head_dim as f32).sqrt();
    let params = PagedAttention { scale, window: None, softcap: None };
    plan.attend(&q, &layer, &params, None, &out)?;
    // The copy waits for the kernel. An error of it is reported here.
    Ok(out.to_device(&Device::Cpu)?.to_dtype(DType::F32)?.flatten_all()?.to_vec1()?)
}

fn metadata() -> AttentionMetadata {
    let blocks = |context: usize| context.div_ceil(BLOCK_SIZE);
    let max_blocks = CONTEXTS.into_iter().map(blocks).max().unwrap_or(0);
    let mut meta = AttentionMetadata {
        query_start: (0..=CONTEXTS.len() as u32).collect(),
        context_len: CONTEXTS.map(|context| context as u32).to_vec(),
        block_tables: Vec::new(),
        max_blocks,
        mutual: Vec::new(),
    };
    let mut used = 0;
    for own in CONTEXTS.into_iter().map(blocks) {
        let scattered = |at: usize| (at * BLOCK_STEP % NUM_BLOCKS) as u32;
        meta.block_tables.extend((used..used + own).map(scattered));
        meta.block_tables.extend(vec![0; max_blocks - own]);
        used += own;
    }
    meta
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_sequence_of_the_trial_has_blocks_of_its_own() {
        let meta = metadata();
        let used: usize = CONTEXTS.iter().map(|context| context.div_ceil(BLOCK_SIZE)).sum();
        let own = meta.block_tables.chunks(meta.max_blocks).zip(CONTEXTS);
        let mut blocks: Vec<u32> = own
            .flat_map(|(table, context)| table[..context.div_ceil(BLOCK_SIZE)].to_vec())
            .collect();
        blocks.sort_unstable();
        blocks.dedup();
        assert_eq!(blocks.len(), used);
        assert!(blocks.iter().all(|block| (*block as usize) < NUM_BLOCKS));
    }
}
