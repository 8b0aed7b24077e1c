//! Quantized checkpoints compared with the values that NumPy dequantizes, and with transformers on these values.

use candlepower_checkpoint::{Checkpoint, CheckpointFiles, OnLoad};
use candlepower_models::{LoadDtype, LoadFormat, LoadOptions, dequantize_reference, load};
use half::{bf16, f16};
use safetensors::{Dtype, SafeTensors};

use crate::golden::{
    Golden, ON_LOAD, Rounding, checkpoint, greedy, max_difference, model, options, prefill,
    stored_otherwise, widened,
};
use candlepower_testing::goldens::folder;

/// Golden folders, and the method of each.
pub(crate) const QUANTIZED: &[(&str, &str)] = &[
    ("awq", "awq"),
    ("gptq", "gptq"),
    ("gptq-8bit", "gptq"),
    ("gptq-sym", "gptq"),
    ("fp8", "fp8"),
    ("fp8-channel", "fp8"),
    ("fp8-block", "fp8"),
    ("fp8-latents", "fp8"),
    ("compressed-tensors-w4a16", "compressed-tensors"),
    ("compressed-tensors-w4a16-order", "compressed-tensors"),
    ("compressed-tensors-w8a16", "compressed-tensors"),
    ("compressed-tensors-w8a8", "compressed-tensors"),
    ("squeezellm", "squeezellm"),
    (SPARSE, "squeezellm"),
    ("awq-experts", "awq"),
    ("mxfp4", "mxfp4"),
    ("nvfp4", "nvfp4"),
    ("nvfp4-modelopt", "nvfp4"),
    ("awq-delta", "awq"),
    ("gguf-llama", "gguf"),
    ("gguf-qwen2", "gguf"),
    ("gguf-gemma2", "gguf"),
    ("gguf-gemma3", "gguf"),
    ("gguf-gemma4", "gguf"),
    ("gguf-gemma4-moe", "gguf"),
    ("gguf-granite", "gguf"),
    ("gguf-qwen3-moe", "gguf"),
    ("gguf-mixtral", "gguf"),
    ("gguf-olmoe", "gguf"),
    ("gguf-gpt-oss", "gguf"),
    ("gguf-deepseek2", "gguf"),
    ("gguf-deepseek2-lite", "gguf"),
    ("gguf-iq4", "gguf"),
];
/// How much is sparse, only its weights know.
pub(crate) const SPARSE: &str = "squeezellm-sparse";

/// The names of all of them, and of what is quantized while it is loaded.
pub(crate) fn all() -> impl Iterator<Item = &'static str> {
    QUANTIZED.iter().map(|(name, _)| *name).chain(ON_LOAD.iter().map(|(name, ..)| *name))
}

#[test]
fn numbers_are_those_that_numpy_unpacks_to_the_bit() {
    for (name, method) in QUANTIZED {
        let checkpoint = checkpoint(name);
        assert_eq!(checkpoint.quantization().unwrap().method, *method, "{name}");
        let bytes = std::fs::read(folder(name).join("golden.safetensors")).unwrap();
        let golden = SafeTensors::deserialize(&bytes).unwrap();
        let mut matrices = 0;
        for (key, view) in golden.tensors() {
            let Some(tensor) = key.strip_prefix("dequantized.") else { continue };
            let found = dequantize_reference(&checkpoint, tensor).unwrap();
            let found = found.unwrap_or_else(|| panic!("{name}: {tensor} is not quantized"));
            let expected = view.data().chunks_exact(4);
            // The first rows are enough for GGUF's matrices.
            let all = *method != "gguf";
            assert!(
                expected.len() == found.len() || !all && expected.len() < found.len(),
                "{name}: {tensor}"
            );
            for (i, (found, expected)) in found.iter().zip(expected).enumerate() {
                assert_eq!(found.to_le_bytes(), expected, "{name}: number {i} of {tensor}");
            }
            matrices += 1;
        }
        assert!(matrices >= 2, "{name} has {matrices} unpacked matrices");
    }
}

#[test]
fn logits_and_greedy_tokens_are_those_of_the_unpacked_model() {
    for name in all() {
        let (model, golden) = (model(name), Golden::read(name));
        let logits = prefill(&model, &golden.prompt, golden.prompt.len(), 0..8);
        let rounding = Rounding::of(&checkpoint(name));
        if rounding.check(&logits, &golden.logits, 1e-4, 1, name) {
            assert_eq!(greedy(&model, &golden.prompt, 32), golden.greedy, "{name}: greedy tokens");
        }
        for chunk in [7, 1] {
            let cut = prefill(&model, &golden.prompt, chunk, 0..8);
            assert_eq!(max_difference(&logits, &cut), 0.0, "{name} in chunks of {chunk}");
        }
    }
}

/// The memory that a quantized model needs is known from its configuration alone, to the byte.
#[test]
fn memory_is_computed_before_loading() {
    for name in all() {
        for load_format in [LoadFormat::Auto, LoadFormat::Dummy] {
            let options = LoadOptions { load_format, dtype: LoadDtype::Auto, ..options() };
            let checkpoint = checkpoint(name);
            let model = load(&checkpoint, &options, &mut |_| {}).unwrap();
            let planned = checkpoint.weight_bytes(None);
            let found = model.weight_bytes() as u64;
            match name == SPARSE && load_format == LoadFormat::Auto {
                true => assert!(planned < found && found < planned * 11 / 10, "{found}, {planned}"),
                false => assert_eq!(found, planned, "{name} {load_format:?}"),
            }
        }
    }
}

/// Scales of AWQ and GPTQ are kept in the dtype of the file, which may differ between matrices that are one.
#[test]
fn scales_of_any_dtype_are_the_same_numbers() {
    for name in ["awq", "gptq"] {
        let run = |is_bf16: fn(&str) -> bool| {
            let checkpoint = stored_otherwise(name, |tensor, view| {
                let halves = view.data().chunks_exact(2).map(|b| f16::from_le_bytes([b[0], b[1]]));
                let rounded = halves.flat_map(|v| bf16::from_f32(v.to_f32()).to_le_bytes());
                let rounded: Vec<u8> = tensor.ends_with(".scales").then(|| rounded.collect())?;
                Some(match is_bf16(tensor) {
                    true => (Dtype::BF16, rounded),
                    false => (Dtype::F32, widened(&rounded)),
                })
            });
            let model = load(&checkpoint, &options(), &mut |_| {}).unwrap();
            let prompt = Golden::read(name).prompt;
            (prefill(&model, &prompt, prompt.len(), 0..8), model.weight_bytes())
        };
        let (narrow, narrow_bytes) = run(|_| true);
        let (wide, wide_bytes) = run(|_| false);
        let (mixed, mixed_bytes) = run(|tensor| tensor.contains("q_proj"));
        assert_eq!(max_difference(&narrow, &wide), 0.0, "{name}");
        assert_eq!(max_difference(&narrow, &mixed), 0.0, "{name}");
        assert!(narrow_bytes < wide_bytes && mixed_bytes <= wide_bytes, "{name}");
        let as_stored = load(&checkpoint(name), &options(), &mut |_| {}).unwrap();
        assert_eq!(narrow_bytes, as_stored.weight_bytes(), "{name}");
    }
}

/// Random quantized weights, in the shapes of the configuration, give logits of about one.
#[test]
fn dummy_quantized_weights_run_every_format() {
    for name in all() {
        let options = LoadOptions { load_format: LoadFormat::Dummy, ..options() };
        let model = load(&checkpoint(name), &options, &mut |_| {}).unwrap();
        let prompt: Vec<u32> = (10..34).collect();
        let logits = prefill(&model, &prompt, prompt.len(), 0..8);
        let all: Vec<f32> = logits.into_iter().flatten().collect();
        let deviation = (all.iter().map(|v| v * v).sum::<f32>() / all.len() as f32).sqrt();
        assert!((0.2..5.0).contains(&deviation), "{name}: logits spread by {deviation}");
    }
}

/// A number is half a step of its group away from what it becomes. Random weights, which are wider than those of models that have
/// learned something, move logits by some per cent with eight bits, and by a third to a half with four. With FP8 activations are
/// rounded, too.
#[test]
fn logits_move_within_bounds_where_weights_are_quantized_on_load() {
    for (name, source, kind) in ON_LOAD {
        let golden = Golden::read(name);
        let original = prefill(&model(source), &golden.prompt, golden.prompt.len(), 0..8);
        let found = prefill(&model(name), &golden.prompt, golden.prompt.len(), 0..8);
        let all = |logits: &[Vec<f32>]| logits.iter().flatten().copied().collect::<Vec<f32>>();
        let (original, found) = (all(&original), all(&found));
        let squares = |numbers: &mut dyn Iterator<Item = f32>| numbers.map(|v| v * v).sum::<f32>();
        let moved = squares(&mut original.iter().zip(&found).map(|(a, b)| a - b));
        let relative = (moved / squares(&mut original.iter().copied())).sqrt();
        let bounds = match kind {
            OnLoad::Int8 => 0.001..0.06,
            OnLoad::Int4 => 0.02..0.6,
            OnLoad::Fp8 => 0.12..0.4,
        };
        assert!(bounds.contains(&relative), "{name}: logits move by {relative} of their size");
    }
}

#[test]
fn what_cannot_be_quantized_on_load_is_refused_by_name() {
    let refused = |name| checkpoint(name).quantize_on_load(OnLoad::Int8).unwrap_err().to_string();
    assert_eq!(
        refused("awq"),
        "--quantize-on-load int8 is for weights that are not quantized, and config.json says `awq`: leave the flag out, or take the model that is not quantized"
    );
    assert!(refused("gguf-qwen2").contains("and model.gguf says `gguf`"));
}

/// `--dtype` is about what is not quantized.
#[test]
fn quantized_weights_stay_when_another_dtype_is_asked_for() {
    let golden = Golden::read("awq");
    let load_as = |dtype| {
        let options = LoadOptions { dtype, ..options() };
        load(&checkpoint("awq"), &options, &mut |_| {}).unwrap()
    };
    let (wide, stored) = (load_as(LoadDtype::F32), load_as(LoadDtype::Auto));
    let logits = prefill(&wide, &golden.prompt, golden.prompt.len(), 0..8);
    assert!(max_difference(&logits, &golden.logits) < 1e-4);
    assert!(wide.weight_bytes() > stored.weight_bytes());
}

#[test]
fn embedded_quantized_files_load_like_a_folder() {
    let names = ["config.json", "quantize_config.json", "model.safetensors"];
    let files = names.map(|name| {
        let bytes: &'static [u8] = std::fs::read(folder("gptq-8bit").join(name)).unwrap().leak();
        (name, bytes)
    });
    let embedded = Checkpoint::open(CheckpointFiles::Embedded(Box::leak(Box::new(files)))).unwrap();
    let golden = Golden::read("gptq-8bit");
    let model = load(&embedded, &options(), &mut |_| {}).unwrap();
    assert_eq!(greedy(&model, &golden.prompt, 32), golden.greedy);
}
