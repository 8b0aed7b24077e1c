//! Mixtral: Mistral with experts in every layer. Source: transformers `models/mixtral`.

use super::Arch;
use crate::{
    config::HfConfig,
    error::Result,
    spec::{GatingSpec, ModelSpec},
    weights::{Slot, WeightRule, whole},
};

pub(super) const ARCH: Arch = Arch {
    name: "MixtralForCausalLM",
    model_type: "mixtral",
    reads: &["sliding_window", "num_local_experts"],
    spec,
    weights: WEIGHTS,
    ..Arch::LIKE_LLAMA
};

pub(super) const WEIGHTS: &[WeightRule] = &[
    whole(Slot::Router, "model.layers.{i}.block_sparse_moe.gate.weight"),
    // MiniMax has it.
    whole(Slot::RouterCorrection, "model.layers.{i}.block_sparse_moe.e_score_correction_bias"),
    whole(Slot::ExpertGate(0), "model.layers.{i}.block_sparse_moe.experts.{e}.w1.weight"),
    whole(Slot::ExpertDown(0), "model.layers.{i}.block_sparse_moe.experts.{e}.w2.weight"),
    whole(Slot::ExpertUp(0), "model.layers.{i}.block_sparse_moe.experts.{e}.w3.weight"),
];

fn spec(c: &HfConfig) -> Result<ModelSpec> {
    let mut m = ModelSpec::llama(&c.with_default("rope_theta", 1e6))?;
    let window = c.count_opt("sliding_window")?;
    m.each_attention(|_, a| a.window = window);
    m.set_experts(c, "intermediate_size", GatingSpec::softmax(true), |_| true)?;
    Ok(m)
}
