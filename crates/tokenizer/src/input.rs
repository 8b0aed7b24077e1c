//! The input of an encoder: a text or a pair of texts, with the tokenizer's own special tokens, cut where that is asked for.

use tokenizers::{PostProcessor, TruncationParams, utils::truncation::truncate_encodings};

use crate::tokenizer::guarded;
use crate::{Result, Tokenizer};

/// A text or a pair of texts as tokens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TextInput {
    /// The tokens, special ones included.
    pub token_ids: Vec<u32>,
    /// For each token the text of the pair to which it belongs, 0 or 1, as the tokenizer counts.
    pub type_ids: Vec<u32>,
}

impl Tokenizer {
    /// The tokens of a text, or of a pair of texts. With `max_tokens` the texts, not the special tokens, are cut at their
    /// ends, the longer one of a pair first.
    ///
    /// # Errors
    /// [`Error::Encode`](crate::Error::Encode), as of [`Self::encode`].
    pub fn encode_input(
        &self,
        text: &str,
        pair: Option<&str>,
        max_tokens: Option<usize>,
    ) -> Result<TextInput> {
        let tokenizer = self.library();
        let encoding = guarded(|| {
            let mut text = tokenizer.encode_fast(text, false)?;
            let mut pair = pair.map(|pair| tokenizer.encode_fast(pair, false)).transpose()?;
            if let Some(max_tokens) = max_tokens {
                let processor = tokenizer.get_post_processor();
                let added = processor.map_or(0, |p| p.added_tokens(pair.is_some()));
                let max_length = max_tokens.saturating_sub(added);
                let params = TruncationParams { max_length, ..TruncationParams::default() };
                (text, pair) = truncate_encodings(text, pair, &params)?;
            }
            tokenizer.post_process(text, pair, true)
        })?;
        let (token_ids, type_ids) = (encoding.get_ids(), encoding.get_type_ids());
        Ok(TextInput { token_ids: token_ids.to_vec(), type_ids: type_ids.to_vec() })
    }
}
