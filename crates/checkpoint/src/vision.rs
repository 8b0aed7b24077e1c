//! The description of a vision tower: how an image becomes embeddings, and which tokens stand for it.

use candlepower_layout::Activation;
use candlepower_media::{Detail, Family, Processor};

use crate::{
    config::HfConfig,
    error::{Error, Result},
    files::CheckpointFiles,
    spec::{ModelSpec, NormSpec},
};

mod memory;
pub(crate) mod pixtral;
mod read;
pub(crate) mod siglip;
#[cfg(test)]
mod tests;
mod tokens;
mod weights;

pub use memory::VISION_ROWS;
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
    /// Names of the tensors.
    pub(crate) rules: &'static [VisionRule],
}

/// The patches of a picture: squares of pixels, row by row, each a vector.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PatchSpec {
    /// Side of a patch in pixels, each of which has three values.
    pub size: usize,
    /// Most patches along a side of a picture.
    pub most: usize,
    /// The embedding of a patch has a bias.
    pub bias: bool,
    /// The way in which a patch gets its place.
    pub positions: PatchPositions,
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
    /// A learned vector for each place of a square of `most x most` patches is added. All pictures have this size.
    Table,
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
}

/// The projection of merged vectors to the decoder's width.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ProjectorSpec {
    /// Width of the decoder.
    pub hidden_size: usize,
    /// The activation between two matrices; one matrix alone where `None`.
    pub act: Option<Activation>,
    /// The matrices have biases.
    pub bias: bool,
}

impl VisionSpec {
    /// Number of pieces of a tower's run, which is as many for every image.
    pub fn num_pieces(&self) -> u32 {
        self.layers as u32
    }

    /// Rows and columns of the patches of a resized picture of `width` x `height` pixels.
    pub fn patch_grid(&self, width: u32, height: u32) -> (usize, usize) {
        (height as usize / self.patches.size, width as usize / self.patches.size)
    }

    /// Side of a merged cell in pixels.
    fn cell(&self) -> usize {
        self.patches.size * self.merger.side
    }

    /// Checks that a processor makes pictures that the tower takes.
    fn check_processor(&self, processor: &Processor) -> Result<()> {
        let size = |side| processor.size(side, side, Detail::Full).map_err(Error::Images);
        let (smallest, largest) = (size(1)?, size(LARGEST_SIDE)?);
        let (cell, most) = (self.cell() as u32, (self.patches.most * self.patches.size) as u32);
        let is_fixed = matches!(self.patches.positions, PatchPositions::Table);
        let problem = match is_fixed {
            true if smallest != (most, most) => {
                format!(
                    "pictures of {} x {} pixels, and the model takes {most} x {most} alone",
                    smallest.0, smallest.1
                )
            }
            false if smallest != (cell, cell) => {
                format!(
                    "pictures of {} x {} pixels, and the model takes multiples of {cell}",
                    smallest.0, smallest.1
                )
            }
            false if largest.0.max(largest.1) > most => {
                format!(
                    "pictures of up to {} pixels a side, and the model takes up to {most}",
                    largest.0.max(largest.1)
                )
            }
            _ => return Ok(()),
        };
        Err(Error::ProcessorSize { problem })
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
    let source = VisionSource { config, tower: tower.clone(), processor, decoder };
    let spec = read(&source)?;
    Ok((spec, tower))
}

/// The processor of a model's images.
pub(crate) fn processor(files: &CheckpointFiles, spec: &VisionSpec) -> Result<Processor> {
    let [preprocessor, processor] = PROCESSOR_FILES.map(|name| files.read(name));
    let (preprocessor, processor) = (preprocessor?, processor?);
    let processor = Processor::read(spec.family, preprocessor.as_deref(), processor.as_deref())
        .map_err(Error::Images)?;
    spec.check_processor(&processor)?;
    Ok(processor)
}
