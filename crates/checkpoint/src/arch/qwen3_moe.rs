//! Qwen3-MoE: Qwen3 with experts in most layers, and one window for all. Source: transformers `models/qwen3_moe`.

use super::{Arch, qwen3};
use crate::{
    config::HfConfig,
    error::Result,
    spec::{GatingSpec, ModelSpec},
};

pub(super) const ARCH: Arch = Arch {
    name: "Qwen3MoeForCausalLM",
    model_type: "qwen3_moe",
    reads: &[
        "attention_bias",
        "use_sliding_window",
        "sliding_window",
        "num_experts",
        "num_local_experts",
    ],
    spec,
    ..Arch::LIKE_LLAMA
};

fn spec(c: &HfConfig) -> Result<ModelSpec> {
    let mut m = qwen3::base(c)?;
    if c.flag_or("use_sliding_window", false)? {
        let window = c.count_or_null("sliding_window")?;
        m.each_attention(|_, a| a.window = window);
    }
    let step = c.count_opt("decoder_sparse_step")?.unwrap_or(1);
    let dense = c.indices("mlp_only_layers")?;
    let has_experts = |i: usize| (i + 1).is_multiple_of(step) && !dense.contains(&(i as u32));
    let gating = GatingSpec::softmax(c.flag_or("norm_topk_prob", false)?);
    m.set_experts(c, "moe_intermediate_size", gating, has_experts)?;
    Ok(m)
}
