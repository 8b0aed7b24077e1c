//! Llama 2 and 3; Mistral: Llama with a window; Ministral 3, whose queries grow with their positions; and Helium, whose RoPE rotates
//! neighbouring elements.
//! Source: transformers `models/llama`, `models/mistral`, `models/mistral3`, `models/ministral3`, `models/helium`.

use super::{Arch, Around, deepseek::mistral4};
use crate::{config::HfConfig, error::Result, spec::ModelSpec, vision::pixtral};

pub(super) const ARCH: Arch = Arch::LIKE_LLAMA;

pub(super) const MISTRAL: Arch = Arch {
    name: "MistralForCausalLM",
    model_type: "mistral",
    reads: &["sliding_window"],
    spec: mistral,
    ..Arch::LIKE_LLAMA
};

/// Mistral Small 3.1 and later, and Ministral 3, with the tower of Pixtral.
pub(super) const MISTRAL3: Arch = Arch {
    name: "Mistral3ForConditionalGeneration",
    model_type: "mistral3",
    spec: mistral3,
    around: Around::Images(super::FOR_IMAGES),
    vision: Some(pixtral::mistral3),
    ..MISTRAL
};

pub(super) const MINISTRAL3: Arch =
    Arch { name: "Ministral3ForCausalLM", model_type: "ministral3", spec: ministral3, ..MISTRAL };

pub(super) const HELIUM: Arch = Arch {
    name: "HeliumForCausalLM",
    model_type: "helium",
    reads: &["attention_bias"],
    spec: helium,
    ..Arch::LIKE_LLAMA
};

fn helium(c: &HfConfig) -> Result<ModelSpec> {
    let mut m = ModelSpec::llama(&c.with_default("head_dim", 128))?;
    m.each_attention(|_, a| a.out_bias = false);
    m.interleave_ropes();
    Ok(m)
}

fn mistral(c: &HfConfig) -> Result<ModelSpec> {
    let mut m = ModelSpec::llama(c)?;
    let window = c.count_or_null("sliding_window")?;
    m.each_attention(|_, a| a.window = window);
    Ok(m)
}

fn mistral3(c: &HfConfig) -> Result<ModelSpec> {
    match c.text_opt("model_type")? {
        None | Some("mistral") => mistral(c),
        Some("ministral3") => ministral3(c),
        Some("mistral4") => mistral4(c),
        Some(other) => {
            let hint = "; mistral, ministral3 and mistral4 are";
            Err(c.unsupported("model_type", &other.into(), hint))
        }
    }
}

fn ministral3(c: &HfConfig) -> Result<ModelSpec> {
    // Absent, it would be 128, not hidden_size / num_attention_heads.
    c.count("head_dim")?;
    let mut m = ModelSpec::llama(c)?;
    let window = c.count_opt("sliding_window")?;
    m.each_attention(|_, a| a.window = window);
    Ok(m)
}
