//! FlashInfer's kernel for Hopper, and the trial that decides whether it is used.

use candle_core::{DType, Device, Tensor};
use candlepower_gpu::cuda::{self, AttentionPlan, hopper_capability, hopper_trial};
use candlepower_gpu::{AttentionSpec, LaunchShape, PlanCapacity, PrefillKernel};
use candlepower_kernels::PagedAttention;

use crate::attention::{Shape, Step};
use crate::gpu::{Gpu, Random, assert_same_bits, to_vec};

/// Heads of q, heads of k and v, and their elements.
const HEADS: [(usize, usize, usize); 4] = [(14, 2, 64), (32, 8, 128), (6, 6, 128), (8, 4, 256)];

/// Prompts and chunks around the ends of tiles of 64 to 192 queries and of 32 or 96 keys; decodes before and behind them.
const STEPS: [&[(usize, usize)]; 4] = [
    &[(300, 300), (130, 517), (7, 39)],
    &[(1, 250), (1, 17), (200, 333), (129, 129)],
    &[(128, 128), (96, 96), (192, 192), (97, 400), (1, 16), (65, 65)],
    &[(700, 1500)],
];

/// The trial's small step by the kernel for all GPUs, against the reference. The trial allows 0.02.
pub(crate) fn trial(gpu: &Gpu) {
    // Two steps of bf16.
    const MOST: f32 = 1.0 / 64.0;
    for head_dim in [64, 128, 256] {
        let [found, expected] = [gpu.device(), &Device::Cpu]
            .map(|device| hopper_trial(device, head_dim, PrefillKernel::Fa2).unwrap());
        let difference = cuda::trial_difference(&found, &expected, head_dim);
        assert!(difference <= MOST, "heads of {head_dim} differ by {difference}");
        println!("heads of {head_dim} differ by {difference:.4}");
        // Outputs of another kernel would be far away.
        let shifted: Vec<f32> = [&expected[head_dim..], &expected[..head_dim]].concat();
        assert!(cuda::trial_difference(&shifted, &expected, head_dim) > 8.0 * MOST);
        let fault = cuda::hopper_fault(gpu.device(), head_dim);
        assert_eq!(fault.is_some(), hopper_capability().is_none(), "{head_dim}: {fault:?}");
    }
    assert!(cuda::hopper_fault(gpu.device(), 512).unwrap().contains("512"));
}

pub(crate) fn hopper_attention(gpu: &Gpu) {
    let mut random = Random(27);
    if hopper_capability().is_none() {
        let step = step(gpu, &mut random, HEADS[1], STEPS[3]);
        let error = plan(gpu, step.spec(), &step).with_hopper_prefill().unwrap_err().to_string();
        assert!(error.contains("this build is without it"), "{error}");
        println!("this build has no kernel for Hopper: nothing is compared");
        return;
    }
    for heads in HEADS {
        for seqs in STEPS {
            let step = step(gpu, &mut random, heads, seqs);
            let plan = plan(gpu, step.spec(), &step).with_hopper_for_all_prompts().unwrap();
            step.compare(gpu, &attend(gpu, plan, &step));
        }
    }
    // The choice by the size of a step leads to the same kernel for a long chunk.
    let long = step(gpu, &mut random, HEADS[1], STEPS[3]);
    let all = plan(gpu, long.spec(), &long).with_hopper_for_all_prompts().unwrap();
    let large = plan(gpu, long.spec(), &long).with_hopper_prefill().unwrap();
    assert_same_bits(&attend(gpu, large, &long), &to_vec(&attend(gpu, all, &long)), "a long chunk");
    refused(gpu, &long);
}

/// Layers that the kernel does not have.
fn refused(gpu: &Gpu, step: &Step) {
    let spec = step.spec();
    let half = AttentionSpec { dtype: DType::F16, cache_dtype: DType::F16, ..spec };
    for (spec, word) in [(half, "bf16"), (AttentionSpec { window: Some(9), ..spec }, "window")] {
        let error = plan(gpu, spec, step).with_hopper_prefill().unwrap_err().to_string();
        assert!(error.contains(word), "{error}");
    }
    let mut plan = plan(gpu, spec, step).with_hopper_prefill().unwrap();
    plan.prepare(&step.attention_step(LaunchShape::Fitted)).unwrap();
    let out = gpu.unwritten(&step.q_dims(), DType::BF16);
    let params = PagedAttention { softcap: Some(30.0), ..step.params };
    let error = plan.attend(&step.q_on_gpu, &step.layer, &params, None, &out).unwrap_err();
    assert!(error.to_string().contains("soft cap"), "{error}");
}

fn step(
    gpu: &Gpu,
    random: &mut Random,
    (heads, kv_heads, head_dim): (usize, usize, usize),
    seqs: &'static [(usize, usize)],
) -> Step {
    let shape = Shape { heads, kv_heads, head_dim, window: None, softcap: None, seqs };
    let mut step = Step::new(gpu, random, &shape, ((DType::BF16, DType::BF16), seqs));
    step.sinks = None;
    step
}

fn plan(gpu: &Gpu, spec: AttentionSpec, step: &Step) -> AttentionPlan {
    let capacity =
        PlanCapacity { max_seqs: 8, max_pages: 512, partials_bytes: 64 << 20, sink_tokens: 0 };
    AttentionPlan::new(gpu.device(), spec, &step.config, capacity).unwrap()
}

fn attend(gpu: &Gpu, mut plan: AttentionPlan, step: &Step) -> Tensor {
    plan.prepare(&step.attention_step(LaunchShape::Fitted)).unwrap();
    let out = gpu.unwritten(&step.q_dims(), DType::BF16);
    plan.attend(&step.q_on_gpu, &step.layer, &step.params, None, &out).unwrap();
    out
}
