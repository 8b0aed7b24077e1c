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
    let factor = |key: &str| match c.float_opt(key)?.unwrap_or(1.0) {
        factor if factor > 0.0 => Ok(factor),
        factor => Err(c.ill_typed(key, &factor.into(), "a number above 0")),
    };
    let attention = factor("attention_multiplier")?;
    m.each_attention(|_, a| a.scale = attention);
    m.head.scale = 1.0 / factor("logits_scaling")?;
    // Each block adds `r f(norm(x))` to `x`. In units of `r`, with `y = x / r`, it adds `f(norm(x))` to `y`, and the norm of
    // `x` is that of `y` with an epsilon of `eps / r^2`: so a plain residual does.
    let residual = factor("residual_multiplier")?;
    m.embed.scale = factor("embedding_multiplier")? / residual;
    let mut norm = m.final_norm;
    norm.eps /= residual * residual;
    m.set_norm(norm);
    Ok(m)
}
