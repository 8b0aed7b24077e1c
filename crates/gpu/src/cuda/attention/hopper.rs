//! A trial of FlashInfer's kernel for Hopper against its kernel for all GPUs, before a model relies on it.

use std::sync::OnceLock;

use candle_core::{DType, Device, Tensor};
use candlepower_kernels::{AttentionMetadata, KvCacheConfig, KvScales, PagedAttention, Result};

use super::super::open::compiled_for;
use crate::operands::{
    AttentionSpec, AttentionStep, LaunchShape, PagedLayer, PlanCapacity, PrefillKernel,
};
use crate::ops::AttentionPlan;

/// Head widths of the kernel.
const HEAD_DIMS: [usize; 3] = [64, 128, 256];

/// Queries of each sequence, and positions in the cache: a prompt of several tiles, a chunk after others, and a short one.
/// None of them ends with a tile or a block.
const SEQS: [(usize, usize); 3] = [(300, 300), (130, 517), (7, 39)];
const HEADS: usize = 4;
const KV_HEADS: usize = 2;
const BLOCK_SIZE: usize = 16;
/// A prime, so that multiples of another number are a permutation of the blocks.
const NUM_BLOCKS: usize = 61;
const BLOCK_STEP: usize = 23;

/// Largest difference of a row, as a part of its largest element. Softmax weights and outputs are rounded to bf16, which
/// takes up to 0.009 on the emulated GPU.
const TOLERANCE: f32 = 0.02;

/// The compute capability that the kernel for Hopper was compiled for; `None` if it was not compiled.
pub fn hopper_capability() -> Option<(u32, u32)> {
    cfg!(hopper_attention).then(compiled_for)
}

/// The fault of FlashInfer's kernel for Hopper on `device` for heads of `head_dim` elements; `None` if it is right. It cannot be
/// launched, or its result differs from that of the kernel for all GPUs. Each width is tried once in a process.
///
/// An invalid access in the kernel would also end the later work of the process, and a kernel without an end would stop it.
pub fn hopper_fault(device: &Device, head_dim: usize) -> Option<String> {
    static FAULTS: [OnceLock<Option<String>>; HEAD_DIMS.len()] =
        [const { OnceLock::new() }; HEAD_DIMS.len()];
    let Some(width) = HEAD_DIMS.iter().position(|known| *known == head_dim) else {
        return Some(format!("it has no heads of {head_dim} elements"));
    };
    let fault = FAULTS[width].get_or_init(|| {
        let result = |kernel| hopper_trial(device, head_dim, kernel);
        let difference = result(PrefillKernel::Hopper)
            .and_then(|found| Ok(trial_difference(&found, &result(PrefillKernel::Fa2)?, head_dim)));
        match difference {
            Ok(difference) if difference <= TOLERANCE => None,
            Ok(difference) => Some(format!("a trial of it differs by {difference:.3}")),
            Err(error) => Some(format!("a trial of it failed: {error}")),
        }
    });
    fault.clone()
}

/// The outputs of a trial on `device`, `[tokens, heads, head_dim]`: three sequences whose blocks are scattered, with scales of
/// keys and values. On the CPU, the reference implementation computes them.
///
/// # Errors
/// The kernel for Hopper was not compiled, or CUDA or FlashInfer refused.
pub fn hopper_trial(device: &Device, head_dim: usize, kernel: PrefillKernel) -> Result<Vec<f32>> {
    let config = KvCacheConfig {
        num_layers: 1,
        num_blocks: NUM_BLOCKS,
        block_size: BLOCK_SIZE,
        num_kv_heads: KV_HEADS,
        head_dim,
        latent: None,
    };
    let spec =
        AttentionSpec { heads: HEADS, window: None, dtype: DType::BF16, cache_dtype: DType::BF16 };
    let capacity = PlanCapacity {
        max_seqs: SEQS.len(),
        max_pages: NUM_BLOCKS,
        partials_bytes: 16 << 20,
        sink_tokens: 0,
    };
    let plan = AttentionPlan::new(device, spec, &config, capacity)?;
    let mut plan = match (kernel, plan) {
        (PrefillKernel::Hopper, AttentionPlan::Cuda(plan)) => {
            AttentionPlan::Cuda(Box::new(plan.with_hopper_for_all_prompts()?))
        }
        (_, plan) => plan,
    };
    let meta = metadata();
    let tokens = SEQS.iter().map(|seq| seq.0).sum();
    plan.prepare(&AttentionStep { meta: &meta, tokens, launch: LaunchShape::Fitted })?;
    let of = |seed: u32, dims: &[usize]| -> Result<Tensor> {
        let values: Vec<f32> = (0..dims.iter().product::<usize>() as u32)
            .map(|at| value(at.wrapping_add(seed << 24)))
            .collect();
        Ok(Tensor::from_vec(values, dims, &Device::Cpu)?
            .to_dtype(DType::BF16)?
            .to_device(device)?)
    };
    let cache_dims = [NUM_BLOCKS, KV_HEADS, BLOCK_SIZE, head_dim];
    let layer = PagedLayer {
        keys: of(1, &cache_dims)?,
        values: of(2, &cache_dims)?,
        scales: KvScales { key: 0.5, value: 2.0 },
    };
    let q = of(3, &[tokens, HEADS, head_dim])?;
    let out = Tensor::zeros(q.dims(), DType::BF16, device)?;
    // A few positions count for most of a row then, so that each of them matters.
    let scale = 12.0 / (head_dim as f32).sqrt();
    let params = PagedAttention { scale, window: None, softcap: None };
    plan.attend(&q, &layer, &params, None, &out)?;
    // The copy waits for the kernel. An error of it is reported here.
    Ok(out.to_device(&Device::Cpu)?.to_dtype(DType::F32)?.flatten_all()?.to_vec1()?)
}

/// The largest difference between the rows of two results with heads of `head_dim` elements, as a part of the largest element
/// of its row. NaN is infinitely far from anything.
pub fn trial_difference(found: &[f32], expected: &[f32], head_dim: usize) -> f32 {
    let mut most = if found.len() == expected.len() { 0.0f32 } else { f32::INFINITY };
    for (found, expected) in found.chunks(head_dim).zip(expected.chunks(head_dim)) {
        let largest = expected.iter().fold(f32::MIN_POSITIVE, |most, value| most.max(value.abs()));
        for (found, expected) in found.iter().zip(expected) {
            let one = (found - expected).abs() / largest;
            most = if one.is_nan() { f32::INFINITY } else { most.max(one) };
        }
    }
    most
}

fn metadata() -> AttentionMetadata {
    let blocks = |context: usize| context.div_ceil(BLOCK_SIZE);
    let max_blocks = SEQS.iter().map(|seq| blocks(seq.1)).max().unwrap_or(0);
    let mut meta = AttentionMetadata {
        query_start: vec![0],
        context_len: Vec::new(),
        block_tables: Vec::new(),
        max_blocks,
        mutual: Vec::new(),
    };
    let (mut tokens, mut used) = (0, 0);
    for (queries, context) in SEQS {
        tokens += queries as u32;
        meta.query_start.push(tokens);
        meta.context_len.push(context as u32);
        let own = blocks(context);
        let scattered = |at: usize| (at * BLOCK_STEP % NUM_BLOCKS) as u32;
        meta.block_tables.extend((used..used + own).map(scattered));
        meta.block_tables.extend(vec![0; max_blocks - own]);
        used += own;
    }
    meta
}

/// Values between -1 and 1 without a pattern.
pub(super) fn value(at: u32) -> f32 {
    let mixed = (at ^ at >> 16).wrapping_mul(0x045d_9f3b);
    let mixed = (mixed ^ mixed >> 16).wrapping_mul(0x045d_9f3b);
    ((mixed ^ mixed >> 16) >> 8) as f32 / (1 << 23) as f32 - 1.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_sequence_of_the_trial_has_blocks_of_its_own() {
        let meta = metadata();
        let used: usize = SEQS.iter().map(|seq| seq.1.div_ceil(BLOCK_SIZE)).sum();
        let own = meta.block_tables.chunks(meta.max_blocks).zip(SEQS);
        let mut blocks: Vec<u32> =
            own.flat_map(|(table, seq)| table[..seq.1.div_ceil(BLOCK_SIZE)].to_vec()).collect();
        blocks.sort_unstable();
        blocks.dedup();
        assert_eq!(blocks.len(), used);
        assert!(blocks.iter().all(|block| (*block as usize) < NUM_BLOCKS));
    }

    #[test]
    fn differences_count_by_the_largest_element_of_a_row() {
        let expected = [1.0, 4.0, 0.01, 0.02];
        assert_eq!(trial_difference(&expected, &expected, 2), 0.0);
        assert_eq!(trial_difference(&[1.0, 3.0, 0.01, 0.02], &expected, 2), 0.25);
        assert_eq!(trial_difference(&[1.0, 4.0, 0.02, 0.02], &expected, 2), 0.5);
        assert_eq!(trial_difference(&[1.0, f32::NAN, 0.01, 0.02], &expected, 2), f32::INFINITY);
        assert_eq!(trial_difference(&[f32::NAN, 4.0, 0.01, 0.02], &expected, 2), f32::INFINITY);
        assert_eq!(trial_difference(&[], &expected, 2), f32::INFINITY);
    }
}
