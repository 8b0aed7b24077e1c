//! Qwen1.5-MoE and Qwen2-MoE: Qwen2 with experts in most layers, and a shared expert that is weighted by a score of its own.
//! Source: transformers `models/qwen2_moe`.

use super::{Arch, qwen2};
use crate::{
    config::HfConfig,
    error::Result,
    spec::{FfnSpec, GatingSpec, MAX_WIDTH, ModelSpec},
    weights::{Slot, WeightRule, whole},
};

pub(super) const ARCH: Arch = Arch {
    name: "Qwen2MoeForCausalLM",
    model_type: "qwen2_moe",
    reads: &[
        "use_sliding_window",
        "sliding_window",
        "layer_types",
        "num_experts",
        "num_local_experts",
    ],
    spec,
    weights: SHARED,
    ..Arch::LIKE_LLAMA
};

/// The shared expert, which is stored under a singular name.
pub(super) const SHARED: &[WeightRule] = &[
    whole(Slot::SharedGate, "model.layers.{i}.mlp.shared_expert.gate_proj.weight"),
    whole(Slot::SharedUp, "model.layers.{i}.mlp.shared_expert.up_proj.weight"),
    whole(Slot::SharedDown, "model.layers.{i}.mlp.shared_expert.down_proj.weight"),
];

fn spec(c: &HfConfig) -> Result<ModelSpec> {
    let mut m = qwen2::spec(c)?;
    let bias = c.flag_or("qkv_bias", true)?;
    // Qwen2-MoE may lack the biases that Qwen2 always has.
    m.each_attention(|_, a| a.qkv_bias = bias);
    set_experts(&mut m, c, c.flag_or("norm_topk_prob", false)?)?;
    set_shared_expert(&mut m, c)?;
    Ok(m)
}

/// Gives layers Qwen's experts: every `decoder_sparse_step`-th layer, but for those of `mlp_only_layers`.
pub(super) fn set_experts(m: &mut ModelSpec, c: &HfConfig, renormalize: bool) -> Result<()> {
    let step = c.count_opt("decoder_sparse_step")?.unwrap_or(1);
    let dense = c.indices("mlp_only_layers")?;
    let has_experts = |i: usize| (i + 1).is_multiple_of(step) && !dense.contains(&(i as u32));
    m.set_experts(c, "moe_intermediate_size", GatingSpec::softmax(renormalize), has_experts)
}

/// Gives MoE layers a shared expert that is weighted by a score of its own.
pub(super) fn set_shared_expert(m: &mut ModelSpec, c: &HfConfig) -> Result<()> {
    let width = c.bounded("shared_expert_intermediate_size", MAX_WIDTH)?;
    m.set_shared_width(c, "shared_expert_intermediate_size", |_| width)?;
    for layer in &mut m.layers {
        if let FfnSpec::Experts(experts) = &mut layer.ffn {
            experts.shared_gate = true;
        }
    }
    Ok(())
}
