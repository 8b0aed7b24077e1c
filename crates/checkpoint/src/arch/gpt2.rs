//! GPT-2: learned positions, LayerNorm, biases everywhere, and matrices stored `[in, out]`. Its configuration has names of
//! its own. Source: transformers `models/gpt2`.

use std::collections::{BTreeMap, BTreeSet};

use super::{Arch, Around};
use crate::{
    config::HfConfig,
    error::Result,
    spec::{
        Act, AttentionSpec, EmbedSpec, FfnSpec, HeadSpec, LayerSpec, MOST_HEADS, MOST_LAYERS,
        MOST_TOKENS, MOST_WIDTH, Mixer, MlpSpec, ModelSpec, NormKind, NormSpec, Residual,
    },
    weights::{Slot, WeightRule, rows, transposed, whole},
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

fn spec(c: &HfConfig) -> Result<ModelSpec> {
    let c = c.with_default("activation_function", "gelu_new");
    let hidden_size = c.bounded("n_embd", MOST_WIDTH)?;
    let heads = c.bounded("n_head", MOST_HEADS)?;
    if !hidden_size.is_multiple_of(heads) {
        return Err(c.ill_typed("n_head", &heads.into(), "a divisor of n_embd"));
    }
    let head_dim = hidden_size / heads;
    let positions = c.bounded("n_positions", MOST_TOKENS)?;
    let eps = c.float_opt("layer_norm_epsilon")?.unwrap_or(1e-5);
    let norm = NormSpec { kind: NormKind::Layer { bias: true }, eps };
    let scaled = c.flag_or("scale_attn_weights", true)?;
    let layer = LayerSpec {
        residual: Residual::PreNorm,
        norm,
        mixer: Mixer::Attention(Box::new(AttentionSpec {
            heads,
            kv_heads: heads,
            head_dim,
            scale: if scaled { (head_dim as f64).powf(-0.5) } else { 1.0 },
            qkv_bias: true,
            out_bias: true,
            qk_norm: None,
            rope: None,
            window: None,
            softcap: None,
            sinks: false,
            gated: false,
            v_norm: None,
            values_are_keys: false,
            keys_of: None,
            latent: None,
        })),
        ffn: FfnSpec::Dense(MlpSpec {
            inner: c.bounded_opt("n_inner", MOST_WIDTH)?.unwrap_or(4 * hidden_size),
            act: Act::read_key(&c, "activation_function")?,
            gated: false,
            bias: true,
        }),
        scaled: false,
    };
    let tied = c.flag_or("tie_word_embeddings", true)?;
    let mut m = ModelSpec {
        vocab_size: c.bounded("vocab_size", MOST_TOKENS)?,
        hidden_size,
        max_model_len: positions,
        max_positions: positions,
        embed: EmbedSpec { scale: 1.0, rounded: false, positions: Some(positions) },
        layers: vec![layer; c.bounded("n_layer", MOST_LAYERS)?],
        final_norm: norm,
        head: HeadSpec { tied, bias: false, scale: 1.0, softcap: None },
        per_layer: None,
        quantized: BTreeMap::new(),
        widened: BTreeSet::new(),
    };
    if c.flag_or("scale_attn_by_inverse_layer_idx", false)? {
        m.each_attention(|i, a| a.scale /= (i + 1) as f64);
    }
    Ok(m)
}
