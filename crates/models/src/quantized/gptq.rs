//! GPTQ: codes of four or eight bits, of neighbouring inputs in a word, the first in the lowest bits.
//! Source: AutoGPTQ's `QuantLinear` (`qlinear_cuda`).

use candlepower_checkpoint::Gptq;
use candlepower_kernels::Codes;

use super::{Stored, Tensors, Words};
use crate::error::Result;

/// A matrix as GPTQ stores it.
pub(crate) struct GptqMatrix {
    n: usize,
    k: usize,
    bits: usize,
    zero_offset: u8,
    group: usize,
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
    pub(super) fn open(tensors: &Tensors<'_>, scheme: Gptq) -> Result<Self> {
        let (n, k) = (tensors.n, tensors.k);
        let group = scheme.group(k);
        let in_order: Vec<u32> = (0..k).map(|input| (input / group) as u32).collect();
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
        let reordered = scheme.reorders(k) || groups != in_order;
        Ok(Self {
            n,
            k,
            bits: scheme.bits,
            zero_offset: scheme.zero_offset,
            group,
            codes: tensors.words(0)?,
            zeros: tensors.words(1)?,
            scales: tensors.numbers(2)?,
            inputs: reordered.then_some(inputs),
            groups,
        })
    }

    /// The zero point; the sum with the offset has as many bits as a code.
    fn zero(&self, row: usize, group: usize) -> u8 {
        let per_word = 32 / self.bits;
        let index = group * (self.n / per_word) + row / per_word;
        let stored = self.zeros.field(index, row % per_word * self.bits, self.bits);
        stored.wrapping_add(self.zero_offset) & (u8::MAX >> (8 - self.bits))
    }

    fn scale(&self, row: usize, group: usize) -> f32 {
        self.scales[group * self.n + row]
    }
}

impl Stored for GptqMatrix {
    fn codes(&self) -> Codes {
        if self.bits == 4 { Codes::U4 } else { Codes::U8 }
    }

    fn group(&self) -> usize {
        self.group
    }

    fn inputs(&self) -> Option<&[u32]> {
        self.inputs.as_deref()
    }

    fn code(&self, row: usize, input: usize) -> u8 {
        let per_word = 32 / self.bits;
        let index = input / per_word * self.n + row;
        self.codes.field(index, input % per_word * self.bits, self.bits)
    }

    fn scales(&self, row: usize, scales: &mut Vec<f32>, mins: &mut Vec<f32>) {
        for group in 0..self.k.div_ceil(self.group) {
            let scale = self.scale(row, group);
            scales.push(scale);
            mins.push(-f32::from(self.zero(row, group)) * scale);
        }
    }

    fn number(&self, row: usize, input: usize) -> f32 {
        let group = self.groups[input] as usize;
        let steps = i16::from(self.code(row, input)) - i16::from(self.zero(row, group));
        f32::from(steps) * self.scale(row, group)
    }
}
