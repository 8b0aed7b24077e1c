//! A prompt as the engine takes it: token ids, and images at their positions.

use candlepower_engine::PromptImage;

use crate::model::stored_responses::KnownTokens;

/// The token ids of a prompt, and its images.
#[derive(Clone, Debug, Default)]
pub(crate) struct EncodedPrompt {
    pub(crate) token_ids: Vec<u32>,
    /// In the order of their positions.
    pub(crate) images: Vec<PromptImage>,
}

impl EncodedPrompt {
    /// Number of tokens, with those of images.
    pub(crate) fn len(&self) -> usize {
        self.token_ids.len()
    }

    /// The tokens for a stored response, which keeps no pixels.
    pub(crate) fn known(self) -> KnownTokens {
        let span = |image: &PromptImage| (image.start, image.len);
        KnownTokens { images: self.images.iter().map(span).collect(), token_ids: self.token_ids }
    }
}

/// A prompt without images.
impl From<Vec<u32>> for EncodedPrompt {
    fn from(token_ids: Vec<u32>) -> Self {
        Self { token_ids, images: Vec::new() }
    }
}
