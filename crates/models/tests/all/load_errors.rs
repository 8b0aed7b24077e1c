//! A fault of a checkpoint is reported in one line that names it, before the first step.

use std::{
    fs,
    path::{Path, PathBuf},
};

use candle_core::Device;
use candlepower_checkpoint::{Checkpoint, CheckpointFiles};
use candlepower_models::{LoadDtype, LoadFormat, LoadOptions, load};
use safetensors::{Dtype, SafeTensors, tensor::TensorView};

use candlepower_testing::goldens::folder;

/// A copy of a golden checkpoint that a test may damage.
struct Copy(PathBuf);

impl Copy {
    fn of(golden: &str, test: &str) -> Self {
        let to = Path::new(env!("CARGO_TARGET_TMPDIR")).join(test);
        fs::create_dir_all(&to).unwrap();
        for entry in fs::read_dir(folder(golden)).unwrap() {
            let entry = entry.unwrap();
            fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
        }
        Self(to)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// Edits the names, dtypes and shapes of `model.safetensors`; the bytes stay.
    fn edit(&self, mut edit: impl FnMut(&mut String, &mut Dtype, &mut Vec<usize>)) {
        let bytes = fs::read(self.path("model.safetensors")).unwrap();
        let file = SafeTensors::deserialize(&bytes).unwrap();
        let edited = file.tensors().into_iter().map(|(mut name, view)| {
            let (mut dtype, mut shape) = (view.dtype(), view.shape().to_vec());
            edit(&mut name, &mut dtype, &mut shape);
            (name, TensorView::new(dtype, shape, view.data()).unwrap())
        });
        safetensors::serialize_to_file(edited, None, &self.path("model.safetensors")).unwrap();
    }

    /// Edits the bytes of the tensors of `model.safetensors`.
    fn edit_data(&self, mut edit: impl FnMut(&str, &mut [u8])) {
        let bytes = fs::read(self.path("model.safetensors")).unwrap();
        let file = SafeTensors::deserialize(&bytes).unwrap();
        let tensors: Vec<_> = file
            .tensors()
            .into_iter()
            .map(|(name, view)| {
                let mut data = view.data().to_vec();
                edit(&name, &mut data);
                (name, view.dtype(), view.shape().to_vec(), data)
            })
            .collect();
        let views = tensors.iter().map(|(name, dtype, shape, data)| {
            (name, TensorView::new(*dtype, shape.clone(), data).unwrap())
        });
        safetensors::serialize_to_file(views, None, &self.path("model.safetensors")).unwrap();
    }

    fn config(&self, from: &str, to: &str) {
        let path = self.path("config.json");
        let text = fs::read_to_string(&path).unwrap();
        assert!(text.contains(from), "{from}");
        fs::write(path, text.replace(from, to)).unwrap();
    }

    fn error(&self) -> String {
        self.error_with(&OPTIONS)
    }

    fn error_with(&self, options: &LoadOptions) -> String {
        let checkpoint = match Checkpoint::open(CheckpointFiles::Folder(self.0.clone())) {
            Ok(checkpoint) => checkpoint,
            Err(e) => return e.to_string(),
        };
        match load(&checkpoint, options, &mut |_| {}) {
            Ok(_) => panic!("it loaded"),
            Err(e) => e.to_string(),
        }
    }
}

impl Drop for Copy {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.0).unwrap();
    }
}

const OPTIONS: LoadOptions = LoadOptions {
    device: Device::Cpu,
    dtype: LoadDtype::Auto,
    load_format: LoadFormat::Auto,
    max_model_len: None,
};

#[test]
fn an_unknown_architecture() {
    let copy = Copy::of("llama", "architecture");
    copy.config("LlamaForCausalLM", "LlamoForCausalLM");
    assert!(copy.error().starts_with(
        "architecture `LlamoForCausalLM` is not supported (the nearest is `LlamaForCausalLM`)"
    ));
}

#[test]
fn an_unknown_rope_type() {
    let copy = Copy::of("llama", "rope");
    copy.config("llama3", "spiral");
    assert!(copy.error().contains("`rope_parameters.rope_type` = \"spiral\" is not supported"));
}

#[test]
fn an_unknown_activation() {
    let copy = Copy::of("qwen2", "activation");
    copy.config("silu", "snake");
    assert!(copy.error().contains("`hidden_act` = \"snake\" is not supported"));
}

#[test]
fn missing_tensors_are_named() {
    let copy = Copy::of("qwen3", "missing");
    copy.config("\"num_hidden_layers\": 3", "\"num_hidden_layers\": 4");
    copy.config("\"full_attention\",", "\"full_attention\", \"full_attention\",");
    let e = copy.error();
    assert!(e.starts_with("15 tensors of the model are not in the weight files: "), "{e}");
    assert!(
        e.contains("model.layers.3.input_layernorm.weight") && e.ends_with(" and 10 more"),
        "{e}"
    );
}

#[test]
fn unknown_tensors_are_named() {
    let copy = Copy::of("llama", "unknown");
    copy.config("\"mlp_bias\": true", "\"mlp_bias\": false");
    assert_eq!(
        copy.error(),
        "9 tensors in the weight files are not part of LlamaForCausalLM as config.json describes it: \
         model.layers.0.mlp.down_proj.bias, model.layers.0.mlp.gate_proj.bias, \
         model.layers.0.mlp.up_proj.bias, model.layers.1.mlp.down_proj.bias, \
         model.layers.1.mlp.gate_proj.bias and 4 more"
    );
}

/// Buffers and a copied head are explained, so they do no harm.
#[test]
fn known_leftovers_are_skipped() {
    let copy = Copy::of("llama", "leftovers");
    copy.config("\"tie_word_embeddings\": false", "\"tie_word_embeddings\": true");
    copy.config("\"mlp_bias\": true", "\"mlp_bias\": false");
    copy.edit(|name, _, _| {
        if name.contains(".mlp.") && name.ends_with(".bias") {
            *name = format!("{name}.rotary_emb.inv_freq");
        }
    });
    let checkpoint = Checkpoint::open(CheckpointFiles::Folder(copy.0.clone())).unwrap();
    load(&checkpoint, &OPTIONS, &mut |_| {}).unwrap();
}

#[test]
fn a_wrong_shape() {
    let copy = Copy::of("mistral", "shape");
    copy.edit(|name, _, shape| {
        if name == "model.layers.1.self_attn.k_proj.weight" {
            shape.reverse();
        }
    });
    assert_eq!(
        copy.error(),
        "tensor model.layers.1.self_attn.k_proj.weight has shape [64, 48], but config.json makes it [48, 64]"
    );
}

#[test]
fn a_dtype_that_is_not_computed_with() {
    let copy = Copy::of("mistral", "dtype");
    copy.edit(|name, dtype, _| {
        if name == "model.norm.weight" {
            *dtype = Dtype::I32;
        }
    });
    assert_eq!(
        copy.error(),
        "tensor model.norm.weight is stored as I32, which is not supported; F32, F16 and BF16 are"
    );
}

#[test]
fn a_truncated_file() {
    let copy = Copy::of("gemma2", "truncated");
    let path = copy.path("model.safetensors");
    let whole = fs::metadata(&path).unwrap().len();
    for len in [whole - 1, 1000, 8, 3, 0] {
        fs::File::options().write(true).open(&path).unwrap().set_len(len).unwrap();
        let e = copy.error();
        assert!(
            e.starts_with(&format!("model.safetensors is damaged or truncated ({len} bytes: ")),
            "{e}"
        );
        assert!(e.ends_with("download it again") && !e.contains('\n'), "{e}");
    }
}

/// The rest of a failed download.
#[test]
fn a_file_that_is_no_safetensors() {
    let copy = Copy::of("gemma2", "html");
    fs::write(copy.path("model.safetensors"), "<!doctype html><title>404</title>").unwrap();
    assert!(copy.error().starts_with("model.safetensors is damaged or truncated (33 bytes: "));
    fs::write(copy.path("config.json"), "<!doctype html>").unwrap();
    assert!(copy.error().starts_with("config.json is damaged, it is not a JSON object: "));
}

#[test]
fn a_missing_shard() {
    let copy = Copy::of("llama-linear", "shard");
    let names = fs::read_dir(&copy.0).unwrap().map(|e| e.unwrap().file_name());
    let shard = names.filter_map(|n| n.into_string().ok()).find(|n| n.starts_with("model-00002"));
    let shard = shard.unwrap();
    fs::remove_file(copy.path(&shard)).unwrap();
    assert_eq!(
        copy.error(),
        format!(
            "{shard} is missing, although model.safetensors.index.json names it; download the checkpoint again"
        )
    );
}

#[test]
fn a_tensor_in_two_shards() {
    let copy = Copy::of("llama-linear", "twice");
    let index = copy.path("model.safetensors.index.json");
    let text = fs::read_to_string(&index).unwrap();
    fs::write(&index, text.replace("\"weight_map\": {", "\"weight_map\": {\"x\": \"other\","))
        .unwrap();
    let names = fs::read_dir(&copy.0).unwrap().map(|e| e.unwrap().path());
    let shard = names.into_iter().find(|p| p.to_string_lossy().contains("model-00001")).unwrap();
    fs::copy(&shard, copy.path("other")).unwrap();
    let e = copy.error();
    assert!(e.contains(" is both in model-00001-of-"), "{e}");
    assert!(e.ends_with(" and in other; remove one of the files"), "{e}");
}

#[test]
fn no_weights_at_all() {
    let copy = Copy::of("phi3", "weightless");
    fs::rename(copy.path("model.safetensors"), copy.path("pytorch_model.bin")).unwrap();
    let e = copy.error();
    assert!(e.starts_with("no weights in ") && e.contains("pytorch_model.bin"), "{e}");
}

#[test]
fn quantized_weights() {
    let copy = Copy::of("llama", "quantized");
    let quantized = |config: &str| format!("\"quantization_config\": {config}, \"vocab_size\"");
    copy.config("\"vocab_size\"", &quantized("{\"quant_method\": \"quip\"}"));
    assert!(
        copy.error()
            .starts_with("the checkpoint is quantized with quip, which is not supported; awq, gptq, squeezellm, fp8, mxfp4, nvfp4 and compressed-tensors' integers are")
    );
    copy.config("\"quip\"", "\"gptq\"");
    assert_eq!(
        copy.error(),
        "config.json: `quantization_config.bits` is missing; a whole number of at least 1 is needed"
    );
    copy.config("\"gptq\"", "\"gptq\", \"bits\": 4, \"group_size\": 32");
    let e = copy.error();
    assert!(e.starts_with("63 tensors of the model are not in the weight files: "), "{e}");
}

/// The traces of a flipped bit, or of a mistaken script, in tensors whose shapes are right.
#[test]
fn damaged_quantized_tensors() {
    let whole = |name: &str, value: &[u8]| {
        let (name, value) = (name.to_owned(), value.to_vec());
        move |tensor: &str, data: &mut [u8]| {
            if tensor == name {
                data[..value.len()].copy_from_slice(&value);
            }
        }
    };
    let cases = [
        ("awq", "model.layers.0.mlp.up_proj.scales", &[0, 0x7c][..], "it holds infinity or NaN"),
        ("fp8", "model.layers.0.mlp.up_proj.weight", &[0xff], "it holds NaN"),
        (
            "squeezellm",
            "model.layers.0.mlp.up_proj.lookup_table",
            &[1, 0x7e],
            "it holds infinity or NaN",
        ),
        (
            "gptq",
            "model.layers.0.mlp.up_proj.g_idx",
            &[0xff; 4],
            "it does not assign inputs to groups of the size that config.json says",
        ),
    ];
    let fp8 =
        [("fp8", "model.layers.0.mlp.up_proj.input_scale", &[0; 4][..], "it is no positive scale")];
    for (golden, tensor, bytes, reason) in cases.into_iter().chain(fp8) {
        let copy = Copy::of(golden, &format!("damaged-{golden}"));
        copy.edit_data(whole(tensor, bytes));
        let expected =
            format!("tensor {tensor} is damaged: {reason}; download the checkpoint again");
        assert_eq!(copy.error(), expected);
    }
    let copy = Copy::of("awq", "codes-dtype");
    copy.edit(|name, dtype, _| {
        if name == "model.layers.0.mlp.up_proj.qweight" {
            *dtype = Dtype::F32;
        }
    });
    assert_eq!(
        copy.error(),
        "tensor model.layers.0.mlp.up_proj.qweight is stored as F32, which is not supported; I32 is"
    );
    copy.config("\"group_size\": 32", "\"group_size\": 64");
    assert!(copy.error().contains("has shape [2, "), "{}", copy.error());
}

/// Static scales of activations are in the files if and only if the configuration says so.
#[test]
fn scales_of_activations_are_neither_missing_nor_ignored() {
    let copy = Copy::of("fp8", "without-input-scale");
    copy.edit(|name, _, _| {
        if name == "model.layers.0.mlp.up_proj.input_scale" {
            *name = "model.layers.0.mlp.up_proj.k_scale".to_owned();
        }
    });
    let e = copy.error();
    assert!(
        e.starts_with("tensor model.layers.0.mlp.up_proj.input_scale is missing, although"),
        "{e}"
    );
    let copy = Copy::of("fp8", "dynamic-with-input-scale");
    copy.config("\"static\"", "\"dynamic\"");
    let e = copy.error();
    assert!(e.contains("input_scale"), "{e}");
}

/// q and k of one layer are to be one matrix, whose inputs can have one order only.
#[test]
fn different_orders_of_inputs() {
    let copy = Copy::of("gptq", "orders");
    copy.edit_data(|name, data| {
        if name == "model.layers.1.self_attn.k_proj.g_idx" {
            // The last input trades its group with the first that is in another one.
            let last = data.len() - 4;
            let other = (0..last).step_by(4).find(|at| data[*at] != data[last]).unwrap();
            data.swap(other, last);
        }
    });
    let e = copy.error();
    assert!(e.contains("have their inputs in different orders"), "{e}");
}

#[test]
fn a_context_beyond_the_model() {
    let copy = Copy::of("llama", "context");
    let options = LoadOptions { max_model_len: Some(257), ..OPTIONS };
    assert_eq!(
        copy.error_with(&options),
        "max_model_len 257 is beyond the model's 256 positions; ask for at most 256"
    );
}
