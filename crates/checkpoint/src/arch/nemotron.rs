//! Nemotron and Minitron, AFM (Arcee) and Jais 2: feed-forwards of squared ReLUs without a gate. Nemotron and Jais have LayerNorm.
//! Source: transformers `models/nemotron`, `models/arcee`, `models/jais2`.

use super::Arch;
use crate::{
    config::HfConfig,
    error::Result,
    spec::{ModelSpec, NormKind},
};

pub(super) const ARCH: Arch =
    Arch { name: "NemotronForCausalLM", model_type: "nemotron", spec, ..Arch::LIKE_LLAMA };

pub(super) const ARCEE: Arch =
    Arch { name: "ArceeForCausalLM", model_type: "arcee", spec: arcee, ..Arch::LIKE_LLAMA };

pub(super) const JAIS2: Arch =
    Arch { name: "Jais2ForCausalLM", model_type: "jais2", spec: jais2, ..Arch::LIKE_LLAMA };

fn spec(c: &HfConfig) -> Result<ModelSpec> {
    let c = c.with_default("hidden_act", "relu2").with_default("partial_rotary_factor", 0.5);
    let mut m = with_biases(&c, "norm_eps", false)?;
    m.layers.iter_mut().for_each(|layer| layer.norm.kind = NormKind::LayerPlusOne);
    m.final_norm.kind = NormKind::LayerPlusOne;
    Ok(m)
}

fn arcee(c: &HfConfig) -> Result<ModelSpec> {
    let mut m = ModelSpec::llama(&c.with_default("hidden_act", "relu2"))?;
    m.each_mlp(|mlp| mlp.gated = false);
    Ok(m)
}

fn jais2(c: &HfConfig) -> Result<ModelSpec> {
    with_biases(&c.with_default("hidden_act", "relu2"), "layer_norm_eps", true)
}

/// A GPT whose configuration says where biases are, or else by default.
fn with_biases(c: &HfConfig, eps_by: &str, default: bool) -> Result<ModelSpec> {
    let mut m = ModelSpec::gpt(c, eps_by)?;
    let bias = c.flag_or("attention_bias", default)?;
    m.each_attention(|_, a| (a.qkv_bias, a.out_bias) = (bias, bias));
    let bias = c.flag_or("mlp_bias", default)?;
    m.each_mlp(|mlp| mlp.bias = bias);
    Ok(m)
}
