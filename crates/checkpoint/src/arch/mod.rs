//! The registry: `architectures[0]` of `config.json` -> how to describe the model.

use std::borrow::Cow;

use crate::{
    config::HfConfig,
    encoder::supported_encoders,
    error::{Error, Result},
    spec::ModelSpec,
    vision::ReadVision,
    weights::WeightRule,
};

mod afmoe;
mod bamba;
mod cohere;
mod deepseek;
mod ernie4_5;
mod exaone4;
mod falcon;
mod gemma;
mod gemma2;
mod gemma3;
mod gemma4;
mod glm4;
mod glm4_moe;
mod gpt2;
mod gpt_neo;
mod gpt_neox;
mod gpt_oss;
mod granite;
mod lfm2;
mod llama;
mod minimax_m2;
mod mixtral;
mod nemotron;
mod nemotron_h;
mod olmo2;
mod olmoe;
mod opt;
mod phi;
mod phi3;
mod qwen2;
mod qwen2_moe;
mod qwen3;
mod qwen3_moe;
mod qwen3_next;
mod qwen3_vl;
mod recurrent;
mod seed_oss;
mod smollm3;
mod stablelm;
mod starcoder2;

/// A supported architecture.
#[derive(Debug)]
pub struct Arch {
    /// Hugging Face's class name.
    pub name: &'static str,
    /// Hugging Face's `model_type`.
    pub model_type: &'static str,
    /// The [`MATH_KEYS`] that its description reads.
    reads: &'static [&'static str],
    spec: fn(&HfConfig) -> Result<ModelSpec>,
    /// Rules for weights with other names than Llama's.
    pub(crate) weights: &'static [WeightRule],
    around: Around,
    /// The description of the part for images, where that is supported.
    pub(crate) vision: Option<ReadVision>,
    /// Checkpoints have layers behind the last one, which predict further tokens and are not used.
    predicts_more: bool,
}

/// The wrapping of a decoder in some checkpoints.
#[derive(Debug)]
enum Around {
    Nothing,
    /// A name before that of each tensor, which other checkpoints do not write.
    Name(&'static str),
    /// A model of texts and images, whose part for text it is, beside parts of these names.
    Images(&'static [&'static str]),
}

/// The parts for images that most such models have.
const FOR_IMAGES: &[&str] = &["vision_tower.", "multi_modal_projector.", "visual."];

const ALL: &[Arch] = &[
    llama::ARCH,
    llama::MISTRAL,
    llama::MINISTRAL3,
    llama::MISTRAL3,
    llama::HELIUM,
    qwen2::ARCH,
    qwen3::ARCH,
    gemma::ARCH,
    gemma2::ARCH,
    gemma3::ARCH,
    gemma3::OF_IMAGES,
    gemma4::ARCH,
    gemma4::OF_IMAGES,
    gemma4::UNIFIED,
    phi::ARCH,
    phi3::ARCH,
    glm4::GLM,
    glm4::ARCH,
    granite::ARCH,
    granite::MOE,
    granite::SHARED,
    granite::HYBRID,
    olmo2::ARCH,
    olmo2::OLMO3,
    smollm3::ARCH,
    seed_oss::ARCH,
    ernie4_5::ARCH,
    ernie4_5::MOE,
    exaone4::ARCH,
    stablelm::ARCH,
    starcoder2::ARCH,
    gpt2::ARCH,
    gpt2::BIG_CODE,
    gpt2::GPT_J,
    gpt_neo::ARCH,
    gpt_neox::ARCH,
    opt::ARCH,
    falcon::ARCH,
    nemotron::ARCH,
    nemotron::ARCEE,
    nemotron::JAIS2,
    nemotron_h::ARCH,
    bamba::ARCH,
    cohere::ARCH,
    cohere::COHERE2,
    mixtral::ARCH,
    olmoe::ARCH,
    qwen2_moe::ARCH,
    qwen3_moe::ARCH,
    qwen3_vl::ARCH,
    qwen3_vl::MOE,
    qwen3_next::NEXT,
    qwen3_next::QWEN3_5,
    qwen3_next::QWEN3_5_OF_IMAGES,
    qwen3_next::QWEN3_5_MOE,
    qwen3_next::QWEN3_5_MOE_OF_IMAGES,
    lfm2::ARCH,
    lfm2::MOE,
    glm4_moe::ARCH,
    glm4_moe::SOLAR_OPEN,
    glm4_moe::DOTS1,
    afmoe::ARCH,
    deepseek::V2,
    deepseek::V3,
    deepseek::GLM_LITE,
    deepseek::MISTRAL4,
    deepseek::YOUTU,
    deepseek::MINICPM3,
    minimax_m2::ARCH,
    gpt_oss::ARCH,
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
    /// Llama, and what architectures have in common with it unless they say otherwise.
    const LIKE_LLAMA: Self = Self {
        name: "LlamaForCausalLM",
        model_type: "llama",
        reads: &["attention_bias", "mlp_bias"],
        spec: ModelSpec::llama,
        weights: &[],
        around: Around::Nothing,
        vision: None,
        predicts_more: false,
    };

    /// The part of `config.json` that describes the decoder.
    pub(crate) fn config_of_text(&self, config: &HfConfig) -> Result<HfConfig> {
        match self.around {
            Around::Nothing | Around::Name(_) => Ok(config.clone()),
            Around::Images(_) => {
                let text = config.section("text_config")?;
                let mut text = text.ok_or_else(|| config.missing("text_config", "an object"))?;
                // Where both say it, the model of texts is meant.
                if let Some(tied) = config.raw("tie_word_embeddings") {
                    text = text.with_default("tie_word_embeddings", tied.clone());
                }
                Ok(text)
            }
        }
    }

    /// The configuration of the text, where it is a part of the whole one.
    pub(crate) fn text_part<'a>(&self, text: &'a HfConfig) -> Option<&'a HfConfig> {
        matches!(self.around, Around::Images(_)).then_some(text)
    }

    /// The name that a stored tensor has in [`Self::weights`]: some checkpoints write the name of the whole model before every
    /// tensor's, and embedders, which are stored without a head, leave out `model.`.
    pub(crate) fn planned_name<'a>(&self, stored: &'a str) -> Cow<'a, str> {
        const INNER: [&str; 3] = ["embed_tokens.", "layers.", "norm."];
        match self.around {
            Around::Name(outer) => stored.strip_prefix(outer).unwrap_or(stored).into(),
            // The names of transformers 5, then of 4.
            Around::Images(parts) => match stored.strip_prefix("model.language_model.") {
                Some(inner) => format!("model.{inner}").into(),
                None => match stored.strip_prefix("model.").filter(|inner| is_part(parts, inner)) {
                    Some(inner) => without_model(inner),
                    None => without_model(stored.strip_prefix("language_model.").unwrap_or(stored)),
                },
            },
            Around::Nothing => match INNER.iter().any(|inner| stored.starts_with(inner)) {
                true => format!("model.{stored}").into(),
                false => stored.into(),
            },
        }
    }

    /// Whether this is a model of texts and images.
    pub(crate) fn has_images(&self) -> bool {
        matches!(self.around, Around::Images(_))
    }

    /// Whether a tensor, by its planned name, belongs to a part for images.
    pub(crate) fn is_for_images(&self, name: &str) -> bool {
        let name = name.strip_prefix("model.").unwrap_or(name);
        matches!(self.around, Around::Images(parts) if is_part(parts, name))
    }

    /// Whether a tensor is a part of the checkpoint that a decoder of `layers` layers does not need, and not for images.
    pub(crate) fn is_ignored(&self, name: &str, layers: usize) -> bool {
        let name = name.strip_prefix("model.").unwrap_or(name);
        let is_behind = || {
            let layer = name.strip_prefix("layers.").and_then(|rest| rest.split('.').next());
            layer.and_then(|layer| layer.parse().ok()).is_some_and(|layer: usize| layer >= layers)
        };
        self.predicts_more && (is_behind() || name.starts_with("mtp_") || name.starts_with("mtp."))
    }

    pub(crate) fn describe(&self, config: &HfConfig) -> Result<ModelSpec> {
        for key in MATH_KEYS.iter().filter(|key| !self.reads.contains(key)) {
            if !is_neutral(key, config) {
                config.refuse(key)?;
            }
        }
        (self.spec)(config)
    }
}

/// Whether a tensor's name begins with that of a part.
fn is_part(parts: &[&str], name: &str) -> bool {
    parts.iter().any(|part| name.starts_with(part))
}

/// The name of a tower's tensor in the newest files, which leave out the name of the tower's class inside the tower's.
fn without_model(name: &str) -> Cow<'_, str> {
    match name.strip_prefix("vision_tower.vision_model.") {
        Some(inner) => format!("vision_tower.{inner}").into(),
        None => name.into(),
    }
}

/// Whether a key has a value that changes nothing.
fn is_neutral(key: &str, config: &HfConfig) -> bool {
    let Some(value) = config.raw(key) else { return true };
    match key {
        "embedding_multiplier" | "logit_scale" | "logits_scaling" | "residual_multiplier" => {
            value.as_f64() == Some(1.0)
        }
        "num_experts" | "num_local_experts" => value.as_f64() == Some(0.0),
        "layer_types" => {
            value.as_array().is_some_and(|types| types.iter().all(|kind| kind == "full_attention"))
        }
        // Nothing is beyond the window.
        "sliding_window" => {
            let positions = config.raw("max_position_embeddings").and_then(|n| n.as_f64());
            value.as_f64().is_some_and(|window| Some(window) >= positions && positions.is_some())
        }
        _ => false,
    }
}

/// The class names of all supported decoders.
pub fn supported_architectures() -> impl Iterator<Item = &'static str> {
    ALL.iter().map(|a| a.name)
}

/// The decoder without a head whose class is `name`: `MistralModel` is `MistralForCausalLM` without one.
fn without_head(name: &str) -> Option<&'static Arch> {
    let base = name.strip_suffix("Model")?;
    let base = base.strip_suffix("Text").unwrap_or(base);
    ALL.iter().find(|arch| arch.name.strip_suffix("ForCausalLM") == Some(base))
}

/// Whether the class that `architectures` names has no head, so that it gives vectors alone.
pub(crate) fn is_without_head(config: &HfConfig) -> Result<bool> {
    let name = config.texts_opt("architectures")?.and_then(|list| list.first().copied());
    Ok(name.and_then(without_head).is_some())
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
    let found = ALL.iter().find(same).or_else(|| by_class.and_then(without_head));
    found.ok_or_else(|| unknown(name))
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
