//! Mistral's `tekken.json`. Source: `tokens/tokenizers/tekken.py` of mistral-common.

use base64::{Engine, engine::general_purpose::STANDARD};
use serde_json::{Map, Value, json};

use super::{
    added, byte_pairs_model, fault, of_byte_pairs, splitting::byte_level, template, tiktoken,
};
use crate::{config::HfConfig, error::Result};

/// Its name.
pub(super) const FILE: &str = "tekken.json";
/// The special tokens of files that do not list them.
const SPECIAL: [&str; 20] = [
    "<unk>",
    BOS,
    EOS,
    "[INST]",
    "[/INST]",
    "[AVAILABLE_TOOLS]",
    "[/AVAILABLE_TOOLS]",
    "[TOOL_RESULTS]",
    "[/TOOL_RESULTS]",
    "[TOOL_CALLS]",
    "[IMG]",
    "<pad>",
    "[IMG_BREAK]",
    "[IMG_END]",
    "[PREFIX]",
    "[MIDDLE]",
    "[SUFFIX]",
    "[SYSTEM_PROMPT]",
    "[/SYSTEM_PROMPT]",
    "[TOOL_CONTENT]",
];
const BOS: &str = "<s>";
const EOS: &str = "</s>";
/// Beyond any vocabulary.
const MAX_TOKENS: usize = 1 << 24;
/// Beyond the special tokens of any vocabulary. Published files have 1000.
const MAX_SPECIAL: usize = 1 << 16;

/// The tokenizer that a file says.
pub(super) fn tokenizer(file: &[u8]) -> Result<Value> {
    let file = HfConfig::parse(FILE, file)?;
    let config = file.section("config")?.ok_or_else(|| file.missing("config", "an object"))?;
    let size = config.bounded("default_vocab_size", MAX_TOKENS)?;
    let num_special = config.bounded("default_num_special_tokens", size.min(MAX_SPECIAL))?;
    let pattern = config.text_opt("pattern")?;
    let pattern = pattern.ok_or_else(|| config.missing("pattern", "a regular expression"))?;
    let special = special_tokens(&file, num_special)?;
    let entries = file.raw("vocab").and_then(Value::as_array);
    let entries = entries.ok_or_else(|| file.missing("vocab", "a list of tokens"))?;
    // Published files list more tokens than the model has rows for.
    let wanted = size - num_special;
    if entries.len() < wanted {
        let reason = format!("it has {} tokens, and {wanted} are promised", entries.len());
        return Err(fault(FILE, reason));
    }
    let mut tokens = Vec::with_capacity(wanted);
    for (rank, entry) in entries[..wanted].iter().enumerate() {
        let bytes = entry["token_bytes"].as_str().and_then(|text| STANDARD.decode(text).ok());
        match bytes.filter(|bytes| !bytes.is_empty() && entry["rank"] == rank) {
            Some(bytes) => tokens.push(bytes),
            None => return Err(fault(FILE, format!("token {rank} has no bytes, or another rank"))),
        }
    }
    let (spelled, merges) = tiktoken::spelled_and_merges(&tokens, FILE)?;
    let ids =
        spelled.into_iter().enumerate().map(|(rank, token)| (token, (num_special + rank).into()));
    let mut vocab: Map<String, Value> = ids.collect();
    let marks = special.iter().enumerate().map(|(id, token)| added(id, token, true));
    let marks: Vec<Value> = marks.collect();
    // tokenizers takes the ids of added tokens from the model's vocabulary.
    vocab.extend(special.iter().enumerate().map(|(id, token)| (token.clone(), id.into())));
    let split = json!({"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": false});
    let bos = special.iter().position(|token| token == BOS).map(|id| (BOS, id as u32));
    let around = (Value::Null, template(bos, None));
    let model = byte_pairs_model(vocab.into(), merges, true);
    Ok(of_byte_pairs(model, marks, vec![split, byte_level(false)], around))
}

/// The names of the special tokens of a model with such a file.
pub(super) fn tokenizer_config() -> Value {
    json!({"bos_token": BOS, "eos_token": EOS, "unk_token": "<unk>", "pad_token": "<pad>"})
}

/// The first ids, whether they have a name or not.
fn special_tokens(file: &HfConfig, count: usize) -> Result<Vec<String>> {
    let mut tokens: Vec<String> = (0..count).map(|id| format!("<SPECIAL_{id}>")).collect();
    let usual = SPECIAL.iter().enumerate().map(|(id, name)| (id, (*name).to_owned()));
    let listed = match file.raw("special_tokens").and_then(Value::as_array) {
        None => usual.collect(),
        Some(list) => {
            let named = |entry: &Value| {
                let rank = usize::try_from(entry["rank"].as_u64()?).ok()?;
                Some((rank, entry["token_str"].as_str()?.to_owned()))
            };
            let named: Option<Vec<_>> = list.iter().map(named).collect();
            named.ok_or_else(|| fault(FILE, "a special token has no rank or no text"))?
        }
    };
    // Ids beyond the count belong to tokens, and are not overwritten.
    for (id, name) in listed {
        if let Some(token) = tokens.get_mut(id) {
            *token = name;
        }
    }
    Ok(tokens)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_count_of_special_tokens_is_bounded() {
        let error = |config: Value, entries: usize| {
            let vocab: Vec<Value> = (0..entries)
                .map(|rank| json!({"rank": rank, "token_bytes": STANDARD.encode([rank as u8])}))
                .collect();
            let file = json!({"config": config, "vocab": vocab}).to_string();
            tokenizer(file.as_bytes()).err().map(|error| error.to_string())
        };
        let config = |size: usize, special: usize| json!({"pattern": ".", "default_vocab_size": size, "default_num_special_tokens": special});
        assert_eq!(error(config(MAX_SPECIAL + 1, MAX_SPECIAL), 1), None);
        let most = format!("at most {MAX_SPECIAL} is");
        for special in [MAX_SPECIAL + 1, MAX_TOKENS - 1] {
            let said = error(config(MAX_TOKENS, special), 1).unwrap();
            assert!(said.contains(&format!("default_num_special_tokens` = {special}")), "{said}");
            assert!(said.contains(&most), "{said}");
        }
        let said = error(config(3, 4), 1).unwrap();
        assert!(said.contains("at most 3 is"), "{said}");
    }

    #[test]
    fn tokens_and_their_names_are_checked() {
        let read = |vocab: &[Value], special: Value| {
            let config =
                json!({"pattern": ".", "default_vocab_size": 4, "default_num_special_tokens": 2});
            let file = json!({"config": config, "vocab": vocab, "special_tokens": special});
            tokenizer(file.to_string().as_bytes())
        };
        let token =
            |rank: usize, text: &str| json!({"rank": rank, "token_bytes": STANDARD.encode(text)});
        let vocab = [token(0, "a"), token(1, "b")];
        // A name beyond the special tokens would take the id of a token.
        let names = json!([{"rank": 1, "token_str": "<s>"}, {"rank": 2, "token_str": "<a>"}]);
        let read_names = read(&vocab, names).unwrap();
        let name = |id: usize| read_names["added_tokens"][id]["content"].clone();
        assert_eq!([name(0), name(1), name(2)], [json!("<SPECIAL_0>"), json!("<s>"), Value::Null]);
        assert_eq!(read_names["model"]["vocab"]["a"], 2);

        for (vocab, special, reason) in [
            (vec![token(0, "a")], json!(null), "it has 1 tokens, and 2 are promised"),
            (
                vec![token(0, "a"), token(2, "b")],
                json!(null),
                "token 1 has no bytes, or another rank",
            ),
            (
                vec![token(0, ""), token(1, "b")],
                json!(null),
                "token 0 has no bytes, or another rank",
            ),
            (vocab.to_vec(), json!([{"rank": 1}]), "a special token has no rank or no text"),
            (
                vocab.to_vec(),
                json!([{"token_str": "<s>"}]),
                "a special token has no rank or no text",
            ),
        ] {
            let said = read(&vocab, special).unwrap_err().to_string();
            assert!(said.contains(FILE) && said.contains(reason), "{said}");
        }
    }
}
