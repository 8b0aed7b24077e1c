//! Gemma 2: norms before and after each block, soft-capped scores and logits, scaled embeddings,
//! every second layer windowed. Source: transformers `models/gemma2`.

use super::Arch;
use crate::{
    config::HfConfig,
    error::Result,
    spec::{EmbedSpec, ModelSpec, NormKind, NormSpec, Residual},
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
    outer: None,
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

/// What Gemma 2 and 3 have in common: all but windows, norms of heads and ropes.
pub(super) fn base(c: &HfConfig) -> Result<ModelSpec> {
    // Absent, it would be 256, not hidden_size / num_attention_heads.
    c.count("head_dim")?;
    let mut m = ModelSpec::llama(c)?;
    m.embed = EmbedSpec { scale: (m.hidden_size as f64).sqrt(), rounded: true, positions: None };
    m.head.tied = c.flag_or("tie_word_embeddings", true)?;
    m.head.softcap = c.float_or_null("final_logit_softcapping")?;
    m.set_norm(NormSpec { kind: NormKind::RmsPlusOne, ..m.final_norm });
    m.layers.iter_mut().for_each(|l| l.residual = Residual::Sandwich);
    let scale = c.float("query_pre_attn_scalar")?.powf(-0.5);
    let softcap = c.float_or_null("attn_logit_softcapping")?;
    m.each_attention(|_, a| (a.scale, a.softcap) = (scale, softcap));
    Ok(m)
}
