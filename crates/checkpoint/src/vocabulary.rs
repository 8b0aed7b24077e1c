//! Vocabularies in other files than `tokenizer.json`, as the `tokenizer.json` of the same model.

mod byte_pairs;
pub(crate) mod pieces;
mod sentence_piece;
pub(crate) mod splitting;
mod tekken;
mod tiktoken;

use serde_json::{Value, json};

use crate::error::{Error, Result};
use splitting::byte_level;

/// Bytes of a token beyond any real one: how merges are found takes the square of them.
const MAX_BYTES: usize = 1024;

/// Reads a file of a model folder; `None` where there is none.
pub(crate) type ReadFile<'a> = dyn Fn(&str) -> Result<Option<Vec<u8>>> + 'a;

/// The `tokenizer.json` of a folder that has none, where it has a vocabulary of another kind.
///
/// # Errors
/// It has one, which is damaged or of a kind that is not read.
pub(crate) fn tokenizer(read: &ReadFile<'_>) -> Result<Option<Value>> {
    let config = || Ok(read("tokenizer_config.json")?.unwrap_or_else(|| b"{}".to_vec()));
    // The order is that of certainty: the first three kinds of files have names that no other kind uses.
    if let Some(file) = read(tiktoken::FILE)? {
        return tiktoken::tokenizer(&file, &config()?).map(Some);
    }
    if let Some(file) = read(tekken::FILE)? {
        return tekken::tokenizer(&file).map(Some);
    }
    if let Some(file) = read(byte_pairs::VOCAB)?
        && let Some(merges) = read(byte_pairs::MERGES)?
    {
        let model = read("config.json")?.unwrap_or_else(|| b"{}".to_vec());
        return byte_pairs::tokenizer(&file, &merges, &config()?, &model).map(Some);
    }
    for name in sentence_piece::FILES {
        if let Some(file) = read(name)? {
            return sentence_piece::tokenizer(name, &file, &config()?).map(Some);
        }
    }
    Ok(None)
}

/// The `tokenizer_config.json` of a folder that has none, where its vocabulary says what such files do.
///
/// # Errors
/// Files cannot be read.
pub(crate) fn tokenizer_config(read: &ReadFile<'_>) -> Result<Option<Value>> {
    // A `tokenizer.json` wins, and then its own configuration is the folder's.
    let is_tekken = read("tokenizer.json")?.is_none() && read(tekken::FILE)?.is_some();
    Ok(is_tekken.then(tekken::tokenizer_config))
}

fn fault(file: &'static str, reason: impl Into<String>) -> Error {
    Error::Vocabulary { file, reason: reason.into() }
}

/// A byte-level tokenizer.
fn of_byte_pairs(
    model: Value,
    added: Vec<Value>,
    splits: Vec<Value>,
    (normalizer, post_processor): (Value, Value),
) -> Value {
    json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": added,
        "normalizer": normalizer, "pre_tokenizer": {"type": "Sequence", "pretokenizers": splits},
        "post_processor": post_processor, "decoder": byte_level(true), "model": model,
    })
}

/// A model of byte pairs.
fn byte_pairs_model(vocab: Value, merges: Vec<Value>, ignore_merges: bool) -> Value {
    json!({
        "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
        // Byte-level vocabularies have all 256 bytes, so nothing is unknown and no byte needs a token of its own.
        "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false,
        "ignore_merges": ignore_merges, "vocab": vocab, "merges": merges,
    })
}

/// Puts tokens, each with its id, before and behind a text.
fn template(before: Option<(&str, u32)>, behind: Option<(&str, u32)>) -> Value {
    if before.is_none() && behind.is_none() {
        return Value::Null;
    }
    let piece = |token: Option<(&str, u32)>| {
        token.map(|(token, _)| json!({"SpecialToken": {"id": token, "type_id": 0}}))
    };
    let text = |id: &str| {
        let sequence = json!({"Sequence": {"id": id, "type_id": 0}});
        let all = piece(before).into_iter().chain([sequence]).chain(piece(behind));
        all.collect::<Vec<_>>()
    };
    let special = [before, behind].into_iter().flatten().map(|(token, id)| {
        (token.to_owned(), json!({"id": token, "ids": [id], "tokens": [token]}))
    });
    let pair = [text("A"), text("B")].concat();
    json!({
        "type": "TemplateProcessing", "single": text("A"), "pair": pair,
        "special_tokens": special.collect::<serde_json::Map<_, _>>(),
    })
}

/// An added token that is found as it is written.
fn added(id: usize, content: &str, special: bool) -> Value {
    json!({"id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false,
        "normalized": false, "special": special})
}
