//! Phi-3, Phi-3.5 and Phi-4: Llama with q, k and v stored as one tensor, gate and up as one, only
//! a part of each head rotated, and a window. Source: transformers `models/phi3`.

use super::Arch;
use crate::{
    config::HfConfig,
    error::Result,
    spec::ModelSpec,
    weights::{Slot, WeightRule, rows},
};

pub(super) const ARCH: Arch = Arch {
    name: "Phi3ForCausalLM",
    model_type: "phi3",
    reads: &["sliding_window"],
    spec,
    weights: WEIGHTS,
    ..Arch::LIKE_LLAMA
};

const WEIGHTS: &[WeightRule] = &[
    rows(Slot::Q, "model.layers.{i}.self_attn.qkv_proj.weight"),
    rows(Slot::K, "model.layers.{i}.self_attn.qkv_proj.weight"),
    rows(Slot::V, "model.layers.{i}.self_attn.qkv_proj.weight"),
    rows(Slot::Gate, "model.layers.{i}.mlp.gate_up_proj.weight"),
    rows(Slot::Up, "model.layers.{i}.mlp.gate_up_proj.weight"),
];

fn spec(c: &HfConfig) -> Result<ModelSpec> {
    let rope = c.rope_parameters()?;
    // Phi-3's own code reads "yarn" as longrope, with longrope's keys.
    if let Some(kind @ "yarn") = rope.text_opt("rope_type")? {
        return Err(rope.unsupported("rope_type", &kind.into(), " by Phi-3; longrope is"));
    }
    let mut m = ModelSpec::llama(c)?;
    let window = c.count_opt("sliding_window")?;
    m.each_attention(|_, a| a.window = window);
    Ok(m)
}
