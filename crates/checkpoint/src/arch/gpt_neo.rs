//! GPT-Neo: learned positions, windows in every second layer, and scores that are not scaled. Source: transformers `models/gpt_neo`.

use super::{Arch, Around};
use crate::{
    config::HfConfig,
    error::Result,
    spec::ModelSpec,
    weights::{Slot, WeightRule, whole},
};

pub(super) const ARCH: Arch = Arch {
    name: "GPTNeoForCausalLM",
    model_type: "gpt_neo",
    reads: &[],
    spec,
    weights: WEIGHTS,
    around: Around::Name("transformer."),
    ..Arch::LIKE_LLAMA
};

const NAMES: &[(&str, &str)] = &[
    ("num_attention_heads", "num_heads"),
    ("num_hidden_layers", "num_layers"),
    ("hidden_act", "activation_function"),
];

const WEIGHTS: &[WeightRule] = &[
    whole(Slot::Embed, "wte.weight"),
    whole(Slot::Positions, "wpe.weight"),
    whole(Slot::FinalNorm, "ln_f.weight"),
    whole(Slot::FinalNormBias, "ln_f.bias"),
    whole(Slot::AttnNorm, "h.{i}.ln_1.weight"),
    whole(Slot::AttnNormBias, "h.{i}.ln_1.bias"),
    whole(Slot::FfnNorm, "h.{i}.ln_2.weight"),
    whole(Slot::FfnNormBias, "h.{i}.ln_2.bias"),
    whole(Slot::Q, "h.{i}.attn.attention.q_proj.weight"),
    whole(Slot::K, "h.{i}.attn.attention.k_proj.weight"),
    whole(Slot::V, "h.{i}.attn.attention.v_proj.weight"),
    whole(Slot::O, "h.{i}.attn.attention.out_proj.weight"),
    whole(Slot::OBias, "h.{i}.attn.attention.out_proj.bias"),
    whole(Slot::Up, "h.{i}.mlp.c_fc.weight"),
    whole(Slot::UpBias, "h.{i}.mlp.c_fc.bias"),
    whole(Slot::Down, "h.{i}.mlp.c_proj.weight"),
    whole(Slot::DownBias, "h.{i}.mlp.c_proj.bias"),
];

fn spec(c: &HfConfig) -> Result<ModelSpec> {
    let c = c.renamed(NAMES).with_default("hidden_act", "gelu_new");
    let mut m = ModelSpec::gpt(&c, "layer_norm_epsilon")?;
    m.learn_positions(&c)?;
    m.head.tied = c.flag_or("tie_word_embeddings", true)?;
    let window = c.count_opt("window_size")?.unwrap_or(256);
    let local = local_layers(&c, m.layers.len())?;
    m.each_attention(|i, a| {
        a.scale = 1.0;
        a.qkv_bias = false;
        a.window = local[i].then_some(window);
    });
    Ok(m)
}

/// Whether each layer has a window, by `attention_types`: a list of pairs of a list of types and its number of repetitions.
fn local_layers(c: &HfConfig, layers: usize) -> Result<Vec<bool>> {
    const KEY: &str = "attention_types";
    let Some(value) = c.raw(KEY) else {
        return Ok((0..layers).map(|i| i % 2 == 1).collect());
    };
    let needed =
        "pairs of a list of `global` and `local` and a count, with an entry for each layer";
    let ill = || c.ill_typed(KEY, value, needed);
    let mut local = Vec::new();
    for pair in value.as_array().ok_or_else(ill)? {
        let kinds = pair.get(0).and_then(|kinds| kinds.as_array()).ok_or_else(ill)?;
        let kinds = kinds.iter().map(|kind| match kind.as_str() {
            Some("local") => Ok(true),
            Some("global") => Ok(false),
            _ => Err(ill()),
        });
        let kinds = kinds.collect::<Result<Vec<bool>>>()?;
        let times = pair.get(1).and_then(|count| count.as_u64()).ok_or_else(ill)?;
        let added = times.saturating_mul(kinds.len() as u64);
        // The same check keeps the subtraction from going below zero in the next round.
        if added > (layers - local.len()) as u64 {
            return Err(ill());
        }
        // The layers are counted, not the repetitions, of which an empty list may have any number.
        local.extend(kinds.iter().copied().cycle().take(added as usize));
    }
    if local.len() == layers { Ok(local) } else { Err(ill()) }
}
