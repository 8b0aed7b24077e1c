//! AWQ: eight codes of four bits in a word, of eight neighbouring outputs in an order of its own.
//! Source: AutoAWQ's `WQLinear_GEMM` and `pack_intweight`.

use candlepower_checkpoint::Awq;
use candlepower_kernels::Codes;

use super::{Stored, Tensors, Words};
use crate::error::Result;

/// Where in a word the code of each of its eight outputs lies: outputs 0, 2, 4, 6, 1, 3, 5, 7 from the lowest bits on.
const SHIFTS: [usize; 8] = [0, 16, 4, 20, 8, 24, 12, 28];

/// A matrix as AWQ stores it.
pub(crate) struct AwqMatrix {
    n: usize,
    k: usize,
    group: usize,
    /// `[k][n / 8]`.
    codes: Words,
    /// `[groups][n / 8]`.
    zeros: Words,
    /// `[groups][n]`.
    scales: Vec<f32>,
}

impl AwqMatrix {
    pub(super) fn open(tensors: &Tensors<'_>, scheme: Awq) -> Result<Self> {
        let (n, k) = (tensors.n, tensors.k);
        let (codes, zeros) = (tensors.words(0)?, tensors.words(1)?);
        Ok(Self { n, k, group: scheme.group(k), codes, zeros, scales: tensors.numbers(2)? })
    }

    fn zero(&self, row: usize, group: usize) -> u8 {
        self.zeros.field(group * (self.n / 8) + row / 8, SHIFTS[row % 8], 4)
    }

    fn scale(&self, row: usize, group: usize) -> f32 {
        self.scales[group * self.n + row]
    }
}

impl Stored for AwqMatrix {
    fn codes(&self) -> Codes {
        Codes::U4
    }

    fn group(&self) -> usize {
        self.group
    }

    fn code(&self, row: usize, input: usize) -> u8 {
        self.codes.field(input * (self.n / 8) + row / 8, SHIFTS[row % 8], 4)
    }

    fn scales(&self, row: usize, scales: &mut Vec<f32>, mins: &mut Vec<f32>) {
        for group in 0..self.k.div_ceil(self.group) {
            let scale = self.scale(row, group);
            scales.push(scale);
            mins.push(-f32::from(self.zero(row, group)) * scale);
        }
    }

    fn number(&self, row: usize, input: usize) -> f32 {
        let group = input / self.group;
        let steps = i16::from(self.code(row, input)) - i16::from(self.zero(row, group));
        f32::from(steps) * self.scale(row, group)
    }
}
