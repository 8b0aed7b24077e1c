//! MiniMax-M2: experts chosen by sigmoids in every layer, q and k normed across all heads, and half of each head rotated.
//! Source: transformers `models/minimax_m2`.

use candlepower_layout::GatingFunction;

use super::{Arch, mixtral};
use crate::{
    config::HfConfig,
    error::Result,
    spec::{GatingSpec, ModelSpec, QkNormSpan},
};

pub(super) const ARCH: Arch = Arch {
    name: "MiniMaxM2ForCausalLM",
    model_type: "minimax_m2",
    reads: &["use_qk_norm", "num_local_experts"],
    spec,
    weights: mixtral::WEIGHTS,
    predicts_more: true,
    ..Arch::LIKE_LLAMA
};

fn spec(c: &HfConfig) -> Result<ModelSpec> {
    // Absent, it would be 128, not hidden_size / num_attention_heads.
    let head_dim = c.count("head_dim")?;
    let rotated = match c.count_opt("rotary_dim")? {
        // The share is given where other files give the number, so that one reader computes the width.
        Some(rotated) => c.with_default("partial_rotary_factor", rotated as f64 / head_dim as f64),
        None => c.clone(),
    };
    let mut m = ModelSpec::llama(&rotated.with_default("rope_theta", 5e6))?;
    // The published configuration says what else there could be; transformers reads none of it.
    for (key, only) in [("scoring_func", "sigmoid"), ("qk_norm_type", "per_layer")] {
        if let Some(other) = c.text_opt(key)?.filter(|found| *found != only) {
            return Err(c.unsupported(key, &other.into(), &format!("; {only} is")));
        }
    }
    for key in ["use_qk_norm", "use_routing_bias"] {
        if !c.flag_or(key, true)? {
            return Err(c.unsupported(key, &false.into(), "; true is"));
        }
    }
    if c.index_or("shared_intermediate_size", 0)? > 0 {
        let found = c.raw("shared_intermediate_size").cloned().unwrap_or_default();
        return Err(c.unsupported("shared_intermediate_size", &found, "; 0 is"));
    }
    // 1 is full attention.
    if c.indices("attn_type_list")?.iter().any(|kind| *kind != 1) {
        let found = c.raw("attn_type_list").cloned().unwrap_or_default();
        return Err(c.unsupported("attn_type_list", &found, "; a list of 1 is"));
    }
    m.set_qk_norm(m.final_norm, QkNormSpan::AllHeads);
    let gating =
        GatingSpec { function: GatingFunction::Sigmoid, bias: true, ..GatingSpec::softmax(true) };
    m.set_experts(c, "intermediate_size", gating, |_| true)?;
    Ok(m)
}
