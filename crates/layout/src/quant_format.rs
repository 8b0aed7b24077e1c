//! Formats of quantized values.

use crate::PANEL;

/// Format of the quantized values of a matrix.
///
/// Each group of inputs has a scale and an offset per output: a dequantized value is `q * scale + offset`, rounded once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QuantFormat {
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
    /// Four bits: a sign, two bits of exponent, one of mantissa: 0, 0.5, 1, 1.5, 2, 3, 4 and 6.
    /// Source: Open Compute Project, "OCP Microscaling Formats (MX) Specification", 2023.
    E2m1,
    /// Four bits: an index into sixteen integers from -127 to 113, which are closer to each other near zero.
    /// Source: ggml's `kvalues_iq4nl`.
    Iq4,
    /// Four bits: an index into a table of sixteen values per output.
    Table,
}

impl QuantFormat {
    /// Bits of a quantized value.
    #[must_use]
    #[inline]
    pub const fn bits(self) -> usize {
        match self {
            Self::U2 => 2,
            Self::U3 => 3,
            Self::U4 | Self::E2m1 | Self::Iq4 | Self::Table => 4,
            Self::U5 => 5,
            Self::U6 => 6,
            Self::U8 | Self::E4m3 => 8,
        }
    }

    /// Bits of a quantized value on a GPU, which keeps [`Self::Iq4`] as integers.
    #[must_use]
    pub const fn device_bits(self) -> usize {
        match self {
            Self::U2 | Self::U3 | Self::U4 | Self::E2m1 | Self::Table => 4,
            Self::U5 | Self::U6 | Self::U8 | Self::E4m3 | Self::Iq4 => 8,
        }
    }

    /// Bytes of two steps of inputs of one panel.
    #[must_use]
    #[inline]
    pub const fn pair_bytes(self) -> usize {
        2 * PANEL * self.bits() / 8
    }

    /// The largest quantized value.
    #[must_use]
    pub const fn most(self) -> u8 {
        u8::MAX >> (8 - self.bits())
    }

    /// Whether they are unsigned integers.
    #[must_use]
    pub fn count_from_zero(self) -> bool {
        !matches!(self, Self::E4m3 | Self::E2m1 | Self::Iq4 | Self::Table)
    }

    /// Whether a quantized value of the format `other` is the same in this format.
    #[must_use]
    pub fn takes(self, other: Self) -> bool {
        let both_count = self.count_from_zero() && other.count_from_zero();
        self == other || both_count && other.bits() <= self.bits()
    }

    /// The narrowest kind that takes both, if one does.
    #[must_use]
    pub fn join(self, other: Self) -> Option<Self> {
        [self, other].into_iter().find(|kind| kind.takes(self) && kind.takes(other))
    }
}
