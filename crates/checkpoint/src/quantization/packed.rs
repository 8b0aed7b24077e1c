//! How a matrix is kept in memory, and what becomes of matrices that are computed as one.

use crate::spec::Dtype;

/// Rows of a matrix are packed in panels of so many, and columns in pairs; what is missing is padding.
/// Source: `Weight` of the crate `kernels`, likewise below.
const PANEL_ROWS: usize = 32;
/// Numbers in an output's table, and the columns whose codes for it lie together.
const TABLE: usize = 16;
const TABLE_COLUMNS: usize = 32;
/// Outputs and inputs of a tile of codes on a GPU; a group of codes is a multiple of a step of inputs.
/// Source: `PackedMatrix` of the crate `kernels`.
const TILE: [usize; 2] = [16, 64];
const STEP_INPUTS: usize = 16;

/// What the codes of a quantized matrix mean.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Codes {
    /// Two bits, with a scale and a minimum.
    U2,
    /// Three bits, with a scale and a minimum.
    U3,
    /// Four bits, with a scale and a minimum.
    U4,
    /// Five bits, with a scale and a minimum.
    U5,
    /// Six bits, with a scale and a minimum.
    U6,
    /// Eight bits, with a scale and a minimum.
    U8,
    /// Eight-bit floating point, with a scale.
    E4m3,
    /// Four bits, which name one of sixteen numbers.
    Table,
}

impl Codes {
    /// Bits of a code.
    fn bits(self) -> usize {
        match self {
            Self::U2 => 2,
            Self::U3 => 3,
            Self::U4 | Self::Table => 4,
            Self::U5 => 5,
            Self::U6 => 6,
            Self::U8 | Self::E4m3 => 8,
        }
    }

    /// The kind of which both are: the wider one, if codes of both are numbers from zero on.
    fn join(self, other: Self) -> Option<Self> {
        let is_unsigned = |codes| !matches!(codes, Self::E4m3 | Self::Table);
        let wider = if self.bits() > other.bits() { self } else { other };
        (self == other || is_unsigned(self) && is_unsigned(other)).then_some(wider)
    }
}

/// How a quantized matrix is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packed {
    /// What the codes mean.
    pub codes: Codes,
    /// Columns that share a scale.
    pub group: usize,
    /// How the scales and the minima of its groups are kept.
    pub scales: ScaleForm,
    /// The columns are in the order of their groups, not of the inputs.
    pub reordered: bool,
}

/// How the scales and the minima of groups are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScaleForm {
    /// The scales' dtype, and that of minima of their own.
    pub dtype: Dtype,
    /// What the minima are.
    pub mins: MinForm,
    /// Where scales have two levels: those of a block's groups are multiples of one scale, and so are minima of their own.
    pub blocks: Option<Blocks>,
}

/// Groups whose scales are multiples of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Blocks {
    /// Columns of a block: whole groups.
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

/// What the minima of groups are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MinForm {
    /// There are none.
    None,
    /// A number beside each scale.
    Own,
    /// The scale times the negative of this code, which so means zero.
    ZeroPoint(u8),
    /// The scale times the negative of a code that each group has.
    ZeroPoints,
}

impl ScaleForm {
    /// Each group's scale and minimum in single precision.
    pub const F32: Self = Self { dtype: Dtype::F32, mins: MinForm::Own, blocks: None };

    /// The form in which scales of both are kept to the bit. Scales that are multiples are numbers too, but not the other way
    /// round, and products have more bits than their factors.
    fn join(self, other: Self) -> Self {
        use MinForm::{Own, ZeroPoint, ZeroPoints};
        let mins = match (self.mins, other.mins) {
            (a, b) if a == b => a,
            (ZeroPoint(_) | ZeroPoints, ZeroPoint(_) | ZeroPoints) => ZeroPoints,
            _ => Own,
        };
        let made_own = mins == Own && (self.mins != Own || other.mins != Own);
        let blocks = self.blocks.zip(other.blocks).map(|(a, b)| Blocks {
            columns: greatest_common_divisor(a.columns, b.columns),
            multiples: match a.multiples == b.multiples && !made_own {
                true => a.multiples,
                false => MultipleForm::I8,
            },
        });
        let made_single = blocks.is_none() && (self.blocks.is_some() || other.blocks.is_some());
        let widens = self.dtype != other.dtype || made_own || made_single;
        Self { dtype: if widens { Dtype::F32 } else { self.dtype }, mins, blocks }
    }

    /// Bytes of the scales of a panel's groups, or blocks, and of minima of their own.
    fn numbers_bytes(self) -> usize {
        let numbers = if self.mins == MinForm::Own { 2 } else { 1 };
        numbers * PANEL_ROWS * self.dtype.size()
    }

    /// Bytes of what else so many groups of a panel have: what multiplies their scales and minima, and the codes of zero.
    fn groups_bytes(self, groups: usize) -> usize {
        let own = self.mins == MinForm::Own;
        // A group's scale and minimum, or two groups' scales.
        let pairs = if own { groups } else { groups.div_ceil(2) };
        let multiples = match self.blocks.map(|blocks| blocks.multiples) {
            None => 0,
            Some(MultipleForm::I8) => groups * (1 + usize::from(own)),
            Some(MultipleForm::I6 | MultipleForm::U6) => pairs + pairs.div_ceil(2),
            Some(MultipleForm::U4) => pairs,
        };
        let zero_points = if self.mins == MinForm::ZeroPoints { groups } else { 0 };
        PANEL_ROWS * (multiples + zero_points)
    }
}

/// How a matrix is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MatrixForm {
    /// As numbers of its dtype.
    Plain,
    /// As codes.
    Quantized(Packed),
    /// As numbers in single precision, as it is made of matrices that have nothing narrower in common.
    Widened,
}

impl MatrixForm {
    /// How two matrices with `k` columns are kept as one.
    pub fn join(self, other: Self, k: usize) -> Self {
        match (self, other) {
            (Self::Plain, Self::Plain) => Self::Plain,
            (Self::Quantized(a), Self::Quantized(b)) => {
                a.join(b, k).map_or(Self::Widened, Self::Quantized)
            }
            _ => Self::Widened,
        }
    }

    /// How a GPU keeps a matrix with `k` columns: as numbers of the model's dtype where it has no form for its codes.
    pub fn on_device(self, k: usize) -> Self {
        match self {
            Self::Quantized(packed) if packed.group >= k || packed.group % STEP_INPUTS == 0 => self,
            _ => Self::Plain,
        }
    }

    /// Bytes of a matrix of so many rows and columns, whose numbers would be of `dtype`.
    pub(crate) fn bytes(self, rows: usize, columns: usize, dtype: Dtype) -> usize {
        let dtype = match self {
            Self::Quantized(packed) => return packed.bytes(rows, columns),
            Self::Plain => dtype,
            Self::Widened => Dtype::F32,
        };
        rows.next_multiple_of(PANEL_ROWS) * columns.next_multiple_of(2) * dtype.size()
    }
}

impl Packed {
    /// Columns in order, in groups with scales and minima of their own.
    pub(crate) fn by_group(codes: Codes, group: usize) -> Self {
        Self { codes, group, scales: ScaleForm::F32, reordered: false }
    }

    /// As [`Self::by_group`], without minima.
    pub(crate) fn without_mins(codes: Codes, group: usize) -> Self {
        let scales = ScaleForm { mins: MinForm::None, ..ScaleForm::F32 };
        Self { scales, ..Self::by_group(codes, group) }
    }

    /// Columns of a block that lies within `k` columns which begin at a multiple of `k`, as a rank's do; `None` where there are
    /// no blocks.
    pub fn block_within(self, k: usize) -> Option<usize> {
        self.scales.blocks.map(|blocks| greatest_common_divisor(blocks.columns, k))
    }

    /// How the scales of `k` columns are kept: blocks as far as they lie within, and none that have no more than one group, whose
    /// own scales are less.
    pub fn kept_scales(self, k: usize) -> ScaleForm {
        let within = self.block_within(k);
        match self.scales.blocks.zip(within) {
            None => self.scales,
            Some((blocks, columns)) if columns > self.group => {
                ScaleForm { blocks: Some(Blocks { columns, ..blocks }), ..self.scales }
            }
            Some(_) => ScaleForm { dtype: Dtype::F32, blocks: None, ..self.scales },
        }
    }

    /// Codes of few bits fit into more, and scales of a group are those of its parts.
    fn join(self, other: Self, k: usize) -> Option<Self> {
        let codes = self.codes.join(other.codes)?;
        let group = match (self.group.min(k), other.group.min(k)) {
            (a, b) if a == b => a,
            (a, b) if a == k => b,
            (a, b) if b == k => a,
            (a, b) => greatest_common_divisor(a, b),
        };
        let (scales, reordered) =
            (self.scales.join(other.scales), self.reordered || other.reordered);
        Some(Self { codes, group, scales, reordered })
    }

    /// Bytes on a GPU, where codes of two and three bits have four, and of five and six eight; `padded` says that activations have zeros between the matrix's inputs.
    pub(crate) fn device_bytes(self, rows: usize, columns: usize, padded: bool) -> usize {
        let outputs = rows.next_multiple_of(TILE[0]);
        let codes = outputs * columns.next_multiple_of(TILE[1]);
        let (codes, scales) = match self.codes {
            Codes::U2 | Codes::U3 | Codes::U4 => (codes / 2, columns.div_ceil(self.group) * 2),
            Codes::U5 | Codes::U6 | Codes::U8 | Codes::E4m3 => {
                (codes, columns.div_ceil(self.group) * 2)
            }
            Codes::Table => (codes / 2, TABLE),
        };
        let inputs = if self.reordered || padded { columns } else { 0 };
        codes + 4 * (outputs * scales + inputs)
    }

    fn bytes(self, rows: usize, columns: usize) -> usize {
        let pair = 2 * PANEL_ROWS * self.codes.bits() / 8;
        let groups = columns.div_ceil(self.group);
        let scales = self.kept_scales(columns);
        let runs = scales.blocks.map_or(groups, |blocks| columns / blocks.columns);
        let (headers, multiple) = match self.codes {
            Codes::Table => (PANEL_ROWS * TABLE * 4, TABLE_COLUMNS),
            _ => (runs * (scales.numbers_bytes() + scales.groups_bytes(groups / runs)), 2),
        };
        let pairs = columns.next_multiple_of(multiple) / 2;
        let panel = headers + pairs * pair;
        let order = if self.reordered { columns * 4 } else { 0 };
        rows.div_ceil(PANEL_ROWS) * panel + order
    }
}

fn greatest_common_divisor(a: usize, b: usize) -> usize {
    if b == 0 { a } else { greatest_common_divisor(b, a % b) }
}
