//! Schemas that are stricter here than in the library, and schemas that no text satisfies.

use super::*;

/// Whether a schema allows a text as a whole.
fn allows(schema: Value, text: &str) -> bool {
    let grammar = compiler().compile(&Constraint::JsonSchema(schema.clone()));
    let grammar = grammar.unwrap_or_else(|error| panic!("{schema}: {error}"));
    take(grammar, text) == Some(true)
}

#[test]
fn digits_of_numbers_are_bounded() {
    let nines = |num: usize| "9".repeat(num);
    for schema in
        [json!({"type": "number"}), json!({"type": ["number", "string", "null"]}), json!({})]
    {
        for (text, is_allowed) in [
            (nines(20), true),
            (nines(21), false),
            (format!("-{}.{}e-308", nines(20), nines(20)), true),
            (format!("0.{}", nines(21)), false),
            ("1e308".to_owned(), true),
            ("1.6e+308".to_owned(), true),
            ("1e309".to_owned(), false),
            ("99e308".to_owned(), false),
            ("1E0309".to_owned(), false),
            // 287 is the largest exponent that fits every number of 20 digits.
            ("12.5e287".to_owned(), true),
            ("1e-309".to_owned(), false),
        ] {
            assert_eq!(allows(schema.clone(), &text), is_allowed, "{schema}: {text}");
        }
    }
    // The largest unsigned 64-bit integer has 20 digits.
    assert!(allows(json!({"type": "integer"}), "-18446744073709551615"));
    assert!(!allows(json!({"type": "integer"}), &nines(21)));
    assert!(allows(json!({"type": "string"}), &format!("\"{}\"", nines(50))));
    // Bounds may have more digits if they need them.
    let small = json!({"type": "number", "exclusiveMinimum": 0, "maximum": 1e-24});
    assert!(allows(small, &format!("0.{}1", "0".repeat(23))));
}

#[test]
fn a_known_name_has_one_spelling() {
    let known = json!({"properties": {"名前": {"type": "integer"}, "a\nb": {"type": "integer"}}});
    for (schema, text) in [
        // Models that write ASCII only spell other letters so. It would pass with any value if it counted as another name.
        (known.clone(), r#"{"\u540d\u524d":"x"}"#),
        (known.clone(), r#"{"a\u000ab":"x"}"#),
        (
            json!({"properties": {"a": {"type": "integer"}}, "required": ["a"]}),
            r#"{"a":1,"\u0061":"x"}"#,
        ),
        (json!({"properties": {"a": false}}), r#"{"\u0061":1}"#),
        (
            json!({"properties": {"a": {"type": "integer"}}, "additionalProperties": {"type": "string"}}),
            r#"{"\u0061":"x"}"#,
        ),
        (json!({"patternProperties": {"^a": {"type": "integer"}}}), r#"{"\u0061b":"x"}"#),
        (json!({"not": {"required": ["a"]}}), r#"{"\u0061":1}"#),
    ] {
        assert!(!allows(schema.clone(), text), "{schema}: {text}");
    }
    assert!(allows(known.clone(), r#"{"名前":1,"a\nb":2,"c\"d\\":"x","ä":null}"#));
}

#[test]
fn nothing_begins_that_cannot_end() {
    let score = json!({"type": "integer"});
    let closed = |schema: Value| {
        let mut schema = schema;
        schema["type"] = json!("object");
        schema["additionalProperties"] = json!(false);
        schema
    };
    for (schema, text) in [
        (
            json!({"properties": {"score": score}, "required": ["score"], "patternProperties": {"^score$": score}}),
            r#"{"score": 2}"#,
        ),
        (
            json!({"properties": {"score": score}, "patternProperties": {"^score$": {"minimum": 2}}}),
            r#"{"score": 2}"#,
        ),
        (
            json!({"properties": {"a": score, "b": score}, "patternProperties": {"^[ab]$": score}}),
            r#"{"a":1,"b":2}"#,
        ),
        (json!({"patternProperties": {"^score$": score}, "required": ["score"]}), r#"{"score":1}"#),
    ] {
        let schema = closed(schema);
        assert!(allows(schema.clone(), text), "{schema}");
        let more = text.replace('}', ",");
        let grammar = compiler().compile(&Constraint::JsonSchema(schema.clone())).unwrap();
        assert_eq!(take(grammar, &more), None, "{schema}");
    }
    let node = json!({"type": "object", "properties": {"next": {"$ref": "#/$defs/n"}}, "required": ["next"]});
    let optional = json!({"$defs": {"n": node}, "type": "object", "properties": {"a": {"$ref": "#/$defs/n"}, "b": score}, "additionalProperties": false});
    assert!(allows(optional.clone(), r#"{"b":1}"#));
    assert!(!allows(optional, r#"{"a":{"next""#));
    let both = json!({"allOf": [
        {"properties": {"score": score}}, {"type": "object", "patternProperties": {"^score$": true}, "additionalProperties": false},
    ]});
    for unending in [json!({"$ref": "#"}), json!({"$defs": {"n": node}, "$ref": "#/$defs/n"}), both]
    {
        let error = compiler().compile(&Constraint::JsonSchema(unending.clone())).unwrap_err();
        let error = error.to_string();
        assert!(
            error.contains("no finite value") || error.contains("no name is left"),
            "{unending}: {error}"
        );
    }
    for nowhere in [json!({"$ref": "#/"}), json!({"items": {"$ref": "#/$defs/missing"}})] {
        let error = compiler().compile(&Constraint::JsonSchema(nowhere)).unwrap_err().to_string();
        assert!(error.contains("points to nothing in the schema"), "{error}");
    }
}

#[test]
fn a_dead_end_says_where_it_is() {
    let grammar = Constraint::Lark("start: \"a\" X\nX: /bc|d/ & /be|f/\n".into());
    let mut grammar = compiler().compile(&grammar).unwrap();
    grammar.accept(b'a'.into()).unwrap();
    assert_eq!(grammar.allowed(), Err(Error::DeadEnd { num_tokens: 1 }));
}

#[test]
fn names_sets_and_unknown_formats_are_held() {
    let color = json!({"color": {"enum": ["red", "blue"]}, "size": {"pattern": "^s"}});
    let names = |names: Value| json!({"$defs": color, "type": "object", "propertyNames": names, "additionalProperties": {"type": "integer"}});
    let by_reference = names(json!({"$ref": "#/$defs/color"}));
    let any_of = names(json!({"anyOf": [{"$ref": "#/$defs/color"}, {"$ref": "#/$defs/size"}]}));
    for (schema, text, is_allowed) in [
        (&by_reference, r#"{"red":1,"blue":2}"#, true),
        (&by_reference, r#"{"green":1}"#, false),
        (&any_of, r#"{"red":1,"small":2}"#, true),
        (&any_of, r#"{"large":1}"#, false),
        (
            &json!({"items": {"enum": ["a", "b"]}, "uniqueItems": true, "type": "array"}),
            r#"["b","a"]"#,
            true,
        ),
        (
            &json!({"items": {"enum": ["a", "b"]}, "uniqueItems": true, "type": "array"}),
            r#"["b","b"]"#,
            false,
        ),
        (&json!({"type": "string", "format": "binary"}), r#""x""#, true),
    ] {
        assert_eq!(allows(schema.clone(), text), is_allowed, "{schema}: {text}");
    }
}
