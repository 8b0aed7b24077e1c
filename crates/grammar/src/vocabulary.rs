//! A tokenizer's vocabulary as the grammar library walks it.

use std::sync::Arc;

use candlepower_tokenizer::{AddSpecialTokens, Tokenizer};
use llguidance::toktrie::{TokEnv, TokRxInfo, TokTrie, TokenId, TokenizerEnv};

use crate::{Error, Result};

/// A tokenizer and the tree of its tokens' bytes.
struct Vocabulary {
    tokenizer: Tokenizer,
    trie: TokTrie,
}

/// A token that is no text, and what it is written as.
#[derive(Clone, Debug)]
pub(crate) struct SpecialToken {
    pub(crate) text: String,
    pub(crate) id: u32,
}

/// The special tokens of a model with `num_logits` logits.
pub(crate) fn special_tokens(tokenizer: &Tokenizer, num_logits: usize) -> Vec<SpecialToken> {
    let ids = tokenizer.special_ids().iter().copied().filter(|id| (*id as usize) < num_logits);
    let special = ids.map(|id| SpecialToken {
        text: String::from_utf8_lossy(tokenizer.token_bytes(id)).into_owned(),
        id,
    });
    special.filter(|token| !token.text.is_empty()).collect()
}

/// The vocabulary of a model with `num_logits` logits, which ends texts with `eos_token_ids`.
///
/// # Errors
/// There are more tokens than logits.
pub(crate) fn token_env(
    tokenizer: &Tokenizer,
    eos_token_ids: &[u32],
    num_logits: usize,
) -> Result<TokEnv> {
    // What the tokenizer has beyond the logits can never be drawn.
    let num_tokens = u32::try_from(num_logits)
        .map_err(|_| Error::Vocabulary(format!("{num_logits} tokens are too many")))?;
    let words: Vec<Vec<u8>> = (0..num_tokens).map(|id| word(tokenizer, id)).collect();
    let eos: Vec<u32> = eos_token_ids.iter().copied().filter(|id| *id < num_tokens).collect();
    let Some(&first_eos) = eos.first() else {
        let message = "the model has no end-of-sequence token, so that no grammar could end";
        return Err(Error::Vocabulary(message.to_owned()));
    };
    let trie = TokTrie::from(&TokRxInfo::new(num_tokens, first_eos), &words).with_eos_tokens(&eos);
    Ok(Arc::new(Vocabulary { tokenizer: tokenizer.clone(), trie }))
}

/// The bytes of a token; special ones are behind a byte that no text has, so that no text of theirs leads to them.
fn word(tokenizer: &Tokenizer, id: u32) -> Vec<u8> {
    let bytes = tokenizer.token_bytes(id);
    match tokenizer.is_special(id) {
        true => [&[TokTrie::SPECIAL_TOKEN_MARKER], bytes].concat(),
        false => bytes.to_vec(),
    }
}

impl TokenizerEnv for Vocabulary {
    fn tok_trie(&self) -> &TokTrie {
        &self.trie
    }

    fn tokenize_bytes(&self, bytes: &[u8]) -> Vec<TokenId> {
        self.trie.tokenize_with_greedy_fallback(bytes, |text| {
            // A text that the tokenizer gives up, or that spells out a special token, is taken byte by byte.
            match self.tokenizer.encode(text, AddSpecialTokens::No) {
                Ok(ids) if !ids.iter().any(|&id| self.tokenizer.is_special(id)) => ids,
                _ => self.trie.greedy_tokenize(text.as_bytes()),
            }
        })
    }
}
