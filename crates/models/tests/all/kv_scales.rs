//! The scales of keys and values that a checkpoint brings, in a cache in FP8.

use candle_core::DType;
use candlepower_checkpoint::{Checkpoint, CheckpointFiles};
use candlepower_models::{load, load_on_device};
use safetensors::{Dtype, SafeTensors, tensor::TensorView};

use crate::{
    device::{Runner, size},
    golden::{CACHE, Golden, largest, max_difference, options, prefill_in},
};
use candlepower_testing::goldens::folder;

/// The factor on keys and values: far beyond the 448 of e4m3.
const FACTOR: f32 = 4096.0;

/// The golden checkpoint `fp8` with larger keys and values, smaller queries and outputs, so that it computes the same, and with
/// scales of these names, each a number; but for its layer 1, which is not quantized and stays as it is.
fn checkpoint_with(names: &[&str]) -> Checkpoint {
    checkpoint_of(names, &[])
}

/// Makes a checkpoint by [`checkpoint_with`], with scales of a shape.
fn checkpoint_of(names: &[&str], shape: &[usize]) -> Checkpoint {
    let bytes = std::fs::read(folder("fp8").join("model.safetensors")).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let mut tensors = Vec::new();
    for (name, view) in file.tensors() {
        let factor = match name.strip_suffix(".weight_scale").map(|m| m.rsplit('.').next()) {
            Some(Some("k_proj" | "v_proj")) => FACTOR,
            Some(Some("q_proj" | "o_proj")) => FACTOR.recip(),
            _ => 1.0,
        };
        // The attended values are as large as the values.
        let factor = if name.ends_with("o_proj.input_scale") { FACTOR } else { factor };
        let mut data = view.data().to_vec();
        if factor != 1.0 {
            let scale = f32::from_le_bytes(data[..].try_into().unwrap());
            data = (scale * factor).to_le_bytes().to_vec();
        }
        if let Some(attention) = name.strip_suffix(".q_proj.weight_scale") {
            for end in names {
                let scales = FACTOR.to_le_bytes().repeat(shape.iter().product());
                tensors.push((format!("{attention}.{end}"), Dtype::F32, shape.to_vec(), scales));
            }
        }
        tensors.push((name, view.dtype(), view.shape().to_vec(), data));
    }
    let views = tensors.iter().map(|(name, dtype, shape, data)| {
        (name, TensorView::new(*dtype, shape.clone(), data).unwrap())
    });
    let weights: &'static [u8] = safetensors::serialize(views, None).unwrap().leak();
    let config: &'static [u8] = std::fs::read(folder("fp8").join("config.json")).unwrap().leak();
    let files = Box::new([("config.json", config), ("model.safetensors", weights)]);
    Checkpoint::open(CheckpointFiles::Embedded(Box::leak(files))).unwrap()
}

fn checkpoint_without() -> Checkpoint {
    crate::golden::checkpoint("fp8")
}

/// With a cache in `dtype`, on the CPU.
fn logits(checkpoint: &Checkpoint, dtype: DType) -> Vec<Vec<f32>> {
    let model = load(checkpoint, &options(), &mut |_| {}).unwrap();
    let cache = model.new_cache(CACHE, dtype).unwrap();
    let prompt = Golden::read("fp8").prompt;
    prefill_in(&model, &cache, &prompt, prompt.len(), [3, 1, 2, 0])
}

/// The reference implementations of the device's kernels, with a cache in FP8.
fn logits_on_device(checkpoint: &Checkpoint) -> Vec<Vec<f32>> {
    let model = load_on_device(checkpoint, &options(), &mut |_| {}).unwrap();
    let prompt = Golden::read("fp8").prompt;
    Runner::of(model, true).prefill(&prompt, prompt.len(), &[3, 1, 2, 0])
}

/// A power of two changes no bit, as long as nothing is cut off.
#[test]
fn scaled_keys_and_values_are_kept_as_well_as_small_ones() {
    let small = logits(&checkpoint_without(), DType::F8E4M3);
    let on_device = logits_on_device(&checkpoint_without());
    for names in [&["k_scale", "v_scale"][..], &["k_proj.k_scale", "v_proj.v_scale"], &["kv_scale"]]
    {
        let scaled = checkpoint_with(names);
        assert_eq!(logits(&scaled, DType::F8E4M3), small, "{names:?}");
        assert_eq!(logits_on_device(&scaled), on_device, "{names:?}");
    }
    let cut_off = logits(&checkpoint_with(&[]), DType::F8E4M3);
    let error = max_difference(&cut_off, &small) / largest(&small);
    assert!(error > 0.2, "without scales only {error} is lost: the test tests nothing");
}

#[test]
fn scales_that_cannot_be_used_are_named_when_a_cache_in_fp8_is_made() {
    for (checkpoint, reason) in [
        (checkpoint_with(&["k_scale"]), "its layer has none of the values"),
        (
            checkpoint_of(&["k_scale", "v_scale"], &[2, 1]),
            "it must hold one number: scales of single heads are not supported",
        ),
    ] {
        let small = logits(&checkpoint_without(), DType::F32);
        assert!(max_difference(&logits(&checkpoint, DType::F32), &small) < 1e-4, "{reason}");
        let on_cpu = load(&checkpoint, &options(), &mut |_| {}).unwrap();
        let on_device = load_on_device(&checkpoint, &options(), &mut |_| {}).unwrap();
        for refused in
            [on_cpu.new_cache(CACHE, DType::F8E4M3).err(), on_device.workspace(size(true)).err()]
        {
            assert_eq!(
                refused.unwrap().to_string(),
                format!(
                    "tensor model.layers.0.self_attn.k_scale cannot scale keys and values: {reason}; leave --kv-cache-dtype fp8 out, or take another version of the checkpoint"
                )
            );
        }
    }
}
