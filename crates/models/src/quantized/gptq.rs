//! GPTQ: quantized weights of four or eight bits, of neighbouring inputs in a word, the first in the lowest bits.
//! Source: AutoGPTQ's `QuantLinear` (`qlinear_cuda`).

use candlepower_checkpoint::{Gptq, Packed};

use super::{GroupOrder, Stored, Tensors, Words};
use crate::error::Result;

/// A matrix as GPTQ stores it.
pub(crate) struct GptqMatrix {
    n: usize,
    bits: usize,
    zero_offset: u8,
    packed: Packed,
    /// `[k / weights per word][n]`.
    quants: Words,
    /// `[groups][n / weights per word]`.
    zeros: Words,
    /// `[groups][n]`.
    scales: Vec<f32>,
    order: GroupOrder,
}

impl GptqMatrix {
    pub(super) fn open(tensors: &Tensors<'_>, scheme: Gptq, packed: Packed) -> Result<Self> {
        Ok(Self {
            n: tensors.n,
            bits: scheme.bits,
            zero_offset: scheme.zero_offset,
            packed,
            quants: tensors.words(0)?,
            zeros: tensors.words(1)?,
            scales: tensors.values(2)?,
            order: GroupOrder::read(tensors, 3, packed)?,
        })
    }
}

impl Stored for GptqMatrix {
    fn packed(&self) -> Packed {
        self.packed
    }

    fn inputs(&self) -> Option<&[u32]> {
        self.order.inputs.as_deref()
    }

    fn quant(&self, row: usize, input: usize) -> u8 {
        let per_word = 32 / self.bits;
        let index = input / per_word * self.n + row;
        self.quants.field(index, input % per_word * self.bits, self.bits)
    }

    fn quants_from(&self, row: usize, input: usize, quants: &mut [u8]) {
        self.quants.fields_along(self.n, row, input, self.bits, quants);
    }

    fn scale(&self, row: usize, group: usize) -> f32 {
        self.scales[group * self.n + row]
    }

    /// The sum with the stored zero-point's offset has as many bits as a quantized weight.
    fn zero_point(&self, row: usize, group: usize) -> u8 {
        let per_word = 32 / self.bits;
        let index = group * (self.n / per_word) + row / per_word;
        let stored = self.zeros.field(index, row % per_word * self.bits, self.bits);
        stored.wrapping_add(self.zero_offset) & (u8::MAX >> (8 - self.bits))
    }

    fn value(&self, row: usize, input: usize) -> f32 {
        let group = self.order.groups[input] as usize;
        let steps = i16::from(self.quant(row, input)) - i16::from(self.zero_point(row, group));
        f32::from(steps) * self.scale(row, group)
    }
}
