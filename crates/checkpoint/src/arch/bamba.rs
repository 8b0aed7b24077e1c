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
    const KEY: &str = "attn_layer_indices";
    // All layers that are not listed are Mamba-2.
    let attentions = c.indices(KEY)?;
    let is_mamba = |i: usize| !attentions.iter().any(|layer| *layer as usize == i);
    let is_mamba: Vec<bool> = (0..m.layers.len()).map(is_mamba).collect();
    m.set_mixers(c, KEY, &is_mamba, &Mixer::LinearAttention(mamba))?;
    Ok(m)
}
