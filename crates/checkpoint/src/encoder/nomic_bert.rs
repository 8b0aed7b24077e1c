//! NomicBERT.

use candlepower_layout::Activation;

use super::{EncoderArch, EncoderKind, EncoderSpec, TensorList, expect};
use crate::{config::HfConfig, error::Result, spec::MAX_TOKENS};

pub(super) const ARCH: EncoderArch =
    EncoderArch { name: "NomicBertModel", prefix: "bert.", spec, head: None, tensors };

const NAMES: &[(&str, &str)] = &[
    ("hidden_size", "n_embd"),
    ("num_hidden_layers", "n_layer"),
    ("num_attention_heads", "n_head"),
    ("intermediate_size", "n_inner"),
    ("max_position_embeddings", "n_positions"),
    ("layer_norm_eps", "layer_norm_epsilon"),
];

fn spec(config: &HfConfig) -> Result<EncoderSpec> {
    let config = &config.renamed(NAMES);
    for key in ["causal", "parallel_block", "prenorm", "use_rms_norm", "num_experts"] {
        config.refuse(key)?;
    }
    expect(config, "activation_function", "swiglu".into())?;
    // JSON's 1 and 1.0 are different values of the same amount, so they are compared as floats first.
    if config.float_opt("rotary_emb_fraction")?.is_some_and(|part| part != 1.0) {
        expect(config, "rotary_emb_fraction", 1.0.into())?;
    }
    config.refuse("rotary_emb_scale_base")?;
    let kind = EncoderKind::NomicBert {
        theta: config.float("rotary_emb_base")?,
        interleaved: config.flag_or("rotary_emb_interleaved", false)?,
        qkv_bias: config.flag_or("qkv_proj_bias", true)?,
        fc1_bias: config.flag_or("mlp_fc1_bias", true)?,
        fc2_bias: config.flag_or("mlp_fc2_bias", true)?,
    };
    let mut spec = EncoderSpec { act: Activation::Silu, ..EncoderSpec::read(config, kind)? };
    // Beyond the trained positions the rope would be scaled by the text's length.
    if config.float_opt("rotary_scaling_factor")?.is_some() {
        let trained = config.bounded("max_trained_positions", MAX_TOKENS)?;
        spec.max_positions = spec.max_positions.min(trained);
    }
    // `bounded` refuses a zero, which here means that there is no table.
    if config.raw("type_vocab_size").and_then(serde_json::Value::as_u64) != Some(0) {
        spec.token_types = config.bounded("type_vocab_size", MAX_TOKENS)?;
    }
    Ok(spec)
}

fn tensors(spec: &EncoderSpec, list: &mut TensorList) {
    let EncoderKind::NomicBert { qkv_bias, fc1_bias, fc2_bias, .. } = spec.kind else {
        unreachable!("only the description of this file is asked for these tensors")
    };
    let (hidden, inner) = (spec.hidden_size, spec.intermediate_size);
    let mut table = |name: &str, rows: usize| {
        let name = format!("embeddings.{name}.weight");
        list.own(&name, &name, &[rows, hidden]);
    };
    table("word_embeddings", spec.vocab_size);
    if spec.token_types > 0 {
        table("token_type_embeddings", spec.token_types);
    }
    list.norm("emb_ln", "emb_ln", hidden);
    for i in 0..spec.num_layers {
        for (name, shape, bias) in [
            ("attn.Wqkv", [3 * hidden, hidden], qkv_bias),
            ("attn.out_proj", [hidden, hidden], qkv_bias),
            ("mlp.fc11", [inner, hidden], fc1_bias),
            ("mlp.fc12", [inner, hidden], fc1_bias),
            ("mlp.fc2", [hidden, inner], fc2_bias),
        ] {
            let name = format!("encoder.layers.{i}.{name}");
            match bias {
                true => list.affine(&name, &name, shape),
                false => list.own(&format!("{name}.weight"), &format!("{name}.weight"), &shape),
            }
        }
        for name in ["norm1", "norm2"] {
            let name = format!("encoder.layers.{i}.{name}");
            list.norm(&name, &name, hidden);
        }
    }
}
