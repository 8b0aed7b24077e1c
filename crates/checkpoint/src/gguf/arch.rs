//! The architectures that GGUF files have, and what the keys of each are in the `config.json` of its Hugging Face class.
//! Source: the folder `conversion` of llama.cpp, which goes the other way, and `src/models` for what is not written.

use serde_json::{Map, Value, json};

use super::keys::Keys;
use crate::{config::HfConfig, error::Result, weights::WeightRule};

pub(super) mod deepseek;
mod dense;
mod experts;
mod gemma;
mod recurrent;

/// A `config.json`.
pub(super) type Config = Map<String, Value>;

/// An architecture that GGUF files have.
#[derive(Debug)]
pub(super) struct GgufArch {
    /// The value of `general.architecture`.
    pub(super) name: &'static str,
    /// The Hugging Face class name.
    pub(super) class: &'static str,
    /// Rules for tensors with other names than most.
    pub(super) rules: &'static [WeightRule],
    /// The rows of q and k are in the order of pairs of neighbours.
    pub(super) pairs: bool,
    /// Heads of values that have the keys of one head are not beside each other: the first heads have one of each.
    pub(super) tiled: bool,
    /// Its norms take the mean away, too.
    pub(super) layer_norms: bool,
    pub(super) layers: Layers,
    /// Adds what is the architecture's own.
    pub(super) own: fn(&Keys<'_>, &mut Config) -> Result<()>,
}

/// Permitted differences between the layers in a list.
#[derive(Clone, Copy, Debug)]
pub(super) enum Layers {
    Alike,
    /// Layers that have no such part have zero.
    OrNothing,
    Different,
}

impl GgufArch {
    /// Qwen2, and what architectures have in common with it unless they say otherwise.
    const BASE: Self = Self {
        name: "qwen2",
        class: "Qwen2ForCausalLM",
        rules: &[],
        pairs: false,
        tiled: false,
        layer_norms: false,
        layers: Layers::Alike,
        own: |_, _| Ok(()),
    };

    /// Whether it is the one of this name.
    pub(super) fn is(&self, name: &str) -> bool {
        self.name == name
    }
}

const ALL: &[GgufArch] = &[
    dense::LLAMA,
    GgufArch::BASE,
    dense::QWEN3,
    dense::PHI3,
    dense::GRANITE,
    dense::MISTRAL3,
    dense::GLM4,
    dense::OLMO2,
    dense::SMOLLM3,
    dense::SEED_OSS,
    dense::ERNIE4_5,
    dense::EXAONE4,
    dense::STARCODER2,
    dense::COMMAND_R,
    dense::COHERE2,
    dense::ARCEE,
    gemma::GEMMA,
    gemma::GEMMA2,
    gemma::GEMMA3,
    gemma::GEMMA_EMBEDDING,
    gemma::GEMMA4,
    experts::QWEN2_MOE,
    experts::QWEN3_MOE,
    experts::OLMOE,
    experts::GPT_OSS,
    experts::GRANITE_MOE,
    experts::GLM4_MOE,
    experts::ERNIE4_5_MOE,
    experts::MINIMAX_M2,
    experts::DOTS1,
    experts::AFMOE,
    deepseek::V2,
    recurrent::QWEN3_NEXT,
    recurrent::QWEN3_5,
    recurrent::QWEN3_5_MOE,
    recurrent::LFM2,
    recurrent::LFM2_MOE,
    recurrent::GRANITE_HYBRID,
    recurrent::NEMOTRON_H,
    recurrent::NEMOTRON_H_MOE,
];

/// The architecture of a file.
pub(super) fn find(metadata: &HfConfig) -> Result<&'static GgufArch> {
    const KEY: &str = "general.architecture";
    let name = metadata.text_opt(KEY)?;
    let name = name.ok_or_else(|| metadata.missing(KEY, "the name of an architecture"))?;
    let arch = ALL.iter().find(|arch| arch.name == name).ok_or_else(|| {
        let names: Vec<&str> = ALL.iter().map(|arch| arch.name).collect();
        metadata.unsupported(KEY, &name.into(), &format!("; {} are", names.join(", ")))
    })?;
    // Some names are those of two classes. A key that only one of them has decides.
    Ok(match arch.name {
        "llama" if metadata.index_or("llama.expert_count", 0)? > 0 => &experts::MIXTRAL,
        "olmo2" if metadata.index_or("olmo2.attention.sliding_window", 0)? > 0 => &dense::OLMO3,
        deepseek::NAME if deepseek::has_sigmoids(metadata)? => &deepseek::V3,
        _ => arch,
    })
}

/// The names of all architectures.
#[cfg(test)]
pub(super) fn names() -> impl Iterator<Item = &'static str> {
    ALL.iter().map(|arch| arch.name)
}

fn set(config: &mut Config, entries: impl IntoIterator<Item = (&'static str, Value)>) {
    config.extend(entries.into_iter().map(|(name, value)| (name.to_owned(), value)));
}

/// Reads whether attentions and feed-forwards have biases.
fn biases(keys: &Keys<'_>, config: &mut Config) -> Result<()> {
    let mlp = keys.has_in_layers("ffn_down.bias");
    set(config, [("attention_bias", has_qkv_biases(keys)), ("mlp_bias", mlp.into())]);
    Ok(())
}

fn has_qkv_biases(keys: &Keys<'_>) -> Value {
    keys.has_in_layers("attn_q.bias").into()
}

fn window(keys: &Keys<'_>, config: &mut Config) -> Result<()> {
    let window = keys.count_opt("attention.sliding_window")?;
    set(config, [("sliding_window", window.into())]);
    Ok(())
}

/// The layers that have a window, if the file lists them.
fn windowed_layers(keys: &Keys<'_>, config: &mut Config) -> Result<Option<Vec<bool>>> {
    let windowed = keys.flags_of_layers("attention.sliding_window_pattern")?;
    if let Some(windowed) = &windowed {
        set(
            config,
            [("layer_types", layer_types(windowed, ["sliding_attention", "full_attention"]))],
        );
    }
    Ok(windowed)
}

/// Layers of two kinds as their names.
fn layer_types(is_first: &[bool], [first, second]: [&str; 2]) -> Value {
    is_first
        .iter()
        .map(|is_first| if *is_first { first } else { second })
        .collect::<Vec<_>>()
        .into()
}

/// The ropes of layers with a window, which nothing stretches, beside those of the others.
fn set_ropes_of_windows(keys: &Keys<'_>, config: &mut Config, theta: f64) -> Result<()> {
    let global = config.remove("rope_parameters").unwrap_or_default();
    let theta = keys.float_opt("rope.freq_base_swa")?.unwrap_or(theta);
    let local = json!({"rope_type": "default", "rope_theta": theta});
    let ropes = json!({"full_attention": global, "sliding_attention": local});
    set(config, [("rope_parameters", ropes)]);
    Ok(())
}
