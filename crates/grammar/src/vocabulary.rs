//! A tokenizer's vocabulary in the form of the grammar library.

use std::sync::Arc;

use candlepower_tokenizer::{AddSpecialTokens, Tokenizer};
use llguidance::toktrie::{TokEnv, TokRxInfo, TokTrie, TokenId, TokenizerEnv};

use crate::{Error, Result};

/// Longest token that a constraint may choose.
const MAX_WORD_BYTES: usize = 1000;

/// The tree of the tokens' bytes, and the tokenizer, which child processes do not have.
struct Vocabulary {
    tokenizer: Option<Tokenizer>,
    trie: TokTrie,
}

/// The tokens of a model as bytes, enough for compiling.
#[derive(Debug, PartialEq)]
pub(crate) struct Words {
    /// Tokens by id. Special ones begin with a byte that no text has, so that their text does not match them.
    words: Vec<Vec<u8>>,
    /// End-of-sequence tokens, at least one.
    eos: Vec<u32>,
}

/// A special token and its text.
#[derive(Clone, Debug)]
pub(crate) struct SpecialToken {
    pub(crate) text: String,
    pub(crate) id: u32,
}

/// The special tokens of a model with `num_logits` logits.
pub(crate) fn special_tokens(tokenizer: &Tokenizer, num_logits: usize) -> Vec<SpecialToken> {
    let ids = tokenizer.special_ids().iter().copied().filter(|id| (*id as usize) < num_logits);
    ids.filter_map(|id| special_token(id, tokenizer.token_bytes(id))).collect()
}

fn special_token(id: u32, bytes: &[u8]) -> Option<SpecialToken> {
    (!bytes.is_empty())
        .then(|| SpecialToken { text: String::from_utf8_lossy(bytes).into_owned(), id })
}

impl Words {
    /// The vocabulary of a model with `num_logits` logits and these end-of-sequence tokens. Tokens beyond the logits are left
    /// out, because they can never be sampled.
    ///
    /// # Errors
    /// There are too many tokens, or none that ends a sequence.
    pub(crate) fn new(
        tokenizer: &Tokenizer,
        eos_token_ids: &[u32],
        num_logits: usize,
    ) -> Result<Self> {
        let num_tokens = u32::try_from(num_logits)
            .map_err(|_| Error::Vocabulary(format!("{num_logits} tokens are too many")))?;
        let eos: Vec<u32> = eos_token_ids.iter().copied().filter(|id| *id < num_tokens).collect();
        if eos.is_empty() {
            let message = "the model has no end-of-sequence token, so that no grammar could end";
            return Err(Error::Vocabulary(message.to_owned()));
        }
        // The library's trie has room for no longer ones. Shorter tokens can spell them.
        let fits = |word: Vec<u8>| if word.len() > MAX_WORD_BYTES { Vec::new() } else { word };
        let words = (0..num_tokens).map(|id| fits(word(tokenizer, id))).collect();
        Ok(Self { words, eos })
    }

    pub(crate) fn num_logits(&self) -> usize {
        self.words.len()
    }

    pub(crate) fn special_tokens(&self) -> Vec<SpecialToken> {
        let special = self.words.iter().zip(0..).filter_map(|(word, id)| {
            special_token(id, word.strip_prefix(&[TokTrie::SPECIAL_TOKEN_MARKER])?)
        });
        special.collect()
    }

    /// The form for the grammar library.
    pub(crate) fn env(&self, tokenizer: Option<Tokenizer>) -> TokEnv {
        // The library guesses the end by a token's name and defaults to token 0, so it is set here.
        let info = TokRxInfo::new(self.words.len() as u32, self.eos[0]);
        let trie = TokTrie::from(&info, &self.words).with_eos_tokens(&self.eos);
        Arc::new(Vocabulary { tokenizer, trie })
    }

    /// The form for a child process: counts and ids of four bytes each, then each word after its length.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        let number = |number: usize| (number as u32).to_le_bytes();
        bytes.extend(number(self.eos.len()));
        self.eos.iter().for_each(|id| bytes.extend(id.to_le_bytes()));
        bytes.extend(number(self.words.len()));
        for word in &self.words {
            bytes.extend(number(word.len()));
            bytes.extend(word);
        }
        bytes
    }

    /// The reverse of [`encode`](Self::encode); `None` if the bytes are invalid.
    pub(crate) fn decode(mut bytes: &[u8]) -> Option<Self> {
        let number = |bytes: &mut &[u8]| {
            let (number, rest) = bytes.split_first_chunk::<4>()?;
            *bytes = rest;
            Some(u32::from_le_bytes(*number))
        };
        let num_eos = number(&mut bytes)?;
        // Nothing is allocated by a count before its bytes were read.
        let eos: Vec<u32> = (0..num_eos).map_while(|_| number(&mut bytes)).collect();
        let num_words = number(&mut bytes)?;
        let words = (0..num_words).map(|_| {
            let len = number(&mut bytes)? as usize;
            let (word, rest) = bytes.split_at_checked(len)?;
            bytes = rest;
            Some(word.to_vec())
        });
        let words = words.collect::<Option<Vec<_>>>()?;
        (eos.len() == num_eos as usize && !eos.is_empty()).then_some(Self { words, eos })
    }
}

fn word(tokenizer: &Tokenizer, id: u32) -> Vec<u8> {
    let bytes = tokenizer.token_bytes(id);
    match tokenizer.is_special(id) {
        true => [&[TokTrie::SPECIAL_TOKEN_MARKER], bytes].concat(),
        // An id without a token has no bytes, and the library never allows it.
        false => bytes.to_vec(),
    }
}

impl TokenizerEnv for Vocabulary {
    fn tok_trie(&self) -> &TokTrie {
        &self.trie
    }

    fn tokenize_bytes(&self, bytes: &[u8]) -> Vec<TokenId> {
        let Some(tokenizer) = &self.tokenizer else { return self.trie.greedy_tokenize(bytes) };
        self.trie.tokenize_with_greedy_fallback(bytes, |text| {
            // If the tokenizer fails or finds a special token, the text is split greedily.
            match tokenizer.encode(text, AddSpecialTokens::No) {
                Ok(ids) if !ids.iter().any(|&id| tokenizer.is_special(id)) => ids,
                _ => self.trie.greedy_tokenize(text.as_bytes()),
            }
        })
    }
}
