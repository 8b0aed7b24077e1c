//! GPT-2: learned positions, and matrices stored `[in, out]`; GPT-BigCode, one of whose heads has the keys of all, and GPT-J, with ropes and
//! attention and feed-forward side by side. Their configurations have names of their own.
//! Source: transformers `models/gpt2`, `models/gpt_bigcode`, `models/gptj`.

use super::{Arch, Around};
use crate::{
    config::HfConfig,
    error::Result,
    spec::{ModelSpec, Residual},
    weights::{Slot, WeightRule, heads, rows, transposed, whole},
};

pub(super) const ARCH: Arch = Arch {
    name: "GPT2LMHeadModel",
    model_type: "gpt2",
    reads: &["scale_attn_by_inverse_layer_idx"],
    spec,
    weights: WEIGHTS,
    around: Around::Name("transformer."),
    ..Arch::LIKE_LLAMA
};

pub(super) const BIG_CODE: Arch = Arch {
    name: "GPTBigCodeForCausalLM",
    model_type: "gpt_bigcode",
    spec: big_code,
    weights: OF_BIG_CODE,
    reads: &[],
    ..ARCH
};

pub(super) const GPT_J: Arch = Arch {
    name: "GPTJForCausalLM",
    model_type: "gptj",
    spec: gpt_j,
    weights: OF_GPT_J,
    reads: &[],
    ..ARCH
};

const NAMES: &[(&str, &str)] = &[
    ("hidden_size", "n_embd"),
    ("num_attention_heads", "n_head"),
    ("num_hidden_layers", "n_layer"),
    ("max_position_embeddings", "n_positions"),
    ("intermediate_size", "n_inner"),
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
    transposed(Slot::Q, "h.{i}.attn.c_attn.weight"),
    transposed(Slot::K, "h.{i}.attn.c_attn.weight"),
    transposed(Slot::V, "h.{i}.attn.c_attn.weight"),
    rows(Slot::QBias, "h.{i}.attn.c_attn.bias"),
    rows(Slot::KBias, "h.{i}.attn.c_attn.bias"),
    rows(Slot::VBias, "h.{i}.attn.c_attn.bias"),
    transposed(Slot::O, "h.{i}.attn.c_proj.weight"),
    whole(Slot::OBias, "h.{i}.attn.c_proj.bias"),
    transposed(Slot::Up, "h.{i}.mlp.c_fc.weight"),
    whole(Slot::UpBias, "h.{i}.mlp.c_fc.bias"),
    transposed(Slot::Down, "h.{i}.mlp.c_proj.weight"),
    whole(Slot::DownBias, "h.{i}.mlp.c_proj.bias"),
];

const OF_BIG_CODE: &[WeightRule] = &[
    whole(Slot::Embed, "wte.weight"),
    whole(Slot::Positions, "wpe.weight"),
    whole(Slot::FinalNorm, "ln_f.weight"),
    whole(Slot::FinalNormBias, "ln_f.bias"),
    whole(Slot::AttnNorm, "h.{i}.ln_1.weight"),
    whole(Slot::AttnNormBias, "h.{i}.ln_1.bias"),
    whole(Slot::FfnNorm, "h.{i}.ln_2.weight"),
    whole(Slot::FfnNormBias, "h.{i}.ln_2.bias"),
    heads(Slot::Q, "h.{i}.attn.c_attn.weight"),
    heads(Slot::K, "h.{i}.attn.c_attn.weight"),
    heads(Slot::V, "h.{i}.attn.c_attn.weight"),
    heads(Slot::QBias, "h.{i}.attn.c_attn.bias"),
    heads(Slot::KBias, "h.{i}.attn.c_attn.bias"),
    heads(Slot::VBias, "h.{i}.attn.c_attn.bias"),
    whole(Slot::O, "h.{i}.attn.c_proj.weight"),
    whole(Slot::OBias, "h.{i}.attn.c_proj.bias"),
    whole(Slot::Up, "h.{i}.mlp.c_fc.weight"),
    whole(Slot::UpBias, "h.{i}.mlp.c_fc.bias"),
    whole(Slot::Down, "h.{i}.mlp.c_proj.weight"),
    whole(Slot::DownBias, "h.{i}.mlp.c_proj.bias"),
];

const OF_GPT_J: &[WeightRule] = &[
    whole(Slot::Embed, "wte.weight"),
    whole(Slot::FinalNorm, "ln_f.weight"),
    whole(Slot::FinalNormBias, "ln_f.bias"),
    whole(Slot::AttnNorm, "h.{i}.ln_1.weight"),
    whole(Slot::AttnNormBias, "h.{i}.ln_1.bias"),
    whole(Slot::Q, "h.{i}.attn.q_proj.weight"),
    whole(Slot::K, "h.{i}.attn.k_proj.weight"),
    whole(Slot::V, "h.{i}.attn.v_proj.weight"),
    whole(Slot::O, "h.{i}.attn.out_proj.weight"),
    whole(Slot::Up, "h.{i}.mlp.fc_in.weight"),
    whole(Slot::UpBias, "h.{i}.mlp.fc_in.bias"),
    whole(Slot::Down, "h.{i}.mlp.fc_out.weight"),
    whole(Slot::DownBias, "h.{i}.mlp.fc_out.bias"),
];

fn spec(c: &HfConfig) -> Result<ModelSpec> {
    let mut m = base(&c.with_default("activation_function", "gelu_new"))?;
    if c.flag_or("scale_attn_by_inverse_layer_idx", false)? {
        m.each_attention(|i, a| a.scale /= (i + 1) as f64);
    }
    Ok(m)
}

fn big_code(c: &HfConfig) -> Result<ModelSpec> {
    let mut m = base(&c.with_default("activation_function", "gelu_pytorch_tanh"))?;
    if c.flag_or("multi_query", true)? {
        // The class ignores any number of key heads: there is one, or one for each head of queries.
        m.each_attention(|_, a| a.kv_heads = 1);
    }
    Ok(m)
}

fn gpt_j(c: &HfConfig) -> Result<ModelSpec> {
    let c = c.with_default("activation_function", "gelu_new").renamed(NAMES);
    let mut m = ModelSpec::gpt(&c, "layer_norm_epsilon")?;
    let rotated = c.count_opt("rotary_dim")?.unwrap_or(64);
    if rotated % 2 == 1 || m.attentions().any(|a| rotated > a.head_dim) {
        let needed = "an even number that is at most the width of a head";
        return Err(c.ill_typed("rotary_dim", &rotated.into(), needed));
    }
    m.layers.iter_mut().for_each(|layer| layer.residual = Residual::Parallel);
    m.each_attention(|_, a| {
        // GPT-J's attention has no biases; its feed-forward and its head have.
        (a.qkv_bias, a.out_bias) = (false, false);
        a.rope.iter_mut().for_each(|rope| (rope.dim, rope.interleaved) = (rotated, true));
    });
    m.head.bias = true;
    Ok(m)
}

fn base(c: &HfConfig) -> Result<ModelSpec> {
    let c = c.renamed(NAMES);
    let mut m = ModelSpec::gpt(&c, "layer_norm_epsilon")?;
    m.learn_positions(&c)?;
    m.head.tied = c.flag_or("tie_word_embeddings", true)?;
    if !c.flag_or("scale_attn_weights", true)? {
        m.each_attention(|_, a| a.scale = 1.0);
    }
    Ok(m)
}
