//! Bamba: Llama with Mamba-2 in place of most attentions, which rotate half of their heads.
//! Source: transformers `models/bamba`.

use super::{Arch, recurrent};
use crate::{
    config::HfConfig,
    error::Result,
    spec::{Mixer, ModelSpec},
    weights::{Slot, WeightRule, joined, whole},
};

pub(super) const ARCH: Arch = Arch {
    name: "BambaForCausalLM",
    model_type: "bamba",
    spec,
    weights: &WEIGHTS,
    ..Arch::LIKE_LLAMA
};

const WEIGHTS: [WeightRule; 21] = joined(
    [
        whole(Slot::FinalNorm, "model.final_layernorm.weight"),
        whole(Slot::FfnNorm, "model.layers.{i}.pre_ff_layernorm.weight"),
        whole(Slot::Gate, "model.layers.{i}.feed_forward.gate_proj.weight"),
        whole(Slot::Up, "model.layers.{i}.feed_forward.up_proj.weight"),
        whole(Slot::Down, "model.layers.{i}.feed_forward.down_proj.weight"),
    ],
    recurrent::MAMBA,
);

fn spec(c: &HfConfig) -> Result<ModelSpec> {
    let mut m = ModelSpec::llama(&c.with_default("partial_rotary_factor", 0.5))?;
    let mamba = recurrent::mamba2(c)?;
    let attentions = c.indices("attn_layer_indices")?;
    if !attentions.iter().any(|layer| (*layer as usize) < m.layers.len()) {
        let found = c.raw("attn_layer_indices").cloned().unwrap_or_default();
        return Err(c.ill_typed(
            "attn_layer_indices",
            &found,
            "a list of layers that have attention",
        ));
    }
    for (i, layer) in m.layers.iter_mut().enumerate() {
        if !attentions.iter().any(|of_attention| *of_attention as usize == i) {
            layer.mixer = Mixer::Recurrence(mamba);
        }
    }
    Ok(m)
}
