//! Byte offsets of a weight's elements in its panels.

use candle_core::DType;
use candlepower_layout::{
    Blocks, OffsetForm, PANEL, QuantFormat, ScaleForm, SubScaleForm, TABLE_STEPS, header_bytes,
    panel_bytes, scale_bytes,
};

use crate::{Error, Result};

/// Outputs whose quantized weights for [`TABLE_STEPS`] steps lie one after the other, in one cache line.
pub(crate) const TABLE_OUTPUTS: usize = 4;

/// Position of a group in a panel.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GroupPlace {
    /// First byte of the header of the group's run.
    pub(crate) header: usize,
    /// Index of the group within the run.
    pub(crate) group: usize,
    /// Number of groups in the run.
    pub(crate) groups: usize,
}

/// Position of 32 outputs' sub-scales in a panel: one of the scale or one of the offset of a group.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SubScaleBytes {
    /// First byte of all their bits, or of their lower four.
    pub(crate) low: usize,
    /// Lowest of these four bits in each byte; `None` for sub-scales of eight bits.
    pub(crate) nibble: Option<usize>,
    /// First byte of the upper two bits, and the lowest of these bits.
    pub(crate) high: Option<(usize, usize)>,
}

/// Stored form of a weight's elements, and their order inside a panel. `k` is rounded up to even, for tables to a
/// multiple of 32.
///
/// - f32 and f16: `[k][32 columns]`.
/// - bf16: `[k / 2][2 halves][16 columns]` of 32-bit words. A word has two steps of `k`, the even one in the high
///   bits. A mask or a shift widens one step to f32. Dot products take the words as they are: they add the high bits'
///   product first.
/// - Quantized weights of eight bits: `[k][32 columns]`. With four bits: `[k / 2][32 columns]`, the even step in the
///   low bits. Other widths: `[k / 2]` pairs of steps in the order of [`planes`](super::planes).
/// - Tables: `[32 columns][16]` f32, and then the table indices `[8][k / 32][4 columns][16 bytes]`. So a vector of
///   bytes has 32 steps of one column, the first sixteen in the low bits.
///
/// A header lies before each group's quantized weights, so that a product reads both in one stream: `[32]` scales,
/// `[32]` offsets if they are stored, and `[32]` u8 zero-points if each group has one. The header and the quantized
/// weights of a group are a run.
///
/// With super-blocks a run is a super-block: its scales and offsets, the sub-scales of its groups, their zero-points
/// if each group has one, and then the quantized weights. Sub-scales of eight bits are `[groups][1 or 2][32]` i8,
/// those of the scales before those of the offsets. Sub-scales of fewer bits lie in pairs: a group's for its scale
/// and its offset or, without stored offsets, the scales' of two groups. A pair is `[pairs][32]` bytes with the lower
/// four bits of both, the first one's in the low half of each byte. Sub-scales of six bits have `[pairs / 2][32]`
/// bytes more, with the upper two bits of two pairs, the first pair's in the low half.
///
/// Scales and offsets in bf16 are words of two: output `i` in the low bits and output `16 + i` in the high ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ElementOrder {
    F32,
    F16,
    Bf16,
    Quantized(QuantFormat),
}

impl ElementOrder {
    /// The order of a dtype.
    pub(crate) fn of(dtype: DType) -> Result<Self> {
        match dtype {
            DType::F32 => Ok(Self::F32),
            DType::F16 => Ok(Self::F16),
            DType::BF16 => Ok(Self::Bf16),
            found => Err(Error::DType {
                kernel: "weight",
                operand: "dtype",
                expected: "f32, f16 or bf16",
                found,
            }),
        }
    }

    /// Bytes of two steps of `k` of one panel.
    pub(crate) const fn pair_bytes(self) -> usize {
        match self {
            Self::F32 => 2 * PANEL * 4,
            Self::F16 | Self::Bf16 => 2 * PANEL * 2,
            Self::Quantized(format) => format.pair_bytes(),
        }
    }
}

/// Order of the panels of one weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    pub(crate) order: ElementOrder,
    pub(crate) k: usize,
    /// Steps of `k` that share a scale: an even number, or all of them.
    pub(crate) group: usize,
    /// Form of the scales of quantized weights.
    pub(crate) scales: ScaleForm,
}

impl Layout {
    /// Steps of `k` that share a header and lie behind it: a group or a super-block.
    pub(crate) fn run(self) -> usize {
        self.scales.run(self.group)
    }

    /// Bytes of a run's scales and offsets, or of tables, before the sub-scales and zero-points of its groups.
    pub(crate) fn scale_bytes(self) -> usize {
        match self.order {
            ElementOrder::Quantized(format) => scale_bytes(format, self.scales),
            ElementOrder::F32 | ElementOrder::F16 | ElementOrder::Bf16 => 0,
        }
    }

    fn pairs_per_run(self) -> usize {
        self.run().div_ceil(2)
    }

    /// Bytes before the quantized weights of a run.
    fn header_bytes(self) -> usize {
        match self.order {
            ElementOrder::Quantized(format) => {
                header_bytes(format, self.scales, self.run() / self.group)
            }
            ElementOrder::F32 | ElementOrder::F16 | ElementOrder::Bf16 => 0,
        }
    }

    /// Bytes of a whole panel.
    pub(crate) fn panel_bytes(self) -> usize {
        match self.order {
            ElementOrder::Quantized(format) => panel_bytes(format, self.group, self.scales, self.k),
            order => self.k.div_ceil(2) * order.pair_bytes(),
        }
    }

    /// First byte in a panel with tables of a column's table indices for the `line`-th 32 steps.
    pub(crate) fn table_quants(self, column: usize, line: usize) -> usize {
        let lines = self.k.div_ceil(TABLE_STEPS);
        let line = column / TABLE_OUTPUTS * lines + line;
        let place = line * TABLE_OUTPUTS + column % TABLE_OUTPUTS;
        self.scale_bytes() + place * (TABLE_STEPS / 2)
    }

    /// Bytes of a run, except of a shorter last one.
    fn run_bytes(self) -> usize {
        self.header_bytes() + self.pairs_per_run() * self.order.pair_bytes()
    }

    /// First byte in the panel of the header of the `pair`-th two steps of `k`.
    pub(crate) fn header(self, pair: usize) -> usize {
        // Only the last run may be shorter, so all runs before another one have the same size.
        pair / self.pairs_per_run() * self.run_bytes()
    }

    /// Position in the panel of the group that has step `step`.
    #[inline(always)]
    pub(crate) fn group_of(self, step: usize) -> GroupPlace {
        let header = self.header(step / 2);
        match self.scales.blocks {
            None => GroupPlace { header, group: 0, groups: 1 },
            Some(Blocks { columns, .. }) => GroupPlace {
                header,
                group: step % columns / self.group,
                groups: columns / self.group,
            },
        }
    }

    /// Position of the sub-scales of a group's scale (`which` 0) or of its offset (1). Both are those of the scale if
    /// offsets are not stored. `None` without super-blocks.
    #[inline(always)]
    pub(crate) fn sub_scale(self, place: GroupPlace, which: usize) -> Option<SubScaleBytes> {
        let form = self.scales.blocks?.sub_scales;
        let own = self.scales.offsets == OffsetForm::Own;
        let GroupPlace { header, group, groups } = place;
        let first = header + self.scale_bytes();
        let which = if own { which } else { 0 };
        if form == SubScaleForm::I8 {
            let low = first + (group * (1 + usize::from(own)) + which) * PANEL;
            return Some(SubScaleBytes { low, nibble: None, high: None });
        }
        let (pairs, pair, second) =
            if own { (groups, group, which) } else { (groups.div_ceil(2), group / 2, group % 2) };
        // The upper bits lie behind the lower bits of all pairs, those of two pairs in one byte.
        let high = (first + (pairs + pair / 2) * PANEL, pair % 2 * 4 + second * 2);
        Some(SubScaleBytes {
            low: first + pair * PANEL,
            nibble: Some(second * 4),
            high: (form != SubScaleForm::U4).then_some(high),
        })
    }

    /// First byte in the panel of a group's zero-points, if each group has one.
    #[inline(always)]
    pub(crate) fn zero_points(self, place: GroupPlace) -> Option<usize> {
        let GroupPlace { header, group, groups } = place;
        let first = header + self.scale_bytes() + self.scales.sub_scales_bytes(groups);
        (self.scales.offsets == OffsetForm::ZeroPoints).then_some(first + group * PANEL)
    }

    /// First byte in the panel of the `pair`-th two steps, except of tables.
    pub(crate) fn pair(self, pair: usize) -> usize {
        let within = pair % self.pairs_per_run();
        self.header(pair) + self.header_bytes() + within * self.order.pair_bytes()
    }

    /// Number of pairs of steps from this one on that lie one after the other.
    pub(crate) fn pairs_left_in_run(self, pair: usize) -> usize {
        self.pairs_per_run() - pair % self.pairs_per_run()
    }
}
