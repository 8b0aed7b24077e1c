//! SmolLM3: Llama without rope in every fourth layer, and windows. Source: transformers `models/smollm3`.

use super::Arch;
use crate::{config::HfConfig, error::Result, spec::ModelSpec};

pub(super) const ARCH: Arch = Arch {
    name: "SmolLM3ForCausalLM",
    model_type: "smollm3",
    reads: &[
        "attention_bias",
        "mlp_bias",
        "no_rope_layers",
        "use_sliding_window",
        "sliding_window",
        "layer_types",
    ],
    spec,
    ..Arch::LIKE_LLAMA
};

fn spec(c: &HfConfig) -> Result<ModelSpec> {
    let c = &c.with_default("rope_theta", 2e6);
    let mut m = ModelSpec::llama(c)?;
    m.head.tied = c.flag_or("tie_word_embeddings", true)?;
    // Despite its name the list has a 1 for each layer with a rope.
    let interval = c.count_opt("no_rope_layer_interval")?.unwrap_or(4);
    let listed = c.indices("no_rope_layers")?;
    if !listed.is_empty() && listed.len() < m.layers.len() {
        return Err(c.ill_typed("no_rope_layers", &listed.into(), "an entry for each layer"));
    }
    m.each_attention(|i, a| {
        let has_rope = listed.get(i).map_or((i + 1) % interval != 0, |&entry| entry != 0);
        if !has_rope {
            a.rope = None;
        }
    });
    if c.flag_or("use_sliding_window", false)?
        && let Some(window) = c.count_opt("sliding_window")?
    {
        let ropes: Vec<bool> = m.attentions().map(|a| a.rope.is_some()).collect();
        m.set_windows(c, window, |i| !ropes[i])?;
    }
    Ok(m)
}
