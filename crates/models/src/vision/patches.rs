//! Patches of a picture: pixels become vectors with their places.

use candle_core::{Device, Tensor};
use candlepower_checkpoint::{
    PatchOrder, PatchPositions, PatchSpec, VisionSlot as Slot, VisionSpec,
};
use candlepower_kernels::{AxialRope, Weight, add, operands::Operand};

use super::{
    layers::{TowerNorm, affine},
    weights::Loader,
};
use crate::{error::Result, linear::Linear, norm::tensor_bytes};

/// The patches of a picture.
#[derive(Clone, Copy, Debug)]
pub(super) struct Grid {
    pub(super) rows: usize,
    pub(super) columns: usize,
    /// Side of the cells whose patches follow each other; 1 where patches are in rows.
    pub(super) cell: usize,
}

impl Grid {
    /// The patches of a resized picture of `width` x `height` pixels.
    pub(super) fn of(spec: &VisionSpec, width: u32, height: u32) -> Self {
        let (rows, columns) = spec.patch_grid(width, height);
        let cell = match spec.patches.order {
            PatchOrder::Rows => 1,
            PatchOrder::Cells { .. } => spec.merger.side,
        };
        Self { rows, columns, cell }
    }

    pub(super) fn patches(self) -> usize {
        self.rows * self.columns
    }

    /// Row and column of a patch.
    fn place(self, patch: usize) -> [usize; 2] {
        let side = self.cell;
        let (cell, inner) = (patch / (side * side), patch % (side * side));
        let cells = self.columns / side;
        [cell / cells * side + inner / side, cell % cells * side + inner % side]
    }
}

/// The embedding of patches.
pub(super) struct Patches {
    spec: PatchSpec,
    /// `[width, values]`.
    embedding: Linear<Weight>,
    /// `[side * side, width]`, where places are learned.
    positions: Option<Tensor>,
    norm: Option<TowerNorm>,
}

impl Patches {
    pub(super) fn load(loader: &Loader<'_>) -> Result<Self> {
        let spec = loader.spec();
        let norms = [Slot::FirstNorm, Slot::FirstNormBias];
        let norm = spec.first_norm.as_ref().map(|norm| loader.norm(None, norm, norms));
        Ok(Self {
            spec: spec.patches,
            embedding: loader.linear(None, &[(Slot::Patch, Slot::PatchBias)])?,
            positions: loader.tensor(None, Slot::Positions)?,
            norm: norm.transpose()?,
        })
    }

    pub(super) fn num_bytes(&self) -> usize {
        self.embedding.num_bytes()
            + self.positions.as_ref().map_or(0, tensor_bytes)
            + self.norm.as_ref().map_or(0, TowerNorm::num_bytes)
    }

    /// The places of the patches of a grid, where queries and keys are rotated by them.
    ///
    /// Source: transformers `models/pixtral`, `PixtralVisionRotaryEmbedding`, and `models/qwen3_vl`, `Qwen3VLVisionRotaryEmbedding`.
    pub(super) fn rope(&self, spec: &VisionSpec, grid: Grid) -> Result<Option<AxialRope>> {
        let half = spec.layer.head_dim / 2;
        let frequencies = |theta: f64, step: usize| -> Vec<f32> {
            let power = |i: usize| (theta as f32).powf((step * i) as f32 / (2 * half) as f32);
            (0..2 * half / step).map(|i| 1.0 / power(i)).collect()
        };
        let (of_rows, of_columns) = match spec.patches.positions {
            PatchPositions::Table { .. } => return Ok(None),
            PatchPositions::Rope { theta } => {
                let all = frequencies(theta, 2);
                let every_second = |first| all.iter().copied().skip(first).step_by(2).collect();
                (every_second(0), every_second(1))
            }
            PatchPositions::TableAndRope { theta, .. } => {
                let all = frequencies(theta, 4);
                (all.clone(), all)
            }
        };
        let places: Vec<[u32; 2]> =
            (0..grid.patches()).map(|patch| grid.place(patch).map(|at| at as u32)).collect();
        Ok(Some(AxialRope::new(&places, &of_rows, &of_columns)?))
    }

    /// The input of the first layer, `[count, width]`, of patches from `first` on. `pixels` are in the tower's order. Pixels of `[3,
    /// height, width]` that fill no patch at the right and the lower edge are left out, as by a convolution; `width` is the picture's.
    pub(super) fn embed(
        &self,
        pixels: &[f32],
        width: usize,
        grid: Grid,
        [first, count]: [usize; 2],
    ) -> Result<Tensor> {
        let unfolded = match self.spec.order {
            PatchOrder::Rows => {
                self.unfold(pixels, width, (first..first + count).map(|i| grid.place(i)))?
            }
            PatchOrder::Cells { .. } => {
                let values = self.spec.values();
                let pixels = &pixels[first * values..(first + count) * values];
                Tensor::from_slice(pixels, (count, values), &Device::Cpu)?
            }
        };
        let mut x = affine(&unfolded, &self.embedding)?;
        if let Some(positions) = self.positions(first, count, grid)? {
            x = add(&x, &positions)?;
        }
        match &self.norm {
            Some(norm) => norm.forward(&x),
            None => Ok(x),
        }
    }

    /// The learned positions `[count, width]` of patches, where places are learned.
    fn positions(&self, first: usize, count: usize, grid: Grid) -> Result<Option<Tensor>> {
        let Some(table) = &self.positions else { return Ok(None) };
        let PatchPositions::TableAndRope { side, .. } = self.spec.positions else {
            return Ok(Some(table.narrow(0, first, count)?));
        };
        let (_, width) = table.dims2()?;
        let table = Operand::new("positions", "table", table).f32s()?;
        let mut values = Vec::with_capacity(count * width);
        for [row, column] in (first..first + count).map(|patch| grid.place(patch)) {
            let rows = stretched(row, grid.rows, side);
            let columns = stretched(column, grid.columns, side);
            let start = values.len();
            values.resize(start + width, 0.0);
            for (row, row_share) in rows {
                for (column, column_share) in columns {
                    let vector = &table[(row * side + column) * width..][..width];
                    let share = row_share * column_share;
                    let sums = values[start..].iter_mut().zip(vector);
                    sums.for_each(|(sum, value)| *sum += value * share);
                }
            }
        }
        Ok(Some(Tensor::from_vec(values, (count, width), &Device::Cpu)?))
    }

    /// The pixels of some patches, `[patches, 3 * size * size]`: channel by channel, row by row.
    fn unfold(
        &self,
        pixels: &[f32],
        width: usize,
        places: impl ExactSizeIterator<Item = [usize; 2]>,
    ) -> Result<Tensor> {
        let (size, plane) = (self.spec.size, pixels.len() / 3);
        let dims = (places.len(), 3 * size * size);
        let mut values = Vec::with_capacity(dims.0 * dims.1);
        for [row, column] in places {
            for channel in pixels.chunks_exact(plane) {
                for line in row * size..(row + 1) * size {
                    values.extend_from_slice(&channel[line * width + column * size..][..size]);
                }
            }
        }
        Ok(Tensor::from_vec(values, dims, &Device::Cpu)?)
    }
}

/// The two neighbours, among `side` learned places, of the patch `index` of `count` in a line, with their shares. The first and the last
/// patch are at the first and the last place.
///
/// Source: transformers `vision_utils.py`, `get_vision_interpolation_indices_and_weights`, whose float32 arithmetic this is.
fn stretched(index: usize, count: usize, side: usize) -> [(usize, f32); 2] {
    let last = side - 1;
    let place = index as f32 * last as f32 / (count - 1).max(1) as f32;
    let before = place.floor();
    let share = place - before;
    let first = before as usize;
    [(first.min(last), 1.0 - share), ((first + 1).min(last), (1.0 - (share - 1.0).abs()).max(0.0))]
}
