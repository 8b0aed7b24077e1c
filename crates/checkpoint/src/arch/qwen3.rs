//! Qwen3: Llama with RMSNorm on each head of q and k, and Qwen2's windows.
//! Source: transformers `models/qwen3`.

use super::{Arch, qwen2};
use crate::{
    config::HfConfig,
    error::Result,
    spec::{ModelSpec, QkNormSpan},
};

pub(super) const ARCH: Arch = Arch {
    name: "Qwen3ForCausalLM",
    model_type: "qwen3",
    reads: &["attention_bias", "use_sliding_window", "sliding_window", "layer_types"],
    spec,
    ..Arch::LIKE_LLAMA
};

fn spec(c: &HfConfig) -> Result<ModelSpec> {
    let mut m = base(c)?;
    qwen2::windows(&mut m, c)?;
    Ok(m)
}

/// Qwen3 without windows.
pub(super) fn base(c: &HfConfig) -> Result<ModelSpec> {
    // Absent, it would be 128, not hidden_size / num_attention_heads.
    c.count("head_dim")?;
    let mut m = ModelSpec::llama(c)?;
    m.set_qk_norm(m.final_norm, QkNormSpan::Head);
    Ok(m)
}
