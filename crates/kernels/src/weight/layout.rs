//! Where an element of a weight lies in its panel.

use candle_core::DType;
use candlepower_layout::{
    Blocks, Codes, MinForm, MultipleForm, PANEL, ScaleForm, TABLE_STEPS, header_bytes, panel_bytes,
    scale_bytes,
};

use crate::{Error, Result};

/// Outputs whose codes for so many steps lie one after the other, in one cache line.
pub(crate) const TABLE_OUTPUTS: usize = 4;

/// Where a group is in a panel.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GroupPlace {
    /// Where the header of its run begins.
    pub(crate) header: usize,
    /// Which of the run's groups it is.
    pub(crate) group: usize,
    /// How many the run has.
    pub(crate) groups: usize,
}

/// Where one of the numbers lies that multiply scales or minima: which bits of 32 bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Multiple {
    /// Where the bytes with all its bits begin, or with the lower four.
    pub(crate) low: usize,
    /// The first of these four in each byte; `None` where it has all eight.
    pub(crate) nibble: Option<usize>,
    /// Where the bytes with the upper two bits begin, and the first of these bits.
    pub(crate) high: Option<(usize, usize)>,
}

/// How elements are stored, and in which order inside a panel. `k` is rounded up to even in all of them, to a multiple of
/// 32 where there are tables.
///
/// - f32 and f16: `[k][32 columns]`.
/// - bf16: `[k / 2][2 halves][16 columns]` of 32-bit words, each of two steps of `k`, the even one in the high
///   bits. A mask or a shift widens one step to f32, and dot products take the words as they are: they add
///   the high bits' product first.
/// - codes of eight bits: `[k][32 columns]`; of four bits: `[k / 2][32 columns]`, the even step in the low
///   bits; of other widths: `[k / 2]` pairs of steps as [`planes`](super::planes) has them. Before the codes of each group lies its
///   header: `[32]` scales, `[32]` minima where these are numbers of their own, `[32]` u8 where each group has a code of zero. The
///   codes of a group and its header are one run of memory. Where there are blocks, a run is a block: its scales and minima, then
///   what multiplies the scales and the minima of its groups, the codes of zero where each group has one, then the codes.
///   Multiples of eight bits are `[groups][1 or 2][32]` i8, the scales' and then the minima's where these are their own. Others
///   are pairs, a group's for its scale and its minimum, or, without such, two groups' for their scales: `[pairs][32]` bytes with
///   the lower four bits, the first number's below the second's, and, of six bits, `[pairs / 2][32]` bytes with the upper two,
///   below those of the next pair. Numbers in bf16 are words of two, output `i` in the low bits and output `16 + i` in
///   the high ones.
/// - tables: `[32 columns][16]` f32, and then their codes `[8][k / 32][4 columns][16 bytes]`, so that a vector of bytes has
///   32 steps of one column, the first sixteen in the low bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ElementOrder {
    F32,
    F16,
    Bf16,
    Coded(Codes),
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
            Self::Coded(codes) => codes.pair_bytes(),
        }
    }
}

/// How the panels of one weight lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    pub(crate) order: ElementOrder,
    pub(crate) k: usize,
    /// Steps of `k` that share a scale: an even number, or all of them.
    pub(crate) group: usize,
    /// Of codes that have scales.
    pub(crate) scales: ScaleForm,
}

impl Layout {
    /// Steps of `k` that share a header, and lie behind it: a group, or a block of them.
    pub(crate) fn run(self) -> usize {
        self.scales.run(self.group)
    }

    /// Bytes of a run's scales and minima, or of tables, before what its groups have.
    pub(crate) fn scale_bytes(self) -> usize {
        match self.order {
            ElementOrder::Coded(codes) => scale_bytes(codes, self.scales),
            ElementOrder::F32 | ElementOrder::F16 | ElementOrder::Bf16 => 0,
        }
    }

    fn pairs_per_run(self) -> usize {
        self.run().div_ceil(2)
    }

    /// Bytes before the codes of a run.
    fn header_bytes(self) -> usize {
        match self.order {
            ElementOrder::Coded(codes) => header_bytes(codes, self.scales, self.run() / self.group),
            ElementOrder::F32 | ElementOrder::F16 | ElementOrder::Bf16 => 0,
        }
    }

    /// Bytes of a whole panel.
    pub(crate) fn panel_bytes(self) -> usize {
        match self.order {
            ElementOrder::Coded(codes) => panel_bytes(codes, self.group, self.scales, self.k),
            order => self.k.div_ceil(2) * order.pair_bytes(),
        }
    }

    /// Where in a panel with tables the bytes lie that have the codes of the `line`-th 32 steps of a column.
    pub(crate) fn table_codes(self, column: usize, line: usize) -> usize {
        let lines = self.k.div_ceil(TABLE_STEPS);
        let line = column / TABLE_OUTPUTS * lines + line;
        let place = line * TABLE_OUTPUTS + column % TABLE_OUTPUTS;
        self.scale_bytes() + place * (TABLE_STEPS / 2)
    }

    /// Bytes of a run that is not the last.
    fn run_bytes(self) -> usize {
        self.header_bytes() + self.pairs_per_run() * self.order.pair_bytes()
    }

    /// Where in the panel the header lies that two steps of `k`, the `pair`-th, share.
    pub(crate) fn header(self, pair: usize) -> usize {
        pair / self.pairs_per_run() * self.run_bytes()
    }

    /// Where in the panel the group of step `step` is.
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

    /// What multiplies the scale of a group (`which` 0), or its minimum (1): where minima are no numbers of their own that is what
    /// multiplies the scale; `None` where scales are no multiples.
    #[inline(always)]
    pub(crate) fn multiple(self, place: GroupPlace, which: usize) -> Option<Multiple> {
        let form = self.scales.blocks?.multiples;
        let own = self.scales.mins == MinForm::Own;
        let GroupPlace { header, group, groups } = place;
        let first = header + self.scale_bytes();
        let which = if own { which } else { 0 };
        if form == MultipleForm::I8 {
            let low = first + (group * (1 + usize::from(own)) + which) * PANEL;
            return Some(Multiple { low, nibble: None, high: None });
        }
        let (pairs, pair, second) =
            if own { (groups, group, which) } else { (groups.div_ceil(2), group / 2, group % 2) };
        let high = (first + (pairs + pair / 2) * PANEL, pair % 2 * 4 + second * 2);
        Some(Multiple {
            low: first + pair * PANEL,
            nibble: Some(second * 4),
            high: (form != MultipleForm::U4).then_some(high),
        })
    }

    /// Where in the panel a group's codes of zero lie, if each group has one.
    #[inline(always)]
    pub(crate) fn zero_points(self, place: GroupPlace) -> Option<usize> {
        let GroupPlace { header, group, groups } = place;
        let first = header + self.scale_bytes() + self.scales.multiples_bytes(groups);
        (self.scales.mins == MinForm::ZeroPoints).then_some(first + group * PANEL)
    }

    /// Where in the panel these steps lie, where there are no tables.
    pub(crate) fn pair(self, pair: usize) -> usize {
        let within = pair % self.pairs_per_run();
        self.header(pair) + self.header_bytes() + within * self.order.pair_bytes()
    }

    /// How many pairs from this one on lie one after the other.
    pub(crate) fn pairs_left_in_run(self, pair: usize) -> usize {
        self.pairs_per_run() - pair % self.pairs_per_run()
    }
}
