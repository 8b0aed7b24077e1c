//! OPT: learned positions, of which the first is the third of the table, and ReLUs. Source: transformers `models/opt`.

use super::{Arch, Around};
use crate::{
    config::HfConfig,
    error::Result,
    spec::ModelSpec,
    weights::{Slot, WeightRule, behind, whole},
};

pub(super) const ARCH: Arch = Arch {
    name: "OPTForCausalLM",
    model_type: "opt",
    reads: &[],
    spec,
    weights: WEIGHTS,
    around: Around::Name("model."),
    ..Arch::LIKE_LLAMA
};

const NAMES: &[(&str, &str)] =
    &[("intermediate_size", "ffn_dim"), ("hidden_act", "activation_function")];

const WEIGHTS: &[WeightRule] = &[
    whole(Slot::Embed, "decoder.embed_tokens.weight"),
    behind(2, Slot::Positions, "decoder.embed_positions.weight"),
    whole(Slot::FinalNorm, "decoder.final_layer_norm.weight"),
    whole(Slot::FinalNormBias, "decoder.final_layer_norm.bias"),
    whole(Slot::AttnNorm, "decoder.layers.{i}.self_attn_layer_norm.weight"),
    whole(Slot::AttnNormBias, "decoder.layers.{i}.self_attn_layer_norm.bias"),
    whole(Slot::FfnNorm, "decoder.layers.{i}.final_layer_norm.weight"),
    whole(Slot::FfnNormBias, "decoder.layers.{i}.final_layer_norm.bias"),
    whole(Slot::Q, "decoder.layers.{i}.self_attn.q_proj.weight"),
    whole(Slot::K, "decoder.layers.{i}.self_attn.k_proj.weight"),
    whole(Slot::V, "decoder.layers.{i}.self_attn.v_proj.weight"),
    whole(Slot::O, "decoder.layers.{i}.self_attn.out_proj.weight"),
    whole(Slot::QBias, "decoder.layers.{i}.self_attn.q_proj.bias"),
    whole(Slot::KBias, "decoder.layers.{i}.self_attn.k_proj.bias"),
    whole(Slot::VBias, "decoder.layers.{i}.self_attn.v_proj.bias"),
    whole(Slot::OBias, "decoder.layers.{i}.self_attn.out_proj.bias"),
    whole(Slot::Up, "decoder.layers.{i}.fc1.weight"),
    whole(Slot::UpBias, "decoder.layers.{i}.fc1.bias"),
    whole(Slot::Down, "decoder.layers.{i}.fc2.weight"),
    whole(Slot::DownBias, "decoder.layers.{i}.fc2.bias"),
];

fn spec(c: &HfConfig) -> Result<ModelSpec> {
    // The smallest but one, OPT-350M, differs in both.
    for (key, only) in [("do_layer_norm_before", true), ("_remove_final_layer_norm", false)] {
        if c.flag_or(key, only)? != only {
            return Err(c.unsupported(key, &(!only).into(), &format!("; {only} is")));
        }
    }
    if !c.flag_or("layer_norm_elementwise_affine", true)? {
        let key = "layer_norm_elementwise_affine";
        return Err(c.unsupported(key, &false.into(), "; true is"));
    }
    let c = c.renamed(NAMES).with_default("hidden_act", "relu");
    let mut m = ModelSpec::gpt(&c, "layer_norm_eps")?;
    if let Some(width) = c.count_opt("word_embed_proj_dim")?.filter(|w| *w != m.hidden_size) {
        let key = "word_embed_proj_dim";
        return Err(c.unsupported(key, &width.into(), "; hidden_size is"));
    }
    m.set_biases(c.flag_or("enable_bias", true)?);
    m.learn_positions(&c)?;
    m.head.tied = c.flag_or("tie_word_embeddings", true)?;
    Ok(m)
}
