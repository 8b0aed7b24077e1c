//! GPT-NeoX and Pythia: attention and feed-forward side by side, each behind a norm of its own, a part of each head rotated, and rows of q,
//! k and v that lie head by head. Source: transformers `models/gpt_neox`.

use super::{Arch, Around};
use crate::{
    config::HfConfig,
    error::Result,
    spec::{ModelSpec, Residual},
    weights::{Slot, WeightRule, heads, whole},
};

pub(super) const ARCH: Arch = Arch {
    name: "GPTNeoXForCausalLM",
    model_type: "gpt_neox",
    reads: &["attention_bias"],
    spec,
    weights: WEIGHTS,
    around: Around::Name("gpt_neox."),
    ..Arch::LIKE_LLAMA
};

const NAMES: &[(&str, &str)] =
    &[("partial_rotary_factor", "rotary_pct"), ("rope_theta", "rotary_emb_base")];

const WEIGHTS: &[WeightRule] = &[
    whole(Slot::Embed, "embed_in.weight"),
    whole(Slot::FinalNorm, "final_layer_norm.weight"),
    whole(Slot::FinalNormBias, "final_layer_norm.bias"),
    whole(Slot::Head, "embed_out.weight"),
    whole(Slot::AttnNorm, "layers.{i}.input_layernorm.weight"),
    whole(Slot::AttnNormBias, "layers.{i}.input_layernorm.bias"),
    whole(Slot::FfnNorm, "layers.{i}.post_attention_layernorm.weight"),
    whole(Slot::FfnNormBias, "layers.{i}.post_attention_layernorm.bias"),
    heads(Slot::Q, "layers.{i}.attention.query_key_value.weight"),
    heads(Slot::K, "layers.{i}.attention.query_key_value.weight"),
    heads(Slot::V, "layers.{i}.attention.query_key_value.weight"),
    heads(Slot::QBias, "layers.{i}.attention.query_key_value.bias"),
    heads(Slot::KBias, "layers.{i}.attention.query_key_value.bias"),
    heads(Slot::VBias, "layers.{i}.attention.query_key_value.bias"),
    whole(Slot::O, "layers.{i}.attention.dense.weight"),
    whole(Slot::OBias, "layers.{i}.attention.dense.bias"),
    whole(Slot::Up, "layers.{i}.mlp.dense_h_to_4h.weight"),
    whole(Slot::UpBias, "layers.{i}.mlp.dense_h_to_4h.bias"),
    whole(Slot::Down, "layers.{i}.mlp.dense_4h_to_h.weight"),
    whole(Slot::DownBias, "layers.{i}.mlp.dense_4h_to_h.bias"),
];

fn spec(c: &HfConfig) -> Result<ModelSpec> {
    // Configurations of transformers 4 have the older names of both keys.
    let c = c.renamed(NAMES).with_default("partial_rotary_factor", 0.25);
    let mut m = ModelSpec::gpt(&c.with_default("hidden_act", "gelu"), "layer_norm_eps")?;
    let bias = c.flag_or("attention_bias", true)?;
    m.each_attention(|_, a| (a.qkv_bias, a.out_bias) = (bias, bias));
    if c.flag_or("use_parallel_residual", true)? {
        m.layers.iter_mut().for_each(|layer| layer.residual = Residual::ParallelNorms);
    }
    Ok(m)
}
