//! What grammars allow, over the vocabulary of a small tokenizer.

use candlepower_tokenizer::Tokenizer;
use serde_json::{Value, json};

use crate::{Constraint, Error, Grammar, GrammarCompiler};

const EOS: u32 = 257;

/// A tokenizer whose tokens are the bytes, one word and the end of a text.
fn tokenizer() -> Tokenizer {
    let mut vocab = serde_json::Map::new();
    for (id, letter) in byte_letters().into_iter().enumerate() {
        vocab.insert(letter.to_string(), id.into());
    }
    vocab.insert("true".into(), 256.into());
    let byte_level = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false});
    let tokenizer = json!({
        "version": "1.0", "truncation": null, "padding": null, "normalizer": null, "post_processor": null,
        "added_tokens": [{"id": EOS, "content": "</s>", "special": true, "normalized": false,
                          "single_word": false, "lstrip": false, "rstrip": false}],
        "pre_tokenizer": byte_level, "decoder": byte_level,
        "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
                  "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "vocab": vocab, "merges": []},
    });
    Tokenizer::from_bytes(tokenizer.to_string().as_bytes(), None).unwrap()
}

/// The letters that byte-level tokenizers write the bytes as.
fn byte_letters() -> Vec<char> {
    let mut next = 256;
    (0..256_u32)
        .map(|byte| {
            let prints = matches!(byte, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff);
            let code = if prints { byte } else { next };
            next += u32::from(!prints);
            char::from_u32(code).unwrap()
        })
        .collect()
}

fn compiler() -> GrammarCompiler {
    GrammarCompiler::new(&tokenizer(), &[EOS], 320).unwrap()
}

/// Takes a text byte by byte; `None` if it is not allowed, else whether it may end there.
fn take(mut grammar: Grammar, text: &str) -> Option<bool> {
    for byte in text.bytes() {
        if grammar.is_finished() || !grammar.allowed().unwrap().allows(byte.into()) {
            return None;
        }
        grammar.accept(byte.into()).unwrap();
    }
    Some(grammar.is_finished() || grammar.allowed().unwrap().allows(EOS))
}

#[test]
fn texts_are_taken_as_far_as_they_are_allowed() {
    let compiler = compiler();
    let take = |constraint: &Constraint, text| take(compiler.compile(constraint).unwrap(), text);
    let regex = Constraint::Regex("a[bc]+/d?".into());
    assert_eq!(take(&regex, "abcb"), Some(false));
    assert_eq!(take(&regex, "ab/"), Some(true));
    assert_eq!(take(&regex, "ab/d"), Some(true));
    assert_eq!(take(&regex, "ad"), None);
    let choice = Constraint::Choice(vec!["yes".into(), "yes please".into(), "n\"o".into()]);
    assert_eq!(take(&choice, "yes"), Some(true));
    assert_eq!(take(&choice, "yes p"), Some(false));
    assert_eq!(take(&choice, "n\"o"), Some(true));
    assert_eq!(take(&choice, "maybe"), None);
    let schema = Constraint::JsonSchema(json!({
        "type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"], "additionalProperties": false,
    }));
    assert_eq!(take(&schema, "{\"a\":true}"), Some(true));
    assert_eq!(take(&schema, "{\n  \"a\": false\n}"), Some(true));
    assert_eq!(take(&schema, "{\"b\""), None);
    assert_eq!(take(&schema, "{ \n \n"), None, "white space is bounded");
    assert_eq!(take(&Constraint::JsonObject, "{\"any\": [1, null, {\"x\": \"é\"}]}"), Some(true));
    let lark = Constraint::Lark("start: \"(\" start \")\" | \"x\"".into());
    assert_eq!(take(&lark, "((x))"), Some(true));
    assert_eq!(take(&lark, "((x)"), Some(false));
}

#[test]
fn constraints_stand_within_larger_grammars() {
    let compiler = compiler();
    let schema = json!({"type": "object", "properties": {"a": {"enum": ["}"]}}, "additionalProperties": false});
    for (constraint, text) in [
        (Constraint::JsonSchema(schema), "{\"a\":\"}\"}"),
        (Constraint::Regex("[{}]b|c".into()), "}b"),
        (Constraint::Choice(vec!["yes".into(), "}".into()]), "}"),
        (Constraint::Lark("start: \"(\" start \")\" | X // }\nX: \"x\"".into()), "((x))"),
    ] {
        let inner = constraint.as_lark_value().unwrap();
        let outer = Constraint::Lark(format!("start: \"<\" inner \">\"\ninner: {inner}\n"));
        let take = |text: &str| take(compiler.compile(&outer).unwrap(), text);
        assert_eq!(take(&format!("<{text}>")), Some(true), "{inner}");
        assert_eq!(take(&format!("<{text}")), Some(false), "{inner}");
        assert_eq!(take("<>"), None, "{inner}");
    }
}

#[test]
fn a_special_token_is_never_a_text() {
    let compiler = compiler();
    let mut grammar = compiler.compile(&Constraint::Regex("</s>x".into())).unwrap();
    assert!(!grammar.allowed().unwrap().allows(EOS));
    assert_eq!(take(grammar, "</s>x"), Some(true));
}

#[test]
fn ids_without_a_token_are_never_allowed() {
    let mut grammar = compiler().compile(&Constraint::Regex("(.|\\n)*".into())).unwrap();
    let mask = grammar.allowed().unwrap();
    assert_eq!(mask.words().len(), 10);
    assert!((258..400).all(|id| !mask.allows(id)));
    assert!(mask.allows(256) && mask.allows(EOS));
}

#[test]
fn clones_go_their_own_way() {
    let mut first = compiler().compile(&Constraint::Regex("ab|cd".into())).unwrap();
    let mut second = first.clone();
    first.accept(b'a'.into()).unwrap();
    second.accept(b'c'.into()).unwrap();
    assert!(
        first.allowed().unwrap().allows(b'b'.into())
            && !first.allowed().unwrap().allows(b'd'.into())
    );
    assert!(second.allowed().unwrap().allows(b'd'.into()));
    second.accept(b'd'.into()).unwrap();
    assert!(second.is_finished() && !first.is_finished());
    assert!(matches!(first.accept(b'x'.into()), Err(Error::State(_))));
}

#[test]
fn what_cannot_be_held_is_refused() {
    let compiler = compiler();
    let refused = |constraint: Constraint| compiler.compile(&constraint).unwrap_err().to_string();
    let schema = |schema: Value| refused(Constraint::JsonSchema(schema));
    assert!(schema(json!({"dependentRequired": {"a": ["b"]}})).contains("dependentRequired"));
    assert!(!schema(json!(false)).is_empty());
    assert!(!schema(json!({"type": "integer", "minimum": 3, "maximum": 2})).is_empty());
    assert!(!refused(Constraint::Regex("(".into())).is_empty());
    assert!(refused(Constraint::Lark("start: other".into())).contains("other"));
    let nothing = GrammarCompiler::new(&tokenizer(), &[], 320);
    assert!(matches!(nothing, Err(Error::Vocabulary(_))));
}

#[test]
fn a_constraint_is_compiled_once() {
    let compiler = compiler();
    for round in 0..300 {
        let regex = Constraint::Regex(format!("a{{{}}}", round % 140 + 1));
        assert_eq!(take(compiler.compile(&regex).unwrap(), "a"), Some(round % 140 == 0));
    }
}
