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
pub enum ScaleForm {
    /// Each group's in single precision.
    F32,
    /// Each group's scale in half precision; its minimum is `-zero` times the scale, so the code `zero` means 0.
    F16 {
        /// The code.
        zero: u8,
    },
    /// In two levels.
    Blocks(Blocks),
}

/// Scales in two levels: those of a block's groups are multiples of one scale, by numbers of eight bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Blocks {
    /// Columns of a block: whole groups.
    pub columns: usize,
    /// The minima have multiples of their own; else they are multiplied as the scales are.
    pub own_mins: bool,
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

impl Blocks {
    /// Those of `k` columns that begin at a multiple of `k`, as a rank's do: no block reaches past them.
    pub fn within(self, k: usize) -> Self {
        Self { columns: greatest_common_divisor(self.columns, k), ..self }
    }
}

impl Packed {
    /// Columns in order, in groups with scales of their own.
    pub(crate) fn by_group(codes: Codes, group: usize) -> Self {
        Self { codes, group, scales: ScaleForm::F32, reordered: false }
    }

    /// Where the scales of groups are multiples of those of blocks.
    pub fn blocks(self) -> Option<Blocks> {
        match self.scales {
            ScaleForm::Blocks(blocks) => Some(blocks),
            ScaleForm::F32 | ScaleForm::F16 { .. } => None,
        }
    }

    /// How the scales of `k` columns are kept: blocks as far as they lie within, and none that have no more than one group, whose
    /// own scales are less.
    pub fn kept_scales(self, k: usize) -> ScaleForm {
        let Some(blocks) = self.blocks() else { return self.scales };
        let blocks = blocks.within(k);
        if blocks.columns > self.group { ScaleForm::Blocks(blocks) } else { ScaleForm::F32 }
    }

    /// Codes of few bits fit into more, and scales of a group are those of its parts. Scales that are multiples are numbers
    /// too, but not the other way round.
    fn join(self, other: Self, k: usize) -> Option<Self> {
        let codes = self.codes.join(other.codes)?;
        let group = match (self.group.min(k), other.group.min(k)) {
            (a, b) if a == b => a,
            (a, b) if a == k => b,
            (a, b) if b == k => a,
            (a, b) => greatest_common_divisor(a, b),
        };
        let scales = match (self.scales, other.scales) {
            (ScaleForm::Blocks(a), ScaleForm::Blocks(b)) => ScaleForm::Blocks(Blocks {
                columns: greatest_common_divisor(a.columns, b.columns),
                own_mins: a.own_mins || b.own_mins,
            }),
            (a, b) if a == b => a,
            _ => ScaleForm::F32,
        };
        Some(Self { codes, group, scales, reordered: self.reordered || other.reordered })
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
        let (header, multiple) = match self.codes {
            Codes::Table => (PANEL_ROWS * TABLE * 4, TABLE_COLUMNS),
            _ => (2 * PANEL_ROWS * 4, 2),
        };
        let pair = 2 * PANEL_ROWS * self.codes.bits() / 8;
        let groups = columns.div_ceil(self.group);
        let headers = match self.kept_scales(columns) {
            ScaleForm::F32 => groups * header,
            ScaleForm::F16 { .. } => groups * PANEL_ROWS * 2,
            ScaleForm::Blocks(blocks) => {
                let multiples = if blocks.own_mins { 2 * PANEL_ROWS } else { PANEL_ROWS };
                columns / blocks.columns * header + groups * multiples
            }
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
