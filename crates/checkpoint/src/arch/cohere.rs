//! Command R and R7B (Cohere, Cohere 2): one LayerNorm without a bias feeds attention and feed-forward, whose results are
//! both added; ropes of neighbours; scaled logits. Command R+ norms each head of q and k, Cohere 2 has windowed layers, and
//! no rope in the others. Source: transformers `models/cohere`, `models/cohere2`.

use super::Arch;
use crate::{
    config::HfConfig,
    error::Result,
    spec::{ModelSpec, NormKind, NormSpec, QkNormSpan, Residual},
    weights::{Slot, WeightRule, row_of_each_head},
};

pub(super) const ARCH: Arch = Arch {
    name: "CohereForCausalLM",
    model_type: "cohere",
    reads: &["attention_bias", "use_qk_norm", "logit_scale"],
    spec: cohere,
    weights: WEIGHTS,
    ..Arch::LIKE_LLAMA
};

pub(super) const COHERE2: Arch = Arch {
    name: "Cohere2ForCausalLM",
    model_type: "cohere2",
    reads: &[
        "attention_bias",
        "logit_scale",
        "sliding_window",
        "sliding_window_pattern",
        "layer_types",
    ],
    spec: cohere2,
    ..Arch::LIKE_LLAMA
};

const WEIGHTS: &[WeightRule] = &[
    row_of_each_head(Slot::QNorm, "model.layers.{i}.self_attn.q_norm.weight"),
    row_of_each_head(Slot::KNorm, "model.layers.{i}.self_attn.k_norm.weight"),
];

fn cohere(c: &HfConfig) -> Result<ModelSpec> {
    let mut m = base(&c.with_default("rope_theta", 500_000.0))?;
    if c.flag_or("use_qk_norm", false)? {
        m.set_qk_norm(m.final_norm, QkNormSpan::EachHead);
    }
    Ok(m)
}

fn cohere2(c: &HfConfig) -> Result<ModelSpec> {
    let mut m = base(c)?;
    let pattern = c.count_opt("sliding_window_pattern")?.unwrap_or(4);
    m.set_windows(c, c.count("sliding_window")?, |i| (i + 1) % pattern != 0)?;
    m.drop_ropes_of_full_layers();
    Ok(m)
}

fn base(c: &HfConfig) -> Result<ModelSpec> {
    let eps = c.float_opt("layer_norm_eps")?.unwrap_or(1e-5);
    let mut m =
        ModelSpec::llama(&c.with_default("rms_norm_eps", eps).with_default("hidden_act", "silu"))?;
    m.set_norm(NormSpec { kind: NormKind::Layer { bias: false }, eps });
    m.layers.iter_mut().for_each(|l| l.residual = Residual::Parallel);
    m.interleave_ropes();
    m.head.tied = c.flag_or("tie_word_embeddings", true)?;
    // Cohere multiplies logits by the key; Granite, whose key has nearly the same name, divides.
    m.head.scale = match c.float_opt("logit_scale")?.unwrap_or(0.0625) {
        scale if scale > 0.0 => scale,
        scale => return Err(c.ill_typed("logit_scale", &scale.into(), "a number above 0")),
    };
    Ok(m)
}
