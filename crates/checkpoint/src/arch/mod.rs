//! The registry: `architectures[0]` of `config.json` -> how to describe the model.

use crate::{
    config::HfConfig,
    encoder::supported_encoders,
    error::{Error, Result},
    spec::ModelSpec,
    weights::WeightRule,
};

mod cohere;
mod gemma2;
mod gemma3;
mod glm4;
mod gpt2;
mod granite;
mod llama;
mod mixtral;
mod olmo2;
mod phi3;
mod qwen2;
mod qwen3;
mod qwen3_moe;
mod starcoder2;

/// A supported architecture.
#[derive(Debug)]
pub struct Arch {
    /// Hugging Face's class name.
    pub name: &'static str,
    /// Hugging Face's `model_type`.
    pub model_type: &'static str,
    /// Which of [`MATH_KEYS`] its description reads.
    reads: &'static [&'static str],
    spec: fn(&HfConfig) -> Result<ModelSpec>,
    /// Where its weights differ from Llama's names.
    pub(crate) weights: &'static [WeightRule],
    /// What some of its checkpoints write before the name of each tensor, and others do not.
    pub(crate) outer: Option<&'static str>,
}

const ALL: &[Arch] = &[
    llama::ARCH,
    llama::MISTRAL,
    qwen2::ARCH,
    qwen3::ARCH,
    gemma2::ARCH,
    gemma3::ARCH,
    phi3::ARCH,
    glm4::ARCH,
    granite::ARCH,
    olmo2::ARCH,
    starcoder2::ARCH,
    gpt2::ARCH,
    cohere::ARCH,
    cohere::COHERE2,
    mixtral::ARCH,
    qwen3_moe::ARCH,
];

/// Keys that change the computation. One that is set, and that the architecture does not read, is
/// refused: ignoring it would give wrong text.
const MATH_KEYS: &[&str] = &[
    "attention_bias",
    "mlp_bias",
    "sliding_window",
    "use_sliding_window",
    "layer_types",
    "sliding_window_pattern",
    "attn_logit_softcapping",
    "final_logit_softcapping",
    "query_pre_attn_scalar",
    "use_bidirectional_attention",
    "use_qk_norm",
    "qk_layernorm",
    "clip_qkv",
    "alibi",
    "num_experts",
    "num_local_experts",
    "logit_scale",
    "logits_scaling",
    "embedding_multiplier",
    "attention_multiplier",
    "residual_multiplier",
    "rope_local_base_freq",
    "rope_interleaved",
    "no_rope_layers",
    "add_cross_attention",
    "scale_attn_by_inverse_layer_idx",
];

impl Arch {
    pub(crate) fn describe(&self, config: &HfConfig) -> Result<ModelSpec> {
        for key in MATH_KEYS.iter().filter(|key| !self.reads.contains(key)) {
            config.refuse(key)?;
        }
        (self.spec)(config)
    }
}

/// The class names of all supported decoders.
pub fn supported_architectures() -> impl Iterator<Item = &'static str> {
    ALL.iter().map(|a| a.name)
}

/// The architecture that `architectures` names, or `model_type` where there is no such list.
pub(crate) fn find(config: &HfConfig) -> Result<&'static Arch> {
    let by_class = config.texts_opt("architectures")?.and_then(|list| list.first().copied());
    let name = match by_class {
        Some(name) => name,
        None => config
            .text_opt("model_type")?
            .ok_or_else(|| config.missing("architectures", "a list with the model's class name"))?,
    };
    let same = |a: &&Arch| if by_class.is_some() { a.name == name } else { a.model_type == name };
    ALL.iter().find(same).ok_or_else(|| unknown(name))
}

fn unknown(name: &str) -> Error {
    let lower = name.to_lowercase();
    let near = ALL
        .iter()
        .map(|a| (edit_distance(&lower, &a.name.to_lowercase()), a.name))
        .chain(ALL.iter().map(|a| (edit_distance(&lower, a.model_type), a.model_type)))
        .chain(supported_encoders().map(|e| (edit_distance(&lower, &e.to_lowercase()), e)))
        .min_by_key(|(distance, _)| *distance)
        .filter(|(distance, _)| *distance <= name.chars().count() / 3)
        .map(|(_, near)| format!(" (the nearest is `{near}`)"));
    Error::UnknownArchitecture {
        name: name.chars().take(80).collect(),
        nearest: near.unwrap_or_default(),
        supported: supported_architectures()
            .chain(supported_encoders())
            .collect::<Vec<_>>()
            .join(", "),
    }
}

/// Levenshtein's distance.
fn edit_distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, ca) in a.chars().enumerate() {
        let mut diagonal = i;
        row[0] = i + 1;
        for (j, cb) in b.iter().enumerate() {
            let substituted = diagonal + usize::from(ca != *cb);
            diagonal = row[j + 1];
            row[j + 1] = substituted.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests;
