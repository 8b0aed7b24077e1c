//! Matrices of heads, made of one tensor.

use std::rc::Rc;

use candle_core::DType;
use candlepower_checkpoint::{AttentionSpec, LatentSpec, MatrixForm, Slot};
use candlepower_kernels::{SparseRows, WeightRows};

use super::{Layout, Matrix, MatrixBuilder, Reserve, Shape};
use crate::error::Result;

/// The stored tensor of all heads.
pub(super) struct StoredHeads {
    /// [`Slot::KeyUp`] or [`Slot::ValueUp`].
    pub(super) slot: Slot,
    pub(super) rows: usize,
    pub(super) columns: usize,
    /// The dtype that it is kept in.
    pub(super) dtype: DType,
}

/// The matrices of the heads of one part. Their values are gathered first; the matrices are made when all values are there.
pub(super) struct HeadsBuilder<'a, M: Matrix> {
    reserve: Rc<Reserve<'a, M>>,
    /// The shape of each of the matrices.
    shape: Shape,
    /// Rows of each head, and columns, as stored.
    stored: [usize; 2],
    /// A stored matrix is transposed.
    transposed: bool,
    missing_rows: usize,
    values: Vec<f32>,
    pub(super) finished: Vec<M>,
}

impl<'a, M: Matrix> HeadsBuilder<'a, M> {
    /// The builder for the slot `slot` of `rows` rows of `columns` columns, in a latent attention.
    pub(super) fn new(
        reserve: Rc<Reserve<'a, M>>,
        attention: &AttentionSpec,
        layout: &Layout,
        StoredHeads { slot, rows, columns, dtype }: StoredHeads,
    ) -> Self {
        let of_head = rows / attention.heads;
        let LatentSpec { rank, key_dim, value_dim, transposed_keys, .. } =
            attention.latent.expect("matrices of heads make keys and values of latents");
        let latent = layout.padded_latent(rank, attention.head_dim - rank);
        let [n, k] = if slot == Slot::KeyUp { [latent, key_dim] } else { [value_dim, latent] };
        let transposed = slot == Slot::KeyUp && !transposed_keys;
        let form = MatrixForm::Plain;
        Self {
            reserve,
            shape: Shape {
                rows: n,
                columns: k,
                dtype,
                form,
                heads: None,
                written_rows: n,
                is_expert: false,
            },
            stored: [of_head, columns],
            transposed,
            missing_rows: rows,
            values: vec![0.0; rows * columns],
            finished: Vec::new(),
        }
    }

    /// Adds rows from `first` on. Quantized rows may have a sparse part, too.
    pub(super) fn add_rows(&mut self, first: usize, values: &[f32]) -> Result<()> {
        let [of_head, columns] = self.stored;
        let places = self.values[first * columns..][..values.len()].iter_mut();
        places.zip(values).for_each(|(place, value)| *place += value);
        self.missing_rows -= values.len() / columns;
        if self.missing_rows > 0 {
            return Ok(());
        }
        let values = std::mem::take(&mut self.values);
        let matrices = values.chunks_exact(of_head * columns).map(|head| self.matrix(head));
        self.finished = matrices.collect::<Result<_>>()?;
        Ok(())
    }

    /// Adds the sparse part of rows from `first` on, which come after it.
    pub(super) fn add_sparse(&mut self, first: usize, part: &SparseRows<'_>) {
        let columns = self.stored[1];
        for (row, bounds) in part.starts.windows(2).enumerate() {
            let range = bounds[0] as usize..bounds[1] as usize;
            for (input, value) in part.inputs[range.clone()].iter().zip(&part.values[range]) {
                self.values[(first + row) * columns + *input as usize] += value;
            }
        }
    }

    /// The matrix of one head.
    fn matrix(&self, stored: &[f32]) -> Result<M> {
        let (Shape { rows, columns: k, .. }, [_, columns]) = (self.shape, self.stored);
        let mut values = vec![0f32; rows * k];
        for (row, stored) in stored.chunks_exact(columns).enumerate() {
            for (column, value) in stored.iter().enumerate() {
                let at = if self.transposed { column * k + row } else { row * k + column };
                values[at] = *value;
            }
        }
        let bytes: Vec<u8> = values.into_iter().flat_map(f32::to_le_bytes).collect();
        let mut builder = (self.reserve)(self.shape)?;
        builder.write_rows(0, WeightRows { dtype: DType::F32, bytes: &bytes })?;
        builder.finish()
    }
}
