//! Trinity (AFMoE): norms before and after each part, gated attention that uses RoPE in windowed layers alone, experts chosen by
//! sigmoids, and a shared expert. Source: transformers `models/afmoe`.

use candlepower_layout::GatingFunction;

use super::{Arch, deepseek::expect};
use crate::{
    config::HfConfig,
    error::Result,
    spec::{GatingSpec, ModelSpec, QkNormSpan, Residual},
    weights::{Slot, WeightRule, whole},
};

pub(super) const ARCH: Arch = Arch {
    name: "AfmoeForCausalLM",
    model_type: "afmoe",
    reads: &["attention_bias", "num_experts", "num_local_experts", "sliding_window", "layer_types"],
    spec,
    weights: WEIGHTS,
    ..Arch::LIKE_LLAMA
};

const WEIGHTS: &[WeightRule] = &[
    whole(Slot::AttnPostNorm, "model.layers.{i}.post_attention_layernorm.weight"),
    whole(Slot::FfnNorm, "model.layers.{i}.pre_mlp_layernorm.weight"),
    whole(Slot::FfnPostNorm, "model.layers.{i}.post_mlp_layernorm.weight"),
    whole(Slot::AttnGate, "model.layers.{i}.self_attn.gate_proj.weight"),
    whole(Slot::Router, "model.layers.{i}.mlp.router.gate.weight"),
    whole(Slot::RouterCorrection, "model.layers.{i}.mlp.expert_bias"),
];

fn spec(c: &HfConfig) -> Result<ModelSpec> {
    expect(c, "score_func", "sigmoid")?;
    if !c.flag_or("route_norm", true)? {
        return Err(c.unsupported("route_norm", &false.into(), "; true is"));
    }
    // The class's own default, as for every `with_default` of a key that files may lack.
    let mut m = ModelSpec::llama(&c.with_default("head_dim", 128))?;
    m.layers.iter_mut().for_each(|layer| layer.residual = Residual::Sandwich);
    // The norm of a head has the kind and epsilon of the others.
    m.set_qk_norm(m.final_norm, QkNormSpan::Head);
    m.each_attention(|_, a| a.gated = true);
    let every = c.count_opt("global_attn_every_n_layers")?.unwrap_or(4);
    m.set_windows(c, c.count("sliding_window")?, |i| (i + 1) % every != 0)?;
    m.drop_ropes_of_full_layers();
    if c.flag_or("mup_enabled", false)? {
        m.embed.scale = (m.hidden_size as f64).sqrt();
    }
    let scale = c.float_opt("route_scale")?.unwrap_or(1.0);
    let gating = GatingSpec {
        function: GatingFunction::Sigmoid,
        bias: true,
        scale,
        ..GatingSpec::softmax(true)
    };
    let dense = c.index_or("num_dense_layers", 1)?;
    m.set_experts(c, "moe_intermediate_size", gating, |i| i >= dense)?;
    m.set_shared_experts(c, "num_shared_experts", 2)?;
    Ok(m)
}
