//! Texts that grammars allow, with the vocabulary of a small tokenizer.

mod schemas;

use candlepower_tokenizer::Tokenizer;
use serde_json::{Value, json};

use crate::vocabulary::Words;
use crate::{Constraint, Error, Grammar, GrammarCompiler};

const EOS: u32 = 257;

/// A tokenizer with all bytes, one word and an end-of-sequence token.
fn tokenizer() -> Tokenizer {
    tokenizer_with(&[])
}

/// The same with further tokens, whose ids follow the end-of-sequence token's.
fn tokenizer_with(further: &[String]) -> Tokenizer {
    let mut vocab = serde_json::Map::new();
    for (id, letter) in byte_letters().into_iter().enumerate() {
        vocab.insert(letter.to_string(), id.into());
    }
    // A token of several bytes, so that masks are more than bytes.
    vocab.insert("true".into(), 256.into());
    vocab.extend(further.iter().cloned().zip((EOS + 1..).map(Value::from)));
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

/// The letters for bytes in byte-level tokenizers.
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

pub(crate) fn compiler() -> GrammarCompiler {
    GrammarCompiler::new(&tokenizer(), &[EOS], 320).unwrap()
}

/// The library has no room for tokens of more than 1,024 bytes.
#[test]
fn tokens_that_are_too_long_are_never_allowed() {
    let lengths = [999, 1000, 1001, 1025, 10_000];
    let tokenizer = tokenizer_with(&lengths.map(|length| "a".repeat(length)));
    let compiler = GrammarCompiler::new(&tokenizer, &[EOS], 320).unwrap();
    let mut grammar = compiler.compile(&Constraint::Regex("a*".to_owned())).unwrap();
    let allowed = grammar.allowed().unwrap();
    assert!(allowed.allows(u32::from(b'a')) && allowed.allows(EOS));
    let found = [1, 2, 3, 4, 5].map(|further| allowed.allows(EOS + further));
    assert_eq!(found, [true, true, false, false, false]);
}

/// Advances by a text byte by byte; `None` if it is not allowed, otherwise whether it may end there.
pub(crate) fn take(mut grammar: Grammar, text: &str) -> Option<bool> {
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
        (Constraint::Gbnf("root ::= \"(\" root \")\" | \"x\"".into()), "((x))"),
    ] {
        let inner = constraint.as_lark_value(&tokenizer()).unwrap();
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
    // 320 logits in words of 32 bits.
    assert_eq!(mask.words().len(), 10);
    assert!((258..400).all(|id| !mask.allows(id)));
    assert!(mask.allows(256) && mask.allows(EOS));
}

#[test]
fn bounds_and_steps_of_numbers_are_held() {
    let compiler = compiler();
    let takes = |schema: &Value, number: &str| {
        let grammar = compiler.compile(&Constraint::JsonSchema(schema.clone())).unwrap();
        take(grammar, number) == Some(true)
    };
    for (schema, valid, invalid) in [
        (
            json!({"type": "number", "exclusiveMinimum": 0, "maximum": 0.5}),
            &["0.1", "0.5", "0.05"][..],
            &["0", "-0", "0.0", "0.6"][..],
        ),
        (
            json!({"type": ["number", "null"], "exclusiveMinimum": 1, "maximum": 1.5}),
            &["1.5", "1.01", "null"],
            &["1", "1.0"],
        ),
        (json!({"exclusiveMinimum": 10, "maximum": 10.5}), &["10.25", "\"a\""], &["10", "10.0"]),
        (
            json!({"type": "number", "minimum": -0.5, "exclusiveMaximum": 0}),
            &["-0.5", "-0.1"],
            &["-0", "0", "-0.0"],
        ),
        (
            json!({"type": "number", "exclusiveMinimum": 0, "maximum": 1}),
            &["1", "0.5"],
            &["0", "0.0", "1.5"],
        ),
        (
            json!({"allOf": [{"type": "number", "exclusiveMinimum": 3}, {"maximum": 3.5}]}),
            &["3.5"],
            &["3"],
        ),
        (
            json!({"type": "integer", "exclusiveMinimum": 0, "exclusiveMaximum": 2}),
            &["1"],
            &["0", "2"],
        ),
        (
            json!({"type": "number", "multipleOf": 0.125}),
            &["0.5", "0.25", "0.125", "3", "-1.5", "0"],
            &["0.3", "0.1", "0.126"],
        ),
        (
            json!({"type": "number", "multipleOf": 0.25, "maximum": 1}),
            &["0.5", "1", "0.75"],
            &["1.25", "0.6"],
        ),
        (json!({"type": "integer", "multipleOf": 0.5}), &["1", "7"], &["0.5"]),
        (
            json!({"type": "integer", "minimum": 9_007_199_254_740_990_i64, "maximum": 9_007_199_254_740_999_i64}),
            &["9007199254740990", "9007199254740993", "9007199254740998", "9007199254740999"],
            &["9007199254740989", "9007199254741000", "90071992547409930", "7", "\"x\""],
        ),
        (
            json!({"type": "integer", "exclusiveMinimum": i64::MAX, "exclusiveMaximum": u64::MAX}),
            &["9223372036854775808", "18446744073709551614"],
            &["9223372036854775807", "18446744073709551615", "-1"],
        ),
        (
            json!({"type": "integer", "maximum": i64::MIN}),
            &["-9223372036854775808", "-9223372036854775809", "-99999999999999999999"],
            &["-9223372036854775807", "0", "-999999999999999999999"],
        ),
        (
            json!({"anyOf": [{"type": "integer", "exclusiveMaximum": -9_007_199_254_740_993_i64}, {"type": "null"}]}),
            &["-9007199254740994", "null"],
            &["-9007199254740993", "-1"],
        ),
        (
            json!({"anyOf": [{"type": "integer", "maximum": 9_007_199_254_740_993_i64}, {"type": "string"}]}),
            &["9007199254740992", "\"x\"", "-1"],
            &["9007199254740994"],
        ),
        (
            json!({"type": "object", "properties": {"a": {"type": "integer", "minimum": 0, "maximum": u64::MAX}}, "required": ["a"]}),
            &["{\"a\":18446744073709551615}", "{\"a\":0}", "{\"a\":42}"],
            &["{\"a\":18446744073709551616}", "{\"a\":-1}", "{\"a\":00}"],
        ),
        (
            json!({"type": "integer", "enum": [9_007_199_254_740_993_i64, -9_007_199_254_740_995_i64, 7, u64::MAX]}),
            &["9007199254740993", "-9007199254740995", "7", "18446744073709551615"],
            &[
                "9007199254740992",
                "9007199254740994",
                "18446744073709551616",
                "90071992547409930",
                "8",
                "\"candlepower's exact integer 9007199254740993\"",
            ],
        ),
        (json!({"const": i64::MIN + 1}), &["-9223372036854775807"], &["-9223372036854775808", "7"]),
        (
            json!({"enum": ["candle", 9_007_199_254_740_993_i64, [9_007_199_254_740_995_i64], {"a": 9_007_199_254_740_997_i64}, null]}),
            &[
                "\"candle\"",
                "9007199254740993",
                "[9007199254740995]",
                "{\"a\":9007199254740997}",
                "null",
            ],
            &[
                "\"candlep\"",
                "9007199254740995",
                "[9007199254740993]",
                "{\"a\":9007199254740995}",
                "[]",
            ],
        ),
        (
            json!({"type": "integer", "minimum": i64::MIN, "maximum": i64::MAX}),
            &["9223372036854775807", "-9223372036854774784", "-9223372036854775808"],
            &["9223372036854775808", "-9223372036854775809"],
        ),
    ] {
        for number in valid {
            assert!(takes(&schema, number), "{number} for {schema}");
        }
        for number in invalid {
            assert!(!takes(&schema, number), "{number} for {schema}");
        }
    }
}

#[test]
fn large_integers_that_cannot_be_held_are_refused() {
    let large = 9_007_199_254_740_993_i64;
    for schema in [
        json!({"anyOf": [{"type": "string"}, {"const": large}]}),
        json!({"const": large, "minimum": 1}),
        json!({"allOf": [{"enum": [large]}, {"type": "integer"}]}),
        json!({"$defs": {"a": {"const": large}}, "properties": {"b": {"$ref": "#/$defs/a", "type": "integer"}}}),
    ] {
        let error = compiler().compile(&Constraint::JsonSchema(schema.clone())).unwrap_err();
        assert!(error.to_string().contains("9007199254740993"), "{schema}: {error}");
    }
    for schema in [
        json!({"type": "integer", "minimum": 1e19, "multipleOf": 3}),
        json!({"type": "integer", "exclusiveMinimum": i64::MAX, "maximum": u64::MAX, "multipleOf": 3}),
        json!({"type": "integer", "maximum": i64::MIN, "multipleOf": 3}),
    ] {
        let error = compiler().compile(&Constraint::JsonSchema(schema.clone())).unwrap_err();
        assert!(error.to_string().contains("more than 64 bits"), "{schema}: {error}");
    }
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
fn a_forced_token_is_the_only_one_allowed() {
    let compiler = compiler();
    let schema = json!({
        "type": "object", "properties": {"name": {"enum": ["anna", "bert"]}, "grown": {"const": true}},
        "required": ["name", "grown"], "additionalProperties": false,
    });
    let constraints = [
        Constraint::JsonSchema(schema),
        Constraint::Regex("ab(cd|ce)fg/*true".into()),
        Constraint::Choice(vec!["yes".into(), "yes please".into(), "no".into()]),
        Constraint::Lark("start: \"a\" b \"c\"\nb: \"(\" b \")\" | \"true\"".into()),
    ];
    let mut num_forced = 0;
    for (seed, constraint) in (0..40).flat_map(|seed| constraints.iter().map(move |c| (seed, c))) {
        let mut grammar = compiler.compile(constraint).unwrap();
        let mut library = grammar.matcher().deep_clone();
        let mut picks = (seed..).map(|pick: usize| pick.wrapping_mul(7919) >> 3);
        while !grammar.is_finished() {
            let mask = grammar.clone().allowed().unwrap();
            let allowed: Vec<u32> = (0..320).filter(|id| mask.allows(*id)).collect();
            let words = library.compute_mask_or_eos().unwrap();
            assert_eq!(mask.words()[..10], words.as_slice()[..10], "{constraint:?}");
            let forced = grammar.forced_token();
            if let Some(forced) = forced {
                assert_eq!(allowed, [forced], "{constraint:?}");
                assert!(mask.allows_only(&[1, forced, forced]) && !mask.allows_only(&[1]));
                num_forced += 1;
            }
            let token = forced.unwrap_or_else(|| allowed[picks.next().unwrap() % allowed.len()]);
            if token == EOS {
                break;
            }
            grammar.accept(token).unwrap();
            library.consume_token(token).unwrap();
        }
        assert_eq!(grammar.is_finished().then(|| grammar.forced_token()).flatten(), None);
    }
    assert!(num_forced > 1000, "{num_forced}");
}

#[test]
fn a_long_text_that_must_follow_costs_little() {
    let long = "true".repeat(5000);
    let mut grammar = compiler().compile(&Constraint::Choice(vec![long, "z".into()])).unwrap();
    grammar.accept(b't'.into()).unwrap();
    let mut num_forced = 0;
    while let Some(forced) = grammar.forced_token() {
        grammar.accept(forced).unwrap();
        num_forced += 1;
    }
    // Splitting the whole text for each token would use up the budget.
    assert!(num_forced >= 5000 && grammar.is_finished(), "{num_forced}");
}

#[test]
fn what_cannot_be_held_is_refused() {
    let compiler = compiler();
    let refused = |constraint: Constraint| compiler.compile(&constraint).unwrap_err().to_string();
    let schema = |schema: Value| refused(Constraint::JsonSchema(schema));
    assert!(schema(json!({"uniqueItems": true})).contains("uniqueItems"));
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
    // 300 rounds of 140 different constraints: the second 140 come from the cache.
    for round in 0..300 {
        let regex = Constraint::Regex(format!("a{{{}}}", round % 140 + 1));
        assert_eq!(take(compiler.compile(&regex).unwrap(), "a"), Some(round % 140 == 0));
    }
}

/// A tag with a schema for a number, and free text around it.
fn call(begin: &str) -> Value {
    let digit = json!({"type": "integer", "minimum": 0, "maximum": 9});
    json!({"begin": begin, "content": {"type": "json_schema", "json_schema": digit}, "end": "</f>"})
}

#[test]
fn tags_begin_where_their_triggers_come() {
    let compiler = compiler();
    let take =
        |tag: Value, text| take(compiler.compile(&Constraint::StructuralTag(tag)).unwrap(), text);
    let triggered = |more: Value| {
        let mut format = json!({"type": "triggered_tags", "triggers": ["<f"], "tags": [call("<f=a>"), call("<f=b>")]});
        format.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        json!({"type": "structural_tag", "format": format})
    };
    let schema = json!({"type": "integer", "minimum": 0, "maximum": 9});
    let older = json!({"triggers": ["<f"], "structures": [
        {"begin": "<f=a>", "schema": schema, "end": "</f>"}, {"begin": "<f=b>", "schema": schema, "end": "</f>"},
    ]});
    for tag in [triggered(json!({})), older] {
        for text in [
            "",
            "plain < text",
            "x <f=a>1</f> y <f=b>2</f>",
            "<f=a>1</f><f=a>3</f>",
            "a\nb <f=b>0</f>",
        ] {
            assert_eq!(take(tag.clone(), text), Some(true), "{text:?}");
        }
        for text in ["<f", "x <f=a>1", "x <f=a>1</f> <f=b>2</"] {
            assert_eq!(take(tag.clone(), text), Some(false), "{text:?}");
        }
        for text in ["<f ", "<f=c", "x <f=a>x", "<f=a>10", "<f=a>1</f> <fx"] {
            assert_eq!(take(tag.clone(), text), None, "{text:?}");
        }
    }
    let some = triggered(json!({"at_least_one": true}));
    assert_eq!(take(some.clone(), "<f=a>1</f> done"), Some(true));
    assert_eq!(take(some, "no"), None);
    let first = triggered(json!({"stop_after_first": true}));
    assert_eq!(take(first.clone(), "x <f=a>1</f>"), Some(true));
    assert_eq!(take(first.clone(), "plain"), Some(true));
    assert_eq!(take(first, "x <f=a>1</f>y"), None);
    let only = triggered(json!({"at_least_one": true, "stop_after_first": true}));
    assert_eq!(take(only.clone(), "<f=b>7</f>"), Some(true));
    assert_eq!(take(only, "<f=b>7</f>x"), None);
}

#[test]
fn formats_of_structural_tags_are_held() {
    let compiler = compiler();
    let take = |format: Value, text| {
        take(compiler.compile(&Constraint::StructuralTag(json!({"format": format}))).unwrap(), text)
    };
    let any = json!({"type": "any_text"});
    let constant = |value: &str| json!({"type": "const_string", "value": value});
    assert_eq!(take(any.clone(), "what\never"), Some(true));
    let thought = json!({"type": "tag", "begin": "<think>", "content": any, "end": "</think>"});
    assert_eq!(take(thought.clone(), "<think>a < b</think>"), Some(true));
    assert_eq!(take(thought.clone(), "<think>a</think>b"), None);
    let answer = json!({"type": "sequence", "elements": [thought, {"type": "regex", "pattern": "[0-9]+/x"}, constant("!")]});
    assert_eq!(take(answer.clone(), "<think></think>12/x!"), Some(true));
    assert_eq!(take(answer, "<think></think>12/x"), Some(false));
    let or = json!({"type": "or", "elements": [constant("yes"), constant("y\u{7f}"), {"type": "grammar", "grammar": "root ::= \"n\"+"}]});
    for (text, allowed) in [
        ("yes", Some(true)),
        ("y\u{7f}", Some(true)),
        ("nnn", Some(true)),
        ("ye", Some(false)),
        ("nx", None),
    ] {
        assert_eq!(take(or.clone(), text), allowed, "{text:?}");
    }
    let list = json!({"type": "tags_with_separator", "tags": [call("<f>")], "separator": ", ", "at_least_one": true});
    assert_eq!(take(list.clone(), "<f>1</f>, <f>2</f>"), Some(true));
    assert_eq!(take(list.clone(), "<f>1</f>,"), Some(false));
    assert_eq!(take(list, ""), Some(false));
    // A special token in a string is matched as the token.
    let mut special = compiler
        .compile(&Constraint::StructuralTag(json!({"format": constant("a</s>b")})))
        .unwrap();
    special.accept(b'a'.into()).unwrap();
    assert!(
        special.allowed().unwrap().allows(EOS) && !special.allowed().unwrap().allows(b'<'.into())
    );
}

#[test]
fn structural_tags_that_cannot_be_held_are_refused() {
    let compiler = compiler();
    let any = json!({"type": "any_text"});
    for (tag, part) in [
        (json!({}), "format"),
        (json!({"format": {"type": "xml"}}), "xml"),
        (
            json!({"format": {"type": "qwen_xml_parameter", "json_schema": {}}}),
            "qwen_xml_parameter",
        ),
        (json!({"format": {"type": "any_text", "excludes": ["a"]}}), "excludes"),
        (json!({"format": {"type": "sequence", "elements": [any, any]}}), "must be the last"),
        (
            json!({"format": {"type": "tag", "begin": "<", "content": any, "end": ""}}),
            "must be the last",
        ),
        (json!({"format": {"type": "or", "elements": []}}), "no elements"),
        (
            json!({"format": {"type": "json_schema", "json_schema": {"uniqueItems": true}}}),
            "uniqueItems",
        ),
        (json!({"format": {"type": "grammar", "grammar": "root ::= x"}}), "no rule `x`"),
        (
            json!({"triggers": ["<g"], "structures": [{"begin": "<f>", "schema": {}, "end": ""}]}),
            "<g",
        ),
        (
            json!({"triggers": [""], "structures": [{"begin": "<f>", "schema": {}, "end": ""}]}),
            "empty",
        ),
        (json!({"triggers": [], "structures": []}), "no triggers"),
        (json!({"triggers": ["<"]}), "structures"),
    ] {
        let refused =
            compiler.compile(&Constraint::StructuralTag(tag.clone())).unwrap_err().to_string();
        assert!(refused.contains(part), "{refused}: {tag}");
    }
}

#[test]
fn many_choices_and_wide_objects_are_held() {
    let compiler = compiler();
    let texts: Vec<String> =
        (0..10_000).map(|index| format!("choice {} of {index}", index * 7919 % 10_007)).collect();
    let choice = compiler.compile(&Constraint::Choice(texts.clone())).unwrap();
    assert_eq!(take(choice.clone(), &texts[5000]), Some(true));
    assert_eq!(take(choice, "choice 1 of 1"), None);
    let properties = (0..600).map(|index| (format!("p{index}"), json!({"type": "boolean"})));
    let properties: serde_json::Map<String, Value> = properties.collect();
    let schema = json!({"type": "object", "properties": properties, "additionalProperties": false});
    let grammar = compiler.compile(&Constraint::JsonSchema(schema)).unwrap();
    assert_eq!(take(grammar, "{\"p7\":true,\"p599\":false}"), Some(true));
}

#[test]
fn what_is_too_wide_is_refused_when_it_is_compiled() {
    let compiler = compiler();
    let texts: Vec<String> = (0..6000).map(|index| format!("\"text {index}\"")).collect();
    let rule = format!("start: {}", texts.join(" | "));
    let any: Vec<Value> =
        (0..6000).map(|index| json!({"required": [format!("p{index}")]})).collect();
    for constraint in
        [Constraint::Lark(rule), Constraint::JsonSchema(json!({"type": "object", "anyOf": any}))]
    {
        let error = compiler.compile(&constraint).unwrap_err();
        assert!(matches!(error, Error::Constraint(_)), "{error}");
    }
}

#[test]
fn what_can_be_read_in_too_many_ways_ends_early() {
    let compiler = compiler();
    let ambiguous = "start: e\ne: e e | \"a\" | \"b\" | \"\"";
    for constraint in [
        Constraint::Lark(ambiguous.into()),
        Constraint::Lark("start: ((\"a\"*)*)*".into()),
        Constraint::Composed(format!("start: \"a\" inner\ninner: %lark {{\n{ambiguous}\n}}\n")),
    ] {
        let mut state = compiler.compile(&constraint).unwrap();
        let failed = (0..900).find_map(|_| {
            let allowed = state.allowed().map(|mask| assert!(mask.allows(b'a'.into())));
            allowed.and_then(|()| state.accept(b'a'.into())).err()
        });
        let error = failed.expect("it fails").to_string();
        assert!(error.contains("too long"), "{error}");
        assert!(state.clone().allowed().is_err(), "it shares the request's budget");
        compiler.compile(&constraint).unwrap().allowed().unwrap();
    }
}

#[test]
fn errors_say_why() {
    let compiler = compiler();
    let error = compiler.compile(&Constraint::Regex("a(b".into())).unwrap_err().to_string();
    assert!(error.contains("unclosed group") && !error.contains('\n'), "{error}");
    let schema = json!({"type": "string", "pattern": "a{2,1}"});
    let error = compiler.compile(&Constraint::JsonSchema(schema)).unwrap_err().to_string();
    assert!(error.contains("invalid repetition"), "{error}");
}

/// A schema with random keywords, some of which refer to definitions.
fn random_schema(random: &mut fastrand::Rng, depth: usize) -> Value {
    let next = |random: &mut fastrand::Rng| random_schema(random, depth.saturating_sub(1));
    let few = random.usize(1..6);
    match random.u8(0..if depth == 0 { 6 } else { 14 }) {
        0 => json!({"type": ["string", "null"]}),
        1 => json!({"type": "string", "maxLength": random.u32(0..1000)}),
        2 => json!({"type": "string", "pattern": format!("^[a-z]{{0,{}}}$", random.u32(0..100))}),
        3 => {
            json!({"enum": (0..random.u32(1..60)).map(|number| format!("value {number}")).collect::<Vec<_>>()})
        }
        4 => json!({"type": "integer", "minimum": random.u32(0..1000)}),
        5 => json!({"$ref": format!("#/$defs/d{}", random.u8(0..4))}),
        6 => json!({"type": "array", "items": next(random), "maxItems": random.u32(1..500)}),
        7 => json!({"anyOf": (0..few).map(|_| next(random)).collect::<Vec<_>>()}),
        8 => json!({"allOf": (0..few).map(|_| next(random)).collect::<Vec<_>>()}),
        9 => {
            json!({"prefixItems": (0..few).map(|_| next(random)).collect::<Vec<_>>(), "items": false})
        }
        10 => json!({"type": "object", "additionalProperties": next(random)}),
        11 => {
            json!({"type": "object", "patternProperties": {"^a": next(random), "b$": next(random)}})
        }
        _ => {
            let names = (0..random.usize(1..12)).map(|index| (format!("p{index}"), next(random)));
            let properties: serde_json::Map<String, Value> = names.collect();
            let required: Vec<_> = properties.keys().filter(|_| random.bool()).cloned().collect();
            json!({"type": "object", "properties": properties, "required": required})
        }
    }
}

#[test]
fn small_schemas_need_little_stack() {
    // Half of what a thread of tokio has, on which small constraints are compiled.
    const STACK_BYTES: usize = 1 << 20;
    let mut random = fastrand::Rng::with_seed(3);
    let compiler = compiler();
    let (mut num_small, mut num_compiled) = (0, 0);
    for _ in 0..800 {
        let mut schema = random_schema(&mut random, 4);
        let definitions = (0..4).map(|index| (format!("d{index}"), random_schema(&mut random, 2)));
        schema["$defs"] = Value::Object(definitions.collect());
        let constraint = Constraint::JsonSchema(schema);
        if !constraint.is_small().unwrap() {
            continue;
        }
        num_small += 1;
        std::thread::scope(|scope| {
            let thread = std::thread::Builder::new().stack_size(STACK_BYTES);
            let compile =
                thread.spawn_scoped(scope, || compiler.compile_here(&constraint, false).is_ok());
            num_compiled += usize::from(compile.unwrap().join().unwrap());
        });
    }
    assert!(num_small > 100 && num_compiled > num_small / 2, "{num_small}, {num_compiled}");
}

#[test]
fn deep_schemas_are_compiled_on_a_deep_stack() {
    let name = |index: usize| format!("a{index}");
    let link = |index: usize| {
        (name(index), json!({"items": {"$ref": format!("#/$defs/{}", name(index + 1))}}))
    };
    let mut definitions: serde_json::Map<String, Value> = (0..600).map(link).collect();
    definitions.insert(name(600), json!({"type": "null"}));
    let schema = json!({"$ref": "#/$defs/a0", "$defs": definitions});
    let constraint = Constraint::JsonSchema(schema);
    assert_eq!(constraint.is_small(), Ok(false));
    compiler().compile(&constraint).unwrap();
}

#[test]
fn a_vocabulary_passes_between_processes() {
    let words = Words::new(&tokenizer(), &[EOS], 320).unwrap();
    let bytes = words.encode();
    assert_eq!(Words::decode(&bytes).as_ref(), Some(&words));
    for len in 0..bytes.len() {
        assert_eq!(Words::decode(&bytes[..len]), None, "{len} bytes");
    }
    // A compiler without a tokenizer allows the same texts.
    let alone = GrammarCompiler::of_words(words).unwrap();
    let tag = json!({"format": {"type": "tag", "begin": "</s>", "content": {"type": "regex", "pattern": "a+"}, "end": "b"}});
    for constraint in [Constraint::Regex("[a-c]true".into()), Constraint::StructuralTag(tag)] {
        let mask = |compiler: &GrammarCompiler| compiler.compile(&constraint).unwrap().allowed();
        assert_eq!(mask(&alone), mask(&compiler()));
    }
}
