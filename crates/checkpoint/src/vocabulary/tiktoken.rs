//! A vocabulary in tiktoken's format, as Kimi's models have it, as the `tokenizer.json` of the same model.
//! Source: `tokenization_kimi.py` of these models; tiktoken's `_educational.py` for how merges follow from ranks.

use std::collections::HashMap;

use base64::{Engine, engine::general_purpose::STANDARD};
use serde_json::{Map, Value, json};

use super::{
    added, byte_pairs_model, of_byte_pairs,
    splitting::{KIMI, byte_level_steps},
};
use crate::error::{Error, Result};

/// Its name.
pub(super) const FILE: &str = "tiktoken.model";
/// The class whose rule of splitting is known; the file has none.
const CLASS: &str = "TikTokenTokenizer";
/// Ids behind those of the file that are special tokens, whether they have a name or not.
const RESERVED: usize = 256;

/// The file, with what `tokenizer_config.json` says beside it.
pub(super) fn tokenizer(file: &[u8], config: &[u8]) -> Result<Value> {
    let config: Value = serde_json::from_slice(config)
        .map_err(|error| fault(format!("tokenizer_config.json beside it is damaged: {error}")))?;
    let class = config.get("tokenizer_class").and_then(Value::as_str).unwrap_or_default();
    if class != CLASS {
        let reason =
            format!("the tokenizer_class `{class}` is not known, whose rules it needs; {CLASS} is");
        return Err(fault(reason));
    }
    let tokens = read(file)?;
    let (spelled, merges) = spelled_and_merges(&tokens, FILE)?;
    let named = config.get("added_tokens_decoder").and_then(Value::as_object);
    // These ids lie behind the vocabulary, where tokenizers puts added tokens in their order.
    let special = (tokens.len()..tokens.len() + RESERVED).map(|id| {
        let named = named.and_then(|named| named.get(&id.to_string())?.get("content")?.as_str());
        let content = named.map_or_else(|| format!("<|reserved_token_{id}|>"), str::to_owned);
        added(id, &content, true)
    });
    let special = special.collect();
    let vocab: Map<String, Value> =
        spelled.into_iter().enumerate().map(|(id, token)| (token, id.into())).collect();
    let steps = byte_level_steps(&KIMI);
    let model = byte_pairs_model(vocab.into(), merges, true);
    Ok(of_byte_pairs(model, special, steps, (Value::Null, Value::Null)))
}

/// Tokens by their ranks as byte-level vocabularies spell them, and the merges that follow from the ranks.
pub(super) fn spelled_and_merges(
    tokens: &[Vec<u8>],
    file: &'static str,
) -> Result<(Vec<String>, Vec<Value>)> {
    // tiktoken merges by rank: the lowest rank first. The rank of a pair is that of the token that it makes.
    let ids: HashMap<&[u8], usize> =
        tokens.iter().enumerate().map(|(id, token)| (token.as_slice(), id)).collect();
    let spelled: Vec<String> = tokens.iter().map(|token| spell(token)).collect();
    let mut merges = Vec::new();
    for (rank, token) in tokens.iter().enumerate().filter(|(_, token)| token.len() > 1) {
        if token.len() > super::MAX_BYTES {
            let reason = format!("token {rank} has {} bytes", token.len());
            return Err(super::fault(file, reason));
        }
        let Some((left, right)) = halves(token, rank, &ids) else {
            return Err(super::fault(file, format!("token {rank} is not made of two others")));
        };
        merges.push(json!([spelled[left], spelled[right]]));
    }
    Ok((spelled, merges))
}

/// The tokens by their ranks, which are their ids: a line has a token in base 64, and its rank.
fn read(file: &[u8]) -> Result<Vec<Vec<u8>>> {
    let lines = file.split(|byte| *byte == b'\n').enumerate().filter(|(_, line)| !line.is_empty());
    let mut tokens = Vec::new();
    for (i, line) in lines {
        let line_fault = |what| fault(format!("line {} {what}", i + 1));
        let mut words = line.split(|byte| *byte == b' ');
        let (Some(token), Some(rank), None) = (words.next(), words.next(), words.next()) else {
            return Err(line_fault("is not a token and its rank"));
        };
        let token = STANDARD.decode(token).ok().filter(|token| !token.is_empty());
        let Some(token) = token else {
            return Err(line_fault("has a token that is not in base 64"));
        };
        let rank = std::str::from_utf8(rank).ok().and_then(|rank| rank.trim_end().parse().ok());
        if rank != Some(tokens.len()) {
            return Err(line_fault("has not the rank that follows those before"));
        }
        tokens.push(token);
    }
    Ok(tokens)
}

/// The two tokens that are merged last where only pairs of lower ranks than a token's are: they become this token.
fn halves(token: &[u8], rank: usize, ids: &HashMap<&[u8], usize>) -> Option<(usize, usize)> {
    // Where the parts begin, and where the last one ends.
    let mut bounds: Vec<usize> = (0..=token.len()).collect();
    while bounds.len() > 3 {
        let pairs = bounds.windows(3).enumerate();
        let ranked = pairs.filter_map(|(at, pair)| Some((*ids.get(&token[pair[0]..pair[2]])?, at)));
        let (_, at) = ranked.filter(|(found, _)| *found < rank).min()?;
        // The two parts at `at` become one.
        bounds.remove(at + 1);
    }
    Some((*ids.get(&token[..bounds[1]])?, *ids.get(&token[bounds[1]..])?))
}

/// Bytes as byte-level vocabularies spell them: those that can be seen as themselves, the others as the characters from 256 on.
fn spell(bytes: &[u8]) -> String {
    // GPT-2's table leaves out white space, controls and 0xad, the soft hyphen, which are not visible.
    let is_seen = |byte: u8| matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
    let character = |byte: &u8| match is_seen(*byte) {
        true => char::from(*byte),
        false => {
            let before = (0..*byte).filter(|byte| !is_seen(*byte)).count() as u32;
            char::from_u32(256 + before).expect("there are few characters before it")
        }
    };
    bytes.iter().map(character).collect()
}

fn fault(reason: String) -> Error {
    super::fault(FILE, reason)
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONFIG: &str = r#"{"tokenizer_class": "TikTokenTokenizer", "added_tokens_decoder": {"7": {"content": "[EOS]"}}}"#;

    fn file(tokens: &[&str]) -> Vec<u8> {
        let line = |(rank, token): (usize, &&str)| format!("{} {rank}\n", STANDARD.encode(token));
        tokens.iter().enumerate().map(line).collect::<String>().into_bytes()
    }

    #[test]
    fn merges_follow_from_ranks_and_ids_behind_them_are_special() {
        let found = tokenizer(&file(&["a", "b", " ", "ab", "aba", "abab"]), CONFIG.as_bytes());
        let found = found.unwrap();
        assert_eq!(found["model"]["vocab"]["\u{120}"], 2);
        assert_eq!(found["model"]["merges"], json!([["a", "b"], ["ab", "a"], ["ab", "ab"]]));
        let special = found["added_tokens"].as_array().unwrap();
        assert_eq!((special.len(), &special[0]["id"]), (256, &json!(6)));
        assert_eq!(special[0]["content"], "<|reserved_token_6|>");
        assert_eq!(special[1]["content"], "[EOS]");
    }

    #[test]
    fn what_is_no_such_file_is_refused_by_what_is_wrong() {
        let error =
            |file: &[u8], config: &str| tokenizer(file, config.as_bytes()).unwrap_err().to_string();
        for (file, said) in [
            (&b"YQ== 0\nYg==\n"[..], "line 2 is not a token and its rank"),
            (b"YQ= 0\n", "line 1 has a token that is not in base 64"),
            (b"YQ== 0\nYg== 2\n", "line 2 has not the rank that follows those before"),
            (b"YQ== 0\nYWJj 1\n", "token 1 is not made of two others"),
        ] {
            assert!(error(file, CONFIG).contains(said), "{}", error(file, CONFIG));
        }
        let other = error(&file(&["a"]), r#"{"tokenizer_class": "QWenTokenizer"}"#);
        assert!(other.contains("`QWenTokenizer` is not known"), "{other}");
    }
}
