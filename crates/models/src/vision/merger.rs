//! The end of a vision tower: neighbouring patches are merged and projected to the decoder's width.

use candle_core::{Device, Tensor};
use candlepower_checkpoint::{MergeKind, MergerSpec, PatchOrder, VisionSlot as Slot};
use candlepower_kernels::{Activation, Weight, activation, linear, operands::Operand};

use super::{
    layers::{TowerNorm, affine},
    weights::Loader,
};
use crate::{error::Result, linear::Linear};

/// Norms, merger and projector.
pub(super) struct Merger {
    spec: MergerSpec,
    order: PatchOrder,
    /// The norm of patches.
    norm: Option<TowerNorm>,
    /// `[width, width * side * side]`, where a matrix merges.
    matrix: Option<Weight>,
    /// The norm of merged vectors.
    merged_norm: Option<TowerNorm>,
    first: Linear<Weight>,
    /// The second matrix of the projector, and the activation before it.
    second: Option<(Activation, Linear<Weight>)>,
}

impl Merger {
    /// The merger behind the last layer.
    pub(super) fn load(loader: &Loader<'_>) -> Result<Self> {
        let spec = loader.spec();
        let norm = |norm: &Option<_>, slots| {
            norm.as_ref().map(|norm| loader.norm(None, norm, slots)).transpose()
        };
        let matrix =
            (spec.merger.kind == MergeKind::Matrix).then(|| loader.matrix(None, Slot::Merge));
        let out = (Slot::ProjectorOut, Slot::ProjectorOutBias);
        Ok(Self {
            spec: spec.merger,
            order: spec.patches.order,
            norm: norm(&spec.last_norm, [Slot::LastNorm, Slot::LastNormBias])?,
            matrix: matrix.transpose()?,
            merged_norm: norm(&spec.merger.norm, [Slot::MergedNorm, Slot::MergedNormBias])?,
            first: loader.linear(None, &[(Slot::ProjectorIn, Slot::ProjectorInBias)])?,
            second: second(loader, None, out)?,
        })
    }

    /// The merger of a deepstack level, whose norm is behind the joined patches.
    pub(super) fn load_level(loader: &Loader<'_>, level: usize) -> Result<Self> {
        let (spec, at) = (loader.spec(), Some(level));
        let slots = [Slot::DeepstackNorm, Slot::DeepstackNormBias];
        let merged_norm = spec.last_norm.as_ref().map(|norm| loader.norm(at, norm, slots));
        let out = (Slot::DeepstackOut, Slot::DeepstackOutBias);
        Ok(Self {
            spec: spec.merger,
            order: spec.patches.order,
            norm: None,
            matrix: None,
            merged_norm: merged_norm.transpose()?,
            first: loader.linear(at, &[(Slot::DeepstackIn, Slot::DeepstackInBias)])?,
            second: second(loader, at, out)?,
        })
    }

    pub(super) fn num_bytes(&self) -> usize {
        let norms = [&self.norm, &self.merged_norm].into_iter().flatten();
        let second = self.second.as_ref().map(|(_, linear)| linear);
        norms.map(TowerNorm::num_bytes).sum::<usize>()
            + self.matrix.as_ref().map_or(0, Weight::num_bytes)
            + self.first.num_bytes()
            + second.map_or(0, Linear::num_bytes)
    }

    /// From hidden states `x` `[patches, width]` of whole cells that lie together to `[cells, hidden]`. The picture has so many
    /// columns of patches.
    pub(super) fn forward(&self, x: &Tensor, columns: usize) -> Result<Tensor> {
        self.project(&self.merge(x, columns)?)
    }

    /// The merged vectors `[cells, merged width]` of patches that lie together.
    fn merge(&self, x: &Tensor, columns: usize) -> Result<Tensor> {
        let normed = match &self.norm {
            Some(norm) => norm.forward(x)?,
            None => x.clone(),
        };
        let (_, width) = normed.dims2()?;
        let side = self.spec.side;
        let patches = Operand::new("merger", "patches", &normed).f32s()?;
        let cells = patches.len() / width / (side * side);
        let cell_columns = columns / side;
        let of_cell = |cell: usize| -> Vec<usize> {
            if self.order != PatchOrder::Rows {
                return (cell * side * side..(cell + 1) * side * side).collect();
            }
            let (row, column) = (cell / cell_columns * side, cell % cell_columns * side);
            let lines = (row..row + side).map(move |row| row * columns + column);
            lines.flat_map(move |first| first..first + side).collect()
        };
        let mut values = Vec::with_capacity(patches.len());
        for cell in 0..cells {
            let patches: Vec<&[f32]> =
                of_cell(cell).into_iter().map(|patch| &patches[patch * width..][..width]).collect();
            let element = |i: usize| patches.iter().map(move |patch| patch[i]);
            match self.spec.kind {
                MergeKind::Join => values.extend(patches.iter().copied().flatten()),
                MergeKind::Matrix => values.extend((0..width).flat_map(element)),
                MergeKind::Mean => {
                    let count = patches.len() as f32;
                    values.extend((0..width).map(|i| element(i).sum::<f32>() / count));
                }
            }
        }
        let merged = Tensor::from_vec(values, (cells, ()), &Device::Cpu)?;
        match &self.matrix {
            Some(matrix) => Ok(linear(&merged, matrix, None)?),
            None => Ok(merged),
        }
    }

    /// The embeddings `[cells, hidden]` of merged vectors.
    fn project(&self, merged: &Tensor) -> Result<Tensor> {
        let first = match &self.merged_norm {
            Some(norm) => affine(&norm.forward(merged)?, &self.first)?,
            None => affine(merged, &self.first)?,
        };
        match &self.second {
            Some((act, second)) => affine(&activation(&first, *act)?, second),
            None => Ok(first),
        }
    }
}

/// The second matrix of a projector with the activation before it, where there are two.
fn second(
    loader: &Loader<'_>,
    level: Option<usize>,
    slots: (Slot, Slot),
) -> Result<Option<(Activation, Linear<Weight>)>> {
    let Some(between) = loader.spec().projector.between else { return Ok(None) };
    Ok(Some((between.act, loader.linear(level, &[slots])?)))
}
