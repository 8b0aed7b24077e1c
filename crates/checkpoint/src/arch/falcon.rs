//! Falcon (7B, 40B, 180B, 2-11B): LayerNorm before attention and feed-forward side by side, no biases, and rows of q, k and v that lie together
//! for each head of keys. Source: transformers `models/falcon`.

use super::{Arch, Around};
use crate::{
    config::HfConfig,
    error::Result,
    spec::{ModelSpec, Residual},
    weights::{Slot, WeightRule, heads, whole},
};

pub(super) const ARCH: Arch = Arch {
    name: "FalconForCausalLM",
    model_type: "falcon",
    reads: &[],
    spec,
    weights: WEIGHTS,
    around: Around::Name("transformer."),
    ..Arch::LIKE_LLAMA
};

const NAMES: &[(&str, &str)] = &[
    ("num_key_value_heads", "num_kv_heads"),
    ("hidden_act", "activation"),
    ("intermediate_size", "ffn_hidden_size"),
];

const WEIGHTS: &[WeightRule] = &[
    whole(Slot::Embed, "word_embeddings.weight"),
    whole(Slot::FinalNorm, "ln_f.weight"),
    whole(Slot::FinalNormBias, "ln_f.bias"),
    whole(Slot::AttnNorm, "h.{i}.input_layernorm.weight"),
    whole(Slot::AttnNorm, "h.{i}.ln_attn.weight"),
    whole(Slot::AttnNormBias, "h.{i}.input_layernorm.bias"),
    whole(Slot::AttnNormBias, "h.{i}.ln_attn.bias"),
    whole(Slot::FfnNorm, "h.{i}.post_attention_layernorm.weight"),
    whole(Slot::FfnNorm, "h.{i}.ln_mlp.weight"),
    whole(Slot::FfnNormBias, "h.{i}.post_attention_layernorm.bias"),
    whole(Slot::FfnNormBias, "h.{i}.ln_mlp.bias"),
    heads(Slot::Q, "h.{i}.self_attention.query_key_value.weight"),
    heads(Slot::K, "h.{i}.self_attention.query_key_value.weight"),
    heads(Slot::V, "h.{i}.self_attention.query_key_value.weight"),
    heads(Slot::QBias, "h.{i}.self_attention.query_key_value.bias"),
    heads(Slot::KBias, "h.{i}.self_attention.query_key_value.bias"),
    heads(Slot::VBias, "h.{i}.self_attention.query_key_value.bias"),
    whole(Slot::O, "h.{i}.self_attention.dense.weight"),
    whole(Slot::OBias, "h.{i}.self_attention.dense.bias"),
    whole(Slot::Up, "h.{i}.mlp.dense_h_to_4h.weight"),
    whole(Slot::UpBias, "h.{i}.mlp.dense_h_to_4h.bias"),
    whole(Slot::Down, "h.{i}.mlp.dense_4h_to_h.weight"),
    whole(Slot::DownBias, "h.{i}.mlp.dense_4h_to_h.bias"),
];

fn spec(c: &HfConfig) -> Result<ModelSpec> {
    let newer = c.flag_or("new_decoder_architecture", false)?;
    let one_key = !newer && c.flag_or("multi_query", true)?;
    // The older architecture has one head of keys, or one for each
    // head of queries; transformers ignores the key there.
    let read = if newer { c.clone() } else { c.without(&["num_kv_heads"]) };
    let read = read.renamed(NAMES).with_default("hidden_act", "gelu");
    let read = read.with_default("max_position_embeddings", 2048);
    let mut m = ModelSpec::gpt(&read, "layer_norm_epsilon")?;
    m.set_biases(c.flag_or("bias", false)?);
    if one_key {
        m.each_attention(|_, a| a.kv_heads = 1);
    }
    // Falcon 2 has the newer architecture with one norm for both parts.
    let residual = match c.index_or("num_ln_in_parallel_attn", 2)? {
        2 if newer => Residual::ParallelNorms,
        _ if newer || c.flag_or("parallel_attn", true)? => Residual::Parallel,
        _ => Residual::PreNorm,
    };
    m.layers.iter_mut().for_each(|layer| layer.residual = residual);
    m.head.tied = c.flag_or("tie_word_embeddings", true)?;
    Ok(m)
}
