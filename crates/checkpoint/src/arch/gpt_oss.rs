//! gpt-oss: experts whose gates and halves of gates are bounded, sinks in attention, a window in every other layer, and biases
//! everywhere. Source: transformers `models/gpt_oss`.

use candlepower_layout::Activation;

use super::Arch;
use crate::{
    config::HfConfig,
    error::Result,
    spec::{FfnSpec, GatingSpec, ModelSpec},
    weights::{Slot, WeightRule, alternating, experts, whole},
};

pub(super) const ARCH: Arch = Arch {
    name: "GptOssForCausalLM",
    model_type: "gpt_oss",
    reads: &["attention_bias", "sliding_window", "layer_types", "num_local_experts", "num_experts"],
    spec,
    weights: WEIGHTS,
    ..Arch::LIKE_LLAMA
};

const WEIGHTS: &[WeightRule] = &[
    whole(Slot::Router, "model.layers.{i}.mlp.router.weight"),
    whole(Slot::RouterBias, "model.layers.{i}.mlp.router.bias"),
    alternating(Slot::ExpertGate(0), "model.layers.{i}.mlp.experts.gate_up_proj"),
    alternating(Slot::ExpertUp(0), "model.layers.{i}.mlp.experts.gate_up_proj"),
    experts(Slot::ExpertDown(0), "model.layers.{i}.mlp.experts.down_proj"),
    alternating(Slot::ExpertGateBias(0), "model.layers.{i}.mlp.experts.gate_up_proj_bias"),
    alternating(Slot::ExpertUpBias(0), "model.layers.{i}.mlp.experts.gate_up_proj_bias"),
    experts(Slot::ExpertDownBias(0), "model.layers.{i}.mlp.experts.down_proj_bias"),
];

fn spec(c: &HfConfig) -> Result<ModelSpec> {
    // Absent, it would be 64, not hidden_size / num_attention_heads.
    c.count("head_dim")?;
    let mut m = ModelSpec::llama(
        &c.with_default("attention_bias", true).with_default("rope_theta", 150_000.0),
    )?;
    // Both values are constants of the kernels' activation.
    for (key, only) in [("swiglu_limit", 7.0), ("swiglu_alpha", 1.702)] {
        if let Some(other) = c.float_opt(key)?.filter(|found| *found != only) {
            return Err(c.unsupported(key, &other.into(), &format!("; {only} is")));
        }
    }
    if let Some(window) = c.count_opt("sliding_window")? {
        m.set_windows(c, window, |i| i % 2 == 0)?;
    }
    m.each_attention(|_, a| a.sinks = true);
    // The softmax over the chosen ones is that over all, renormalized.
    m.set_experts(c, "intermediate_size", GatingSpec::softmax(true), |_| true)?;
    for layer in &mut m.layers {
        let FfnSpec::Experts(experts) = &mut layer.ffn else { continue };
        experts.router_bias = true;
        experts.expert.bias = true;
        experts.expert.act = Activation::SwigluOai;
    }
    Ok(m)
}
