//! StableLM: Llama with LayerNorm, a part of each head rotated, and in some attention and feed-forward side by side.
//! Source: transformers `models/stablelm`.

use super::Arch;
use crate::{
    config::HfConfig,
    error::Result,
    spec::{ModelSpec, NormKind, NormSpec, Residual},
};

pub(super) const ARCH: Arch = Arch {
    name: "StableLmForCausalLM",
    model_type: "stablelm",
    reads: &[],
    spec,
    ..Arch::LIKE_LLAMA
};

fn spec(c: &HfConfig) -> Result<ModelSpec> {
    let eps = c.float_opt("layer_norm_eps")?.unwrap_or(1e-5);
    // The class ignores the key, and divides the width by the heads.
    let c = c.without(&["head_dim"]);
    let c = c.with_default("rms_norm_eps", eps).with_default("partial_rotary_factor", 0.25);
    let mut m = ModelSpec::llama(&c)?;
    m.set_norm(NormSpec { kind: NormKind::Layer { bias: true }, eps });
    if c.flag_or("use_parallel_residual", false)? {
        m.layers.iter_mut().for_each(|l| l.residual = Residual::Parallel);
    }
    let bias = c.flag_or("use_qkv_bias", false)?;
    m.each_attention(|_, a| a.qkv_bias = bias);
    Ok(m)
}
