//! Where an element of a weight lies in its panel.

use candle_core::DType;

use crate::{Error, Result};

/// Output columns of one panel: two vectors of sixteen f32.
pub(crate) const PANEL: usize = 32;

/// Numbers in the table of an output whose codes are [`Codes::Table`].
pub(crate) const TABLE: usize = 16;

/// Steps of `k` of one output whose codes for its table lie together, in half as many bytes.
pub(crate) const TABLE_STEPS: usize = 32;

/// Outputs whose codes for so many steps lie one after the other, in one cache line.
pub(crate) const TABLE_OUTPUTS: usize = 4;

/// What the codes of a quantized weight mean.
///
/// Each group of inputs has a scale and a minimum per output: a number is `code * scale + min`, rounded once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Codes {
    /// Two bits: 0 to 3.
    U2,
    /// Three bits: 0 to 7.
    U3,
    /// Four bits: 0 to 15.
    U4,
    /// Five bits: 0 to 31.
    U5,
    /// Six bits: 0 to 63.
    U6,
    /// Eight bits: 0 to 255.
    U8,
    /// Eight bits: a sign, four bits of exponent, three of mantissa, neither infinities nor NaN.
    /// Source: Micikevicius et al., "FP8 Formats for Deep Learning", 2022.
    E4m3,
    /// Four bits: which of the output's sixteen numbers.
    Table,
}

impl Codes {
    /// Bits of a code.
    pub(crate) const fn bits(self) -> usize {
        match self {
            Self::U2 => 2,
            Self::U3 => 3,
            Self::U4 | Self::Table => 4,
            Self::U5 => 5,
            Self::U6 => 6,
            Self::U8 | Self::E4m3 => 8,
        }
    }

    /// The largest code.
    pub(crate) const fn most(self) -> u8 {
        u8::MAX >> (8 - self.bits())
    }

    /// Whether a code of the kind `other` is the same code of this kind.
    pub(crate) fn takes(self, other: Self) -> bool {
        let both_count = self.count_from_zero() && other.count_from_zero();
        self == other || both_count && other.bits() <= self.bits()
    }

    /// Whether they are numbers from 0 on.
    pub(crate) fn count_from_zero(self) -> bool {
        !matches!(self, Self::E4m3 | Self::Table)
    }
}

/// How the scales and the minima of a weight's groups are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScaleForm {
    /// The scales' dtype, and that of minima of their own: f32, f16 or bf16.
    pub dtype: DType,
    /// What the minima are.
    pub mins: MinForm,
    /// Where scales have two levels: those of a block's groups are multiples of one scale, and so are minima of their own.
    pub blocks: Option<Blocks>,
}

/// Groups whose scales are multiples of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Blocks {
    /// Columns of a block: whole groups, of which each is a multiple of sixteen columns.
    pub columns: usize,
    /// How the multiples are kept.
    pub multiples: MultipleForm,
}

/// How numbers are kept that multiply scales and minima.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MultipleForm {
    /// Eight bits, with a sign.
    I8,
    /// Six bits, with a sign; only of scales, beside minima that are not numbers of their own.
    I6,
    /// Six bits; of scales and of minima of their own.
    U6,
    /// Four bits; of scales and of minima of their own.
    U4,
}

impl MultipleForm {
    /// What is added to a number before its bits are kept.
    pub(crate) const fn bias(self) -> i8 {
        match self {
            Self::I6 => 32,
            Self::I8 | Self::U6 | Self::U4 => 0,
        }
    }

    /// Whether it has this number.
    pub(super) fn has(self, number: i8) -> bool {
        match self {
            Self::I8 => true,
            Self::I6 => (-32..32).contains(&number),
            Self::U6 => (0..64).contains(&number),
            Self::U4 => (0..16).contains(&number),
        }
    }

    /// Whether it is for minima of their own, too; all the same to eight bits.
    pub(super) fn suits(self, mins: MinForm) -> bool {
        match self {
            Self::I8 => true,
            Self::I6 => mins != MinForm::Own,
            Self::U6 | Self::U4 => mins == MinForm::Own,
        }
    }
}

/// What the minima of a weight's groups are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MinForm {
    /// -0.0, which adds nothing.
    None,
    /// A number beside each scale.
    Own,
    /// The scale times the negative of this code, which so means zero.
    ZeroPoint(u8),
    /// The scale times the negative of a code that each group has.
    ZeroPoints,
}

impl ScaleForm {
    /// Each group's scale and minimum in f32.
    pub const F32: Self = Self { dtype: DType::F32, mins: MinForm::Own, blocks: None };

    /// Columns of a group are a multiple of so many, where there are blocks.
    pub(crate) const GROUP_MULTIPLE: usize = 16;

    /// Bytes of the scales of a panel's groups, or blocks, and of minima of their own.
    fn numbers_bytes(self) -> usize {
        let numbers = if self.mins == MinForm::Own { 2 } else { 1 };
        numbers * PANEL * self.dtype.size_in_bytes()
    }

    /// Bytes of what multiplies the scales and the minima of so many groups of a panel.
    fn multiples_bytes(self, groups: usize) -> usize {
        let own = self.mins == MinForm::Own;
        let pairs = if own { groups } else { groups.div_ceil(2) };
        PANEL
            * match self.blocks.map(|blocks| blocks.multiples) {
                None => 0,
                Some(MultipleForm::I8) => groups * (1 + usize::from(own)),
                Some(MultipleForm::I6 | MultipleForm::U6) => pairs + pairs.div_ceil(2),
                Some(MultipleForm::U4) => pairs,
            }
    }

    /// Bytes of the codes of zero of so many groups of a panel.
    fn zero_points_bytes(self, groups: usize) -> usize {
        if self.mins == MinForm::ZeroPoints { PANEL * groups } else { 0 }
    }
}

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
            Self::Coded(codes) => 2 * PANEL * codes.bits() / 8,
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
        self.scales.blocks.map_or(self.group, |blocks| blocks.columns)
    }

    /// Bytes of a run's scales and minima, or of tables, before what its groups have.
    pub(crate) fn scale_bytes(self) -> usize {
        match self.order {
            ElementOrder::F32 | ElementOrder::F16 | ElementOrder::Bf16 => 0,
            ElementOrder::Coded(Codes::Table) => PANEL * TABLE * 4,
            ElementOrder::Coded(_) => self.scales.numbers_bytes(),
        }
    }

    /// Bytes of what the groups of a run have beside these: their multiples, and their codes of zero.
    fn group_bytes(self) -> [usize; 2] {
        match self.order {
            ElementOrder::Coded(codes) if codes != Codes::Table => {
                let groups = self.run() / self.group;
                [self.scales.multiples_bytes(groups), self.scales.zero_points_bytes(groups)]
            }
            _ => [0; 2],
        }
    }

    fn pairs_per_run(self) -> usize {
        self.run().div_ceil(2)
    }

    /// Bytes before the codes of a run.
    fn header_bytes(self) -> usize {
        self.scale_bytes() + self.group_bytes().iter().sum::<usize>()
    }

    /// Bytes of a whole panel.
    pub(crate) fn panel_bytes(self) -> usize {
        let multiple = match self.order {
            ElementOrder::Coded(Codes::Table) => TABLE_STEPS,
            _ => 2,
        };
        let pairs = self.k.next_multiple_of(multiple) / 2;
        self.k.div_ceil(self.run()) * self.header_bytes() + pairs * self.order.pair_bytes()
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
