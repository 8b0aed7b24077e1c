//! GGUF files of every architecture as llama.cpp's converter writes them, compared with transformers on the same values.

use candle_core::Device;
use candlepower_checkpoint::Dtype;
use candlepower_models::{LoadDtype, LoadFormat, LoadOptions, load};

use crate::{
    device::Runner,
    golden::{
        BLOCK_SIZE, Golden, TOLERANCE, checkpoint, greedy, has_experts, max_difference, model,
        options, prefill,
    },
    ranks::{numbers_of_ranks, on_shards},
};

const CONVERTED: &[&str] = &[
    "gguf-gemma",
    "gguf-qwen2-moe",
    "gguf-qwen3-next",
    "gguf-qwen3_5",
    "gguf-qwen3_5-moe",
    "gguf-glm4",
    "gguf-glm4-moe",
    "gguf-olmo3",
    "gguf-smollm3",
    "gguf-seed-oss",
    "gguf-ernie4_5",
    "gguf-ernie4_5-moe",
    "gguf-exaone4",
    "gguf-starcoder2",
    "gguf-cohere",
    "gguf-cohere2",
    "gguf-arcee",
    "gguf-granite-moe",
    "gguf-granite-hybrid",
    "gguf-minimax-m2",
    "gguf-ministral3",
    "gguf-lfm2",
    "gguf-lfm2-moe",
    "gguf-nemotron-h",
    "gguf-nemotron-h-moe",
    "gguf-afmoe",
    "gguf-dots1",
];

#[test]
fn the_converters_files_compute_what_transformers_does() {
    for name in CONVERTED {
        let (model, golden) = (model(name), Golden::read(name));
        let logits = prefill(&model, &golden.prompt, golden.prompt.len(), 0..8);
        let difference = max_difference(&logits, &golden.logits);
        assert!(difference < TOLERANCE, "{name}: logits differ by {difference}");
        assert_eq!(greedy(&model, &golden.prompt, 32), golden.greedy, "{name}: greedy tokens");
        let mut runner = Runner::on(&Device::Cpu, name, LoadDtype::F32);
        let on_device = runner.prefill(&golden.prompt, BLOCK_SIZE + 1, &[3, 1, 2, 0]);
        let difference = max_difference(&on_device, &golden.logits);
        assert!(difference < TOLERANCE, "{name}: a device's logits differ by {difference}");
    }
}

#[test]
fn the_converters_files_are_split_over_ranks() {
    let mut split = 0;
    for name in CONVERTED {
        let (checkpoint, golden) = (checkpoint(name), Golden::read(name));
        for ranks in numbers_of_ranks(&checkpoint) {
            split += 1;
            let of_rank = on_shards(&checkpoint, &options(), ranks, |model| {
                prefill(model, &golden.prompt, golden.prompt.len(), 0..8)
            });
            for (rank, logits) in of_rank.iter().enumerate() {
                let difference = max_difference(logits, &golden.logits);
                assert!(difference < TOLERANCE, "{name} rank {rank} of {ranks}: {difference}");
            }
        }
    }
    assert!(split > CONVERTED.len() / 2, "{split}");
}

/// Routers are the exception: their values have 32 bits in these files, and keep them.
#[test]
fn the_converters_files_are_counted_before_loading() {
    for name in CONVERTED {
        let bytes = |load_format, dtype| {
            let options = LoadOptions { load_format, dtype, ..options() };
            let model = load(&checkpoint(name), &options, &mut |_| {}).unwrap();
            let logits = prefill(&model, &[5, 6, 7, 8, 9], 5, 0..8);
            assert!(logits.iter().flatten().all(|logit| logit.is_finite()), "{name}");
            model.weight_bytes() as u64
        };
        let as_stored = checkpoint(name).weight_bytes(None);
        assert_eq!(bytes(LoadFormat::Dummy, LoadDtype::Auto), as_stored, "{name}");
        let found = bytes(LoadFormat::Auto, LoadDtype::Auto);
        let most = if has_experts(name) { as_stored * 106 / 100 } else { as_stored };
        assert!((as_stored..=most).contains(&found), "{name}: {found}, {as_stored}");
        let widened = checkpoint(name).weight_bytes(Some(Dtype::F32));
        assert_eq!(bytes(LoadFormat::Auto, LoadDtype::F32), widened, "{name}");
    }
}
