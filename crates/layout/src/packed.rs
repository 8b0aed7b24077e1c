//! Forms of matrices in memory, and the common form of matrices that are computed as one.

use crate::scales::greatest_common_divisor;
use crate::{
    ActivationScales, DEVICE_STEP, DEVICE_TILE, Dtype, OffsetForm, PANEL, QuantFormat, ScaleForm,
    TABLE, panel_bytes,
};

/// Form of a quantized matrix in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packed {
    /// The format of the quantized values.
    pub format: QuantFormat,
    /// Columns that share a scale.
    pub group: usize,
    /// The form of its groups' scales and offsets.
    pub scales: ScaleForm,
    /// The columns are in the order of their groups, not of the inputs.
    pub reordered: bool,
    /// Scales of activations that are rounded to FP8 before a product; `None` if activations are not rounded.
    pub activations: Option<ActivationScales>,
}

/// Form of a matrix in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MatrixForm {
    /// Values of its dtype.
    Plain,
    /// Quantized values.
    Quantized(Packed),
    /// Dequantized values in single precision: the matrices that it consists of have no narrower form in common.
    Widened,
}

impl MatrixForm {
    /// The form of two matrices with `k` columns that are kept as one.
    #[must_use]
    pub fn join(self, other: Self, k: usize) -> Self {
        match (self, other) {
            (Self::Plain, Self::Plain) => Self::Plain,
            (Self::Quantized(a), Self::Quantized(b)) => {
                a.join(b, k).map_or(Self::Widened, Self::Quantized)
            }
            _ => Self::Widened,
        }
    }

    /// The form of a matrix with `k` columns on a GPU: dequantized to the model's dtype if the GPU has no form for its format.
    #[must_use]
    pub fn on_device(self, k: usize) -> Self {
        match self {
            // A group that covers the whole row has no boundary inside of it, so its length is free.
            Self::Quantized(packed) if packed.group >= k || packed.group % DEVICE_STEP == 0 => self,
            _ => Self::Plain,
        }
    }

    /// Bytes of a matrix of so many rows and columns, with values of `dtype` unless it is quantized.
    #[must_use]
    pub fn bytes(self, rows: usize, columns: usize, dtype: Dtype) -> usize {
        let dtype = match self {
            Self::Quantized(packed) => return packed.bytes(rows, columns),
            Self::Plain => dtype,
            Self::Widened => Dtype::F32,
        };
        rows.next_multiple_of(PANEL) * columns.next_multiple_of(2) * dtype.size()
    }
}

impl Packed {
    /// Columns in order, in groups with scales and offsets of their own.
    #[must_use]
    pub fn by_group(format: QuantFormat, group: usize) -> Self {
        Self { format, group, scales: ScaleForm::F32, reordered: false, activations: None }
    }

    /// The same as [`Self::by_group`], without offsets.
    #[must_use]
    pub fn without_offsets(format: QuantFormat, group: usize) -> Self {
        let scales = ScaleForm { offsets: OffsetForm::None, ..ScaleForm::F32 };
        Self { scales, ..Self::by_group(format, group) }
    }

    /// The same form for activations that are rounded to FP8 with these scales.
    #[must_use]
    pub fn with_activations(self, activations: Option<ActivationScales>) -> Self {
        Self { activations, ..self }
    }

    /// Unsigned integers with a zero-point of 128 in place of [`QuantFormat::Iq4`].
    fn counted(self) -> Self {
        // The table's integers run from -127 to 113. With 128 added they are the bytes from 1 to 241.
        match self.format {
            QuantFormat::Iq4 => Self {
                format: QuantFormat::U8,
                scales: ScaleForm { offsets: OffsetForm::ZeroPoint(128), ..self.scales },
                ..self
            },
            _ => self,
        }
    }

    /// Narrow quantized values fit into wider ones, and the scale of a group applies to its parts.
    fn join(self, other: Self, k: usize) -> Option<Self> {
        // Two matrices of this format keep their four bits. With any other integers they need a form that both
        // have.
        if self.format != other.format && [self.format, other.format].contains(&QuantFormat::Iq4) {
            return self.counted().join(other.counted(), k);
        }
        let format = self.format.join(other.format)?;
        let group = match (self.group.min(k), other.group.min(k)) {
            // A group that covers all columns applies to each part of them, so the other's groups remain.
            (a, b) if a == b => a,
            (a, b) if a == k => b,
            (a, b) if b == k => a,
            (a, b) => greatest_common_divisor(a, b),
        };
        let (scales, reordered) =
            (self.scales.join(other.scales), self.reordered || other.reordered);
        let activations = ActivationScales::join(self.activations, other.activations);
        Some(Self { format, group, scales, reordered, activations })
    }

    /// Bytes on a GPU; `padded` says that activations have zeros between the matrix's inputs.
    #[must_use]
    pub fn device_bytes(self, rows: usize, columns: usize, padded: bool) -> usize {
        let outputs = rows.next_multiple_of(DEVICE_TILE[0]);
        let quants =
            outputs * columns.next_multiple_of(DEVICE_TILE[1]) * self.format.device_bits() / 8;
        // The GPU has a scale and an offset in f32 for each group, also where the CPU has sub-scales.
        let numbers = match self.format {
            QuantFormat::Table => TABLE,
            _ => columns.div_ceil(self.group) * 2,
        };
        let inputs = if self.reordered || padded { columns } else { 0 };
        quants + 4 * (outputs * numbers + inputs)
    }

    /// Bytes on the CPU.
    fn bytes(self, rows: usize, columns: usize) -> usize {
        let scales = self.scales.within(columns, self.group);
        let panel = panel_bytes(self.format, self.group, scales, columns);
        let order = if self.reordered { columns * 4 } else { 0 };
        rows.div_ceil(PANEL) * panel + order
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn matrices_that_are_one_are_kept_in_what_they_have_in_common() {
        let packed = |format, group| MatrixForm::Quantized(Packed::by_group(format, group));
        let (u4, u8) = (packed(QuantFormat::U4, 32), packed(QuantFormat::U8, 48));
        let (u5, u6) = (packed(QuantFormat::U5, 32), packed(QuantFormat::U6, 32));
        assert_eq!(u4.join(u4, 96), u4);
        assert_eq!(u4.join(u8, 96), packed(QuantFormat::U8, 16));
        assert_eq!((u4.join(u5, 96), u5.join(u4, 96), u6.join(u5, 96)), (u5, u5, u6));
        assert_eq!(u6.join(u8, 96), packed(QuantFormat::U8, 16));
        assert_eq!(u4.join(packed(QuantFormat::U4, 96), 96), u4);
        assert_eq!(u4.join(MatrixForm::Plain, 96), MatrixForm::Widened);
        assert_eq!(u4.join(packed(QuantFormat::E4m3, 32), 96), MatrixForm::Widened);
        assert_eq!(packed(QuantFormat::Table, 96).join(u6, 96), MatrixForm::Widened);
        assert_eq!(
            packed(QuantFormat::E4m3, 32).join(packed(QuantFormat::Iq4, 32), 96),
            MatrixForm::Widened
        );
        let iq4 = Packed::without_offsets(QuantFormat::Iq4, 32);
        assert_eq!(iq4.join(iq4, 96), Some(iq4));
        // The table's zero-point of 128 and the offsets of U5 have only stored offsets in common.
        let counted = iq4.join(Packed::by_group(QuantFormat::U5, 32), 96).unwrap();
        assert_eq!((counted.format, counted.scales.offsets), (QuantFormat::U8, OffsetForm::Own));
        assert_eq!(MatrixForm::Plain.join(MatrixForm::Plain, 96), MatrixForm::Plain);
    }
}
