//! Gemma: scaled embeddings, norms whose weights are differences from one, and GELU. Source: transformers `models/gemma`.

use candlepower_layout::Activation;

use super::Arch;
use crate::{
    config::HfConfig,
    error::Result,
    spec::{EmbedSpec, ModelSpec, NormKind, NormSpec},
};

pub(super) const ARCH: Arch = Arch {
    name: "GemmaForCausalLM",
    model_type: "gemma",
    reads: &["attention_bias"],
    spec,
    ..Arch::LIKE_LLAMA
};

fn spec(c: &HfConfig) -> Result<ModelSpec> {
    // The first checkpoints say `gelu` and mean the approximation that the models were trained with.
    let mut m = base(&c.without(&["hidden_activation"]))?;
    m.each_mlp(|mlp| {
        if mlp.act == Activation::Gelu {
            mlp.act = Activation::GeluTanh;
        }
    });
    Ok(m)
}

/// The base of all Gemmas.
pub(super) fn base(c: &HfConfig) -> Result<ModelSpec> {
    // Absent, it would be 256, not hidden_size / num_attention_heads.
    c.count("head_dim")?;
    let mut m = ModelSpec::llama(c)?;
    m.embed = EmbedSpec { scale: (m.hidden_size as f64).sqrt(), rounded: true, positions: None };
    m.head.tied = c.flag_or("tie_word_embeddings", true)?;
    m.set_norm(NormSpec { kind: NormKind::RmsPlusOne, ..m.final_norm });
    Ok(m)
}
