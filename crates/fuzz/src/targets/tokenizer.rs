//! Mutates tokenizer.json and tokenizer_config.json. A tokenizer that is accepted encodes and decodes a text.

use candlepower_tokenizer::{AddSpecialTokens, SkipSpecialTokens, Tokenizer};
use serde_json::{Value, json};

use super::repository;
use crate::{Round, Verdict, change};

// Multi-byte characters, a special token of the file and one of the configuration, digits, and white space to
// normalize.
const TEXT: &str = "Zürich, 12 of 345 <s> <|end|> \u{1F388}\n\tend";

pub(super) fn open() -> Round {
    const KINDS: [&str; 5] =
        ["byte_level", "byte_fallback", "metaspace", "metaspace_first", "word_piece"];
    let originals = KINDS.map(|kind| {
        let path = repository("crates/tokenizer/tests/data").join(format!("{kind}.tokenizer.json"));
        std::fs::read(path).unwrap()
    });
    let parsed = originals.each_ref().map(|bytes| serde_json::from_slice::<Value>(bytes).unwrap());
    let config = json!({
        "bos_token": "<s>", "eos_token": {"content": "</s>"}, "unk_token": null,
        "additional_special_tokens": ["<|end|>"], "chat_template": "{{ messages }}",
    });
    let strange = strange();
    Box::new(move |random| {
        let which = random.usize(..KINDS.len());
        let mut config = config.clone();
        let bytes = match random.usize(..4) {
            0 => {
                let mut bytes = originals[which].clone();
                let len = bytes.len();
                change::file(&mut bytes, 0..len, random);
                bytes
            }
            1 => {
                change::json(&mut config, &strange, random);
                originals[which].clone()
            }
            _ => {
                let mut value = parsed[which].clone();
                (0..=random.usize(..3)).for_each(|_| change::json(&mut value, &strange, random));
                value.to_string().into_bytes()
            }
        };
        let tokenizer = match Tokenizer::from_bytes(&bytes, Some(config.to_string().as_bytes())) {
            Ok(tokenizer) => tokenizer,
            Err(error) => return Verdict::Refused(error.to_string()),
        };
        let ids = tokenizer.encode(TEXT, AddSpecialTokens::Yes);
        Verdict::of(ids.and_then(|ids| tokenizer.decode(&ids, SkipSpecialTokens::No)))
    })
}

fn strange() -> Vec<Value> {
    vec![
        json!(null),
        json!(true),
        json!(0),
        json!(-1),
        json!(u32::MAX),
        json!(u64::MAX),
        json!(0.5),
        json!(""),
        json!("x"),
        json!("\u{2581}"),
        json!("(["),
        json!("a".repeat(2_000)),
        json!([]),
        json!([0, 0]),
        json!(["a", "b"]),
        json!({}),
        json!({"type": "ByteLevel"}),
        json!({"type": "Sequence", "normalizers": [], "pretokenizers": [], "decoders": []}),
        // This pattern takes exponential time in an engine that backtracks.
        json!({"Regex": "(a*)*b"}),
        json!({"String": ""}),
    ]
}
