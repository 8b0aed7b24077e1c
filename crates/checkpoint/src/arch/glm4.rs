//! GLM-4: Llama with half of each head rotated, pair by pair of neighbours, biases on q, k and v, and gate and up stored as one
//! tensor. GLM-4-0414 has norms before and after each block. Source: transformers `models/glm`, `models/glm4`.

use super::Arch;
use crate::{
    config::HfConfig,
    error::Result,
    spec::{ModelSpec, Residual},
    weights::{Slot, WeightRule, rows, whole},
};

pub(super) const GLM: Arch = Arch {
    name: "GlmForCausalLM",
    model_type: "glm",
    reads: &["attention_bias"],
    spec: glm,
    weights: WEIGHTS,
    ..Arch::LIKE_LLAMA
};

pub(super) const ARCH: Arch = Arch { name: "Glm4ForCausalLM", model_type: "glm4", spec, ..GLM };

const WEIGHTS: &[WeightRule] = &[
    whole(Slot::AttnPostNorm, "model.layers.{i}.post_self_attn_layernorm.weight"),
    whole(Slot::FfnPostNorm, "model.layers.{i}.post_mlp_layernorm.weight"),
    rows(Slot::Gate, "model.layers.{i}.mlp.gate_up_proj.weight"),
    rows(Slot::Up, "model.layers.{i}.mlp.gate_up_proj.weight"),
];

fn glm(c: &HfConfig) -> Result<ModelSpec> {
    // Absent, it would be 128, not hidden_size / num_attention_heads.
    c.count("head_dim")?;
    let c = c.with_default("partial_rotary_factor", 0.5).with_default("attention_bias", true);
    let mut m = ModelSpec::llama(&c)?;
    // The key is about q, k and v alone: the class gives the output no bias.
    m.each_attention(|_, a| a.out_bias = false);
    m.interleave_ropes();
    Ok(m)
}

fn spec(c: &HfConfig) -> Result<ModelSpec> {
    let mut m = glm(c)?;
    m.layers.iter_mut().for_each(|l| l.residual = Residual::Sandwich);
    Ok(m)
}
