//! StarCoder2: Llama with LayerNorm, biases everywhere, a feed-forward without a gate, and a window.
//! Source: transformers `models/starcoder2`.

use super::Arch;
use crate::{
    config::HfConfig,
    error::Result,
    spec::ModelSpec,
    weights::{Slot, WeightRule, whole},
};

pub(super) const ARCH: Arch = Arch {
    name: "Starcoder2ForCausalLM",
    model_type: "starcoder2",
    reads: &["sliding_window"],
    spec,
    weights: WEIGHTS,
    ..Arch::LIKE_LLAMA
};

const WEIGHTS: &[WeightRule] = &[
    whole(Slot::Up, "model.layers.{i}.mlp.c_fc.weight"),
    whole(Slot::Down, "model.layers.{i}.mlp.c_proj.weight"),
    whole(Slot::UpBias, "model.layers.{i}.mlp.c_fc.bias"),
    whole(Slot::DownBias, "model.layers.{i}.mlp.c_proj.bias"),
];

fn spec(c: &HfConfig) -> Result<ModelSpec> {
    let c = c.with_default("hidden_act", "gelu_pytorch_tanh");
    let mut m = ModelSpec::gpt(&c, "norm_epsilon")?;
    m.head.tied = c.flag_or("tie_word_embeddings", true)?;
    m.set_biases(c.flag_or("use_bias", true)?);
    let window = c.count_opt("sliding_window")?;
    m.each_attention(|_, a| a.window = window);
    Ok(m)
}
