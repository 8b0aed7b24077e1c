//! Bytes of panels of quantized values, and the tiles of a GPU.

use crate::{QuantFormat, ScaleForm};

/// Outputs of one panel, in which they lie beside one another for each step of inputs.
pub const PANEL: usize = 32;

/// Values in the table of an output whose format is [`QuantFormat::Table`].
pub const TABLE: usize = 16;

/// Inputs of one output whose table indices lie together.
pub const TABLE_STEPS: usize = 32;

/// Outputs and inputs of a tile of quantized values on a GPU; index.cuh has the same.
pub const DEVICE_TILE: [usize; 2] = [16, 64];

/// Inputs that a GPU multiplies at once: a group there is whole steps. The same number stands in index.cuh.
pub const DEVICE_STEP: usize = 16;

/// Bytes of a panel's scales and offsets of one run of groups, or of its tables, before the bytes of each group.
#[must_use]
#[inline]
pub const fn scale_bytes(format: QuantFormat, scales: ScaleForm) -> usize {
    match format {
        QuantFormat::Table => PANEL * TABLE * 4,
        _ => scales.numbers_bytes(),
    }
}

/// Bytes before the quantized values of a run of so many groups: one group, or a super-block's.
#[must_use]
#[inline]
pub fn header_bytes(format: QuantFormat, scales: ScaleForm, groups: usize) -> usize {
    let of_groups = match format {
        QuantFormat::Table => 0,
        _ => scales.sub_scales_bytes(groups) + scales.zero_points_bytes(groups),
    };
    scale_bytes(format, scales) + of_groups
}

/// Bytes of a panel of `k` inputs, in groups of `group`: runs of quantized values, each behind its header.
#[must_use]
pub fn panel_bytes(format: QuantFormat, group: usize, scales: ScaleForm, k: usize) -> usize {
    // A group may be declared wider than a row or a rank's columns. Zero columns must not divide by zero below.
    let group = group.min(k).max(1);
    let run = scales.run(group);
    // Steps are stored in pairs, since widths of 3 and 5 bits fill whole bytes only so, and bf16 products take
    // pairs.
    let multiple = if format == QuantFormat::Table { TABLE_STEPS } else { 2 };
    let pairs = k.next_multiple_of(multiple) / 2;
    k.div_ceil(run) * header_bytes(format, scales, run / group) + pairs * format.pair_bytes()
}
