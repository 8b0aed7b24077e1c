//! Sizes of schemas and grammars, and the limits that they exceed.

use serde_json::json;

use super::*;

fn is_small(constraint: &Constraint) -> Result<bool> {
    class(constraint).map(|class| class != Class::Large)
}

fn is_small_schema(schema: Value) -> Result<bool> {
    is_small(&Constraint::JsonSchema(schema))
}

/// `len` definitions, each in `wrap` of the one before it.
fn chain(len: usize, wrap: impl Fn(Value) -> Value) -> Value {
    let name = |index: usize| format!("a{index}");
    let definition = |index: usize| {
        let next = json!({"$ref": format!("#/$defs/{}", name(index + 1))});
        (name(index), wrap(next))
    };
    let mut definitions: Map<String, Value> = (0..len).map(definition).collect();
    definitions.insert(name(len), json!({}));
    json!({"$ref": "#/$defs/a0", "$defs": definitions})
}

#[test]
fn references_count_as_what_they_lead_to() {
    let items = |schema| json!({"items": schema});
    let depth = |schema: &Value| of_schema(schema).map(|size| size.depth);
    let short = depth(&chain(100, items)).unwrap();
    // A hundred links have two levels each: the definition and its `items`.
    assert!((200..310).contains(&short), "{short}");
    let error = is_small_schema(chain(MAX_DEPTH, items)).unwrap_err().to_string();
    assert!(error.contains("levels of nested schemas"), "{error}");
    // Anchors and escaped pointers are references too.
    let anchors = |len: usize| {
        let schema = |index: usize| {
            let next = json!({"$anchor": format!("a{index}"), "not": {"$ref": format!("#a{}", index + 1)}});
            (index.to_string(), next)
        };
        let definitions: Map<String, Value> = (0..len).map(schema).collect();
        json!({"$ref": "#a0", "$defs": definitions})
    };
    assert!(depth(&anchors(100)).unwrap() > 100);
    assert!(depth(&anchors(MAX_DEPTH)).is_err());
}

#[test]
fn schemas_that_lead_to_each_other_all_count_and_only_once() {
    let tree =
        json!({"$defs": {"tree": {"items": {"$ref": "#/$defs/tree"}}}, "$ref": "#/$defs/tree"});
    assert!(is_small_schema(tree).unwrap());
    let mut ring = chain(50, |next| json!({"items": next}));
    ring["$defs"]["a50"] = json!({"$ref": "#/$defs/a0"});
    let size = of_schema(&ring).unwrap();
    assert!((100..260).contains(&size.depth), "{size:?}");
    // The depth of a diamond is that of its longer side.
    let diamond = json!({
        "$defs": {"end": {"items": {}}, "a": {"$ref": "#/$defs/end"}, "b": {"items": {"items": {"$ref": "#/$defs/end"}}}},
        "anyOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/b"}],
    });
    let sizes = of_schema(&diamond).unwrap();
    // The root with `anyOf`, the longer side, and the end.
    assert_eq!(sizes.depth, 3 + 3 + 2);
}

#[test]
fn what_is_wide_or_repeated_is_not_small() {
    let properties = |num: usize| {
        let names = (0..num).map(|index| (format!("p{index}"), json!({"type": "string"})));
        json!({"type": "object", "properties": names.collect::<Map<_, _>>()})
    };
    assert!(is_small_schema(properties(20)).unwrap());
    assert!(!is_small_schema(properties(100)).unwrap());
    assert!(is_small_schema(properties(MAX_MEMBERS + 1)).is_err());
    let literal = properties(100)["properties"].clone();
    assert!(!is_small_schema(json!({"const": literal})).unwrap());
    assert!(!is_small_schema(json!({"enum": [literal]})).unwrap());
    for (small, large) in [
        (json!({"pattern": "^(a|b)?$"}), json!({"pattern": "(a?b?)".repeat(100)})),
        (json!({"maxLength": 200}), json!({"maxLength": 100_000})),
        (json!({"pattern": "^a{1,20}$"}), json!({"pattern": "^(a{1000}){1000}$"})),
        (json!({"maxItems": 10.0}), json!({"items": {"minItems": 2000}})),
    ] {
        assert!(is_small_schema(small.clone()).unwrap(), "{small}");
        assert!(!is_small_schema(large.clone()).unwrap(), "{large}");
    }
    let text = "a".repeat(MAX_BYTES + 1);
    for constraint in [
        Constraint::Regex(text.clone()),
        Constraint::Choice(vec![text.clone()]),
        Constraint::Gbnf(text.clone()),
        Constraint::Lark(text.clone()),
        Constraint::JsonSchema(json!({"const": text})),
        Constraint::JsonSchema(json!({"enum": [[{text.clone(): 1}]]})),
        Constraint::StructuralTag(json!({"format": {"type": "regex", "pattern": text}})),
    ] {
        assert!(is_small(&constraint).is_err());
    }
}

#[test]
fn a_schema_is_looked_at_wherever_it_stands() {
    let deep = chain(MAX_DEPTH, |next| json!({"properties": {"a": next}}));
    for constraint in [
        Constraint::Lark(format!("start: \"x\" %json {deep}")),
        Constraint::Composed(format!("start: a\na: %lark {{\nstart: %json {deep}\n}}")),
        Constraint::StructuralTag(
            json!({"format": {"type": "sequence", "elements": [{"type": "json_schema", "json_schema": deep}]}}),
        ),
        Constraint::StructuralTag(
            json!({"structures": [{"begin": "a", "schema": deep, "end": "b"}], "triggers": ["a"]}),
        ),
        Constraint::StructuralTag(
            json!({"format": {"type": "grammar", "grammar": format!("start: %json {deep}")}}),
        ),
    ] {
        let error = is_small(&constraint).unwrap_err().to_string();
        assert!(error.contains("levels of nested schemas"), "{error}");
    }
}

#[test]
fn the_bytes_of_a_text_count_once() {
    let of = |schema: Value| of_schema(&schema).unwrap().bytes;
    let text = "a".repeat(100);
    for keyword in ["pattern", "$ref", "$id", "$anchor", "$dynamicRef", "$dynamicAnchor", "title"] {
        assert_eq!(of(json!({keyword: text})), keyword.len() + 100, "{keyword}");
    }
    assert_eq!(of(json!({"const": text})), 5 + 100);
    assert_eq!(of(json!({"patternProperties": {text.clone(): {}}})), 17 + 100);
    // Other keywords may be names of literals.
    assert_eq!(of(json!({"const": {"pattern": text}})), 5 + 7 + 100);
    let grammar = format!("start: %json {}", json!({"const": text}));
    assert_eq!(of_lark(&grammar).unwrap().bytes, grammar.len());
    let pattern = "a".repeat(MAX_BYTES - 7);
    is_small_schema(json!({"pattern": pattern})).unwrap();
    let error = is_small_schema(json!({"pattern": pattern + "a"})).unwrap_err().to_string();
    assert!(error.contains("2097153 bytes of text"), "{error}");
}

#[test]
fn identifiers_are_only_so_long() {
    let long = "x".repeat(MAX_REFERENCE_BYTES + 1);
    for keyword in ["$ref", "$id", "$anchor", "$dynamicRef", "$dynamicAnchor"] {
        let error = is_small_schema(json!({"items": {keyword: long}})).unwrap_err().to_string();
        assert!(error.contains(keyword), "{error}");
    }
}

#[test]
fn schemas_without_patterns_and_intersections_are_plain() {
    let plain = |schema: Value| class(&Constraint::JsonSchema(schema)).unwrap() == Class::Plain;
    let named = |len: usize| {
        let property = |index: usize| (format!("p{index}"), json!({"type": "integer"}));
        json!({"type": "object", "properties": (0..len).map(property).collect::<Map<_, _>>()})
    };
    assert!(plain(named(20)));
    assert!(plain(json!({"type": "array", "items": {"enum": ["a", 1]}, "maxItems": 64})));
    for schema in [
        named(40),
        json!({"maxLength": 65}),
        json!({"pattern": "a*"}),
        json!({"patternProperties": {"a": {}}}),
        json!({"allOf": [{}, {}]}),
        json!({"not": {"type": "string"}}),
    ] {
        assert!(!plain(schema.clone()), "{schema}");
    }
    assert_eq!(class(&Constraint::JsonObject), Ok(Class::Plain));
    assert_eq!(class(&Constraint::Regex("a".to_owned())), Ok(Class::Small));
}
