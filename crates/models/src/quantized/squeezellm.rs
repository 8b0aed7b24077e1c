//! SqueezeLLM: eight quantized weights of four bits in a word, of neighbouring inputs, the first in the lowest bits. Each is an index in
//! its output's table of sixteen values. A sparse matrix is added to the dequantized weights.
//! Source: SqueezeLLM's `QuantLinearLUT`.

use candlepower_checkpoint::Packed;
use candlepower_kernels::SparseRows;

use super::{Stored, TABLE, Tensors, Words};
use crate::error::{Error, Result};

/// A matrix as SqueezeLLM stores it.
pub(crate) struct SqueezeLlmMatrix {
    n: usize,
    packed: Packed,
    /// `[k / 8][n]`.
    quants: Words,
    /// `[n][16]`.
    tables: Vec<f32>,
    /// Compressed sparse rows: the beginning of each, and the inputs and values of all.
    sparse: Option<(Vec<u32>, Vec<u32>, Vec<f32>)>,
}

impl SqueezeLlmMatrix {
    pub(super) fn open(tensors: &Tensors<'_>, packed: Packed) -> Result<Self> {
        let sparse = match tensors.shards.contains(tensors.name(2)) {
            true => Some(Self::open_sparse(tensors)?),
            false => None,
        };
        let (n, quants, tables) = (tensors.n, tensors.words(0)?, tensors.values(1)?);
        Ok(Self { n, packed, quants, tables, sparse })
    }

    fn open_sparse(tensors: &Tensors<'_>) -> Result<(Vec<u32>, Vec<u32>, Vec<f32>)> {
        // The checks of the plan treat the three tensors as optional. One of them alone is damage.
        for part in [3, 4] {
            if !tensors.shards.contains(tensors.name(part)) {
                let names = tensors.name(part).to_owned();
                return Err(Error::TensorsMissing { count: 1, names });
            }
        }
        let all = |index| -> Result<Vec<u32>> {
            let words = tensors.words(index)?;
            Ok((0..words.len()).map(|i| words.get(i)).collect())
        };
        let (starts, inputs, numbers) = (all(2)?, all(3)?, tensors.values(4)?);
        let ends = starts.first() == Some(&0) && starts.last() == Some(&(inputs.len() as u32));
        if !ends || !starts.is_sorted() || inputs.len() != numbers.len() {
            return Err(tensors.damaged(2, "it does not divide the sparse values into rows"));
        }
        if inputs.iter().any(|input| *input as usize >= tensors.k) {
            return Err(tensors.damaged(3, "it names inputs that are not there"));
        }
        Ok((starts, inputs, numbers))
    }
}

impl Stored for SqueezeLlmMatrix {
    fn packed(&self) -> Packed {
        self.packed
    }

    fn quant(&self, row: usize, input: usize) -> u8 {
        self.quants.field(input / 8 * self.n + row, input % 8 * 4, 4)
    }

    fn quants_from(&self, row: usize, input: usize, quants: &mut [u8]) {
        self.quants.fields_along(self.n, row, input, 4, quants);
    }

    fn scale(&self, row: usize, entry: usize) -> f32 {
        self.tables[row * TABLE + entry]
    }

    fn sparse(&self) -> Option<SparseRows<'_>> {
        let (starts, inputs, numbers) = self.sparse.as_ref()?;
        Some(SparseRows { starts, inputs, values: numbers })
    }

    fn value(&self, row: usize, input: usize) -> f32 {
        let mut number = self.scale(row, self.quant(row, input).into());
        if let Some((starts, inputs, numbers)) = &self.sparse {
            let entries = starts[row] as usize..starts[row + 1] as usize;
            // An input may be listed twice, and both values are added.
            for entry in entries.filter(|entry| inputs[*entry] as usize == input) {
                number += numbers[entry];
            }
        }
        number
    }
}
