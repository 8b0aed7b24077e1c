//! Gemma 2: Gemma with norms before and after each block, soft-capped scores and logits, and every second layer windowed.
//! Source: transformers `models/gemma2`.

use super::{Arch, gemma};
use crate::{
    config::HfConfig,
    error::Result,
    spec::{ModelSpec, Residual},
    weights::{Slot, WeightRule, whole},
};

pub(super) const ARCH: Arch = Arch {
    name: "Gemma2ForCausalLM",
    model_type: "gemma2",
    reads: &[
        "attention_bias",
        "sliding_window",
        "layer_types",
        "attn_logit_softcapping",
        "final_logit_softcapping",
        "query_pre_attn_scalar",
    ],
    spec,
    weights: WEIGHTS,
    ..Arch::LIKE_LLAMA
};

pub(super) const WEIGHTS: &[WeightRule] = &[
    whole(Slot::AttnPostNorm, "model.layers.{i}.post_attention_layernorm.weight"),
    whole(Slot::FfnNorm, "model.layers.{i}.pre_feedforward_layernorm.weight"),
    whole(Slot::FfnPostNorm, "model.layers.{i}.post_feedforward_layernorm.weight"),
];

fn spec(c: &HfConfig) -> Result<ModelSpec> {
    let mut m = base(c)?;
    if let Some(window) = c.count_or_null("sliding_window")? {
        m.set_windows(c, window, |i| i % 2 == 0)?;
    }
    Ok(m)
}

/// The base of Gemma 2 and 3: all but windows, norms of heads and RoPE.
pub(super) fn base(c: &HfConfig) -> Result<ModelSpec> {
    let mut m = gemma::base(c)?;
    m.head.softcap = c.float_or_null("final_logit_softcapping")?;
    m.layers.iter_mut().for_each(|l| l.residual = Residual::Sandwich);
    let scale = c.float("query_pre_attn_scalar")?.powf(-0.5);
    let softcap = c.float_or_null("attn_logit_softcapping")?;
    m.each_attention(|_, a| (a.scale, a.softcap) = (scale, softcap));
    Ok(m)
}
