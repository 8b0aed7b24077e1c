//! Four-bit floating point: two quantized weights in a byte, the first in its low bits, and a byte for the scale of each group of an
//! output. The scale of MXFP4 is an exponent; that of NVFP4 is an eight-bit float, which one value of the whole matrix scales.
//! Source: transformers `convert_moe_packed_tensors`; compressed-tensors, `compressors/nvfp4`.

use std::{array, ops::Range};

use candlepower_checkpoint::{Nvfp4, Packed, RowOrder};

use super::{Stored, Tensors, fp8::e4m3};
use crate::{error::Result, shards::MappedBytes};

/// Largest exponent of a scale. Beyond it the product with the factor that a GPU's encoding lacks would not be finite; 255 is NaN.
const MAX_EXPONENT: u8 = 240;

/// The scale of an exponent; NaN where it is too large.
pub(super) fn power_of_two(exponent: u8) -> f32 {
    if exponent > MAX_EXPONENT { f32::NAN } else { 2f32.powi(i32::from(exponent) - 127) }
}

/// A matrix of four-bit floating point as checkpoints store it.
pub(crate) struct E2m1Matrix {
    k: usize,
    packed: Packed,
    order: RowOrder,
    /// The first of the stored rows that are mapped.
    first_row: usize,
    /// `[rows][k / 2]`.
    quants: MappedBytes,
    /// `[rows][k / group]`.
    scales: MappedBytes,
    /// The scale of each byte of `scales`.
    scale_of: Box<[f32; 256]>,
}

impl E2m1Matrix {
    /// Maps the rows `rows` of an MXFP4 matrix, for reads of these rows alone: those of one slot, or all.
    pub(super) fn mxfp4(tensors: &Tensors<'_>, packed: Packed, rows: Range<usize>) -> Result<Self> {
        Self::open(tensors, packed, rows, power_of_two)
    }

    /// Maps the rows `rows` of an NVFP4 matrix, like [`Self::mxfp4`].
    pub(super) fn nvfp4(
        tensors: &Tensors<'_>,
        scheme: Nvfp4,
        packed: Packed,
        rows: Range<usize>,
    ) -> Result<Self> {
        let of_all = tensors.values(2)?[0];
        Self::open(tensors, packed, rows, |quant| {
            // The two writers store inverse values: one divides and the other multiplies.
            let scale = match scheme {
                Nvfp4::CompressedTensors => e4m3(quant) / of_all,
                Nvfp4::ModelOpt => e4m3(quant) * of_all,
            };
            let usable = quant & 0x7f != 0x7f && scale.abs() <= power_of_two(MAX_EXPONENT);
            if usable { scale } else { f32::NAN }
        })
    }

    fn open(
        tensors: &Tensors<'_>,
        packed: Packed,
        rows: Range<usize>,
        scale_of: impl Fn(u8) -> f32,
    ) -> Result<Self> {
        let (k, order) = (tensors.k, tensors.order);
        // The rows of one slot lie apart where gates and halves of gates alternate, so the mapped range has both.
        let stored = order.stored(rows.start)..order.stored(rows.end - 1) + 1;
        let map = |index: usize, row_bytes: usize| {
            let (start, len) = (stored.start * row_bytes, stored.len() * row_bytes);
            tensors.shards.bytes(tensors.name(index), start, len)
        };
        let (quants, scales) = (map(0, k / 2)?, map(1, k / packed.group)?);
        // All 256 scales are computed once, which makes a look-up of each group's.
        let scale_of = Box::new(array::from_fn(|byte| scale_of(byte as u8)));
        let matrix = Self { k, packed, order, first_row: stored.start, quants, scales, scale_of };
        // Padding after the last row would be checked, too, and there is none.
        if matrix.scales.iter().any(|byte| matrix.scale_of[usize::from(*byte)].is_nan()) {
            return Err(tensors.damaged(1, "it has a scale that is NaN or beyond 2^113"));
        }
        Ok(matrix)
    }

    /// The index of a row among the mapped rows.
    fn row(&self, row: usize) -> usize {
        self.order.stored(row) - self.first_row
    }
}

impl Stored for E2m1Matrix {
    fn packed(&self) -> Packed {
        self.packed
    }

    fn quant(&self, row: usize, input: usize) -> u8 {
        self.quants[self.row(row) * self.k / 2 + input / 2] >> (input % 2 * 4) & 15
    }

    fn quants_from(&self, row: usize, input: usize, quants: &mut [u8]) {
        let of_row = &self.quants[self.row(row) * self.k / 2..][..self.k / 2];
        let fields = of_row[input / 2..].iter().flat_map(|byte| [byte & 15, byte >> 4]);
        for (quant, field) in quants.iter_mut().zip(fields.skip(input % 2)) {
            *quant = field;
        }
    }

    fn scale(&self, row: usize, group: usize) -> f32 {
        let byte = self.scales[self.row(row) * (self.k / self.packed.group) + group];
        self.scale_of[usize::from(byte)]
    }

    fn value(&self, row: usize, input: usize) -> f32 {
        e2m1(self.quant(row, input)) * self.scale(row, input / self.packed.group)
    }
}

/// The dequantized value before scaling. Source: "OCP Microscaling Formats (MX) Specification", 2023, 5.3.3.
pub(super) fn e2m1(quant: u8) -> f32 {
    let (exponent, mantissa) = (i32::from(quant >> 1 & 3), f32::from(quant & 1) / 2.0);
    let size = match exponent {
        0 => mantissa,
        _ => (1.0 + mantissa) * 2f32.powi(exponent - 1),
    };
    if quant & 8 == 0 { size } else { -size }
}
