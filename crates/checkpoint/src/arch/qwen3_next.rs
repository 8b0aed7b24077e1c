//! Qwen3-Next and Qwen3.5: three gated delta nets for each attention. Attention has QK norms and an output gate, and rotates a quarter
//! of each head. Norms are stored as differences from one. Layers are dense, or have experts and a shared expert with a score.
//! Source: transformers `models/qwen3_next`, `models/qwen3_5`, `models/qwen3_5_moe`.

use candlepower_layout::Activation;

use super::{
    Arch, Around, qwen2_moe,
    recurrent::{check_groups, head_width, kernel_size},
};
use crate::{
    config::HfConfig,
    error::Result,
    spec::{
        LinearAttentionSpec, MAX_HEADS, MAX_WIDTH, Mixer, ModelSpec, NormKind, NormSpec,
        QkNormSpan, UpdateRuleSpec, activation,
    },
    vision::qwen,
    weights::{Slot, WeightRule, heads},
};

pub(super) const NEXT: Arch = Arch {
    name: "Qwen3NextForCausalLM",
    model_type: "qwen3_next",
    spec: next,
    weights: OF_NEXT,
    ..QWEN3_5_MOE
};

pub(super) const QWEN3_5: Arch = Arch {
    name: "Qwen3_5ForCausalLM",
    model_type: "qwen3_5_text",
    reads: &["layer_types", "num_experts", "num_local_experts"],
    spec: base,
    weights: GATED,
    around: Around::Nothing,
    vision: None,
    predicts_more: true,
};

pub(super) const QWEN3_5_MOE: Arch = Arch {
    name: "Qwen3_5MoeForCausalLM",
    model_type: "qwen3_5_moe_text",
    spec: moe,
    weights: OF_MOE,
    ..QWEN3_5
};

/// The published form with images.
pub(super) const QWEN3_5_OF_IMAGES: Arch = Arch {
    name: "Qwen3_5ForConditionalGeneration",
    model_type: "qwen3_5",
    around: Around::Images(super::FOR_IMAGES),
    vision: Some(qwen::qwen3_5),
    ..QWEN3_5
};

pub(super) const QWEN3_5_MOE_OF_IMAGES: Arch = Arch {
    name: "Qwen3_5MoeForConditionalGeneration",
    model_type: "qwen3_5_moe",
    around: Around::Images(super::FOR_IMAGES),
    vision: Some(qwen::qwen3_5),
    ..QWEN3_5_MOE
};

/// Each head's queries and the gate of what it makes.
const Q: WeightRule = heads(Slot::Q, "model.layers.{i}.self_attn.q_proj.weight");
const GATED: &[WeightRule] = &[Q];

const OF_MOE: &[WeightRule] =
    &[Q, qwen2_moe::SHARED[0], qwen2_moe::SHARED[1], qwen2_moe::SHARED[2]];

const OF_NEXT: &[WeightRule] = &[
    Q,
    qwen2_moe::SHARED[0],
    qwen2_moe::SHARED[1],
    qwen2_moe::SHARED[2],
    heads(Slot::LinearAttnQ, "model.layers.{i}.linear_attn.in_proj_qkvz.weight"),
    heads(Slot::LinearAttnK, "model.layers.{i}.linear_attn.in_proj_qkvz.weight"),
    heads(Slot::LinearAttnV, "model.layers.{i}.linear_attn.in_proj_qkvz.weight"),
    heads(Slot::LinearAttnGate, "model.layers.{i}.linear_attn.in_proj_qkvz.weight"),
    heads(Slot::LinearAttnBeta, "model.layers.{i}.linear_attn.in_proj_ba.weight"),
    heads(Slot::LinearAttnDecay, "model.layers.{i}.linear_attn.in_proj_ba.weight"),
];

fn next(c: &HfConfig) -> Result<ModelSpec> {
    let mut m = base(c)?;
    qwen2_moe::set_experts(&mut m, c, c.flag_or("norm_topk_prob", true)?)?;
    qwen2_moe::set_shared_expert(&mut m, c)?;
    Ok(m)
}

fn moe(c: &HfConfig) -> Result<ModelSpec> {
    // All layers have experts, and configurations need not say how wide others would be.
    let inner = c.bounded("moe_intermediate_size", MAX_WIDTH)?;
    let mut m = base(&c.with_default("intermediate_size", inner))?;
    // The class has experts in every layer, and ignores both keys. It always renormalizes.
    qwen2_moe::set_experts(&mut m, &c.without(&["decoder_sparse_step", "mlp_only_layers"]), true)?;
    qwen2_moe::set_shared_expert(&mut m, c)?;
    Ok(m)
}

fn base(c: &HfConfig) -> Result<ModelSpec> {
    // Absent, it would be 256, not hidden_size / num_attention_heads.
    c.count("head_dim")?;
    let mut m = ModelSpec::llama(&c.with_default("partial_rotary_factor", 0.25))?;
    if !c.flag_or("attn_output_gate", true)? {
        return Err(c.unsupported("attn_output_gate", &false.into(), "; true is"));
    }
    // The norms of q and k copy the final norm below, so its kind is set first.
    m.set_norm(NormSpec { kind: NormKind::RmsPlusOne, ..m.final_norm });
    m.set_qk_norm(m.final_norm, QkNormSpan::Head);
    m.each_attention(|_, a| a.gated = true);
    let net = delta_net(c)?;
    let interval = c.count_opt("full_attention_interval")?.unwrap_or(4);
    let by_default = |i: usize| !(i + 1).is_multiple_of(interval);
    let kinds = [&["linear_attention"][..], &["full_attention"]];
    let is_linear = m.layer_kinds(c, "layer_types", kinds, by_default)?;
    m.set_mixers(c, "layer_types", &is_linear, &Mixer::LinearAttention(net))?;
    Ok(m)
}

/// The delta net of a layer whose convolution has the feed-forward's activation.
fn delta_net(c: &HfConfig) -> Result<LinearAttentionSpec> {
    if activation(c)? != Activation::Silu {
        let found = c.raw("hidden_act").cloned().unwrap_or_default();
        return Err(c.unsupported("hidden_act", &found, "; silu is"));
    }
    let net = LinearAttentionSpec {
        key_heads: c.bounded("linear_num_key_heads", MAX_HEADS)?,
        value_heads: c.bounded("linear_num_value_heads", MAX_HEADS)?,
        key_dim: head_width(c, "linear_key_head_dim")?,
        value_dim: head_width(c, "linear_value_head_dim")?,
        kernel_size: kernel_size(c, "linear_conv_kernel_dim")?,
        rule: UpdateRuleSpec::Delta,
        tiled: false,
        log_rates: true,
        eps: c.float("rms_norm_eps")?,
    };
    let needed = "a multiple of linear_num_key_heads";
    check_groups(c, &net, "linear_num_value_heads", needed)?;
    Ok(net)
}
