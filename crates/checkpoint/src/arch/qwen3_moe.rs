//! Qwen3-MoE: Qwen3 with experts in most layers, and one window for all. Source: transformers `models/qwen3_moe`.

use super::{Arch, qwen2_moe, qwen3};
use crate::{config::HfConfig, error::Result, spec::ModelSpec};

pub(super) const ARCH: Arch = Arch {
    name: "Qwen3MoeForCausalLM",
    model_type: "qwen3_moe",
    reads: &[
        "attention_bias",
        "use_sliding_window",
        "sliding_window",
        "num_experts",
        "num_local_experts",
        "use_qk_norm",
    ],
    spec,
    ..Arch::LIKE_LLAMA
};

fn spec(c: &HfConfig) -> Result<ModelSpec> {
    // Where it is missing, transformers divides the width, other than in dense models.
    let width = c.count("hidden_size")? / c.count("num_attention_heads")?;
    let c = &c.with_default("head_dim", width);
    let mut m = qwen3::base(c)?;
    // Qwen3-Coder writes it.
    if !c.flag_or("use_qk_norm", true)? {
        return Err(c.unsupported("use_qk_norm", &false.into(), "; true is"));
    }
    if c.flag_or("use_sliding_window", false)? {
        let window = c.count_or_null("sliding_window")?;
        m.each_attention(|_, a| a.window = window);
    }
    qwen2_moe::set_experts(&mut m, c, c.flag_or("norm_topk_prob", false)?)?;
    Ok(m)
}
