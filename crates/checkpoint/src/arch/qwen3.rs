//! Qwen3: Llama with RMSNorm on each head of q and k, and Qwen2's windows.
//! Source: transformers `models/qwen3`.

use super::{Arch, qwen2};
use crate::{config::HfConfig, error::Result, spec::ModelSpec};

pub(super) const ARCH: Arch = Arch {
    name: "Qwen3ForCausalLM",
    model_type: "qwen3",
    reads: &["attention_bias", "use_sliding_window", "sliding_window", "layer_types"],
    spec,
    weights: &[],
};

fn spec(c: &HfConfig) -> Result<ModelSpec> {
    // Absent, it would be 128, not hidden_size / num_attention_heads.
    c.count("head_dim")?;
    let mut m = ModelSpec::llama(c)?;
    let norm = m.final_norm;
    m.each_attention(|_, a| a.qk_norm = Some(norm));
    qwen2::windows(&mut m, c)?;
    Ok(m)
}
