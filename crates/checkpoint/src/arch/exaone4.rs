//! EXAONE 4: norms after each block only and on each head of q and k; beside windowed layers those without a window have no rope.
//! Source: transformers `models/exaone4`.

use super::{Arch, olmo2};
use crate::{
    config::HfConfig,
    error::Result,
    spec::{ModelSpec, QkNormSpan, Residual},
};

pub(super) const ARCH: Arch = Arch {
    name: "Exaone4ForCausalLM",
    model_type: "exaone4",
    reads: &["sliding_window", "sliding_window_pattern", "layer_types"],
    spec,
    weights: olmo2::WEIGHTS,
    ..Arch::LIKE_LLAMA
};

fn spec(c: &HfConfig) -> Result<ModelSpec> {
    let mut m = ModelSpec::llama(c)?;
    m.layers.iter_mut().for_each(|l| l.residual = Residual::PostNorm);
    m.set_qk_norm(m.final_norm, QkNormSpan::Head);
    let Some(window) = c.count_or_null("sliding_window")? else { return Ok(m) };
    // Where the layers are listed, the pattern may be spelled in letters.
    let pattern = match c.contains("layer_types") {
        true => 1,
        false => c.count_opt("sliding_window_pattern")?.unwrap_or(4),
    };
    m.set_windows(c, window, |i| (i + 1) % pattern != 0)?;
    m.drop_ropes_of_full_layers();
    Ok(m)
}
