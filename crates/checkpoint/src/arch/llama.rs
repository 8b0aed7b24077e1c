//! Llama 2 and 3, and Mistral: Llama with a window. Source: transformers `models/llama`, `models/mistral`, `models/mistral3`.

use super::{Arch, Around};
use crate::{config::HfConfig, error::Result, spec::ModelSpec};

pub(super) const ARCH: Arch = Arch::LIKE_LLAMA;

pub(super) const MISTRAL: Arch = Arch {
    name: "MistralForCausalLM",
    model_type: "mistral",
    reads: &["sliding_window"],
    spec: mistral,
    ..Arch::LIKE_LLAMA
};

/// Mistral Small 3.1 and later, of which images are refused.
pub(super) const MISTRAL3: Arch = Arch {
    name: "Mistral3ForConditionalGeneration",
    model_type: "mistral3",
    spec: mistral3,
    around: Around::Images,
    ..MISTRAL
};

fn mistral(c: &HfConfig) -> Result<ModelSpec> {
    let mut m = ModelSpec::llama(c)?;
    let window = c.count_or_null("sliding_window")?;
    m.each_attention(|_, a| a.window = window);
    Ok(m)
}

fn mistral3(c: &HfConfig) -> Result<ModelSpec> {
    match c.text_opt("model_type")? {
        None | Some("mistral") => mistral(c),
        Some(other) => Err(c.unsupported("model_type", &other.into(), "; mistral is")),
    }
}
