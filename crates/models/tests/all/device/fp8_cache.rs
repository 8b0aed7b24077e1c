//! Decodes over a cache in FP8 on a GPU, which a kernel of their own computes.

use candle_core::Device;
use candlepower_gpu::LaunchShape;
use candlepower_models::LoadDtype;

use super::Runner;
use crate::golden::{Golden, has_experts, largest, max_difference};

/// Goldens with windows, soft caps, attention sinks, padded heads, and one KV head; and one with latents, which FlashInfer's kernel takes.
const MODELS: [&str; 8] =
    ["llama", "gemma2", "gemma3", "gpt-oss", "qwen3", "mistral", "falcon", "deepseek-v3"];
const STEPS: usize = 4;
const BLOCKS: [u32; 4] = [5, 2, 9, 0];

/// The logits of the last tokens of the prompt, which are decoded one by one in a bucket of three sequences.
fn decoded(device: &Device, name: &str, prompt: &[u32]) -> (Vec<Vec<f32>>, Option<String>) {
    let mut runner = Runner::with_cache(device, name, LoadDtype::Bf16, true);
    let start = prompt.len() - STEPS;
    runner.prefill(&prompt[..start], start, &BLOCKS);
    let logits = (start..prompt.len())
        .map(|i| runner.step(&[(i, &prompt[i..=i], &BLOCKS)], 3, LaunchShape::Fixed).remove(0))
        .collect();
    (logits, runner.workspace.describe_fp8_decode().map(|line| line.text))
}

#[test]
#[ignore = "needs a GPU: scripts/gpu-check.sh and, with an emulated one, `cargo xtask emulated` run it"]
fn a_gpu_decodes_over_a_cache_in_fp8() {
    let gpu = candlepower_gpu::cuda::open(0).unwrap();
    let mut worst = 0f32;
    for name in MODELS {
        let prompt = Golden::read(name).prompt;
        let (found, line) = decoded(&gpu, name, &prompt);
        let (expected, on_cpu) = decoded(&Device::Cpu, name, &prompt);
        assert_eq!(on_cpu, None);
        let line = line.unwrap();
        let has_latents = name.starts_with("deepseek");
        assert_eq!(line.ends_with("by the own kernel"), !has_latents, "{name}: {line}");
        let errors: Vec<f32> = (0..STEPS)
            .map(|i| max_difference(&found[i..=i], &expected[i..=i]) / largest(&expected))
            .collect();
        // A rounded score may send a token to another expert.
        let may_differ = usize::from(has_experts(name));
        let apart = errors.iter().filter(|error| **error >= 0.1).count();
        assert!(apart <= may_differ, "{name}: GPU and CPU differ by {errors:?}");
        if may_differ == 0 {
            worst = errors.iter().copied().fold(worst, f32::max);
        }
    }
    println!(
        "= decodes over a cache in FP8 of {} models within {worst:.3} of the CPU's",
        MODELS.len()
    );
}
