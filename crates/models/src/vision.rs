//! The encoder of images: pixels become embeddings for the decoder. It runs on the CPU.
//!
//! One walk over the parts of a run computes every tower, as its `VisionSpec` says. The spec also cuts a run into pieces. They are
//! the same whoever asks for them, so that a run has the same bits however it is interrupted.

use std::{mem, vec};

use candle_core::{Device, Tensor};
use candlepower_checkpoint::{
    Checkpoint, PatchLimit, PatchPositions, TowerPart, TowerPiece, VisionSpec,
};
use candlepower_kernels::{AxialRope, PatchAttention, operands::Operand};
use candlepower_media::{Layout, Processed};

use crate::{
    LoadOptions,
    error::{Error, Result},
};

mod layers;
mod merger;
mod patches;
#[cfg(test)]
mod tests;
mod weights;

use layers::TowerLayer;
use merger::Merger;
use patches::{Grid, Patches};
use weights::Loader;

/// A vision tower with its projector.
pub struct ImageEncoder {
    spec: VisionSpec,
    patches: Patches,
    layers: Vec<TowerLayer>,
    merger: Merger,
    /// Mergers of the layers that [`VisionSpec::deepstack`] names.
    levels: Vec<Merger>,
}

/// The state of an image between the pieces of the encoder's work.
pub struct ImageRun {
    grid: Grid,
    /// The pieces that are left.
    pieces: vec::IntoIter<TowerPiece>,
    /// The pixels in the tower's order, with the picture's width, until all patches are embedded.
    pixels: Option<(Vec<f32>, usize)>,
    /// Cosines and sines of the patches, where the tower has 2-D rope.
    rope: Option<AxialRope>,
    /// The hidden states `[patches, width]` behind the last complete layer.
    hidden: Option<Tensor>,
    /// The attention of the layer that is computed, when its keys and values are complete.
    attention: Option<PatchAttention>,
    /// The rows of the unfinished part that are computed.
    rows: Vec<f32>,
    /// `[embeddings, hidden]` of each deepstack level that is computed.
    deepstack: Vec<Tensor>,
    /// The embeddings `[embeddings, hidden]`.
    embeddings: Option<Tensor>,
}

impl ImageEncoder {
    /// Loads the part for images; `None` where the checkpoint has none that is supported.
    ///
    /// Matrices get the dtype that the options ask for, or keep their own; norms, biases and positions are f32.
    ///
    /// # Errors
    /// Missing, unknown or misshapen tensors, damaged or missing files.
    pub fn load(checkpoint: &Checkpoint, options: &LoadOptions) -> Result<Option<Self>> {
        let Some(spec) = checkpoint.vision() else { return Ok(None) };
        let loader = Loader::open(checkpoint, spec, options)?;
        let layers = (0..spec.layers).map(|layer| TowerLayer::load(&loader, layer));
        let levels = (0..spec.deepstack.len()).map(|level| Merger::load_level(&loader, level));
        Ok(Some(Self {
            patches: Patches::load(&loader)?,
            layers: layers.collect::<Result<_>>()?,
            merger: Merger::load(&loader)?,
            levels: levels.collect::<Result<_>>()?,
            spec: spec.clone(),
        }))
    }

    /// Bytes of the weights.
    pub fn weight_bytes(&self) -> usize {
        let layers = self.layers.iter().map(TowerLayer::num_bytes).sum::<usize>();
        let levels = self.levels.iter().map(Merger::num_bytes).sum::<usize>();
        self.patches.num_bytes() + layers + levels + self.merger.num_bytes()
    }

    /// Begins with an image.
    ///
    /// # Errors
    /// The picture has another form than the model takes.
    pub fn begin(&self, image: &Processed) -> Result<ImageRun> {
        let (width, height) = (image.pixels().width(), image.pixels().height());
        let grid = Grid::of(&self.spec, width, height);
        self.check(image.layout(), grid)?;
        let rope = self.patches.rope(&self.spec, grid)?;
        let pieces: Vec<TowerPiece> = self.spec.pieces(grid.rows, grid.columns).collect();
        Ok(ImageRun {
            grid,
            pieces: pieces.into_iter(),
            pixels: Some((image.values(), width as usize)),
            rope,
            hidden: None,
            attention: None,
            rows: Vec::new(),
            deepstack: Vec::new(),
            embeddings: None,
        })
    }

    /// Checks the form of a picture.
    fn check(&self, layout: Layout, Grid { rows, columns, .. }: Grid) -> Result<()> {
        let (patches, merger) = (self.spec.patches, self.spec.merger.side);
        let refused = |rule: String| {
            let input =
                format!("is a picture of {rows} x {columns} patches, and the model takes {rule}");
            Err(Error::Input(input))
        };
        let is_whole = |count: usize| count > 0 && count.is_multiple_of(merger);
        if layout != self.spec.layout() {
            return refused("another order of pixels".to_owned());
        }
        if let PatchPositions::Table { side } = patches.positions
            && (rows, columns) != (side, side)
        {
            return refused(format!("{side} x {side}"));
        }
        match patches.limit {
            PatchLimit::PerSide(most) if rows.max(columns) > most => {
                refused(format!("at most {most} a side"))
            }
            PatchLimit::PerImage(most) if rows * columns > most => {
                refused(format!("at most {most}"))
            }
            _ if !is_whole(rows) || !is_whole(columns) => refused(format!("multiples of {merger}")),
            _ => Ok(()),
        }
    }

    /// Computes the next piece of [`VisionSpec::pieces`].
    ///
    /// # Errors
    /// All pieces are done, or a tensor operation failed.
    pub fn advance(&self, run: &mut ImageRun) -> Result<()> {
        let Some(piece) = run.pieces.next() else {
            return Err(Error::Input("is an image whose pieces are all done".to_owned()));
        };
        let rows = self.compute(run, piece)?;
        let (_, width) = rows.dims2()?;
        if piece.first == 0 {
            let count = match piece.part {
                TowerPart::Level { .. } | TowerPart::Merge => {
                    run.grid.patches() / (self.spec.merger.side * self.spec.merger.side)
                }
                _ => run.grid.patches(),
            };
            run.rows.reserve_exact(count * width);
        }
        run.rows.extend_from_slice(&Operand::new("tower", "rows", &rows).f32s()?);
        if piece.ends_part {
            let values = mem::take(&mut run.rows);
            self.complete(run, piece.part, Tensor::from_vec(values, ((), width), &Device::Cpu)?)?;
        }
        Ok(())
    }

    /// The rows of a piece.
    fn compute(&self, run: &ImageRun, piece: TowerPiece) -> Result<Tensor> {
        let TowerPiece { part, first, rows, .. } = piece;
        let hidden = || -> Result<Tensor> {
            let hidden = run.hidden.as_ref().expect("patches are embedded first");
            Ok(hidden.narrow(0, first, rows)?)
        };
        match part {
            TowerPart::Embed => {
                let (values, width) = run.pixels.as_ref().expect("pixels are kept until then");
                self.patches.embed(values, *width, run.grid, [first, rows])
            }
            TowerPart::Project { layer } => {
                self.layers[layer].project(&hidden()?, first, run.rope.as_ref())
            }
            TowerPart::Attend { layer } => {
                let attention = run.attention.as_ref().expect("keys and values come first");
                self.layers[layer].attend(&hidden()?, first, attention)
            }
            TowerPart::Level { level } => self.levels[level].forward(&hidden()?, run.grid.columns),
            TowerPart::Merge => self.merger.forward(&hidden()?, run.grid.columns),
        }
    }

    /// Keeps the result of a part, and frees what no later part reads.
    fn complete(&self, run: &mut ImageRun, part: TowerPart, all: Tensor) -> Result<()> {
        match part {
            TowerPart::Embed => {
                run.pixels = None;
                run.hidden = Some(all);
            }
            TowerPart::Project { layer } => {
                run.attention = Some(self.layers[layer].attention(all)?);
            }
            TowerPart::Attend { .. } => {
                run.attention = None;
                run.hidden = Some(all);
            }
            TowerPart::Level { .. } => run.deepstack.push(all),
            TowerPart::Merge => {
                run.hidden = None;
                run.rope = None;
                run.embeddings = Some(all);
            }
        }
        Ok(())
    }
}

impl ImageRun {
    /// The embeddings `[embeddings, hidden]` f32, after the last piece.
    pub fn embeddings(&self) -> Option<&Tensor> {
        self.embeddings.as_ref()
    }

    /// Features that are added to the tokens of the image behind the decoder's first layers, `[embeddings, hidden]` f32 for each of
    /// [`VisionSpec::deepstack`]. All of them are there after the last piece.
    pub fn deepstack(&self) -> &[Tensor] {
        &self.deepstack
    }
}

/// The ranges of `rows` rows, in groups of `group`.
fn groups(rows: usize, group: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..rows).step_by(group).map(move |first| (first, group.min(rows - first)))
}
