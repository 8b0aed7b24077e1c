//! Integers of compressed-tensors: four or eight bits in words of neighbouring inputs, the first in the lowest bits; or a signed byte
//! each.
//! Source: compressed-tensors, `compressors/pack_quantized` and `compressors/naive_quantized`.

use candlepower_checkpoint::{CompressedInt, Packed};

use super::{GroupOrder, Stored, Tensors, Words};
use crate::{error::Result, shards::MappedBytes};

/// A matrix as compressed-tensors stores integers.
pub(crate) struct CompressedIntMatrix {
    k: usize,
    scheme: CompressedInt,
    packed: Packed,
    quants: IntQuants,
    /// `[n / weights per word][groups]`.
    zeros: Option<Words>,
    /// `[n][groups]`.
    scales: Vec<f32>,
    order: GroupOrder,
}

enum IntQuants {
    /// `[n][k / weights per word]`.
    Words(Words),
    /// `[n][k]`, each as far from zero as a quantized weight is from the middle of its range.
    Bytes(MappedBytes),
}

impl CompressedIntMatrix {
    pub(super) fn open(
        tensors: &Tensors<'_>,
        scheme: CompressedInt,
        packed: Packed,
    ) -> Result<Self> {
        let quants = match scheme.in_words {
            true => IntQuants::Words(tensors.words(0)?),
            false => IntQuants::Bytes(tensors.shards.whole(tensors.name(0))?),
        };
        let zeros = scheme.zero_points.then(|| tensors.words(2)).transpose()?;
        let of_inputs = 2 + usize::from(scheme.zero_points);
        let order = GroupOrder::read(tensors, of_inputs, packed)?;
        let (k, scales) = (tensors.k, tensors.values(1)?);
        Ok(Self { k, scheme, packed, quants, zeros, scales, order })
    }

    fn num_groups(&self) -> usize {
        self.k.div_ceil(self.packed.group)
    }
}

impl Stored for CompressedIntMatrix {
    fn packed(&self) -> Packed {
        self.packed
    }

    fn inputs(&self) -> Option<&[u32]> {
        self.order.inputs.as_deref()
    }

    fn quant(&self, row: usize, input: usize) -> u8 {
        let (bits, per_word) = (self.scheme.bits, self.scheme.weights_per_word());
        match &self.quants {
            IntQuants::Words(words) => {
                let index = row * (self.k / per_word) + input / per_word;
                words.field(index, input % per_word * bits, bits)
            }
            IntQuants::Bytes(bytes) => bytes[row * self.k + input] ^ self.scheme.middle(),
        }
    }

    fn quants_from(&self, row: usize, input: usize, quants: &mut [u8]) {
        let per_word = self.scheme.weights_per_word();
        match &self.quants {
            IntQuants::Words(words) => {
                // The words of a row follow each other, so the matrix is read as one long row.
                let first = row * (self.k / per_word) * per_word + input;
                words.fields_along(1, 0, first, self.scheme.bits, quants);
            }
            IntQuants::Bytes(bytes) => {
                let stored = &bytes[row * self.k + input..][..quants.len()];
                for (quant, byte) in quants.iter_mut().zip(stored) {
                    *quant = byte ^ self.scheme.middle();
                }
            }
        }
    }

    fn scale(&self, row: usize, group: usize) -> f32 {
        self.scales[row * self.num_groups() + group]
    }

    fn zero_point(&self, row: usize, group: usize) -> u8 {
        let (bits, per_word) = (self.scheme.bits, self.scheme.weights_per_word());
        match &self.zeros {
            Some(zeros) => {
                let index = row / per_word * self.num_groups() + group;
                zeros.field(index, row % per_word * bits, bits)
            }
            None => self.scheme.middle(),
        }
    }

    fn value(&self, row: usize, input: usize) -> f32 {
        let group = self.order.groups[input] as usize;
        let steps = i16::from(self.quant(row, input)) - i16::from(self.zero_point(row, group));
        f32::from(steps) * self.scale(row, group)
    }
}
