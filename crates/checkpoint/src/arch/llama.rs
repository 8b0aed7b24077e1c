//! Llama 2 and 3, and Mistral: Llama with a window.
//! Source: transformers `models/llama`, `models/mistral`.

use super::Arch;
use crate::{config::HfConfig, error::Result, spec::ModelSpec};

pub(super) const ARCH: Arch = Arch {
    name: "LlamaForCausalLM",
    model_type: "llama",
    reads: &["attention_bias", "mlp_bias"],
    spec: ModelSpec::llama,
    weights: &[],
    outer: None,
};

pub(super) const MISTRAL: Arch = Arch {
    name: "MistralForCausalLM",
    model_type: "mistral",
    reads: &["sliding_window"],
    spec: mistral,
    weights: &[],
    outer: None,
};

fn mistral(c: &HfConfig) -> Result<ModelSpec> {
    let mut m = ModelSpec::llama(c)?;
    let window = c.count_or_null("sliding_window")?;
    m.each_attention(|_, a| a.window = window);
    Ok(m)
}
