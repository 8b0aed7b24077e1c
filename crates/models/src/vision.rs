//! The encoder of images: pixels become embeddings for the decoder. It runs on the CPU.

use candle_core::Tensor;
use candlepower_checkpoint::{Checkpoint, VisionSpec};
use candlepower_media::Processed;

use crate::{
    LoadOptions,
    error::{Error, Result},
};

/// A vision tower with its projector.
pub struct ImageEncoder {
    spec: VisionSpec,
}

/// The state of an image between the pieces of the encoder's work.
pub struct ImageRun {
    /// `[embeddings, hidden]` f32, when all pieces are done.
    output: Option<Tensor>,
}

impl ImageEncoder {
    /// Loads the part for images; `None` where the checkpoint has none that is supported.
    ///
    /// # Errors
    /// Missing or misshapen tensors, damaged or missing files.
    pub fn load(checkpoint: &Checkpoint, _options: &LoadOptions) -> Result<Option<Self>> {
        Ok(checkpoint.vision().map(|spec| Self { spec: spec.clone() }))
    }

    /// Bytes of the weights.
    pub fn weight_bytes(&self) -> usize {
        0
    }

    /// Begins with an image.
    ///
    /// # Errors
    /// The picture has another form than the model takes.
    pub fn begin(&self, _image: &Processed) -> Result<ImageRun> {
        Ok(ImageRun { output: None })
    }

    /// Computes the next piece, of [`VisionSpec::num_pieces`].
    ///
    /// # Errors
    /// All pieces are done, or a tensor operation failed.
    pub fn advance(&self, _run: &mut ImageRun) -> Result<()> {
        let layers = self.spec.layers;
        Err(Error::Input(format!("no tower of {layers} layers is implemented")))
    }
}

impl ImageRun {
    /// The embeddings `[embeddings, hidden]` f32, after the last piece.
    pub fn embeddings(&self) -> Option<&Tensor> {
        self.output.as_ref()
    }
}
