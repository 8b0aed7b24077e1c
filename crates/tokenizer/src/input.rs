//! The input of an encoder: a text or a pair of texts with the tokenizer's own special tokens, truncated on request.

use std::sync::atomic::AtomicBool;

use tokenizers::PostProcessor;

use crate::encode::{Limits, fill};
use crate::{AddSpecialTokens, Result, Tokenizer};

/// A text or a pair of texts as tokens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TextInput {
    /// The tokens, special ones included.
    pub token_ids: Vec<u32>,
    /// For each token the index of its text in the pair, 0 or 1, as the tokenizer defines it.
    pub type_ids: Vec<u32>,
}

impl Tokenizer {
    /// The token ids of a text alone, from which inputs are made. With `max_tokens` it may return only some of them,
    /// but at least that number.
    ///
    /// # Errors
    /// Those of [`Self::encode_until`].
    pub fn encode_text(
        &self,
        text: &str,
        max_tokens: Option<usize>,
        is_cancelled: &AtomicBool,
    ) -> Result<Vec<u32>> {
        let most_tokens = max_tokens.unwrap_or(usize::MAX);
        self.text_ids(text, Limits { most_tokens, ..Limits::new(is_cancelled) })
    }

    /// The tokens of a text, or of a pair of texts, from [`Self::encode_text`]. With `max_tokens` the texts are
    /// truncated at their ends, the longer one of a pair first. Special tokens are kept.
    ///
    /// # Errors
    /// [`Error::Encode`](crate::Error::Encode), if the tokenizer cannot join them.
    pub fn input(
        &self,
        text: &[u32],
        pair: Option<&[u32]>,
        max_tokens: Option<usize>,
    ) -> Result<TextInput> {
        let (mut text, mut pair) = (text, pair);
        if let Some(max_tokens) = max_tokens {
            let processor = self.library().get_post_processor();
            let added = processor.map_or(0, |processor| processor.added_tokens(pair.is_some()));
            let most = max_tokens.saturating_sub(added);
            let (first, second) = kept(text.len(), pair.map_or(0, <[u32]>::len), most);
            (text, pair) = (&text[..first], pair.map(|pair| &pair[..second]));
        }
        let frame = self.frame(pair.is_some(), AddSpecialTokens::Yes)?;
        let texts = [text, pair.unwrap_or_default()];
        let (token_ids, type_ids) = fill(&frame, &texts).unzip();
        Ok(TextInput { token_ids, type_ids })
    }
}

/// Number of tokens that are kept of each of two texts: at most `most` together. The longer text is truncated first.
///
/// Source: `LongestFirst` of `truncate_encodings` in the `tokenizers` library.
fn kept(first: usize, second: usize, most: usize) -> (usize, usize) {
    if first + second <= most {
        return (first, second);
    }
    let short = first.min(second);
    let (short, long) =
        if short <= most / 2 { (short, most - short) } else { (most / 2, most - most / 2) };
    if first > second { (long, short) } else { (short, long) }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use tokenizers::utils::truncation::truncate_encodings;
    use tokenizers::{Encoding, Token, TruncationParams};

    use super::*;

    proptest! {
        #[test]
        fn pairs_are_cut_as_the_library_cuts_them(first in 0..40_usize, second in 0..40_usize, most in 0..60_usize) {
            let text = |len| {
                Encoding::from_tokens(vec![Token::new(0, String::new(), (0, 0)); len], 0)
            };
            let params = TruncationParams { max_length: most, ..TruncationParams::default() };
            let (one, two) = truncate_encodings(text(first), Some(text(second)), &params).unwrap();
            prop_assert_eq!(kept(first, second, most), (one.len(), two.unwrap().len()));
            let (one, _) = truncate_encodings(text(first), None, &params).unwrap();
            prop_assert_eq!(kept(first, 0, most), (one.len(), 0));
        }
    }
}
