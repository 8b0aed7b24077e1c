//! The common part of models with linear attention or an SSM in place of some attentions.

use crate::{
    config::HfConfig,
    error::Result,
    spec::{LinearAttentionSpec, MAX_HEADS, UpdateRuleSpec},
    weights::{Slot, WeightRule, conv_kernel, rows, whole},
};

/// Rules for the Mamba-2 of a layer with this name.
macro_rules! mamba_weights {
    ($name:literal) => {
        [
            rows(Slot::LinearAttnGate, concat!($name, ".in_proj.weight")),
            rows(Slot::LinearAttnV, concat!($name, ".in_proj.weight")),
            rows(Slot::LinearAttnK, concat!($name, ".in_proj.weight")),
            rows(Slot::LinearAttnQ, concat!($name, ".in_proj.weight")),
            rows(Slot::LinearAttnDecay, concat!($name, ".in_proj.weight")),
            conv_kernel(Slot::LinearAttnConvV, concat!($name, ".conv1d.weight")),
            conv_kernel(Slot::LinearAttnConvK, concat!($name, ".conv1d.weight")),
            conv_kernel(Slot::LinearAttnConvQ, concat!($name, ".conv1d.weight")),
            rows(Slot::LinearAttnBiasV, concat!($name, ".conv1d.bias")),
            rows(Slot::LinearAttnBiasK, concat!($name, ".conv1d.bias")),
            rows(Slot::LinearAttnBiasQ, concat!($name, ".conv1d.bias")),
            whole(Slot::LinearAttnLogRate, concat!($name, ".A_log")),
            whole(Slot::LinearAttnDecayBias, concat!($name, ".dt_bias")),
            whole(Slot::LinearAttnSkip, concat!($name, ".D")),
            whole(Slot::LinearAttnNorm, concat!($name, ".norm.weight")),
            whole(Slot::LinearAttnOut, concat!($name, ".out_proj.weight")),
        ]
    };
}

/// The names in Bamba and Granite.
pub(super) const MAMBA: [WeightRule; 16] = mamba_weights!("model.layers.{i}.mamba");
/// The names in Nemotron-H.
pub(super) const MIXER: [WeightRule; 16] = mamba_weights!("backbone.layers.{i}.mixer");

/// Mamba-2 by Bamba's keys.
pub(super) fn mamba2(c: &HfConfig) -> Result<LinearAttentionSpec> {
    c.refuse("mamba_proj_bias")?;
    refuse_limits(c)?;
    let value_heads = c.bounded("mamba_n_heads", MAX_HEADS)?;
    // The default of the head width.
    let expand = c.count_opt("mamba_expand")?.unwrap_or(2);
    let all = expand.saturating_mul(c.count("hidden_size")?);
    // Published configurations have the text `auto` in place of a width.
    let is_auto = c.raw("mamba_d_head").is_some_and(|width| width == "auto");
    let c = if is_auto { c.without(&["mamba_d_head"]) } else { c.clone() };
    let c = &c.with_default("mamba_d_head", all / value_heads);
    let net = LinearAttentionSpec {
        key_heads: c.bounded("mamba_n_groups", MAX_HEADS)?,
        value_heads,
        key_dim: head_width(c, "mamba_d_state")?,
        value_dim: head_width(c, "mamba_d_head")?,
        kernel_size: kernel_size(c, "mamba_d_conv")?,
        rule: UpdateRuleSpec::Mamba2 { conv_bias: c.flag_or("mamba_conv_bias", true)? },
        tiled: false,
        log_rates: true,
        eps: c.float("rms_norm_eps")?,
    };
    check_groups(c, &net, "mamba_n_heads", "a multiple of the number of groups")?;
    Ok(net)
}

/// Fails unless each head of keys belongs to as many heads of values, of which `heads` says how many there are.
pub(super) fn check_groups(
    c: &HfConfig,
    net: &LinearAttentionSpec,
    heads: &str,
    needed: &'static str,
) -> Result<()> {
    match net.value_heads.is_multiple_of(net.key_heads) {
        true => Ok(()),
        false => Err(c.ill_typed(heads, &net.value_heads.into(), needed)),
    }
}

/// The key that says what each layer is: transformers 5 has another name for some.
pub(super) fn layers_key(c: &HfConfig) -> &'static str {
    if c.contains("layers_block_type") { "layers_block_type" } else { "layer_types" }
}

/// Refuses limits of the times for which values count, but none at all.
fn refuse_limits(c: &HfConfig) -> Result<()> {
    const KEY: &str = "time_step_limit";
    let Some(limits) = c.raw(KEY) else { return Ok(()) };
    let is_open = |end: &serde_json::Value| {
        // Python and transformers 5 write an infinity so.
        let text = end.get("__float__").unwrap_or(end).as_str();
        end.is_null() || matches!(text, Some("Infinity" | "inf"))
    };
    match limits.as_array().map(Vec::as_slice) {
        Some([first, last]) if first.as_f64() == Some(0.0) && is_open(last) => Ok(()),
        _ => Err(c.unsupported(KEY, limits, "; 0 to infinity is")),
    }
}

/// Head width of linear attention, which kernels have in steps of 16, up to 256.
pub(super) fn head_width(c: &HfConfig, key: &str) -> Result<usize> {
    let width = c.count(key)?;
    match width.is_multiple_of(16) && width <= 256 {
        true => Ok(width),
        false => Err(c.unsupported(key, &width.into(), "; multiples of 16 up to 256 are")),
    }
}

/// Kernel size of the convolution before linear attention or an SSM.
pub(super) fn kernel_size(c: &HfConfig, key: &str) -> Result<usize> {
    match c.count(key)? {
        size @ 2..=8 => Ok(size),
        size => Err(c.unsupported(key, &size.into(), "; 2 to 8 are")),
    }
}
