//! The sparse part of a weight: a few values that are added to those of its panels.

use std::collections::BTreeMap;
use std::ops::Range;

use super::WeightBuilder;
use crate::parallel::{self, SharedMut};
use crate::{Error, Result};

/// Consecutive rows of a matrix that is zero but for a few values, as compressed sparse rows.
#[derive(Clone, Copy, Debug)]
pub struct SparseRows<'a> {
    /// `[rows + 1]`: index in the other lists of each row's first value, and their length.
    pub starts: &'a [u32],
    /// The column of each value.
    pub inputs: &'a [u32],
    /// The values.
    pub values: &'a [f32],
}

impl<'a> SparseRows<'a> {
    /// The rows of a range.
    #[must_use]
    pub fn rows(self, rows: Range<usize>) -> Self {
        Self { starts: &self.starts[rows.start..=rows.end], ..self }
    }

    fn check(&self, k: usize) -> Result<()> {
        let ascends = self.starts.is_sorted();
        let ends = self.starts.last().is_some_and(|end| *end as usize <= self.inputs.len());
        let fits = self.inputs.len() == self.values.len();
        match ascends && ends && fits && self.inputs.iter().all(|input| (*input as usize) < k) {
            true => Ok(()),
            false => Err(Error::QuantizedRows("the sparse part contradicts itself")),
        }
    }
}

/// The sparse part of a whole weight.
#[derive(Debug)]
pub struct Sparse {
    /// `[n + 1]`.
    starts: Vec<u32>,
    entries: Vec<Entry>,
}

/// An input index and the value that multiplies it.
pub type Entry = (u32, f32);

/// Outputs that one task computes.
const TASK_OUTPUTS: usize = 512;

impl Sparse {
    /// The sparse part of `n` outputs, some of which have entries; `None` if none has.
    pub(super) fn collect(rows: BTreeMap<usize, Vec<Entry>>, n: usize) -> Option<Self> {
        let mut sparse = Self { starts: vec![0; n + 1], entries: Vec::new() };
        let mut rows = rows.into_iter().peekable();
        rows.peek()?;
        for row in 0..n {
            if let Some((_, entries)) = rows.next_if(|(of, _)| *of == row) {
                sparse.entries.extend(entries);
            }
            sparse.starts[row + 1] = sparse.entries.len() as u32;
        }
        Some(sparse)
    }

    pub(super) fn num_bytes(&self) -> usize {
        size_of_val(&self.starts[..]) + size_of_val(&self.entries[..])
    }

    /// The entries of an output.
    #[must_use]
    pub fn row(&self, row: usize) -> &[Entry] {
        &self.entries[self.starts[row] as usize..self.starts[row + 1] as usize]
    }

    /// Adds the products with activations `x` `[rows, k]` to the outputs `y` `[rows, n]`, in the order of the
    /// entries.
    pub(crate) fn add_products(&self, x: &[f32], k: usize, y: &mut [f32]) {
        let n = self.starts.len() - 1;
        for (x, y) in x.chunks_exact(k).zip(y.chunks_exact_mut(n)) {
            let y = SharedMut::of(y);
            parallel::for_ranges(n, TASK_OUTPUTS, |outputs| {
                for output in outputs {
                    for (input, number) in self.row(output) {
                        // SAFETY: each output is one thread's.
                        unsafe { *y.at(output, 1) += x[*input as usize] * number };
                    }
                }
            });
        }
    }
}

impl WeightBuilder {
    /// Adds the sparse part of the rows `first_row..`. The values of the panels are written separately.
    ///
    /// # Errors
    /// The part contradicts itself, or its rows reach past `n`.
    pub fn write_sparse(&mut self, first_row: usize, part: SparseRows<'_>) -> Result<()> {
        part.check(self.layout.k)?;
        let rows = part.starts.len() - 1;
        if first_row + rows > self.n {
            let (value, bound) = (first_row + rows, self.n + 1);
            return Err(Error::OutOfRange { kernel: "weight", index: "end of rows", value, bound });
        }
        for (row, bounds) in part.starts.windows(2).enumerate() {
            let range = bounds[0] as usize..bounds[1] as usize;
            if range.is_empty() {
                continue;
            }
            let numbers = part.values[range.clone()].iter().copied();
            let entries = part.inputs[range].iter().copied().zip(numbers);
            self.sparse.entry(first_row + row).or_default().extend(entries);
        }
        Ok(())
    }
}
