//! SqueezeLLM: eight codes of four bits in a word, of neighbouring inputs, the first in the lowest bits; each names one of
//! its output's sixteen numbers. To some of these a number of a sparse matrix is added.
//! Source: SqueezeLLM's `QuantLinearLUT`.

use candlepower_kernels::{Codes, SparseRows};

use super::{Stored, Tensors, Words};
use crate::error::{Error, Result};

/// A matrix as SqueezeLLM stores it.
pub(crate) struct SqueezeLlmMatrix {
    n: usize,
    k: usize,
    /// `[k / 8][n]`.
    codes: Words,
    /// `[n][16]`.
    tables: Vec<f32>,
    /// In compressed rows: where each begins, and the inputs and the numbers of all.
    sparse: Option<(Vec<u32>, Vec<u32>, Vec<f32>)>,
}

impl SqueezeLlmMatrix {
    pub(super) fn open(tensors: &Tensors<'_>) -> Result<Self> {
        let (n, k) = (tensors.n, tensors.k);
        let sparse = match tensors.shards.contains(tensors.name(2)) {
            true => Some(Self::open_sparse(tensors)?),
            false => None,
        };
        Ok(Self { n, k, codes: tensors.words(0)?, tables: tensors.numbers(1)?, sparse })
    }

    fn open_sparse(tensors: &Tensors<'_>) -> Result<(Vec<u32>, Vec<u32>, Vec<f32>)> {
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
        let (starts, inputs, numbers) = (all(2)?, all(3)?, tensors.numbers(4)?);
        let ends = starts.first() == Some(&0) && starts.last() == Some(&(inputs.len() as u32));
        if !ends || !starts.is_sorted() || inputs.len() != numbers.len() {
            return Err(tensors.damaged(2, "it does not divide the sparse numbers into rows"));
        }
        if inputs.iter().any(|input| *input as usize >= tensors.k) {
            return Err(tensors.damaged(3, "it names inputs that are not there"));
        }
        Ok((starts, inputs, numbers))
    }

    fn table(&self, row: usize) -> &[f32] {
        &self.tables[row * 16..][..16]
    }
}

impl Stored for SqueezeLlmMatrix {
    fn codes(&self) -> Codes {
        Codes::Table
    }

    fn group(&self) -> usize {
        self.k
    }

    fn code(&self, row: usize, input: usize) -> u8 {
        self.codes.field(input / 8 * self.n + row, input % 8 * 4, 4)
    }

    fn scales(&self, row: usize, scales: &mut Vec<f32>, _mins: &mut Vec<f32>) {
        scales.extend_from_slice(self.table(row));
    }

    fn sparse(&self) -> Option<SparseRows<'_>> {
        let (starts, inputs, numbers) = self.sparse.as_ref()?;
        Some(SparseRows { starts, inputs, numbers })
    }

    fn number(&self, row: usize, input: usize) -> f32 {
        let mut number = self.table(row)[usize::from(self.code(row, input))];
        if let Some((starts, inputs, numbers)) = &self.sparse {
            let entries = starts[row] as usize..starts[row + 1] as usize;
            for entry in entries.filter(|entry| inputs[*entry] as usize == input) {
                number += numbers[entry];
            }
        }
        number
    }
}
