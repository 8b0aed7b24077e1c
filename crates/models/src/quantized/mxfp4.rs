//! MXFP4: two codes in a byte, the first in its low bits, and a byte for each 32 codes of an output, which is the exponent of their scale.
//! Source: transformers `convert_moe_packed_tensors`.

use std::ops::Range;

use candlepower_checkpoint::{Packed, RowOrder};

use super::{Stored, Tensors};
use crate::{error::Result, shards::MappedBytes};

/// Beyond this exponent a scale times what a GPU's codes lack would not be finite; 255 is NaN.
const MOST_EXPONENT: u8 = 240;

/// The scale of an exponent; NaN where it is too large.
pub(super) fn scale(exponent: u8) -> f32 {
    if exponent > MOST_EXPONENT { f32::NAN } else { 2f32.powi(i32::from(exponent) - 127) }
}

/// A matrix as MXFP4 checkpoints store it.
pub(crate) struct Mxfp4Matrix {
    k: usize,
    packed: Packed,
    order: RowOrder,
    /// The first of the stored rows that are mapped.
    first_row: usize,
    /// `[rows][k / 2]`.
    codes: MappedBytes,
    /// `[rows][k / 32]`.
    exponents: MappedBytes,
}

impl Mxfp4Matrix {
    /// Maps the rows `rows`, of which alone codes and scales may be asked for: those of one slot, or all.
    pub(super) fn open(tensors: &Tensors<'_>, packed: Packed, rows: Range<usize>) -> Result<Self> {
        let (k, order) = (tensors.k, tensors.order);
        let stored = order.stored(rows.start)..order.stored(rows.end - 1) + 1;
        let map = |index: usize, row_bytes: usize| {
            let (start, len) = (stored.start * row_bytes, stored.len() * row_bytes);
            tensors.shards.bytes(tensors.name(index), start, len)
        };
        let (codes, exponents) = (map(0, k / 2)?, map(1, k / packed.group)?);
        if exponents.iter().any(|exponent| scale(*exponent).is_nan()) {
            return Err(tensors.damaged(1, "it has a scale that is NaN or beyond 2^113"));
        }
        Ok(Self { k, packed, order, first_row: stored.start, codes, exponents })
    }

    /// Which of the mapped rows a row is.
    fn row(&self, row: usize) -> usize {
        self.order.stored(row) - self.first_row
    }
}

impl Stored for Mxfp4Matrix {
    fn packed(&self) -> Packed {
        self.packed
    }

    fn code(&self, row: usize, input: usize) -> u8 {
        self.codes[self.row(row) * self.k / 2 + input / 2] >> (input % 2 * 4) & 15
    }

    fn codes_from(&self, row: usize, input: usize, codes: &mut [u8]) {
        let of_row = &self.codes[self.row(row) * self.k / 2..][..self.k / 2];
        let fields = of_row[input / 2..].iter().flat_map(|byte| [byte & 15, byte >> 4]);
        for (code, field) in codes.iter_mut().zip(fields.skip(input % 2)) {
            *code = field;
        }
    }

    fn scale(&self, row: usize, group: usize) -> f32 {
        scale(self.exponents[self.row(row) * (self.k / self.packed.group) + group])
    }

    fn number(&self, row: usize, input: usize) -> f32 {
        e2m1(self.code(row, input)) * self.scale(row, input / self.packed.group)
    }
}

/// The number that a code without a scale is. Source: "OCP Microscaling Formats (MX) Specification", 2023, 5.3.3.
pub(super) fn e2m1(code: u8) -> f32 {
    let (exponent, mantissa) = (i32::from(code >> 1 & 3), f32::from(code & 1) / 2.0);
    let size = match exponent {
        0 => mantissa,
        _ => (1.0 + mantissa) * 2f32.powi(exponent - 1),
    };
    if code & 8 == 0 { size } else { -size }
}
