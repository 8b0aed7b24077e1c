//! Qwen2 and Qwen2.5: Llama with biases on q, k and v, and windows from some layer on.
//! Source: transformers `models/qwen2`.

use super::Arch;
use crate::{config::HfConfig, error::Result, spec::ModelSpec};

pub(super) const ARCH: Arch = Arch {
    name: "Qwen2ForCausalLM",
    model_type: "qwen2",
    reads: &["use_sliding_window", "sliding_window", "layer_types"],
    spec,
    ..Arch::LIKE_LLAMA
};

pub(super) fn spec(c: &HfConfig) -> Result<ModelSpec> {
    let mut m = ModelSpec::llama(c)?;
    m.each_attention(|_, a| a.qkv_bias = true);
    windows(&mut m, c)?;
    Ok(m)
}

/// Qwen's windows: none unless `use_sliding_window`; then from layer `max_window_layers` on.
pub(super) fn windows(m: &mut ModelSpec, c: &HfConfig) -> Result<()> {
    if !c.flag_or("use_sliding_window", false)? {
        return Ok(());
    }
    let Some(window) = c.count_or_null("sliding_window")? else { return Ok(()) };
    // A list of the layers wins, and then the key may be missing.
    let first = match c.raw("layer_types") {
        Some(_) => 0,
        None => c.index("max_window_layers")?,
    };
    m.set_windows(c, window, |i| i >= first)
}
