//! LFM2: gated short convolutions in most layers, attention with norms on heads in the others, and experts chosen by sigmoids in some models.
//! Source: transformers `models/lfm2`, `models/lfm2_moe`.

use candlepower_layout::GatingFunction;

use super::Arch;
use crate::{
    config::HfConfig,
    error::Result,
    spec::{GatingSpec, MAX_WIDTH, Mixer, ModelSpec, QkNormSpan, ShortConvSpec},
    weights::{Slot, WeightRule, whole},
};

pub(super) const ARCH: Arch = Arch {
    name: "Lfm2ForCausalLM",
    model_type: "lfm2",
    reads: &["layer_types"],
    spec,
    weights: WEIGHTS,
    ..Arch::LIKE_LLAMA
};

pub(super) const MOE: Arch = Arch {
    name: "Lfm2MoeForCausalLM",
    model_type: "lfm2_moe",
    reads: &["layer_types", "num_experts"],
    spec: moe,
    ..ARCH
};

const NAMES: &[(&str, &str)] =
    &[("rms_norm_eps", "norm_eps"), ("tie_word_embeddings", "tie_embedding")];

const WEIGHTS: &[WeightRule] = &[
    whole(Slot::FinalNorm, "model.embedding_norm.weight"),
    whole(Slot::AttnNorm, "model.layers.{i}.operator_norm.weight"),
    whole(Slot::FfnNorm, "model.layers.{i}.ffn_norm.weight"),
    whole(Slot::QNorm, "model.layers.{i}.self_attn.q_layernorm.weight"),
    whole(Slot::KNorm, "model.layers.{i}.self_attn.k_layernorm.weight"),
    whole(Slot::O, "model.layers.{i}.self_attn.out_proj.weight"),
    whole(Slot::Gate, "model.layers.{i}.feed_forward.w1.weight"),
    whole(Slot::Down, "model.layers.{i}.feed_forward.w2.weight"),
    whole(Slot::Up, "model.layers.{i}.feed_forward.w3.weight"),
    whole(Slot::Router, "model.layers.{i}.feed_forward.gate.weight"),
    whole(Slot::RouterCorrection, "model.layers.{i}.feed_forward.expert_bias"),
    whole(Slot::ExpertGate(0), "model.layers.{i}.feed_forward.experts.{e}.w1.weight"),
    whole(Slot::ExpertDown(0), "model.layers.{i}.feed_forward.experts.{e}.w2.weight"),
    whole(Slot::ExpertUp(0), "model.layers.{i}.feed_forward.experts.{e}.w3.weight"),
];

fn spec(c: &HfConfig) -> Result<ModelSpec> {
    // Older files have another name for the width, and most files ask for the part of it that a gate leaves.
    let key = if c.contains("block_ff_dim") { "block_ff_dim" } else { "intermediate_size" };
    let mut inner = c.bounded(key, MAX_WIDTH)?;
    if c.flag_or("block_auto_adjust_ff_dim", true)? {
        let factor = c.factor_or("block_ffn_dim_multiplier", 1.0)?;
        let multiple = c.bounded_opt("block_multiple_of", MAX_WIDTH)?.unwrap_or(256);
        let part = factor * (2 * inner / 3) as f64;
        // Two thirds, as Llama's first feed-forwards: a gate adds a third matrix.
        if part > MAX_WIDTH as f64 {
            let reason = format!("; the feed-forward may have {MAX_WIDTH} elements");
            return Err(c.unsupported("block_ffn_dim_multiplier", &factor.into(), &reason));
        }
        inner = (part as usize).next_multiple_of(multiple).max(1);
    }
    base(&c.without(&["intermediate_size"]).with_default("intermediate_size", inner))
}

fn moe(c: &HfConfig) -> Result<ModelSpec> {
    let mut m = base(c)?;
    let gating = GatingSpec {
        function: GatingFunction::Sigmoid,
        bias: c.flag_or("use_expert_bias", true)?,
        scale: c.float_opt("routed_scaling_factor")?.unwrap_or(1.0),
        ..GatingSpec::softmax(c.flag_or("norm_topk_prob", true)?)
    };
    let dense = c.index_or("num_dense_layers", 2)?;
    m.set_experts(c, "moe_intermediate_size", gating, |i| i >= dense)?;
    Ok(m)
}

fn base(c: &HfConfig) -> Result<ModelSpec> {
    c.refuse("conv_bias")?;
    let c = c.with_default("norm_eps", 1e-5).renamed(NAMES).with_default("hidden_act", "silu");
    let mut m = ModelSpec::llama(&c.with_default("rope_theta", 1e6))?;
    m.head.tied = c.flag_or("tie_word_embeddings", true)?;
    m.set_qk_norm(m.final_norm, QkNormSpan::Head);
    let of_attention = c.indices("full_attn_idxs")?;
    let by_default = |i: usize| {
        // Without either list all layers are attentions.
        c.contains("full_attn_idxs") && !of_attention.iter().any(|layer| *layer as usize == i)
    };
    let kinds = [&["conv"][..], &["full_attention"]];
    let is_conv = m.layer_kinds(&c, "layer_types", kinds, by_default)?;
    let kernel_size = c.count_opt("conv_L_cache")?.unwrap_or(3);
    // The limit is that of the kernels, as is the multiple of eight below.
    if !(2..=8).contains(&kernel_size) {
        return Err(c.unsupported("conv_L_cache", &kernel_size.into(), "; 2 to 8 are"));
    }
    let channels = m.hidden_size;
    if !channels.is_multiple_of(8) {
        return Err(c.unsupported("hidden_size", &channels.into(), "; multiples of 8 are"));
    }
    let conv = Mixer::ShortConv(ShortConvSpec { channels, kernel_size });
    m.set_mixers(&c, "layer_types", &is_conv, &conv)?;
    Ok(m)
}
