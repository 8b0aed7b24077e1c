//! What models with recurrences in place of some attentions have in common.

use crate::{
    config::HfConfig,
    error::Result,
    spec::{MOST_HEADS, RecurrenceSpec, RuleSpec},
    weights::{Slot, WeightRule, rows, taps as taps_of, whole},
};

/// Where layers have Mamba-2 that call it so.
pub(super) const MAMBA: [WeightRule; 16] = [
    rows(Slot::RecurrentGate, "model.layers.{i}.mamba.in_proj.weight"),
    rows(Slot::RecurrentV, "model.layers.{i}.mamba.in_proj.weight"),
    rows(Slot::RecurrentK, "model.layers.{i}.mamba.in_proj.weight"),
    rows(Slot::RecurrentQ, "model.layers.{i}.mamba.in_proj.weight"),
    rows(Slot::RecurrentDecay, "model.layers.{i}.mamba.in_proj.weight"),
    taps_of(Slot::RecurrentTapsV, "model.layers.{i}.mamba.conv1d.weight"),
    taps_of(Slot::RecurrentTapsK, "model.layers.{i}.mamba.conv1d.weight"),
    taps_of(Slot::RecurrentTapsQ, "model.layers.{i}.mamba.conv1d.weight"),
    rows(Slot::RecurrentBiasV, "model.layers.{i}.mamba.conv1d.bias"),
    rows(Slot::RecurrentBiasK, "model.layers.{i}.mamba.conv1d.bias"),
    rows(Slot::RecurrentBiasQ, "model.layers.{i}.mamba.conv1d.bias"),
    whole(Slot::RecurrentLogRate, "model.layers.{i}.mamba.A_log"),
    whole(Slot::RecurrentDecayBias, "model.layers.{i}.mamba.dt_bias"),
    whole(Slot::RecurrentSkip, "model.layers.{i}.mamba.D"),
    whole(Slot::RecurrentNorm, "model.layers.{i}.mamba.norm.weight"),
    whole(Slot::RecurrentOut, "model.layers.{i}.mamba.out_proj.weight"),
];

/// Mamba-2 by Bamba's keys.
pub(super) fn mamba2(c: &HfConfig) -> Result<RecurrenceSpec> {
    c.refuse("mamba_proj_bias")?;
    refuse_limits(c)?;
    let value_heads = c.bounded("mamba_n_heads", MOST_HEADS)?;
    // What the width of heads is where nobody says it, or says so.
    let expand = c.count_opt("mamba_expand")?.unwrap_or(2);
    let all = expand.saturating_mul(c.count("hidden_size")?);
    let is_auto = c.raw("mamba_d_head").is_some_and(|width| width == "auto");
    let c = if is_auto { c.without(&["mamba_d_head"]) } else { c.clone() };
    let c = &c.with_default("mamba_d_head", all / value_heads);
    let net = RecurrenceSpec {
        key_heads: c.bounded("mamba_n_groups", MOST_HEADS)?,
        value_heads,
        key_dim: head_width(c, "mamba_d_state")?,
        value_dim: head_width(c, "mamba_d_head")?,
        taps: taps(c, "mamba_d_conv")?,
        rule: RuleSpec::Mamba2 { conv_bias: c.flag_or("mamba_conv_bias", true)? },
        eps: c.float("rms_norm_eps")?,
    };
    check_groups(c, &net, ["mamba_n_heads", "mamba_n_groups"])?;
    Ok(net)
}

/// Fails unless each group has as many heads.
pub(super) fn check_groups(
    c: &HfConfig,
    net: &RecurrenceSpec,
    [heads, groups]: [&str; 2],
) -> Result<()> {
    if net.value_heads.is_multiple_of(net.key_heads) {
        return Ok(());
    }
    Err(c.unsupported(heads, &net.value_heads.into(), &format!("; multiples of {groups} are")))
}

/// Refuses limits of the times for which values count, but none at all.
pub(super) fn refuse_limits(c: &HfConfig) -> Result<()> {
    const KEY: &str = "time_step_limit";
    let Some(limits) = c.raw(KEY) else { return Ok(()) };
    let is_open = |end: &serde_json::Value| {
        // As Python writes an infinity, and as transformers 5 does.
        let text = end.get("__float__").unwrap_or(end).as_str();
        end.is_null() || matches!(text, Some("Infinity" | "inf"))
    };
    match limits.as_array().map(Vec::as_slice) {
        Some([first, last]) if first.as_f64() == Some(0.0) && is_open(last) => Ok(()),
        _ => Err(c.unsupported(KEY, limits, "; 0 to infinity is")),
    }
}

/// The width of a recurrence's heads, which kernels have in steps of 16, up to 256.
pub(super) fn head_width(c: &HfConfig, key: &str) -> Result<usize> {
    let width = c.count(key)?;
    match width.is_multiple_of(16) && width <= 256 {
        true => Ok(width),
        false => Err(c.unsupported(key, &width.into(), "; multiples of 16 up to 256 are")),
    }
}

/// The taps of a recurrence's convolution.
pub(super) fn taps(c: &HfConfig, key: &str) -> Result<usize> {
    match c.count(key)? {
        taps @ 2..=8 => Ok(taps),
        taps => Err(c.unsupported(key, &taps.into(), "; 2 to 8 are")),
    }
}
