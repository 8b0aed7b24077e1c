//! AWQ: eight quantized weights of four bits in a word, of eight neighbouring outputs in an order of its own.
//! Source: AutoAWQ's `WQLinear_GEMM` and `pack_intweight`.

use candlepower_checkpoint::Packed;

use super::{Stored, Tensors, Words};
use crate::error::Result;

/// The position in a word of each of its eight outputs: outputs 0, 2, 4, 6, 1, 3, 5, 7 from the lowest bits on.
const SHIFTS: [usize; 8] = [0, 16, 4, 20, 8, 24, 12, 28];

/// A matrix as AWQ stores it.
pub(crate) struct AwqMatrix {
    n: usize,
    packed: Packed,
    /// `[k][n / 8]`.
    quants: Words,
    /// `[groups][n / 8]`.
    zeros: Words,
    /// `[groups][n]`.
    scales: Vec<f32>,
}

impl AwqMatrix {
    pub(super) fn open(tensors: &Tensors<'_>, packed: Packed) -> Result<Self> {
        let (quants, zeros) = (tensors.words(0)?, tensors.words(1)?);
        Ok(Self { n: tensors.n, packed, quants, zeros, scales: tensors.values(2)? })
    }
}

impl Stored for AwqMatrix {
    fn packed(&self) -> Packed {
        self.packed
    }

    fn quant(&self, row: usize, input: usize) -> u8 {
        self.quants.field(input * (self.n / 8) + row / 8, SHIFTS[row % 8], 4)
    }

    fn quants_from(&self, row: usize, input: usize, quants: &mut [u8]) {
        let stride = self.n / 8;
        let words = self.quants.every(stride, input * stride + row / 8);
        for (quant, word) in quants.iter_mut().zip(words) {
            *quant = (word >> SHIFTS[row % 8] & 15) as u8;
        }
    }

    fn scale(&self, row: usize, group: usize) -> f32 {
        self.scales[group * self.n + row]
    }

    fn zero_point(&self, row: usize, group: usize) -> u8 {
        self.zeros.field(group * (self.n / 8) + row / 8, SHIFTS[row % 8], 4)
    }

    fn value(&self, row: usize, input: usize) -> f32 {
        let group = input / self.packed.group;
        let steps = i16::from(self.quant(row, input)) - i16::from(self.zero_point(row, group));
        f32::from(steps) * self.scale(row, group)
    }
}
