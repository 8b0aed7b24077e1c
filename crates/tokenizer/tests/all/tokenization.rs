//! The ids of 1,000 strings are those of the `tokenizers` Python package, for each kind of tokenizer.
//!
//! They are made by scripts/goldens/tokenizer_fixtures.py.

use candlepower_tokenizer::{AddSpecialTokens, ChatTemplate, Tokenizer};
use serde_json::{Value, json};

use crate::prompt::{encode, template};
use crate::{fixture, fixture_bytes};

const KINDS: [&str; 5] =
    ["byte_level", "byte_fallback", "metaspace", "metaspace_first", "word_piece"];
const DIGEST_LEN: usize = 8;

/// FNV-1a of 32 bits over the ids as little-endian 32-bit numbers, in hexadecimal.
fn digest(ids: &[u32]) -> String {
    let bytes = ids.iter().flat_map(|id| id.to_le_bytes());
    let hash = |state: u32, byte: u8| (state ^ u32::from(byte)).wrapping_mul(0x0100_0193);
    format!("{:08x}", bytes.fold(0x811C_9DC5, hash))
}

struct Goldens {
    strings: Vec<String>,
    expected: Value,
}

impl Goldens {
    fn read() -> Self {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/tokenization.json");
        let mut json: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
        let strings: Vec<String> = serde_json::from_value(json["strings"].take()).unwrap();
        assert_eq!(strings.len(), 1000);
        Self { strings, expected: json["expected"].take() }
    }

    /// The strings, each with its digest under `name`.
    fn digests(&self, kind: &str, name: &str) -> impl Iterator<Item = (&str, &str)> {
        let digests = self.expected[kind][name].as_str().unwrap();
        assert_eq!(digests.len(), self.strings.len() * DIGEST_LEN);
        let digest = move |at: usize| &digests[at * DIGEST_LEN..][..DIGEST_LEN];
        self.strings.iter().enumerate().map(move |(at, text)| (text.as_str(), digest(at)))
    }
}

#[test]
fn ids_are_those_of_the_python_package() {
    let goldens = Goldens::read();
    for kind in KINDS {
        let tokenizer = fixture(kind);
        let encode = |text: &str, add| tokenizer.encode(text, add).unwrap();
        for (at, ids) in goldens.expected[kind]["full"].as_object().unwrap() {
            let text = &goldens.strings[at.parse::<usize>().unwrap()];
            assert_eq!(json!(encode(text, AddSpecialTokens::No)), *ids, "{kind} {text:?}");
        }
        for (text, expected) in goldens.digests(kind, "ids") {
            assert_eq!(digest(&encode(text, AddSpecialTokens::No)), expected, "{kind} {text:?}");
        }
        let with_added =
            goldens.strings.iter().flat_map(|text| encode(text, AddSpecialTokens::Yes));
        let with_added = digest(&with_added.collect::<Vec<_>>());
        assert_eq!(with_added, goldens.expected[kind]["with_added"], "{kind}");
    }
}

#[test]
fn in_a_conversation_ids_are_those_of_the_python_package_for_text() {
    let goldens = Goldens::read();
    let template = template("{{ messages[0].content }}");
    for kind in ["byte_level", "byte_fallback", "metaspace_first", "word_piece"] {
        let tokenizer = fixture(kind);
        for (text, expected) in goldens.digests(kind, "as_text") {
            let ids = in_conversation(&template, &tokenizer, text);
            assert_eq!(digest(&ids), expected, "{kind} {text:?}");
        }
    }
}

/// A Unigram vocabulary contains the special tokens as if they were words, and the package finds them in text.
#[test]
fn words_of_the_vocabulary_that_are_special_tokens_are_not_found_in_text() {
    let goldens = Goldens::read();
    let template = template("{{ messages[0].content }}");
    let word_level = json!({
        "added_tokens": [{"id": 1, "content": "</s>", "special": true, "normalized": false,
            "single_word": false, "lstrip": false, "rstrip": false}],
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "model": {"type": "WordLevel", "vocab": {"<unk>": 0, "</s>": 1, "a": 2}, "unk_token": "<unk>"},
    });
    let word_level = Tokenizer::from_bytes(word_level.to_string().as_bytes(), None).unwrap();
    // `</s>` is cut in two after its first character, and both parts are unknown words.
    assert_eq!(in_conversation(&template, &word_level, "a </s> a"), [2, 0, 0, 2]);

    let unigram = fixture("metaspace");
    let unk = unigram.token_to_id("<unk>").unwrap();
    let mut num_equal = 0;
    for (text, expected) in goldens.digests("metaspace", "as_text") {
        let ids = in_conversation(&template, &unigram, text);
        assert!(ids.iter().all(|&id| id == unk || !unigram.is_special(id)), "{text:?} {ids:?}");
        num_equal += usize::from(digest(&ids) == expected);
    }
    let spells =
        |text: &&String| ["<pad>", "</s>", "<unk>"].iter().any(|token| text.contains(token));
    let num_spelled = goldens.strings.iter().filter(spells).count();
    assert!(num_spelled > 20 && num_equal >= goldens.strings.len() - num_spelled, "{num_equal}");
}

fn in_conversation(template: &ChatTemplate, tokenizer: &Tokenizer, text: &str) -> Vec<u32> {
    encode(template, tokenizer, &json!([{"role": "user", "content": text}]))
}

#[test]
fn fixtures_are_of_all_kinds() {
    let model = |kind: &str| {
        let json: Value = serde_json::from_slice(&fixture_bytes(kind)).unwrap();
        json["model"]["type"].as_str().unwrap().to_owned()
    };
    assert_eq!(KINDS.map(model), ["BPE", "BPE", "Unigram", "BPE", "WordPiece"]);
}
