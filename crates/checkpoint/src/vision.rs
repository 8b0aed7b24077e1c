//! The description of a vision tower: how an image becomes embeddings, and which tokens stand for it.

use candlepower_layout::Activation;
use candlepower_media::{Detail, Family, Layout, Processor};

use crate::{
    config::HfConfig,
    error::{Error, Result},
    files::CheckpointFiles,
    spec::{ModelSpec, NormSpec},
};

mod memory;
mod pieces;
pub(crate) mod pixtral;
pub(crate) mod qwen;
mod read;
pub(crate) mod siglip;
#[cfg(test)]
mod tests;
mod tokens;
mod weights;

pub use pieces::{TowerPart, TowerPiece};
pub use tokens::{ImageGrid, ImageTokens, TokenTexts, WrittenImage};
pub use weights::{VisionRule, VisionSlot, VisionTensor};

/// Settings of the processor of images, of which a model has one or both.
const PROCESSOR_FILES: [&str; 2] = ["preprocessor_config.json", "processor_config.json"];

/// Sides in pixels that stand for a picture larger than any.
const LARGEST_SIDE: u32 = 1 << 20;

/// The part of a model that turns images into embeddings: patches, layers, a merger of neighbouring patches, and a projector.
#[derive(Clone, Debug, PartialEq)]
pub struct VisionSpec {
    /// The processor that makes pixel values.
    pub family: Family,
    /// The tokens of an image in a prompt.
    pub tokens: ImageTokens,
    /// Texts of tokens in [`Self::tokens`] whose ids the configuration does not give.
    pub token_texts: Option<TokenTexts>,
    /// Whether the tokens of an image see each other both ways in the decoder.
    pub both_ways: bool,
    /// Whether the decoder rotates the tokens of an image by their rows and columns of merged cells. Each cell is a token then.
    pub grid_positions: bool,
    /// Number of the tower's layers that are computed.
    pub layers: usize,
    /// Number of its layers in the weight files. Those behind the computed ones are not loaded.
    pub stored_layers: usize,
    /// Width of the tower's hidden states.
    pub width: usize,
    /// The patches.
    pub patches: PatchSpec,
    /// The norm of the patches before the first layer.
    pub first_norm: Option<NormSpec>,
    /// Each of its layers.
    pub layer: TowerLayerSpec,
    /// The norm of the patches behind the last layer.
    pub last_norm: Option<NormSpec>,
    /// The merger of neighbouring patches.
    pub merger: MergerSpec,
    /// The projection to the decoder's width.
    pub projector: ProjectorSpec,
    /// Layers whose output is merged and projected, too, in ascending order. The output of the first of them is added to the tokens of
    /// an image behind the decoder's first layer, and so on (DeepStack). Each has a merger of its own, with the norm of
    /// joined patches in place of `last_norm`.
    pub deepstack: Vec<usize>,
    /// Names of the tensors.
    pub(crate) rules: &'static [VisionRule],
}

/// The patches of a picture: squares of pixels, each a vector.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PatchSpec {
    /// Side of a patch in pixels, each of which has three values.
    pub size: usize,
    /// The order of pixels and patches.
    pub order: PatchOrder,
    /// The limit on the patches of an image.
    pub limit: PatchLimit,
    /// The embedding of a patch has a bias.
    pub bias: bool,
    /// The way in which a patch gets its place.
    pub positions: PatchPositions,
}

/// The order of a picture's pixels and patches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PatchOrder {
    /// Pixels `[3, height, width]`. Patches row by row.
    Rows,
    /// Pixels of patches `[patches, 3 * frames * size * size]`. The patches of a merged cell follow each other row by row, and cells
    /// do so, too.
    Cells {
        /// Frames of a video in a patch. An image has as many equal ones.
        frames: usize,
    },
}

/// The limit on the patches of an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PatchLimit {
    /// Along each side.
    PerSide(usize),
    /// In all.
    PerImage(usize),
}

/// The way in which a patch gets its place.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum PatchPositions {
    /// Queries and keys are rotated by the row and the column (2-D rope). The frequencies are `theta^(-2i / head_dim)`. Those with an
    /// even `i` belong to rows, and the others to columns.
    Rope {
        /// Base of the frequencies.
        theta: f64,
    },
    /// A learned vector for each place of a square of `side x side` patches is added. All pictures have this size.
    Table {
        /// Side of the square in patches.
        side: usize,
    },
    /// Both. The vectors of a square of `side x side` places are stretched to the picture's rows and columns, bilinearly and corner to
    /// corner. Rows and columns have the same frequencies `theta^(-4i / head_dim)`.
    TableAndRope {
        /// Side of the square in places.
        side: usize,
        /// Base of the frequencies.
        theta: f64,
    },
}

/// A layer of a tower: attention among all patches of a picture, then a feed-forward, each behind a norm.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TowerLayerSpec {
    /// The norms.
    pub norm: NormSpec,
    /// Heads of queries, keys and values.
    pub heads: usize,
    /// Width of each head.
    pub head_dim: usize,
    /// q, k and v are stored as one matrix.
    pub fused_qkv: bool,
    /// q, k, v and the output projection have biases.
    pub attention_bias: bool,
    /// Width of the feed-forward.
    pub inner: usize,
    /// Its activation.
    pub act: Activation,
    /// The activated gate is a factor of another projection.
    pub gated: bool,
    /// The projections of the feed-forward have biases.
    pub mlp_bias: bool,
}

/// The merger: a cell of `side x side` patches becomes one vector.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MergerSpec {
    /// Side of a cell in patches.
    pub side: usize,
    /// The way in which the patches of a cell become one vector.
    pub kind: MergeKind,
    /// The norm of the merged vectors.
    pub norm: Option<NormSpec>,
}

/// The way in which the patches of a cell become one vector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MergeKind {
    /// Their mean.
    Mean,
    /// A matrix `[width, width * side * side]` times their elements: the first element of each patch, then the second of each.
    Matrix,
    /// They are joined: all elements of the first patch, then those of the second.
    Join,
}

/// The projection of merged vectors to the decoder's width.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ProjectorSpec {
    /// Width of the decoder.
    pub hidden_size: usize,
    /// Two matrices; one alone where `None`.
    pub between: Option<Between>,
    /// The matrices have biases.
    pub bias: bool,
}

/// The operation between the two matrices of a projector.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Between {
    /// Width.
    pub inner: usize,
    /// The activation.
    pub act: Activation,
}

impl PatchSpec {
    /// Values of the pixels of a patch.
    pub fn values(&self) -> usize {
        let frames = match self.order {
            PatchOrder::Rows => 1,
            PatchOrder::Cells { frames } => frames,
        };
        3 * frames * self.size * self.size
    }
}

impl VisionSpec {
    /// Rows and columns of the patches of a resized picture of `width` x `height` pixels.
    pub fn patch_grid(&self, width: u32, height: u32) -> (usize, usize) {
        (height as usize / self.patches.size, width as usize / self.patches.size)
    }

    /// Side of a merged cell in pixels.
    fn cell(&self) -> usize {
        self.patches.size * self.merger.side
    }

    /// Width of merged vectors.
    pub fn merged_width(&self) -> usize {
        match self.merger.kind {
            MergeKind::Mean | MergeKind::Matrix => self.width,
            MergeKind::Join => self.width * self.merger.side * self.merger.side,
        }
    }

    /// Rows and columns of the merged cells of a resized picture of `width` x `height` pixels.
    pub fn cell_grid(&self, width: u32, height: u32) -> (usize, usize) {
        (height as usize / self.cell(), width as usize / self.cell())
    }

    /// The layout of pixels that a processor makes for the tower.
    pub fn layout(&self) -> Layout {
        match self.patches.order {
            PatchOrder::Rows => Layout::Channels,
            PatchOrder::Cells { frames } => Layout::Patches {
                patch: self.patches.size as u32,
                merge: self.merger.side as u32,
                temporal: frames as u32,
            },
        }
    }

    /// Checks that a processor makes pictures that the tower takes.
    fn check_processor(&self, processor: &Processor) -> Result<()> {
        let size = |side| processor.size(side, side, Detail::Full).map_err(Error::Images);
        let (smallest, largest) = (size(1)?, size(LARGEST_SIDE)?);
        let (cell, patch) = (self.cell() as u32, self.patches.size as u32);
        let small = format!("{} x {} pixels", smallest.0, smallest.1);
        let largest = largest.0.max(largest.1);
        let problem = match (self.patches.positions, self.patches.limit) {
            _ if processor.layout() != self.layout() => {
                let [made, taken] = [processor.layout(), self.layout()].map(layout_in_words);
                format!("pictures as {made}, and the model takes {taken}")
            }
            (PatchPositions::Table { side }, _)
                if smallest != (side as u32 * patch, side as u32 * patch) =>
            {
                let side = side as u32 * patch;
                format!("pictures of {small}, and the model takes {side} x {side} alone")
            }
            (PatchPositions::Rope { .. }, _) if smallest != (cell, cell) => {
                format!("pictures of {small}, and the model takes multiples of {cell}")
            }
            (_, PatchLimit::PerSide(most)) if largest > most as u32 * patch => {
                let most = most as u32 * patch;
                format!(
                    "pictures of up to {largest} pixels a side, and the model takes up to {most}"
                )
            }
            _ => return Ok(()),
        };
        Err(Error::ProcessorSize { problem })
    }
}

/// The layout of pixels as errors name it.
fn layout_in_words(layout: Layout) -> String {
    match layout {
        Layout::Channels => "three channels".to_owned(),
        Layout::Patches { patch, merge, temporal } => format!(
            "patches of {patch} x {patch} pixels and {temporal} frames in cells of {merge} x {merge}"
        ),
    }
}

/// The inputs of a tower's description.
pub(crate) struct VisionSource<'a> {
    /// The whole `config.json`.
    pub(crate) config: &'a HfConfig,
    /// Its part for the tower.
    pub(crate) tower: HfConfig,
    /// `processor_config.json`, where it is there.
    pub(crate) processor: Option<HfConfig>,
    /// The decoder.
    pub(crate) decoder: &'a ModelSpec,
    /// The model's files.
    files: &'a CheckpointFiles,
}

impl VisionSource<'_> {
    /// The most pixels of a picture that the processor of a family makes by the model's settings.
    fn most_pixels(&self, family: Family) -> Result<u64> {
        Ok(read_processor(self.files, family)?.most_pixels())
    }
}

/// Reads the description of a tower.
pub(crate) type ReadVision = fn(&VisionSource<'_>) -> Result<VisionSpec>;

/// The tower of a model of texts and images, and the keys of its configuration.
///
/// # Errors
/// The reason why the model is served as a text model.
pub(crate) fn read(
    read: Option<ReadVision>,
    config: &HfConfig,
    files: &CheckpointFiles,
    decoder: &ModelSpec,
) -> Result<(VisionSpec, HfConfig)> {
    let tower = config.section("vision_config")?;
    let tower = tower.ok_or_else(|| config.missing("vision_config", "an object"))?;
    let Some(read) = read else {
        let kind = tower.text_opt("model_type")?.unwrap_or("of no name");
        return Err(tower.unsupported("model_type", &kind.into(), ""));
    };
    if !PROCESSOR_FILES.iter().any(|name| files.contains(name)) {
        return Err(Error::Images(candlepower_media::Error::NoSettings));
    }
    let processor = files.json(PROCESSOR_FILES[1])?;
    let source = VisionSource { config, tower: tower.clone(), processor, decoder, files };
    let spec = read(&source)?;
    Ok((spec, tower))
}

/// The processor of a model's images.
pub(crate) fn processor(files: &CheckpointFiles, spec: &VisionSpec) -> Result<Processor> {
    let processor = read_processor(files, spec.family)?;
    spec.check_processor(&processor)?;
    Ok(processor)
}

fn read_processor(files: &CheckpointFiles, family: Family) -> Result<Processor> {
    let [preprocessor, processor] = PROCESSOR_FILES.map(|name| files.read(name));
    let (preprocessor, processor) = (preprocessor?, processor?);
    Processor::read(family, preprocessor.as_deref(), processor.as_deref()).map_err(Error::Images)
}
