//! GLM-4.5 and 4.6: MoE layers behind a few dense ones, with experts chosen by sigmoids and a shared expert. Half of each head is
//! rotated. Solar Open is the same without dense layers, dots.llm1 with whole heads rotated.
//! Source: transformers `models/glm4_moe`, `models/solar_open`, `models/dots1`.

use super::{Arch, deepseek::biased_sigmoids};
use crate::{
    config::HfConfig,
    error::Result,
    spec::{ModelSpec, QkNormSpan},
};

pub(super) const ARCH: Arch = Arch {
    name: "Glm4MoeForCausalLM",
    model_type: "glm4_moe",
    reads: &["attention_bias", "use_qk_norm", "num_local_experts"],
    spec,
    predicts_more: true,
    ..Arch::LIKE_LLAMA
};

pub(super) const SOLAR_OPEN: Arch = Arch {
    name: "SolarOpenForCausalLM",
    model_type: "solar_open",
    reads: &["attention_bias", "num_local_experts"],
    spec: solar_open,
    ..Arch::LIKE_LLAMA
};

pub(super) const DOTS1: Arch = Arch {
    name: "Dots1ForCausalLM",
    model_type: "dots1",
    reads: &["attention_bias", "num_local_experts", "sliding_window", "layer_types"],
    spec: dots1,
    ..Arch::LIKE_LLAMA
};

fn spec(c: &HfConfig) -> Result<ModelSpec> {
    let mut m = ModelSpec::llama(&c.with_default("partial_rotary_factor", 0.5))?;
    // The key is about q, k and v alone: the class gives the output no bias.
    m.each_attention(|_, a| a.out_bias = false);
    if c.flag_or("use_qk_norm", false)? {
        m.set_qk_norm(m.final_norm, QkNormSpan::Head);
    }
    let gating = biased_sigmoids(c)?;
    let dense = c.index_or("first_k_dense_replace", 1)?;
    m.set_experts(c, "moe_intermediate_size", gating, |i| i >= dense)?;
    m.set_shared_experts(c, "n_shared_experts", 1)?;
    Ok(m)
}

fn solar_open(c: &HfConfig) -> Result<ModelSpec> {
    let c = c.with_default("head_dim", 128).with_default("rope_theta", 1e6);
    // There is no feed-forward of this width, and some files do not name one.
    let inner = c.count("moe_intermediate_size")?;
    let mut m = ModelSpec::llama(&c.with_default("intermediate_size", inner))?;
    m.each_attention(|_, a| a.out_bias = false);
    m.set_experts(&c, "moe_intermediate_size", biased_sigmoids(&c)?, |_| true)?;
    m.set_shared_experts(&c, "n_shared_experts", 1)?;
    Ok(m)
}

fn dots1(c: &HfConfig) -> Result<ModelSpec> {
    let mut m = ModelSpec::llama(c)?;
    m.set_qk_norm(m.final_norm, QkNormSpan::Head);
    if let Some(window) = c.count_or_null("sliding_window")? {
        let first = c.index_or("max_window_layers", 62)?;
        m.set_windows(c, window, |i| i >= first)?;
    }
    let gating = biased_sigmoids(&c.with_default("norm_topk_prob", false))?;
    let dense = c.index_or("first_k_dense_replace", 0)?;
    m.set_experts(c, "moe_intermediate_size", gating, |i| i >= dense)?;
    m.set_shared_experts(c, "n_shared_experts", 0)?;
    Ok(m)
}
