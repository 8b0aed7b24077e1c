//! Images as input of the model: whether it takes them, and everything that turns a URL into embeddings' places.

use std::sync::Arc;

use candlepower_checkpoint::{Checkpoint, ImageTokens};
use candlepower_dialect::ImagePlaces;
use candlepower_media::{Fetcher, ImageBudget, Limits, Processor};
use candlepower_tokenizer::Tokenizer;

use crate::config::ServeConfig;
use crate::model::decode_memory::DecodeMemory;
use crate::model::metrics::ImageMetrics;

/// Whether the model takes images.
pub(crate) enum ImageInput {
    /// It does.
    Taken(Box<ImageSupport>),
    /// It does not, for this reason.
    Refused(NoImages),
}

/// The reason why a model takes no images.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoImages {
    /// The model has no part for images, or one that is not supported.
    TextModel,
    /// Towers run on the CPU only.
    Gpu,
    /// `--language-model-only`.
    LanguageModelOnly,
}

/// The parts by which images are read.
pub(crate) struct ImageSupport {
    /// The tokens of an image.
    pub(crate) tokens: ImageTokens,
    /// The spellings of those tokens.
    pub(crate) spellings: TokenSpellings,
    pub(crate) processor: Processor,
    pub(crate) fetcher: Arc<Fetcher>,
    /// Limits on one image.
    pub(crate) limits: Limits,
    /// The memory for decoding.
    pub(crate) decoding: DecodeMemory,
    /// The memory for resized images of all requests.
    pub(crate) budget: ImageBudget,
    /// The messages in which the chat template writes images.
    pub(crate) places: ImagePlaces,
    /// Maximum images of a request.
    pub(crate) max_images: usize,
    /// Maximum embeddings of an image.
    pub(crate) max_embeddings: Option<usize>,
    pub(crate) metrics: ImageMetrics,
}

/// The spellings of an image's tokens in a prompt's text.
pub(crate) struct TokenSpellings {
    /// The token that the chat template writes for an image.
    pub(crate) written: String,
    /// The text in its place, if it is not the placeholder itself.
    pub(crate) replaced: Option<String>,
}

impl ImageInput {
    /// The parts by which images are read, if the model takes them.
    pub(crate) fn support(&self) -> Option<&ImageSupport> {
        match self {
            Self::Taken(support) => Some(support),
            Self::Refused(_) => None,
        }
    }
}

impl NoImages {
    /// The reason why this server's model takes no images, if it takes none.
    pub(crate) fn reason(
        config: &ServeConfig,
        checkpoint: &Checkpoint,
        is_cpu: bool,
    ) -> Option<Self> {
        match checkpoint.vision() {
            None => Some(Self::TextModel),
            Some(_) if config.language_model_only => Some(Self::LanguageModelOnly),
            Some(_) if !is_cpu => Some(Self::Gpu),
            Some(_) => None,
        }
    }

    /// The reason in words for a client.
    pub(crate) fn message(self) -> &'static str {
        match self {
            Self::TextModel => {
                "This model takes text only, and no images: leave images out of all messages, or use a model that takes them."
            }
            Self::Gpu => {
                "This server takes no images, because it runs the model on a GPU: leave images out of all messages, or use a server that runs it on the CPU."
            }
            Self::LanguageModelOnly => {
                "This server takes no images, because it was started with --language-model-only: leave images out of all messages."
            }
        }
    }
}

impl TokenSpellings {
    /// # Errors
    /// The id of a token that the tokenizer does not have.
    pub(crate) fn of(tokens: &ImageTokens, tokenizer: &Tokenizer) -> Result<Self, u32> {
        use candlepower_checkpoint::WrittenImage::{Begin, Placeholder};
        let spelling = |id: u32| tokenizer.id_to_token(id).ok_or(id);
        let placeholder = spelling(tokens.placeholder)?;
        Ok(match tokens.written {
            Placeholder => Self { written: placeholder, replaced: None },
            Begin { begin, end } => {
                let (begin, end) = (spelling(begin)?, spelling(end)?);
                let replaced = format!("\n\n{begin}{placeholder}{end}\n\n");
                Self { written: begin, replaced: Some(replaced) }
            }
        })
    }
}
