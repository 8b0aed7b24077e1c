//! `vocab.json` and `merges.txt`, as GPT-2 and those after it have them. How texts are split the files do not say: the class of the
//! tokenizer does. Source: transformers `convert_slow_tokenizer.py`.

use serde_json::{Value, json};

use super::{
    byte_pairs_model, fault, of_byte_pairs,
    splitting::{self, byte_level_steps},
    template,
};
use crate::{config::HfConfig, error::Result};

/// The tokens and their ids.
pub(super) const VOCAB: &str = "vocab.json";
/// Pairs of tokens, the first ones first.
pub(super) const MERGES: &str = "merges.txt";

/// The tokenizer that the files say.
pub(super) fn tokenizer(vocab: &[u8], merges: &[u8], config: &[u8], model: &[u8]) -> Result<Value> {
    let config = HfConfig::parse("tokenizer_config.json", config)?;
    let model = HfConfig::parse("config.json", model)?;
    // The slow and the fast tokenizer of a class split texts alike.
    let class = config.text_opt("tokenizer_class")?.map(|class| class.trim_end_matches("Fast"));
    let kind = match (class, model.text_opt("model_type")?) {
        (Some("GPT2Tokenizer" | "CodeGenTokenizer"), _)
        | (None, Some("gpt2" | "gpt_neo" | "gptj" | "gpt_bigcode" | "opt")) => Kind::Gpt2,
        (Some("RobertaTokenizer"), _) | (None, Some("roberta")) => Kind::Roberta,
        (Some("Qwen2Tokenizer"), _)
        | (None, Some("qwen2" | "qwen2_moe" | "qwen3" | "qwen3_moe")) => Kind::Qwen2,
        (class, _) => {
            let class = class.unwrap_or("none");
            let reason = format!(
                "it does not say how texts are split, and the tokenizer_class {class:?} is not known; \
                 GPT2Tokenizer, CodeGenTokenizer, RobertaTokenizer and Qwen2Tokenizer are"
            );
            return Err(fault(VOCAB, reason));
        }
    };
    let ids: Value = serde_json::from_slice(vocab).map_err(|e| fault(VOCAB, e.to_string()))?;
    if !ids.as_object().is_some_and(|ids| ids.values().all(Value::is_u64)) {
        return Err(fault(VOCAB, "it is not an object of tokens and their ids"));
    }
    let id = |token: &str| ids[token].as_u64().and_then(|id| u32::try_from(id).ok());
    let named = |key: &str, usual: &'static str| {
        // The token is a string, or an object of an `AddedToken`.
        let named = config.raw(key).and_then(|token| token.as_str().or(token["content"].as_str()));
        let token = named.unwrap_or(usual);
        id(token).map(|id| (token.to_owned(), id))
    };
    let (first, last) = match kind {
        Kind::Roberta => (named("cls_token", "<s>"), named("sep_token", "</s>")),
        // OPT's texts begin with its end of text.
        _ if config.flag_or("add_bos_token", false)? => (named("bos_token", "<|endoftext|>"), None),
        _ => (None, None),
    };
    let splitting =
        if matches!(kind, Kind::Qwen2) { &splitting::QWEN2_COMPOSED } else { &splitting::GPT2 };
    let mut steps = byte_level_steps(splitting);
    if config.flag_or("add_prefix_space", false)? {
        // The space belongs to the step of bytes, which is the last one of every kind.
        if let Some(bytes) = steps.last_mut() {
            bytes["add_prefix_space"] = true.into();
        }
    }
    fn around(token: &Option<(String, u32)>) -> Option<(&str, u32)> {
        // The list of added tokens stays empty: special tokens of such folders are named in other files.
        token.as_ref().map(|(token, id)| (token.as_str(), *id))
    }
    let normalizer = if splitting.nfc { json!({"type": "NFC"}) } else { Value::Null };
    let model = byte_pairs_model(ids.clone(), read_merges(merges)?, false);
    let around = (normalizer, template(around(&first), around(&last)));
    Ok(of_byte_pairs(model, Vec::new(), steps, around))
}

/// Whose rules.
enum Kind {
    Gpt2,
    Roberta,
    Qwen2,
}

fn read_merges(file: &[u8]) -> Result<Vec<Value>> {
    let text = std::str::from_utf8(file).map_err(|_| fault(MERGES, "it is not UTF-8"))?;
    // Only the first line may be a comment. A merge may begin with a number sign, too.
    let is_version = |i: usize, line: &str| i == 0 && line.starts_with("#version");
    let lines = text.lines().enumerate();
    let lines = lines.filter(|(i, line)| !line.is_empty() && !is_version(*i, line));
    let merge = |(i, line): (usize, &str)| match line.split_once(' ') {
        Some((left, right)) if !left.is_empty() && !right.is_empty() => Ok(json!([left, right])),
        _ => Err(fault(MERGES, format!("line {} is not two tokens with a space between", i + 1))),
    };
    lines.map(merge).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const IDS: &str = r#"{"a": 0, "b": 1, "ab": 2, "<s>": 3, "</s>": 4}"#;

    #[test]
    fn the_class_says_how_texts_are_split() {
        let read = |config: &str, model: &str| {
            let merges = b"#version: 0.2\na b\n";
            tokenizer(IDS.as_bytes(), merges, config.as_bytes(), model.as_bytes())
        };
        let gpt2 =
            read(r#"{"tokenizer_class": "GPT2TokenizerFast", "add_prefix_space": true}"#, "{}");
        let gpt2 = gpt2.unwrap();
        assert_eq!(gpt2["model"]["merges"], json!([["a", "b"]]));
        assert_eq!(gpt2["pre_tokenizer"]["pretokenizers"][0]["add_prefix_space"], true);
        let qwen = read("{}", r#"{"model_type": "qwen2"}"#).unwrap();
        assert_eq!(qwen["normalizer"]["type"], "NFC");
        let steps = &qwen["pre_tokenizer"]["pretokenizers"];
        assert_eq!(
            (&steps[0]["type"], &steps[1]["add_prefix_space"]),
            (&json!("Split"), &json!(false))
        );
        // Source: `Qwen2Converter` in transformers, whose last step alone knows of the space.
        let spaced =
            read(r#"{"tokenizer_class": "Qwen2Tokenizer", "add_prefix_space": true}"#, "{}");
        let spaced = &spaced.unwrap()["pre_tokenizer"]["pretokenizers"];
        assert_eq!((spaced.as_array().unwrap().len(), &spaced[0]), (2, &steps[0]));
        assert_eq!(
            (&spaced[1]["add_prefix_space"], &spaced[1]["use_regex"]),
            (&json!(true), &json!(false))
        );
        let roberta = read(r#"{"tokenizer_class": "RobertaTokenizer"}"#, "{}").unwrap();
        assert_eq!(roberta["post_processor"]["special_tokens"]["</s>"]["ids"], json!([4]));
        let line = read(r#"{"tokenizer_class": "XTokenizer"}"#, "{}").unwrap_err().to_string();
        assert!(
            line.starts_with("vocab.json cannot be read") && line.contains("\"XTokenizer\""),
            "{line}"
        );
        assert!(line.ends_with("by --tokenizer"), "{line}");
    }

    #[test]
    fn damaged_merges_are_refused_by_their_line() {
        let line = read_merges(b"a b\nab\n").unwrap_err().to_string();
        assert!(line.contains("merges.txt") && line.contains("line 2 is not"), "{line}");
    }
}
