//! Phi-1, 1.5 and 2: LayerNorm before attention and feed-forward side by side, biases everywhere, the head's too, and a part of each
//! head rotated. Source: transformers `models/phi`.

use super::Arch;
use crate::{
    config::HfConfig,
    error::Result,
    spec::{ModelSpec, Residual},
    weights::{Slot, WeightRule, whole},
};

pub(super) const ARCH: Arch = Arch {
    name: "PhiForCausalLM",
    model_type: "phi",
    reads: &[],
    spec,
    weights: WEIGHTS,
    ..Arch::LIKE_LLAMA
};

const WEIGHTS: &[WeightRule] = &[
    whole(Slot::FinalNorm, "model.final_layernorm.weight"),
    whole(Slot::FinalNormBias, "model.final_layernorm.bias"),
    whole(Slot::O, "model.layers.{i}.self_attn.dense.weight"),
    whole(Slot::OBias, "model.layers.{i}.self_attn.dense.bias"),
    whole(Slot::Up, "model.layers.{i}.mlp.fc1.weight"),
    whole(Slot::UpBias, "model.layers.{i}.mlp.fc1.bias"),
    whole(Slot::Down, "model.layers.{i}.mlp.fc2.weight"),
    whole(Slot::DownBias, "model.layers.{i}.mlp.fc2.bias"),
];

fn spec(c: &HfConfig) -> Result<ModelSpec> {
    let c = c.with_default("hidden_act", "gelu_new").with_default("partial_rotary_factor", 0.5);
    let mut m = ModelSpec::gpt(&c, "layer_norm_eps")?;
    m.layers.iter_mut().for_each(|l| l.residual = Residual::Parallel);
    m.head.bias = true;
    Ok(m)
}
