//! GGUF's types of values: blocks of so many values, in so many bytes.
//! Source: ggml's `ggml-common.h`, which has the names and the layouts.

use candlepower_layout::{Blocks, Dtype, OffsetForm, Packed, QuantFormat, ScaleForm, SubScaleForm};

use super::Mxfp4;

/// Makes the enum from the list of types: each type's number in files, its name, the values of a block, and the block's bytes.
macro_rules! types {
    ($($(#[$doc:meta])* $kind:ident = ($number:literal, $name:literal, $block:literal, $bytes:literal),)*) => {
        /// A type of tensors that is computed with.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum GgufType {
            $($(#[$doc])* $kind,)*
        }

        impl GgufType {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$kind),*];

            const fn row(self) -> (u32, &'static str, usize, usize) {
                match self {
                    $(Self::$kind => ($number, $name, $block, $bytes),)*
                }
            }
        }
    };
}

types! {
    /// IEEE single.
    F32 = (0, "F32", 1, 4),
    /// IEEE half.
    F16 = (1, "F16", 1, 2),
    /// bfloat16.
    Bf16 = (30, "BF16", 1, 2),
    /// 32 quantized weights of four bits, a scale.
    Q4_0 = (2, "Q4_0", 32, 18),
    /// 32 quantized weights of four bits, a scale and an offset.
    Q4_1 = (3, "Q4_1", 32, 20),
    /// 32 quantized weights of five bits, a scale.
    Q5_0 = (6, "Q5_0", 32, 22),
    /// 32 quantized weights of five bits, a scale and an offset.
    Q5_1 = (7, "Q5_1", 32, 24),
    /// 32 quantized weights of eight bits, a scale.
    Q8_0 = (8, "Q8_0", 32, 34),
    /// 32 floats of four bits (e2m1), a scale that is a power of two.
    Mxfp4 = (39, "MXFP4", 32, 17),
    /// 32 indices of four bits into a table of sixteen values, a scale.
    Iq4Nl = (20, "IQ4_NL", 32, 18),
    /// 256 such indices; sub-scales of 32 each, of six bits, with a scale.
    Iq4Xs = (23, "IQ4_XS", 256, 136),
    /// 256 quantized weights of two bits; sub-scales and sub-offsets of 16 each, of four bits, with a scale and an offset.
    Q2K = (10, "Q2_K", 256, 84),
    /// 256 quantized weights of three bits; sub-scales of 16 each, of six bits, with a scale.
    Q3K = (11, "Q3_K", 256, 110),
    /// 256 quantized weights of four bits; sub-scales and sub-offsets of 32 each, of six bits, with a scale and an offset.
    Q4K = (12, "Q4_K", 256, 144),
    /// The same as `Q4K`, with quantized weights of five bits.
    Q5K = (13, "Q5_K", 256, 176),
    /// 256 quantized weights of six bits; sub-scales of 16 each, of eight bits, with a scale.
    Q6K = (14, "Q6_K", 256, 210),
}

/// Names of types that are not supported, by their ids in files.
// The ids 31 to 33 and 36 to 38 are missing in ggml, too: those types were taken out of it.
const OTHERS: [(u32, &str); 19] = [
    (9, "Q8_1"),
    (15, "Q8_K"),
    (16, "IQ2_XXS"),
    (17, "IQ2_XS"),
    (18, "IQ3_XXS"),
    (19, "IQ1_S"),
    (21, "IQ3_S"),
    (22, "IQ2_S"),
    (24, "I8"),
    (25, "I16"),
    (26, "I32"),
    (27, "I64"),
    (28, "F64"),
    (29, "IQ1_M"),
    (34, "TQ1_0"),
    (35, "TQ2_0"),
    (40, "NVFP4"),
    (4, "Q4_2"),
    (5, "Q4_3"),
];

impl GgufType {
    /// The type of a number in a file, or what people call it.
    pub(crate) fn of(number: u32) -> Result<Self, String> {
        if let Some(served) = Self::ALL.iter().find(|kind| kind.row().0 == number) {
            return Ok(*served);
        }
        let other = OTHERS.iter().find(|(other, _)| *other == number);
        Err(other.map_or_else(|| format!("type {number}"), |(_, name)| (*name).to_owned()))
    }

    /// Its name, as ggml writes it.
    pub fn as_str(self) -> &'static str {
        self.row().1
    }

    /// Values of a block.
    pub fn block(self) -> usize {
        self.row().2
    }

    /// Bytes of a block.
    pub fn block_bytes(self) -> usize {
        self.row().3
    }

    /// The names of all that are computed with, in words.
    pub(crate) fn names() -> String {
        Self::ALL.iter().map(|kind| kind.as_str()).collect::<Vec<_>>().join(", ")
    }

    /// The form of a matrix in memory; `None` if it is not quantized.
    ///
    /// Each dequantized value is `q * scale + offset` in single precision, rounded once. The product is exact: it fits into 24 bits.
    /// Half scales have at most 11 bits and sub-scales at most 7. Quantized weights have at most 5 bits, or 8 without sub-scales, or 7
    /// with sub-scales of 6 bits. Scales and offsets stay in half precision, and sub-scales in as many bits as are stored. Types
    /// without offsets have a zero-point.
    pub(crate) fn packed(self) -> Option<Packed> {
        let (format, group) = match self {
            Self::F32 | Self::F16 | Self::Bf16 => return None,
            Self::Q4_0 | Self::Q4_1 | Self::Q4K => (QuantFormat::U4, 32),
            Self::Q5_0 | Self::Q5_1 | Self::Q5K => (QuantFormat::U5, 32),
            Self::Q8_0 => (QuantFormat::U8, 32),
            Self::Mxfp4 => return Some(Mxfp4::packed()),
            Self::Iq4Nl | Self::Iq4Xs => (QuantFormat::Iq4, 32),
            Self::Q2K => (QuantFormat::U2, 16),
            Self::Q3K => (QuantFormat::U3, 16),
            Self::Q6K => (QuantFormat::U6, 16),
        };
        let offsets = match (format, self.zero_point()) {
            // IQ4's indices go through a table of signed values, so it has no zero-point.
            (QuantFormat::Iq4, _) => OffsetForm::None,
            (_, Some(zero)) => OffsetForm::ZeroPoint(zero),
            (_, None) => OffsetForm::Own,
        };
        let sub_scales = match self {
            Self::Q2K => Some(SubScaleForm::U4),
            Self::Q3K | Self::Iq4Xs => Some(SubScaleForm::I6),
            Self::Q4K | Self::Q5K => Some(SubScaleForm::U6),
            Self::Q6K => Some(SubScaleForm::I8),
            _ => None,
        };
        let blocks = sub_scales.map(|sub_scales| Blocks { columns: self.block(), sub_scales });
        let scales = ScaleForm { dtype: Dtype::F16, offsets, blocks };
        Some(Packed { scales, ..Packed::by_group(format, group) })
    }

    /// The zero-point of types without offsets.
    pub fn zero_point(self) -> Option<u8> {
        match self {
            Self::Q4_0 => Some(8),
            Self::Q5_0 => Some(16),
            Self::Q8_0 => Some(128),
            Self::Q3K => Some(4),
            Self::Q6K => Some(32),
            _ => None,
        }
    }
}
