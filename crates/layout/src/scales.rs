//! Forms of the scales and offsets of groups.

use serde::{Deserialize, Serialize};

use crate::PANEL;

/// A dtype in which matrices and scales are stored.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dtype {
    /// IEEE single.
    F32,
    /// IEEE half.
    F16,
    /// bfloat16.
    Bf16,
}

impl Dtype {
    /// Bytes of one number.
    #[must_use]
    #[inline]
    pub const fn size(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::Bf16 => 2,
        }
    }

    /// Its name, as in `config.json`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::F32 => "float32",
            Self::F16 => "float16",
            Self::Bf16 => "bfloat16",
        }
    }
}

/// Form of the scales and offsets of groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScaleForm {
    /// The scales' dtype, and that of stored offsets.
    pub dtype: Dtype,
    /// Form of the offsets.
    pub offsets: OffsetForm,
    /// Super-blocks, if scales have two levels: groups have sub-scales of one scale, and likewise sub-offsets.
    pub blocks: Option<Blocks>,
}

/// Groups with sub-scales of one scale.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Blocks {
    /// Columns of a block: whole groups, of which each is a multiple of sixteen columns.
    pub columns: usize,
    /// Form of the sub-scales.
    pub sub_scales: SubScaleForm,
}

/// Form of the integers that multiply a super-block's scale and offset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SubScaleForm {
    /// Eight bits, with a sign.
    I8,
    /// Six bits with a sign; for scales only, beside offsets that are not stored.
    I6,
    /// Six bits; for scales and stored offsets.
    U6,
    /// Four bits; for scales and stored offsets.
    U4,
}

impl SubScaleForm {
    /// Bias that is added to a sub-scale before its bits are kept.
    #[must_use]
    #[inline]
    pub const fn bias(self) -> i8 {
        match self {
            Self::I6 => 32,
            Self::I8 | Self::U6 | Self::U4 => 0,
        }
    }

    /// Whether it has this number.
    #[must_use]
    pub fn has(self, number: i8) -> bool {
        match self {
            Self::I8 => true,
            Self::I6 => (-32..32).contains(&number),
            Self::U6 => (0..64).contains(&number),
            Self::U4 => (0..16).contains(&number),
        }
    }

    /// Whether stored offsets have it, too; all the same to eight bits.
    #[must_use]
    pub fn suits(self, offsets: OffsetForm) -> bool {
        match self {
            Self::I8 => true,
            Self::I6 => offsets != OffsetForm::Own,
            Self::U6 | Self::U4 => offsets == OffsetForm::Own,
        }
    }
}

/// Form of the offsets of groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OffsetForm {
    /// -0.0, which adds nothing.
    None,
    /// A number beside each scale.
    Own,
    /// The scale times this negated zero-point, which all groups share.
    ZeroPoint(u8),
    /// The scale times the negated zero-point of each group.
    ZeroPoints,
}

impl ScaleForm {
    /// A scale and an offset in f32 for each group.
    pub const F32: Self = Self { dtype: Dtype::F32, offsets: OffsetForm::Own, blocks: None };

    /// Columns of a group are a multiple of so many, where there are blocks.
    pub const GROUP_MULTIPLE: usize = 16;

    /// The form in which scales of both are kept exactly. Sub-scales times their scale fit into a dtype of scales, but not the other way
    /// round, and products have more bits than their factors.
    #[must_use]
    pub fn join(self, other: Self) -> Self {
        use OffsetForm::{Own, ZeroPoint, ZeroPoints};
        let offsets = match (self.offsets, other.offsets) {
            (a, b) if a == b => a,
            (ZeroPoint(_) | ZeroPoints, ZeroPoint(_) | ZeroPoints) => ZeroPoints,
            _ => Own,
        };
        // An offset that was the scale times an integer becomes a stored product, and needs more bits than its
        // factors.
        let made_own = offsets == Own && (self.offsets != Own || other.offsets != Own);
        let blocks = self.blocks.zip(other.blocks).map(|(a, b)| Blocks {
            columns: greatest_common_divisor(a.columns, b.columns),
            sub_scales: match a.sub_scales == b.sub_scales && !made_own {
                true => a.sub_scales,
                false => SubScaleForm::I8,
            },
        });
        let made_single = blocks.is_none() && (self.blocks.is_some() || other.blocks.is_some());
        let widens = self.dtype != other.dtype || made_own || made_single;
        Self { dtype: if widens { Dtype::F32 } else { self.dtype }, offsets, blocks }
    }

    /// Columns of a block that lies within `k` columns which begin at a multiple of `k`, as a rank's do; `None` where there are
    /// no blocks.
    #[must_use]
    pub fn block_within(self, k: usize) -> Option<usize> {
        self.blocks.map(|blocks| greatest_common_divisor(blocks.columns, k))
    }

    /// Columns that share a header: a block, or a group of `group`.
    #[must_use]
    #[inline]
    pub fn run(self, group: usize) -> usize {
        self.blocks.map_or(group, |blocks| blocks.columns)
    }

    /// The form of the scales of `k` columns in groups of `group`, which begin at a multiple of `k` as those of a rank do.
    ///
    /// Super-blocks remain if they lie within these columns. A super-block of one group is replaced by the group's own scale.
    #[must_use]
    pub fn within(self, k: usize, group: usize) -> Self {
        match self.blocks.zip(self.block_within(k)) {
            None => self,
            Some((blocks, columns)) if columns > group => {
                Self { blocks: Some(Blocks { columns, ..blocks }), ..self }
            }
            // The group's own scale is a product of the block's scale and a sub-scale, which 16 bits would round.
            Some(_) => Self { dtype: Dtype::F32, blocks: None, ..self },
        }
    }

    /// Bytes of the scales of a panel's group or super-block, and of stored offsets.
    #[must_use]
    #[inline]
    pub const fn numbers_bytes(self) -> usize {
        let numbers = if matches!(self.offsets, OffsetForm::Own) { 2 } else { 1 };
        numbers * PANEL * self.dtype.size()
    }

    /// Bytes of the sub-scales and sub-offsets of so many groups of a panel.
    #[must_use]
    #[inline]
    pub fn sub_scales_bytes(self, groups: usize) -> usize {
        let own = self.offsets == OffsetForm::Own;
        // A group's scale and offset, or two groups' scales.
        let pairs = if own { groups } else { groups.div_ceil(2) };
        PANEL
            * match self.blocks.map(|blocks| blocks.sub_scales) {
                None => 0,
                Some(SubScaleForm::I8) => groups * (1 + usize::from(own)),
                // Twelve bits a pair: a byte with the lower four bits of both, and half a byte with their upper
                // two bits.
                Some(SubScaleForm::I6 | SubScaleForm::U6) => pairs + pairs.div_ceil(2),
                Some(SubScaleForm::U4) => pairs,
            }
    }

    /// Bytes of the zero-points of so many groups of a panel.
    #[must_use]
    #[inline]
    pub fn zero_points_bytes(self, groups: usize) -> usize {
        if self.offsets == OffsetForm::ZeroPoints { PANEL * groups } else { 0 }
    }
}

pub(crate) fn greatest_common_divisor(a: usize, b: usize) -> usize {
    if b == 0 { a } else { greatest_common_divisor(b, a % b) }
}
