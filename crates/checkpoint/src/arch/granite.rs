//! Granite 3: Llama with four fixed factors. Source: transformers `models/granite`.

use super::Arch;
use crate::{config::HfConfig, error::Result, spec::ModelSpec};

pub(super) const ARCH: Arch = Arch {
    name: "GraniteForCausalLM",
    model_type: "granite",
    reads: &[
        "attention_bias",
        "mlp_bias",
        "embedding_multiplier",
        "attention_multiplier",
        "residual_multiplier",
        "logits_scaling",
    ],
    spec,
    ..Arch::LIKE_LLAMA
};

fn spec(c: &HfConfig) -> Result<ModelSpec> {
    let mut m = ModelSpec::llama(c)?;
    let factor = |key: &str| c.factor_or(key, 1.0);
    let attention = factor("attention_multiplier")?;
    m.each_attention(|_, a| a.scale = attention);
    m.head.scale = 1.0 / factor("logits_scaling")?;
    m.embed.scale = factor("embedding_multiplier")?;
    m.scale_branches(factor("residual_multiplier")?);
    Ok(m)
}
