//! How many bytes panels of codes take, and the tiles of a GPU.

use crate::{Codes, ScaleForm};

/// Outputs of one panel, in which they lie beside one another for each step of inputs.
pub const PANEL: usize = 32;

/// Numbers in the table of an output whose codes are [`Codes::Table`].
pub const TABLE: usize = 16;

/// Inputs of one output whose codes for its table lie together.
pub const TABLE_STEPS: usize = 32;

/// Outputs and inputs of a tile of codes on a GPU, as in index.cuh.
pub const DEVICE_TILE: [usize; 2] = [16, 64];

/// Inputs that a GPU multiplies at once: a group there is whole steps. As in index.cuh.
pub const DEVICE_STEP: usize = 16;

/// Bytes of a panel's scales and minima of one run of groups, or of its tables, before what each group has.
#[must_use]
#[inline]
pub const fn scale_bytes(codes: Codes, scales: ScaleForm) -> usize {
    match codes {
        Codes::Table => PANEL * TABLE * 4,
        _ => scales.numbers_bytes(),
    }
}

/// Bytes before the codes of a run of so many groups: one, or a block's.
#[must_use]
#[inline]
pub fn header_bytes(codes: Codes, scales: ScaleForm, groups: usize) -> usize {
    let of_groups = match codes {
        Codes::Table => 0,
        _ => scales.multiples_bytes(groups) + scales.zero_points_bytes(groups),
    };
    scale_bytes(codes, scales) + of_groups
}

/// Bytes of a panel of `k` inputs, in groups of `group`: runs of codes, each behind its header.
#[must_use]
pub fn panel_bytes(codes: Codes, group: usize, scales: ScaleForm, k: usize) -> usize {
    let group = group.min(k).max(1);
    let run = scales.run(group);
    let multiple = if codes == Codes::Table { TABLE_STEPS } else { 2 };
    let pairs = k.next_multiple_of(multiple) / 2;
    k.div_ceil(run) * header_bytes(codes, scales, run / group) + pairs * codes.pair_bytes()
}
