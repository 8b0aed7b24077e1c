//! Patches of a picture: pixels become vectors with their places.

use candle_core::{Device, Tensor};
use candlepower_checkpoint::{PatchPositions, VISION_ROWS, VisionSlot as Slot, VisionSpec};
use candlepower_kernels::{AxialRope, Weight, add};

use super::{
    RowGroups, groups,
    layers::{TowerNorm, affine},
    weights::Loader,
};
use crate::{error::Result, linear::Linear, norm::tensor_bytes};

/// The embedding of patches.
pub(super) struct Patches {
    /// Side of a patch in pixels.
    size: usize,
    /// `[width, 3 * size * size]`.
    embedding: Linear<Weight>,
    /// `[patches, width]`, where places are learned.
    positions: Option<Tensor>,
    norm: Option<TowerNorm>,
}

impl Patches {
    pub(super) fn load(loader: &Loader<'_>) -> Result<Self> {
        let spec = loader.spec();
        let norms = [Slot::FirstNorm, Slot::FirstNormBias];
        let norm = spec.first_norm.as_ref().map(|norm| loader.norm(None, norm, norms));
        Ok(Self {
            size: spec.patches.size,
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
    /// Source: transformers `models/pixtral`, `PixtralVisionRotaryEmbedding`.
    pub(super) fn rope(
        &self,
        spec: &VisionSpec,
        (rows, columns): (usize, usize),
    ) -> Result<Option<AxialRope>> {
        let PatchPositions::Rope { theta } = spec.patches.positions else { return Ok(None) };
        let head_dim = spec.layer.head_dim;
        let frequencies: Vec<f32> = (0..head_dim / 2)
            .map(|i| 1.0 / (theta as f32).powf((2 * i) as f32 / head_dim as f32))
            .collect();
        let of_rows: Vec<f32> = frequencies.iter().copied().step_by(2).collect();
        let of_columns: Vec<f32> = frequencies.iter().copied().skip(1).step_by(2).collect();
        let row = |row| (0..columns as u32).map(move |column| [row, column]);
        let places: Vec<[u32; 2]> = (0..rows as u32).flat_map(row).collect();
        Ok(Some(AxialRope::new(&places, &of_rows, &of_columns)?))
    }

    /// The input of the first layer, `[patches, width]`. `pixels` are `[3, height, width]`, and `grid` are the rows and columns of
    /// patches. Pixels that fill no patch at the right and the lower edge are left out, as by a convolution.
    pub(super) fn embed(
        &self,
        pixels: &[f32],
        width: usize,
        (rows, columns): (usize, usize),
    ) -> Result<Tensor> {
        let patches = rows * columns;
        let mut out = RowGroups::new(patches, self.embedding.weight.n());
        for (first, count) in groups(patches, VISION_ROWS) {
            let places = (first..first + count).map(|patch| (patch / columns, patch % columns));
            let unfolded = self.unfold(pixels, width, places);
            let mut x = affine(&unfolded?, &self.embedding)?;
            if let Some(positions) = &self.positions {
                x = add(&x, &positions.narrow(0, first, count)?)?;
            }
            if let Some(norm) = &self.norm {
                x = norm.forward(&x)?;
            }
            out.push(&x)?;
        }
        out.finish()
    }

    /// The pixels of some patches, `[patches, 3 * size * size]`: channel by channel, row by row.
    fn unfold(
        &self,
        pixels: &[f32],
        width: usize,
        places: impl ExactSizeIterator<Item = (usize, usize)>,
    ) -> Result<Tensor> {
        let (size, plane) = (self.size, pixels.len() / 3);
        let dims = (places.len(), 3 * size * size);
        let mut values = Vec::with_capacity(dims.0 * dims.1);
        for (row, column) in places {
            for channel in pixels.chunks_exact(plane) {
                for line in row * size..(row + 1) * size {
                    values.extend_from_slice(&channel[line * width + column * size..][..size]);
                }
            }
        }
        Ok(Tensor::from_vec(values, dims, &Device::Cpu)?)
    }
}
