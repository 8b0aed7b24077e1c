//! The encoder of images: pixels become embeddings for the decoder. It runs on the CPU.
//!
//! One walk over layers runs every tower, as its `VisionSpec` says. A run is cut into pieces of a layer each. The pieces are the
//! same whoever asks for them, so that a run has the same bits however it is interrupted.

use candle_core::{Device, Tensor};
use candlepower_checkpoint::{Checkpoint, MostPatches, PatchPositions, VisionSpec};
use candlepower_kernels::AxialRope;
use candlepower_media::{Layout, Processed};

use crate::{
    LoadOptions,
    error::{Error, Result},
};

mod layers;
mod merger;
mod patches;
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
    /// Number of pieces that are done.
    done: u32,
    /// Cosines and sines of the patches, where the tower has 2-D rope.
    rope: Option<AxialRope>,
    state: State,
    /// `[embeddings, hidden]` of each deepstack level that is computed.
    deepstack: Vec<Tensor>,
}

enum State {
    /// The pixels in the tower's order, with the picture's width.
    Pixels { values: Vec<f32>, width: usize },
    /// The hidden states `[patches, width]` between two layers.
    Hidden(Tensor),
    /// The embeddings `[embeddings, hidden]`.
    Done(Tensor),
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
        let state = State::Pixels { values: image.values(), width: width as usize };
        Ok(ImageRun { grid, done: 0, rope, state, deepstack: Vec::new() })
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
        match patches.most {
            MostPatches::OfSide(most) if rows.max(columns) > most => {
                refused(format!("at most {most} a side"))
            }
            MostPatches::OfPicture(most) if rows * columns > most => {
                refused(format!("at most {most}"))
            }
            _ if !is_whole(rows) || !is_whole(columns) => refused(format!("multiples of {merger}")),
            _ => Ok(()),
        }
    }

    /// Computes the next piece, of [`VisionSpec::num_pieces`]: a layer. The first one also embeds the patches, and the last one also
    /// merges and projects them, as the layers of deepstack levels do.
    ///
    /// # Errors
    /// All pieces are done, or a tensor operation failed.
    pub fn advance(&self, run: &mut ImageRun) -> Result<()> {
        let Some(layer) = self.layers.get(run.done as usize) else {
            return Err(Error::Input("is an image whose pieces are all done".to_owned()));
        };
        let x = match &run.state {
            State::Pixels { values, width } => self.patches.embed(values, *width, run.grid)?,
            State::Hidden(x) => x.clone(),
            State::Done(_) => unreachable!("no layer is left then"),
        };
        let rope = run.rope.as_ref();
        let x = layer.forward(x, rope)?;
        let level = self.spec.deepstack.iter().position(|layer| *layer == run.done as usize);
        if let Some(level) = level {
            run.deepstack.push(self.levels[level].forward(&x, run.grid)?);
        }
        run.done += 1;
        run.state = match run.done == self.spec.num_pieces() {
            true => State::Done(self.merger.forward(&x, run.grid)?),
            false => State::Hidden(x),
        };
        Ok(())
    }
}

impl ImageRun {
    /// The embeddings `[embeddings, hidden]` f32, after the last piece.
    pub fn embeddings(&self) -> Option<&Tensor> {
        match &self.state {
            State::Done(embeddings) => Some(embeddings),
            _ => None,
        }
    }

    /// Features that are added to the tokens of the image behind the decoder's first layers, `[embeddings, hidden]` f32 for each of
    /// [`VisionSpec::deepstack`]. All of them are there after the last piece.
    pub fn deepstack(&self) -> &[Tensor] {
        &self.deepstack
    }
}

/// Rows that are computed group by group, into one tensor `[rows, width]`.
struct RowGroups {
    values: Vec<f32>,
    width: usize,
}

impl RowGroups {
    /// Reserves memory for all rows.
    fn new(rows: usize, width: usize) -> Self {
        Self { values: Vec::with_capacity(rows * width), width }
    }

    fn push(&mut self, rows: &Tensor) -> Result<()> {
        let rows = candlepower_kernels::operands::Operand::new("row groups", "rows", rows);
        self.values.extend_from_slice(&rows.f32s()?);
        Ok(())
    }

    fn finish(self) -> Result<Tensor> {
        let rows = self.values.len() / self.width;
        Ok(Tensor::from_vec(self.values, (rows, self.width), &Device::Cpu)?)
    }
}

/// The ranges of `rows` rows, in groups of `group`.
fn groups(rows: usize, group: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..rows).step_by(group).map(move |first| (first, group.min(rows - first)))
}
