//! The tokenizer of a checkpoint: text to token ids and back, and the kind of each token.

use std::borrow::Cow;
use std::panic::catch_unwind;
use std::sync::Arc;

use serde_json::{Map, Value};
use tokenizers::AddedToken;

use crate::added::{ListedToken, RenamedToken, with_listed};
use crate::cuts::Cuts;
use crate::decoder::{DecoderKind, TokenClass, TokenTable};
use crate::prompt::SpellingFinder;
use crate::{Error, Result};

/// Whether the tokenizer's post-processor adds its tokens (begin of sequence, for some also the end).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AddSpecialTokens {
    /// They are added, for raw text.
    Yes,
    /// They are not added, for a rendered chat template, which writes its own.
    No,
}

/// Whether special tokens become text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SkipSpecialTokens {
    /// They are left out.
    Yes,
    /// They are spelled out.
    No,
}

/// The special tokens with a role, as `tokenizer_config.json` names them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NamedSpecialTokens {
    /// Begin of sequence.
    pub bos: Option<String>,
    /// End of sequence.
    pub eos: Option<String>,
    /// Unknown token.
    pub unk: Option<String>,
    /// Padding.
    pub pad: Option<String>,
}

/// Converts text to token ids and back. Cloning is cheap, and several threads may use clones at the same time.
#[derive(Clone)]
pub struct Tokenizer {
    inner: Arc<Inner>,
}

struct Inner {
    tokenizer: tokenizers::Tokenizer,
    kind: DecoderKind,
    table: TokenTable,
    named: NamedSpecialTokens,
    listed: Vec<ListedToken>,
    renamed: Vec<RenamedToken>,
    special_ids: Vec<u32>,
    spellings: SpellingFinder,
    cuts: Option<Cuts>,
}

impl Tokenizer {
    /// Reads `tokenizer.json` and, if there is one, `tokenizer_config.json`.
    ///
    /// Truncation and padding in `tokenizer.json` are dropped, since a server must not shorten a prompt without
    /// notice.
    ///
    /// # Errors
    /// [`Error::BadTokenizer`], [`Error::BadTokenizerConfig`], [`Error::AddedToken`].
    pub fn from_bytes(tokenizer_json: &[u8], tokenizer_config_json: Option<&[u8]>) -> Result<Self> {
        let bad = |error: &dyn std::fmt::Display| Error::BadTokenizer(error.to_string());
        let json: DecoderField =
            serde_json::from_slice(tokenizer_json).map_err(|error| bad(&error))?;
        let mut tokenizer = read(&linear_splits(tokenizer_json)).map_err(|error| bad(&error))?;
        let whole = tokenizer_config_json.map(parse_config).transpose()?.unwrap_or_default();
        let found = with_listed(&tokenizer, tokenizer_json, &whole)?;
        let (listed, renamed) = (found.missing, found.renamed);
        if let Some(json) = found.json {
            tokenizer = read(&linear_splits(&json)).map_err(|error| bad(&error))?;
            let is_there =
                |token: &&ListedToken| tokenizer.token_to_id(&token.content) == Some(token.id);
            if let Some(token) = listed.iter().find(|token| !is_there(token)) {
                let (token, reason) =
                    (format!("{:?}", token.content), "tokenizer.json takes none".to_owned());
                return Err(Error::AddedToken { token, reason });
            }
        }
        tokenizer.with_truncation(None).map_err(|error| bad(&error))?.with_padding(None);

        let config = tokenizer_config_json.map(special_tokens).transpose()?.unwrap_or_default();
        mark_special(&mut tokenizer, &config).map_err(|error| bad(&error))?;
        let named = |name: &str| config.get(name).and_then(Value::as_str).map(str::to_owned);
        let named = NamedSpecialTokens {
            bos: named("bos_token"),
            eos: named("eos_token"),
            unk: named("unk_token"),
            pad: named("pad_token"),
        };

        let kind = DecoderKind::from_json(&json.decoder);
        let table = token_table(&tokenizer, &kind)?;
        let ids = 0..u32::try_from(table.len()).expect("token ids are u32");
        let special_ids = ids.filter(|&id| table.class(id) == TokenClass::Special).collect();
        let spellings = SpellingFinder::new(&special_spellings(&tokenizer))?;
        let cuts = Cuts::new(&tokenizer);
        Ok(Self {
            inner: Arc::new(Inner {
                tokenizer,
                kind,
                table,
                named,
                listed,
                renamed,
                special_ids,
                spellings,
                cuts,
            }),
        })
    }

    /// The text of token ids, as the `tokenizers` library decodes them; ids without a token are left out.
    ///
    /// # Errors
    /// [`Error::Decode`].
    pub fn decode(&self, ids: &[u32], skip_special_tokens: SkipSpecialTokens) -> Result<String> {
        // The library's decoder of word suffixes underflows without any token.
        if !ids.iter().any(|&id| self.is_shown(id, skip_special_tokens)) {
            return Ok(String::new());
        }
        let skip = skip_special_tokens == SkipSpecialTokens::Yes;
        self.inner.tokenizer.decode(ids, skip).map_err(|error| Error::Decode(error.to_string()))
    }

    /// One more than the highest token id. A model's logits may be wider (padded) but are never narrower.
    pub fn vocab_size(&self) -> usize {
        self.inner.table.len()
    }

    /// The id of a token by its spelling in the vocabulary.
    pub fn token_to_id(&self, token: &str) -> Option<u32> {
        self.inner.tokenizer.token_to_id(token)
    }

    /// The spelling of a token in the vocabulary (`Ġthe`, `▁the`), not its text.
    pub fn id_to_token(&self, id: u32) -> Option<String> {
        self.inner.tokenizer.id_to_token(id)
    }

    /// The bytes that this token adds to a text, perhaps only a part of a character. Special tokens are spelled out,
    /// and an id without a token has none.
    pub fn token_bytes(&self, id: u32) -> &[u8] {
        self.inner.table.bytes(id)
    }

    /// [`Self::token_bytes`] for display, with U+FFFD for bytes that are not UTF-8.
    pub fn token_text(&self, id: u32) -> String {
        String::from_utf8_lossy(self.token_bytes(id)).into_owned()
    }

    /// Whether this is a special token, which `skip_special_tokens` leaves out.
    pub fn is_special(&self, id: u32) -> bool {
        self.inner.table.class(id) == TokenClass::Special
    }

    /// The ids of all special tokens, ascending.
    pub fn special_ids(&self) -> &[u32] {
        &self.inner.special_ids
    }

    /// Finds the spellings of special tokens.
    pub(crate) fn spellings(&self) -> &SpellingFinder {
        &self.inner.spellings
    }

    /// The special tokens with a role.
    pub fn named_special_tokens(&self) -> &NamedSpecialTokens {
        &self.inner.named
    }

    /// The id of the begin-of-sequence token.
    pub fn bos_token_id(&self) -> Option<u32> {
        self.token_to_id(self.inner.named.bos.as_deref()?)
    }

    /// The id of the end-of-sequence token that `tokenizer_config.json` names. The ids that end a generation are in
    /// `generation_config.json` and may be more.
    pub fn eos_token_id(&self) -> Option<u32> {
        self.token_to_id(self.inner.named.eos.as_deref()?)
    }

    /// The tokens that `tokenizer_config.json` lists and `tokenizer.json` does not.
    pub fn listed_tokens(&self) -> &[ListedToken] {
        &self.inner.listed
    }

    /// The added tokens that have another name in `tokenizer_config.json` than in `tokenizer.json`, whose name is
    /// used.
    pub fn renamed_tokens(&self) -> &[RenamedToken] {
        &self.inner.renamed
    }

    /// The id of an added token, and whether it is a special one. Returns `None` for a token of the model's own
    /// vocabulary and for an unknown one.
    pub fn added_token(&self, token: &str) -> Option<(u32, bool)> {
        let added = self.inner.tokenizer.get_added_vocabulary();
        let id = self.token_to_id(token)?;
        let found = added.get_added_tokens_decoder().get(&id)?;
        (found.content == token).then_some((id, found.special))
    }

    /// The library's own tokenizer.
    pub(crate) fn library(&self) -> &tokenizers::Tokenizer {
        &self.inner.tokenizer
    }

    /// Facts by which its texts are cut; `None` if they cannot be cut.
    pub(crate) fn cuts(&self) -> Option<&Cuts> {
        self.inner.cuts.as_ref()
    }

    pub(crate) fn kind(&self) -> &DecoderKind {
        &self.inner.kind
    }

    /// Whether this is the id of a token that becomes text.
    pub(crate) fn is_shown(&self, id: u32, skip_special_tokens: SkipSpecialTokens) -> bool {
        match self.class(id) {
            TokenClass::Missing => false,
            TokenClass::Special => skip_special_tokens == SkipSpecialTokens::No,
            TokenClass::Text | TokenClass::FallbackByte => true,
        }
    }

    pub(crate) fn class(&self, id: u32) -> TokenClass {
        self.inner.table.class(id)
    }
}

impl std::fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Inner { kind, named, .. } = &*self.inner;
        f.debug_struct("Tokenizer")
            .field("vocab_size", &self.vocab_size())
            .field("decoder", kind)
            .field("named_special_tokens", named)
            .finish_non_exhaustive()
    }
}

/// Reads the library's tokenizer. The library panics if some parts of a file do not fit together, when it reads them
/// or when it adds tokens around the first text.
fn read(tokenizer_json: &[u8]) -> tokenizers::Result<tokenizers::Tokenizer> {
    let read = || {
        let tokenizer = tokenizers::Tokenizer::from_bytes(tokenizer_json)?;
        // A missing token for the text is no such panic.
        let _ = tokenizer.encode_fast("", true);
        Ok(tokenizer)
    };
    catch_unwind(read).unwrap_or_else(|_| Err("its parts do not fit together".into()))
}

/// The splitting rule for white space at the end of a line, as some checkpoints write it (DeepSeek LLM and Coder).
const TRAILING_SPACE: &str = r"\s+$";
/// The same rule without new attempts from every place within the white space. Those take quadratic time: 44 s for 64
/// KiB of spaces. A match from a later place reaches no end that a match from the first place would not reach.
const TRAILING_SPACE_LINEAR: &str = r"(?<!\s)\s+$";

/// tokenizer.json with rules that take linear time.
fn linear_splits(tokenizer_json: &[u8]) -> Cow<'_, [u8]> {
    let rule = |pattern: &str, space: &str| format!("\"Regex\":{space}{}", Value::from(pattern));
    let mut json = Cow::Borrowed(tokenizer_json);
    // Files are written with or without a space after a colon.
    for space in ["", " "] {
        let slow = rule(TRAILING_SPACE, space);
        // A file that is not UTF-8 is left for the reader to refuse.
        let changed = match std::str::from_utf8(&json) {
            Ok(text) if text.contains(&slow) => {
                text.replace(&slow, &rule(TRAILING_SPACE_LINEAR, space))
            }
            _ => continue,
        };
        json = Cow::Owned(changed.into_bytes());
    }
    json
}

/// The one part of tokenizer.json that is read here and not by the library.
#[derive(serde::Deserialize)]
struct DecoderField {
    #[serde(default)]
    decoder: Value,
}

/// The keys that name special tokens.
pub(crate) const NAMES: [&str; 7] =
    ["bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"];
/// The key that lists special tokens without a role.
pub(crate) const LIST: &str = "additional_special_tokens";

/// The special tokens of `tokenizer_config.json` as text: one string for each name, and a list of strings for
/// `additional_special_tokens`.
///
/// Each may be written as a string or as `{"content": "</s>", ..}`, and null is the same as none.
///
/// Source: `special_tokens_map` in transformers' tokenization_utils_base.py.
pub(crate) fn special_tokens(tokenizer_config_json: &[u8]) -> Result<Map<String, Value>> {
    let config = parse_config(tokenizer_config_json)?;
    let mut tokens = Map::new();
    for name in NAMES {
        match config.get(name) {
            None | Some(Value::Null) => {}
            Some(token) => {
                tokens.insert(name.into(), token_content(name, token)?.into());
            }
        }
    }
    if let Some(Value::Array(list)) = config.get(LIST) {
        let list = list
            .iter()
            .map(|token| token_content(LIST, token).map(Value::from))
            .collect::<Result<_>>()?;
        tokens.insert(LIST.into(), Value::Array(list));
    }
    Ok(tokens)
}

pub(crate) fn parse_config(tokenizer_config_json: &[u8]) -> Result<Map<String, Value>> {
    serde_json::from_slice(tokenizer_config_json)
        .map_err(|error| Error::BadTokenizerConfig(error.to_string()))
}

fn token_content<'a>(name: &str, token: &'a Value) -> Result<&'a str> {
    token.as_str().or_else(|| token["content"].as_str()).ok_or_else(|| {
        Error::BadTokenizerConfig(format!(
            "{name} must be a string or an object with a content, not {token}"
        ))
    })
}

/// Marks tokens with a role as special, even if tokenizer.json does not, like transformers. A token that the
/// vocabulary does not have is not added, since the model has no embedding for it.
fn mark_special(
    tokenizer: &mut tokenizers::Tokenizer,
    special: &Map<String, Value>,
) -> tokenizers::Result<()> {
    let lists =
        special.values().flat_map(|value| value.as_array().map(Vec::as_slice).unwrap_or_default());
    let added = special
        .values()
        .chain(lists)
        .filter_map(Value::as_str)
        .filter(|&token| tokenizer.token_to_id(token).is_some())
        .filter(|&token| !tokenizer.get_added_vocabulary().is_special_token(token))
        .map(|token| AddedToken::from(token, true))
        .collect::<Vec<_>>();
    tokenizer.add_special_tokens(added).map(drop)
}

/// The spellings of the special tokens. White space is left out, since it structures no prompt and occurs in every
/// text.
fn special_spellings(tokenizer: &tokenizers::Tokenizer) -> Vec<String> {
    let added = tokenizer.get_added_vocabulary().get_added_tokens_decoder().values();
    let special = added.filter(|token| token.special && !token.content.trim().is_empty());
    special.map(|token| token.content.clone()).collect()
}

/// Bound on token ids, since a table has a row for each id up to the largest. The largest vocabularies have some
/// 300,000.
pub(crate) const MAX_TOKENS: usize = 1 << 24;

fn token_table(tokenizer: &tokenizers::Tokenizer, kind: &DecoderKind) -> Result<TokenTable> {
    let mut tokens = Vec::new();
    for (token, id) in tokenizer.get_vocab(true) {
        let id = id as usize;
        if id >= MAX_TOKENS {
            let reason = format!("a token has the id {id}, and {MAX_TOKENS} is too great for one");
            return Err(Error::BadTokenizer(reason));
        }
        if tokens.len() <= id {
            // Ids may have gaps, which stay without a token.
            tokens.resize(id + 1, None);
        }
        let is_special = tokenizer.get_added_vocabulary().is_special_token(&token);
        tokens[id] = Some((token, is_special));
    }
    Ok(TokenTable::new(kind, tokens.into_iter()))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;
    use tokenizers::tokenizer::pattern::Pattern;
    use tokenizers::utils::SysRegex;

    use super::*;

    proptest! {
        #[test]
        fn the_linear_rule_splits_as_the_written_one(text in "[ \n\r\ta]{0,24}") {
            let split = |rule| (&SysRegex::new(rule).unwrap()).find_matches(&text).unwrap();
            prop_assert_eq!(split(TRAILING_SPACE), split(TRAILING_SPACE_LINEAR));
        }
    }

    #[test]
    fn only_that_rule_is_replaced() {
        let of = |regex: &str| json!({"vocab": {r"\s+$": 1}, "pattern": {"Regex": regex}});
        for text in [|value: &Value| value.to_string(), |value: &Value| format!("{value:#}")] {
            let replaced = linear_splits(text(&of(r"\s+$")).as_bytes()).into_owned();
            assert_eq!(String::from_utf8(replaced).unwrap(), text(&of(r"(?<!\s)\s+$")));
            let other = text(&of(r"\s+"));
            assert!(matches!(linear_splits(other.as_bytes()), Cow::Borrowed(_)));
        }
    }
}
