//! ERNIE 4.5: Llama with ropes of neighbours, and biases everywhere or nowhere; or with experts, chosen by a softmax and biases, beside
//! shared ones. Source: transformers `models/ernie4_5`, `models/ernie4_5_moe`.

use super::Arch;
use crate::{
    config::HfConfig,
    error::Result,
    spec::{GatingSpec, ModelSpec},
    weights::{Slot, WeightRule, row},
};

pub(super) const ARCH: Arch = Arch {
    name: "Ernie4_5ForCausalLM",
    model_type: "ernie4_5",
    reads: &[],
    spec,
    ..Arch::LIKE_LLAMA
};

pub(super) const MOE: Arch = Arch {
    name: "Ernie4_5_MoeForCausalLM",
    model_type: "ernie4_5_moe",
    reads: &[],
    spec: moe,
    weights: WEIGHTS,
    predicts_more: true,
    ..Arch::LIKE_LLAMA
};

const WEIGHTS: &[WeightRule] =
    &[row(Slot::RouterCorrection, "model.layers.{i}.mlp.moe_statics.e_score_correction_bias")];

fn spec(c: &HfConfig) -> Result<ModelSpec> {
    // Absent, it would be 128, not hidden_size / num_attention_heads.
    c.count("head_dim")?;
    base(c)
}

fn base(c: &HfConfig) -> Result<ModelSpec> {
    let mut m = ModelSpec::llama(&c.with_default("rope_theta", 500_000.0))?;
    m.interleave_ropes();
    m.head.tied = c.flag_or("tie_word_embeddings", true)?;
    let bias = c.flag_or("use_bias", false)?;
    m.each_attention(|_, a| (a.qkv_bias, a.out_bias) = (bias, bias));
    m.each_mlp(|mlp| mlp.bias = bias);
    Ok(m)
}

fn moe(c: &HfConfig) -> Result<ModelSpec> {
    let c = c.with_default("num_experts", c.count("moe_num_experts")?);
    let c = &c.with_default("num_experts_per_tok", c.count("moe_k")?);
    let mut m = base(c)?;
    if m.layers[0].ffn.mlp().is_some_and(|mlp| mlp.bias) {
        return Err(c.unsupported("use_bias", &true.into(), "; experts without biases are"));
    }
    let gating = GatingSpec { bias: true, ..GatingSpec::softmax(true) };
    let interval = c.count_opt("moe_layer_interval")?.unwrap_or(1);
    let first = c.index_or("moe_layer_start_index", 1)?;
    // The value -1 means the last layer.
    let last = match c.raw("moe_layer_end_index") {
        Some(index) if index.as_i64() == Some(-1) => m.layers.len(),
        _ => c.index_or("moe_layer_end_index", m.layers.len())?,
    };
    m.set_experts(c, "moe_intermediate_size", gating, |i| {
        (i + 1).is_multiple_of(interval) && (first..=last).contains(&i)
    })?;
    m.set_shared_experts(c, "moe_num_shared_experts", 2)?;
    Ok(m)
}
