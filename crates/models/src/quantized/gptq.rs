//! GPTQ: codes of four or eight bits, of neighbouring inputs in a word, the first in the lowest bits.
//! Source: AutoGPTQ's `QuantLinear` (`qlinear_cuda`).

use candlepower_checkpoint::{Gptq, Packed};

use super::{Stored, Tensors, Words};
use crate::error::Result;

/// A matrix as GPTQ stores it.
pub(crate) struct GptqMatrix {
    n: usize,
    bits: usize,
    zero_offset: u8,
    packed: Packed,
    /// `[k / codes per word][n]`.
    codes: Words,
    /// `[groups][n / codes per word]`.
    zeros: Words,
    /// `[groups][n]`.
    scales: Vec<f32>,
    /// The inputs of the first group, of the second, and so on, where they do not lie so.
    inputs: Option<Vec<u32>>,
    /// `[k]`: the group of each input.
    groups: Vec<u32>,
}

impl GptqMatrix {
    pub(super) fn open(tensors: &Tensors<'_>, scheme: Gptq, packed: Packed) -> Result<Self> {
        let (n, k) = (tensors.n, tensors.k);
        let in_order: Vec<u32> = (0..k).map(|input| (input / packed.group) as u32).collect();
        let groups = match tensors.shards.contains(tensors.name(3)) {
            true => {
                let words = tensors.words(3)?;
                (0..k).map(|input| words.get(input)).collect()
            }
            false => in_order.clone(),
        };
        let mut inputs: Vec<u32> = (0..k as u32).collect();
        inputs.sort_by_key(|input| groups[*input as usize]);
        if inputs.iter().zip(&in_order).any(|(input, group)| groups[*input as usize] != *group) {
            let reason = "it does not assign inputs to groups of the size that config.json says";
            return Err(tensors.damaged(3, reason));
        }
        let reordered = packed.reordered || groups != in_order;
        Ok(Self {
            n,
            bits: scheme.bits,
            zero_offset: scheme.zero_offset,
            packed,
            codes: tensors.words(0)?,
            zeros: tensors.words(1)?,
            scales: tensors.numbers(2)?,
            inputs: reordered.then_some(inputs),
            groups,
        })
    }
}

impl Stored for GptqMatrix {
    fn packed(&self) -> Packed {
        self.packed
    }

    fn inputs(&self) -> Option<&[u32]> {
        self.inputs.as_deref()
    }

    fn code(&self, row: usize, input: usize) -> u8 {
        let per_word = 32 / self.bits;
        let index = input / per_word * self.n + row;
        self.codes.field(index, input % per_word * self.bits, self.bits)
    }

    fn codes_from(&self, row: usize, input: usize, codes: &mut [u8]) {
        self.codes.fields_along(self.n, row, input, self.bits, codes);
    }

    fn scale(&self, row: usize, group: usize) -> f32 {
        self.scales[group * self.n + row]
    }

    /// The sum with the offset has as many bits as a code.
    fn zero_point(&self, row: usize, group: usize) -> u8 {
        let per_word = 32 / self.bits;
        let index = group * (self.n / per_word) + row / per_word;
        let stored = self.zeros.field(index, row % per_word * self.bits, self.bits);
        stored.wrapping_add(self.zero_offset) & (u8::MAX >> (8 - self.bits))
    }

    fn number(&self, row: usize, input: usize) -> f32 {
        let group = self.groups[input] as usize;
        let steps = i16::from(self.code(row, input)) - i16::from(self.zero_point(row, group));
        f32::from(steps) * self.scale(row, group)
    }
}
