//! Added tokens and names of tokens that are in files beside `tokenizer.json`, but not in it.
//!
//! Source: `_from_pretrained` in transformers' tokenization_utils_base.py.

use std::collections::HashMap;

use serde_json::{Map, Value, json};
use tokenizers::Tokenizer;

use crate::tokenizer::{LIST, MAX_TOKENS, NAMES, parse_config};
use crate::{Error, Result};

/// The key of `tokenizer_config.json` that lists added tokens by id.
const DECODER: &str = "added_tokens_decoder";

/// `tokenizer_config.json`, completed by files of older checkpoints: the names of special tokens in
/// `special_tokens_map.json`, and the ids of added tokens in `added_tokens.json`. Its own entries win.
///
/// # Errors
/// [`Error::BadTokenizerConfig`], if one of the files is not a JSON object.
pub fn whole_config(
    tokenizer_config: Option<&[u8]>,
    special_tokens_map: Option<&[u8]>,
    added_tokens: Option<&[u8]>,
) -> Result<Option<Vec<u8>>> {
    if special_tokens_map.is_none() && added_tokens.is_none() {
        return Ok(tokenizer_config.map(<[u8]>::to_vec));
    }
    let mut config = tokenizer_config.map(parse_config).transpose()?.unwrap_or_default();
    let beside = |file: &str, bytes: &[u8]| {
        serde_json::from_slice::<Map<String, Value>>(bytes)
            .map_err(|error| Error::BadTokenizerConfig(format!("{file} beside it: {error}")))
    };
    let is_absent =
        |config: &Map<String, Value>, key: &str| config.get(key).is_none_or(Value::is_null);
    if let Some(bytes) = special_tokens_map {
        for (key, value) in beside("special_tokens_map.json", bytes)? {
            let is_name = NAMES.contains(&key.as_str()) || key == LIST;
            if is_name && is_absent(&config, &key) {
                config.insert(key, value);
            }
        }
    }
    if let Some(bytes) = added_tokens.filter(|_| is_absent(&config, DECODER)) {
        let by_id = beside("added_tokens.json", bytes)?.into_iter().map(|(content, id)| {
            // The file has names and ids alone. transformers adds such tokens with `normalized` off.
            (id.to_string(), json!({"content": content, "normalized": false}))
        });
        config.insert(DECODER.to_owned(), by_id.collect::<Map<_, _>>().into());
    }
    Ok(Some(Value::Object(config).to_string().into_bytes()))
}

/// A token that a file lists and `tokenizer.json` does not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedToken {
    /// Its id.
    pub id: u32,
    /// Its text.
    pub content: String,
}

/// A token that has another name in a file beside `tokenizer.json`. That name is ignored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RenamedToken {
    /// Its id.
    pub id: u32,
    /// Its text in that file.
    pub listed: String,
    /// Its text in `tokenizer.json`.
    pub content: String,
}

/// The added tokens of a configuration that differ from `tokenizer.json`.
#[derive(Debug, Default)]
pub(crate) struct Listed {
    /// The `tokenizer.json` with the missing tokens added; `None` if none is missing.
    pub(crate) json: Option<Vec<u8>>,
    /// The missing tokens.
    pub(crate) missing: Vec<ListedToken>,
    /// The tokens that have another name.
    pub(crate) renamed: Vec<RenamedToken>,
}

/// The added tokens of `config` that `tokenizer` does not have, or has under other names.
///
/// # Errors
/// [`Error::AddedToken`], if one of them would take the id of a token that was not added, or has an id already.
pub(crate) fn with_listed(
    tokenizer: &Tokenizer,
    tokenizer_json: &[u8],
    config: &Map<String, Value>,
) -> Result<Listed> {
    let Some(Value::Object(listed)) = config.get(DECODER) else { return Ok(Listed::default()) };
    let known = tokenizer.get_added_vocabulary().get_added_tokens_decoder();
    let known: HashMap<&str, u32> =
        known.iter().map(|(id, token)| (token.content.as_str(), *id)).collect();
    let mut missing: Vec<(ListedToken, &Value)> = Vec::new();
    let mut renamed = Vec::new();
    for (id, token) in listed {
        let content = token.as_str().or_else(|| token["content"].as_str());
        let Some(content) = content.filter(|content| !content.is_empty()) else { continue };
        if known.contains_key(content) {
            // The model was trained with tokenizer.json, so its entry wins.
            continue;
        }
        let conflict = |reason: String| Error::AddedToken { token: shown(content), reason };
        let number = id.parse::<u32>().ok().filter(|id| (*id as usize) < MAX_TOKENS);
        let number = number.ok_or_else(|| conflict(format!("its id is `{id:.20}`")))?;
        if let Some((name, _)) = known.iter().find(|(_, id)| **id == number) {
            // The chat template uses the names of tokenizer.json.
            let (listed, content) = (content.to_owned(), (*name).to_owned());
            renamed.push(RenamedToken { id: number, listed, content });
            continue;
        }
        // A token of the vocabulary itself may have the id, but only under the same name: it then becomes an added
        // token.
        let holder = tokenizer.id_to_token(number);
        if let Some(holder) = holder.filter(|holder| holder != content) {
            let reason = format!("its id {number} is that of {} in tokenizer.json", shown(&holder));
            return Err(conflict(reason));
        }
        if let Some(other) = tokenizer.token_to_id(content).filter(|other| *other != number) {
            return Err(conflict(format!("its id is {number}, and {other} in tokenizer.json")));
        }
        if missing.iter().any(|(other, _)| other.content == content) {
            return Err(conflict("it has several ids".to_owned()));
        }
        missing.push((ListedToken { id: number, content: content.to_owned() }, token));
    }
    renamed.sort_by_key(|token| token.id);
    // A Unigram vocabulary takes the tokens in the order of their ids.
    missing.sort_by_key(|(token, _)| token.id);
    let json = match missing.is_empty() {
        true => None,
        // The file is changed rather than the tokenizer: the library gives an added token the next free id, and not
        // the listed one.
        false => Some(add(tokenizer_json, &missing)?),
    };
    Ok(Listed { json, missing: missing.into_iter().map(|(token, _)| token).collect(), renamed })
}

/// Writes tokens into a valid `tokenizer.json`.
fn add(tokenizer_json: &[u8], missing: &[(ListedToken, &Value)]) -> Result<Vec<u8>> {
    let bad = |error: serde_json::Error| Error::BadTokenizer(error.to_string());
    let mut json: Value = serde_json::from_slice(tokenizer_json).map_err(bad)?;
    for (ListedToken { id, content }, token) in missing {
        // A model's vocabulary may have any ids. The ids of tokens that are added to it are consecutive.
        match &mut json["model"]["vocab"] {
            Value::Object(vocab) => {
                vocab.insert(content.clone(), (*id).into());
            }
            Value::Array(pieces) if pieces.len() == *id as usize => {
                // A Unigram vocabulary is a list, in which the index is the id.
                pieces.push(json!([content, 0.0]));
            }
            Value::Array(pieces) if pieces.len() < *id as usize => {
                let reason = format!("its id is {id}, and the vocabulary ends at {}", pieces.len());
                return Err(Error::AddedToken { token: shown(content), reason });
            }
            _ => {}
        }
        let flag = |name: &str, default| token[name].as_bool().unwrap_or(default);
        let special = flag("special", false);
        let entry = json!({
            "id": id, "content": content, "single_word": flag("single_word", false),
            "lstrip": flag("lstrip", false), "rstrip": flag("rstrip", false),
            // The default of the class `AddedToken` in the library.
            "normalized": flag("normalized", !special), "special": special,
        });
        match &mut json["added_tokens"] {
            Value::Array(added) => added.push(entry),
            other => *other = json!([entry]),
        }
    }
    Ok(json.to_string().into_bytes())
}

/// A token as errors show it.
fn shown(token: &str) -> String {
    format!("{:?}", token.chars().take(80).collect::<String>())
}
