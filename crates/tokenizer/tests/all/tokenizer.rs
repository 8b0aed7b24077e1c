//! Text to ids and back, the kinds of tokens, and texts made to break a tokenizer.

use candlepower_tokenizer::{AddSpecialTokens, Error, SkipSpecialTokens, Tokenizer};
use serde_json::{Value, json};

use crate::{fixture, fixture_bytes};

#[test]
fn special_tokens_are_added_skipped_and_recognised_in_text() {
    let tokenizer = fixture("byte_level");
    let id = |token| tokenizer.token_to_id(token).unwrap();
    let plain = tokenizer.encode("Paris", AddSpecialTokens::No).unwrap();
    let with = tokenizer.encode("Paris", AddSpecialTokens::Yes).unwrap();
    assert_eq!(with, [&[id("<|begin|>")], plain.as_slice()].concat());
    let chat = tokenizer.encode("<|role|>user<|end|>", AddSpecialTokens::No).unwrap();
    assert_eq!((chat[0], *chat.last().unwrap()), (id("<|role|>"), id("<|end|>")));
    assert_eq!(tokenizer.decode(&chat, SkipSpecialTokens::Yes).unwrap(), "user");
    assert_eq!(tokenizer.decode(&chat, SkipSpecialTokens::No).unwrap(), "<|role|>user<|end|>");
    assert_eq!(tokenizer.special_ids(), [id("<|begin|>"), id("<|end|>"), id("<|role|>")]);
    assert!(tokenizer.is_special(id("<|end|>")) && !tokenizer.is_special(id("<tool_call>")));
    assert!(!tokenizer.is_special(u32::MAX));
}

#[test]
fn every_id_has_its_bytes() {
    for name in ["byte_level", "byte_fallback"] {
        let tokenizer = fixture(name);
        let anchor = tokenizer.encode("The capital", AddSpecialTokens::No).unwrap();
        let anchor_text = tokenizer.decode(&anchor, SkipSpecialTokens::No).unwrap();
        for id in 0..tokenizer.vocab_size() as u32 {
            assert_eq!(tokenizer.token_to_id(&tokenizer.id_to_token(id).unwrap()), Some(id));
            let both = tokenizer
                .decode(&[anchor.as_slice(), &[id]].concat(), SkipSpecialTokens::No)
                .unwrap();
            assert_eq!(anchor_text.clone() + &tokenizer.token_text(id), both, "{name} {id}");
        }
        assert_eq!(tokenizer.id_to_token(tokenizer.vocab_size() as u32), None);
        assert!(tokenizer.token_bytes(tokenizer.vocab_size() as u32).is_empty());
    }
    let tokenizer = fixture("byte_fallback");
    assert_eq!(tokenizer.token_bytes(tokenizer.token_to_id("<0x0A>").unwrap()), b"\n");
    assert_eq!(tokenizer.token_bytes(tokenizer.token_to_id("<0xF0>").unwrap()), [0xF0]);
}

#[test]
fn bytes_of_the_tokens_are_the_bytes_of_the_text() {
    let text = "Zürich 日本 🎈 e\u{301}\n\tend  ";
    for (name, leading) in [("byte_level", ""), ("byte_fallback", " ")] {
        let tokenizer = fixture(name);
        let ids = tokenizer.encode(text, AddSpecialTokens::No).unwrap();
        let bytes =
            ids.iter().flat_map(|&id| tokenizer.token_bytes(id)).copied().collect::<Vec<_>>();
        assert_eq!(String::from_utf8(bytes).unwrap(), format!("{leading}{text}"), "{name}");
        assert_eq!(tokenizer.decode(&ids, SkipSpecialTokens::Yes).unwrap(), text, "{name}");
    }
}

#[test]
fn the_config_names_tokens_and_makes_them_special() {
    let config = json!({
        "bos_token": {"content": "<|begin|>", "special": true}, "eos_token": "<tool_call>",
        "unk_token": null, "pad_token": "<absent>", "additional_special_tokens": ["Paris"],
    });
    let tokenizer =
        Tokenizer::from_bytes(&fixture_bytes("byte_level"), Some(config.to_string().as_bytes()))
            .unwrap();
    let plain = fixture("byte_level");
    let named = tokenizer.named_special_tokens();
    assert_eq!(named.bos.as_deref(), Some("<|begin|>"));
    assert_eq!(tokenizer.bos_token_id(), plain.token_to_id("<|begin|>"));
    assert_eq!(tokenizer.eos_token_id(), plain.token_to_id("<tool_call>"));
    assert_eq!((named.unk.as_deref(), named.pad.as_deref()), (None, Some("<absent>")));
    assert!(tokenizer.is_special(tokenizer.eos_token_id().unwrap()));
    assert_eq!(tokenizer.token_to_id("<absent>"), None);
    assert_eq!(tokenizer.vocab_size(), plain.vocab_size());
    let bad = json!({"eos_token": 7}).to_string();
    let error =
        Tokenizer::from_bytes(&fixture_bytes("byte_level"), Some(bad.as_bytes())).unwrap_err();
    assert!(
        matches!(&error, Error::BadTokenizerConfig(what) if what.contains("eos_token")),
        "{error}"
    );
}

#[test]
fn truncation_and_padding_are_not_taken_over() {
    let mut json: Value = serde_json::from_slice(&fixture_bytes("byte_level")).unwrap();
    json["truncation"] =
        json!({"direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0});
    json["padding"] = json!({"strategy": {"Fixed": 64}, "direction": "Right", "pad_to_multiple_of": null,
        "pad_id": 0, "pad_type_id": 0, "pad_token": "!"});
    let tokenizer = Tokenizer::from_bytes(json.to_string().as_bytes(), None).unwrap();
    for text in ["a", "The capital of France is Paris."] {
        let ids = tokenizer.encode(text, AddSpecialTokens::No).unwrap();
        assert_eq!(ids, fixture("byte_level").encode(text, AddSpecialTokens::No).unwrap());
    }
}

#[test]
fn damaged_files_are_refused() {
    for bad in ["", "{}", "[]", "{\"model\": {\"type\": \"Nothing\"}}"] {
        assert!(
            matches!(Tokenizer::from_bytes(bad.as_bytes(), None), Err(Error::BadTokenizer(_))),
            "{bad}"
        );
    }
    let error = Tokenizer::from_bytes(&fixture_bytes("byte_level"), Some(b"[")).unwrap_err();
    assert!(matches!(error, Error::BadTokenizerConfig(_)));
}

/// A table of all ids up to this one would take 137 GB.
#[test]
fn an_absurd_id_is_refused() {
    let mut json: Value = serde_json::from_slice(&fixture_bytes("byte_level")).unwrap();
    json["model"]["vocab"]["absurd"] = u32::MAX.into();
    let error = Tokenizer::from_bytes(json.to_string().as_bytes(), None).unwrap_err();
    assert!(error.to_string().contains("a token has the id 4294967295"), "{error}");
}

/// The library would panic on a token that the post-processor adds around texts and does not define. It would also
/// panic on a merge that is shorter than the required prefix of words.
#[test]
fn parts_that_do_not_fit_together_are_refused() {
    let json: Value = serde_json::from_slice(&fixture_bytes("byte_level")).unwrap();
    let mut template = json.clone();
    template["post_processor"] = serde_json::json!({
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "<nobody>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [], "special_tokens": {},
    });
    let mut prefix = json;
    prefix["model"]["continuing_subword_prefix"] = "a prefix longer than all".into();
    for bad in [template, prefix] {
        let error = Tokenizer::from_bytes(bad.to_string().as_bytes(), None).unwrap_err();
        assert!(error.to_string().contains("its parts do not fit together"), "{error}");
    }
}

#[test]
fn no_text_breaks_the_tokenizer() {
    const MIB: usize = 1 << 20;
    let odd = "\0\u{7f}\u{85}\u{200b}\u{202e}\u{feff}\u{fffd}\u{fffe}\u{10ffff}\r\r\n\u{2028}a\u{301}\u{301}\u{fdfa}";
    let texts = [
        String::new(),
        odd.to_owned(),
        odd.repeat(2000),
        "a".repeat(MIB),
        " ".repeat(MIB) + "x",
        "\n".repeat(MIB / 8),
        " \n".repeat(MIB / 16),
        "🎈".repeat(MIB / 32),
        "\0".repeat(MIB / 8),
        "<|role|>".repeat(MIB / 64),
        "ab ".repeat(MIB / 24),
    ];
    for name in ["byte_level", "byte_fallback", "metaspace"] {
        let tokenizer = fixture(name);
        for text in &texts {
            let ids = tokenizer.encode(text, AddSpecialTokens::No).unwrap();
            // A Unigram vocabulary without byte fallback loses characters that it does not have.
            if name != "metaspace" {
                let start = text.chars().take(20).collect::<String>();
                assert!(
                    tokenizer.decode(&ids, SkipSpecialTokens::No).unwrap() == *text,
                    "{name} {start:?}"
                );
            }
        }
    }
}
