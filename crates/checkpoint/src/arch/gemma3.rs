//! Gemma 3 (text): Gemma 2 with norms of each head of q and k in place of soft caps, and five windowed layers, with a rope of their
//! own, to each global one. EmbeddingGemma is its layers, where tokens see both ways. Source: transformers `models/gemma3`.

use super::{Arch, Around, gemma2};
use crate::{
    config::HfConfig,
    error::Result,
    spec::{ModelSpec, QkNormSpan},
    vision::siglip,
};

pub(super) const ARCH: Arch = Arch {
    name: "Gemma3ForCausalLM",
    model_type: "gemma3_text",
    reads: &[
        "attention_bias",
        "sliding_window",
        "sliding_window_pattern",
        "layer_types",
        "attn_logit_softcapping",
        "final_logit_softcapping",
        "query_pre_attn_scalar",
        "rope_local_base_freq",
        "use_bidirectional_attention",
    ],
    spec,
    weights: gemma2::WEIGHTS,
    ..Arch::LIKE_LLAMA
};

/// The larger ones, with the tower SigLIP.
pub(super) const OF_IMAGES: Arch = Arch {
    name: "Gemma3ForConditionalGeneration",
    model_type: "gemma3",
    spec: of_images,
    around: Around::Images(super::FOR_IMAGES),
    vision: Some(siglip::gemma3),
    ..ARCH
};

/// Source: transformers `models/gemma3`, `Gemma3TextConfig`.
const DEFAULT_COUNTS: [(&str, usize); 10] = [
    ("vocab_size", 262_208),
    ("hidden_size", 2304),
    ("intermediate_size", 9216),
    ("num_hidden_layers", 26),
    ("num_attention_heads", 8),
    ("num_key_value_heads", 4),
    ("head_dim", 256),
    ("max_position_embeddings", 131_072),
    ("query_pre_attn_scalar", 256),
    ("sliding_window", 4096),
];

fn spec(c: &HfConfig) -> Result<ModelSpec> {
    // Absent softcaps are none here; Gemma 2 has defaults for them.
    let c =
        &c.with_default("attn_logit_softcapping", ()).with_default("final_logit_softcapping", ());
    let mut m = gemma2::base(&rope_of(c, "full_attention")?)?;
    let norm = m.final_norm;
    m.set_qk_norm(norm, QkNormSpan::Head);
    let pattern = c.count_opt("sliding_window_pattern")?.unwrap_or(6);
    let both_ways = c.flag_or("use_bidirectional_attention", false)?;
    // A window of both ways is half before a token and half behind it.
    let window = match (both_ways, c.count("sliding_window")?) {
        (true, whole) => whole / 2 + 1,
        (false, window) => window,
    };
    m.set_windows(c, window, |i| (i + 1) % pattern != 0)?;
    if both_ways {
        c.refuse("attn_logit_softcapping")?;
        m.each_attention(|_, a| a.both_ways = true);
    }
    m.set_ropes_of_windowed_layers(&rope_of(c, "sliding_attention")?)?;
    Ok(m)
}

/// The text part of a model of texts and images; keys that it leaves out have the defaults of transformers.
fn of_images(c: &HfConfig) -> Result<ModelSpec> {
    let mut c = c.with_default("hidden_activation", "gelu_pytorch_tanh");
    for (key, count) in DEFAULT_COUNTS {
        c = c.with_default(key, count);
    }
    spec(&c.with_default("rms_norm_eps", 1e-6))
}

/// The configuration with the rope settings of one type of layers, which transformers 4 writes as `rope_theta` and
/// `rope_scaling` for global layers, and as `rope_local_base_freq` for windowed ones.
fn rope_of(c: &HfConfig, layer_type: &str) -> Result<HfConfig> {
    let own = c.with_rope_of(layer_type)?;
    let (config, theta) = match layer_type {
        "full_attention" => (own.unwrap_or_else(|| c.clone()), 1e6),
        _ => match own {
            Some(own) => (own, 1e4),
            None => {
                let theta = c.float_opt("rope_local_base_freq")?.unwrap_or(1e4);
                (c.without(&["rope_theta", "rope_scaling", "rope_parameters"]), theta)
            }
        },
    };
    Ok(config.with_default("rope_theta", theta))
}
