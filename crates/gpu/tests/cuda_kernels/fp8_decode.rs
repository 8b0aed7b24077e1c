//! Decodes over an FP8 cache by our own kernel, and the trial that decides whether it is used.

use candle_core::{DType, Device, Tensor};
use candlepower_gpu::cuda::{self, AttentionPlan, fp8_decode_trial};
use candlepower_gpu::{AttentionSpec, DecodeKernelOfFp8, Graph, LaunchShape, PlanCapacity};
use candlepower_kernels::{KvCacheConfig, KvScales};

use crate::attention::{Shape, Step};
use crate::gpu::{Gpu, HALVES, Random, assert_same_bits, to_vec};

/// Query heads, KV heads, elements of a head, window, soft cap, tokens of a block of the cache, thread blocks of a launch.
type Case = (usize, usize, usize, Option<usize>, Option<f32>, usize, Option<usize>);

/// Groups of 1 to 16 heads, of all widths. With few thread blocks each has pieces of several sequences, with many a sequence is
/// divided.
const CASES: [Case; 12] = [
    (2, 2, 128, None, None, 16, None),
    (4, 2, 64, None, None, 32, Some(6)),
    (8, 2, 128, Some(100), None, 16, Some(2)),
    (14, 2, 64, None, Some(30.0), 16, Some(10)),
    (8, 1, 256, None, None, 16, None),
    (8, 1, 128, None, None, 48, Some(5)),
    (9, 1, 128, None, None, 16, Some(7)),
    (16, 1, 128, Some(48), Some(50.0), 16, None),
    (16, 1, 256, None, None, 16, Some(3)),
    (16, 1, 64, Some(1000), None, 16, Some(12)),
    (3, 1, 256, Some(17), None, 16, Some(1)),
    (6, 6, 64, None, None, 16, None),
];

/// Lengths around the ends of units, of rounds and of blocks.
const LENGTHS: [usize; 9] = [1, 15, 16, 17, 63, 64, 65, 1000, 4097];

/// Room for many partial results, and for none.
const PARTIALS: [usize; 2] = [64 << 20, 1024];

fn decodes(lengths: &[usize]) -> Vec<(usize, usize)> {
    lengths.iter().map(|length| (1, *length)).collect()
}

fn step(gpu: &Gpu, random: &mut Random, case: Case, dtype: DType, seqs: &[(usize, usize)]) -> Step {
    let (heads, kv_heads, head_dim, window, softcap, block_size, _) = case;
    let shape = Shape { heads, kv_heads, head_dim, window, softcap, seqs: &[] };
    let blocks: usize = seqs.iter().map(|seq| seq.1.div_ceil(block_size)).sum();
    let cache = (blocks + 3, block_size);
    Step::in_blocks(gpu, random, &shape, ((dtype, DType::F8E4M3), seqs), cache)
}

fn plan(gpu: &Gpu, step: &Step, partials_bytes: usize, blocks: Option<usize>) -> AttentionPlan {
    let capacity = PlanCapacity { max_seqs: 80, max_pages: 1024, partials_bytes, sink_tokens: 256 };
    let plan = AttentionPlan::new(gpu.device(), step.spec(), &step.config, capacity).unwrap();
    plan.with_fp8_decode_blocks(blocks).unwrap()
}

fn attend(gpu: &Gpu, step: &Step, plan: &mut AttentionPlan, launch: LaunchShape) -> Tensor {
    plan.prepare(&step.attention_step(launch)).unwrap();
    let out = gpu.unwritten(&step.q_dims(), step.q_on_gpu.dtype());
    let sinks = step.sinks(gpu);
    plan.attend(&step.q_on_gpu, &step.layer, &step.params, sinks.as_ref(), &out).unwrap();
    out
}

pub(crate) fn fp8_decode(gpu: &Gpu) {
    let mut random = Random(29);
    for (index, case) in CASES.into_iter().enumerate() {
        for dtype in HALVES {
            let step = step(gpu, &mut random, case, dtype, &decodes(&LENGTHS));
            // Scores of all sizes, and the largest and the smallest values of e4m3.
            let scales = KvScales { key: 0.02, value: 0.01 };
            let all_values = step.clone().with_all_values(gpu, &mut random, scales);
            for step in [step, all_values] {
                let bytes = PARTIALS[usize::from(index % 4 == 3)];
                let mut plan = plan(gpu, &step, bytes, case.6);
                let fitted = attend(gpu, &step, &mut plan, LaunchShape::Fitted);
                step.compare(gpu, &fitted);
                let fixed = attend(gpu, &step, &mut plan, LaunchShape::Fixed);
                assert_same_bits(&fixed, &to_vec(&fitted), "a fixed launch");
            }
        }
    }
    many(gpu, &mut random);
    beside_prompts(gpu, &mut random);
    replayed(gpu, &mut random);
    refused(gpu, &mut random);
}

/// One to 70 sequences.
fn many(gpu: &Gpu, random: &mut Random) {
    let case = (8, 2, 64, None, None, 16, None);
    for (count, longest) in [(1, 2000), (3, 500), (24, 60), (70, 90)] {
        let lengths: Vec<usize> = (0..count).map(|_| 1 + random.below(longest)).collect();
        for blocks in [None, Some(14)] {
            let step = step(gpu, random, case, DType::BF16, &decodes(&lengths));
            let mut plan = plan(gpu, &step, PARTIALS[0], blocks);
            step.compare(gpu, &attend(gpu, &step, &mut plan, LaunchShape::Fitted));
        }
    }
}

/// Decodes before prompts are planned apart, and FlashInfer's kernel computes the prompts.
fn beside_prompts(gpu: &Gpu, random: &mut Random) {
    let case = (6, 2, 128, None, None, 16, Some(8));
    let seqs = [(1, 250), (1, 700), (1, 3), (40, 111), (1, 5), (3, 64)];
    let step = step(gpu, random, case, DType::BF16, &seqs);
    let mut plan = plan(gpu, &step, PARTIALS[0], case.6);
    step.compare(gpu, &attend(gpu, &step, &mut plan, LaunchShape::Fitted));
}

/// A captured graph computes other lengths after another `prepare`, with padded rows at its end.
fn replayed(gpu: &Gpu, random: &mut Random) {
    let case = (6, 2, 128, None, None, 16, Some(8));
    let first = step(gpu, random, case, DType::BF16, &decodes(&[3, 700, 5, 900, 1000]));
    let mut plan = plan(gpu, &first, PARTIALS[0], case.6);
    let out = gpu.unwritten(&first.q_dims(), DType::BF16);
    let sinks = first.sinks(gpu);
    plan.prepare(&first.attention_step(LaunchShape::Fixed)).unwrap();
    let graph = {
        let run =
            || plan.attend(&first.q_on_gpu, &first.layer, &first.params, sinks.as_ref(), &out);
        // One launch outside of the graph, so that everything is loaded.
        run().unwrap();
        Graph::capture(gpu.device(), run).unwrap()
    };
    for lengths in [[4, 701, 6, 901, 940], [2, 1, 2000, 1, 1], [1; 5]] {
        let next = first.with_lengths(random, &decodes(&lengths));
        plan.prepare(&next.attention_step(LaunchShape::Fixed)).unwrap();
        graph.launch().unwrap();
        next.compare(gpu, &out);
    }
}

/// Layers that the kernel does not have.
fn refused(gpu: &Gpu, random: &mut Random) {
    let step = step(gpu, random, CASES[0], DType::BF16, &decodes(&[5]));
    let error = |spec: AttentionSpec, config: KvCacheConfig| {
        let capacity =
            PlanCapacity { max_seqs: 1, max_pages: 4, partials_bytes: 16 << 20, sink_tokens: 0 };
        let plan = AttentionPlan::new(gpu.device(), spec, &config, capacity).unwrap();
        plan.with_fp8_decode().unwrap_err().to_string()
    };
    let (spec, config) = (step.spec(), step.config);
    assert!(error(AttentionSpec { cache_dtype: DType::BF16, ..spec }, config).contains("FP8"));
    assert!(error(spec, KvCacheConfig { head_dim: 512, ..config }).contains("256"));
    assert!(error(AttentionSpec { heads: 34, ..spec }, config).contains("16 query heads"));
}

/// The trial's small step by both kernels, against the reference. The trial allows 0.02.
pub(crate) fn trial(gpu: &Gpu) {
    // Two steps of bf16.
    const MOST: f32 = 1.0 / 64.0;
    for head_dim in [64, 128, 256] {
        for (dtype, group) in HALVES.into_iter().flat_map(|dtype| [(dtype, 7), (dtype, 12)]) {
            let result = |device: &Device, kernel| {
                fp8_decode_trial(device, (group, head_dim), dtype, kernel).unwrap()
            };
            let expected = result(&Device::Cpu, DecodeKernelOfFp8::Own);
            for kernel in [DecodeKernelOfFp8::Own, DecodeKernelOfFp8::FlashInfer] {
                let found = result(gpu.device(), kernel);
                let difference = cuda::trial_difference(&found, &expected, head_dim);
                assert!(
                    difference <= MOST,
                    "{kernel:?}: heads of {head_dim} differ by {difference}"
                );
                println!("{kernel:?}, {dtype:?}: heads of {head_dim} differ by {difference:.4}");
                // Outputs of another kernel would be far away.
                let shifted: Vec<f32> = [&expected[head_dim..], &expected[..head_dim]].concat();
                assert!(cuda::trial_difference(&shifted, &expected, head_dim) > 8.0 * MOST);
            }
            let config = KvCacheConfig {
                num_layers: 1,
                num_blocks: 1,
                block_size: 16,
                num_kv_heads: 1,
                head_dim,
                latent: None,
            };
            let spec =
                AttentionSpec { heads: group, window: None, dtype, cache_dtype: DType::F8E4M3 };
            assert_eq!(cuda::fp8_decode_fault(gpu.device(), &spec, &config), None);
        }
    }
}
