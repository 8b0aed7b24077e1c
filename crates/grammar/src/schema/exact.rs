//! Integers of `enum` and `const` that the library would round to double precision.
//!
//! Such an integer becomes a text that no schema has. In the compiled grammar, the lexeme of that text becomes the integer's digits
//! (`lexemes.rs`).

use serde_json::{Map, Value, json};

use super::numbers::is_rounded;
use super::{DEFINITIONS, LITERAL, NAMED};

/// The beginning of the text. The digits follow.
const MARKER: &str = "candlepower's exact integer ";
/// Keywords that do not constrain a value.
const ANNOTATIONS: [&str; 8] =
    ["title", "description", "default", "examples", "$schema", "$id", "$comment", "deprecated"];

/// The text in place of an integer.
pub(crate) fn text_of(digits: &str) -> String {
    format!("{MARKER}{digits}")
}

/// The digits of all integers that were replaced in the text of a constraint.
pub(crate) fn replaced(constraint: &str) -> Vec<String> {
    let behind = constraint.split(MARKER).skip(1);
    let digits = behind.map(|text| {
        let end = text.find(|c: char| !c.is_ascii_digit() && c != '-').unwrap_or(text.len());
        text[..end].to_owned()
    });
    // A text of the schema's author is not meant, unless it has such an integer.
    let is_meant = |digits: &String| {
        serde_json::from_str(digits).is_ok_and(|number: Value| is_rounded(&number))
    };
    let mut all: Vec<String> = digits.filter(is_meant).collect();
    all.sort_unstable();
    all.dedup();
    all
}

/// A prepared schema in which such integers are replaced, as far as no other schema applies to the same value. The text is no number:
/// another schema would refuse it, or take it as a text.
pub(super) fn marked(schema: Value) -> Value {
    if !has_rounded(&schema) || schema.to_string().contains(MARKER) || refers_beside(&schema) {
        return schema;
    }
    alone(schema)
}

fn has_rounded(value: &Value) -> bool {
    match value {
        Value::Array(items) => items.iter().any(has_rounded),
        Value::Object(object) => object.values().any(has_rounded),
        number => is_rounded(number),
    }
}

fn says(keyword: &str) -> bool {
    !ANNOTATIONS.contains(&keyword) && !DEFINITIONS.contains(&keyword)
}

/// Whether several schemas apply to the values of this one.
fn combines(object: &Map<String, Value>) -> bool {
    let alternatives = ["$ref", "anyOf", "oneOf"];
    let has = |keyword: &&str| object.contains_key(*keyword);
    let says_more = || object.keys().filter(|keyword| says(keyword)).count() > 1;
    object.contains_key("allOf") || alternatives.iter().any(has) && says_more()
}

/// Whether a reference is among several schemas for one value: its target is then not alone, wherever it is.
fn refers_beside(schema: &Value) -> bool {
    match schema {
        Value::Array(items) => items.iter().any(refers_beside),
        Value::Object(object) if combines(object) => schema.to_string().contains("\"$ref\""),
        Value::Object(object) => object.values().any(refers_beside),
        _ => false,
    }
}

fn alone(schema: Value) -> Value {
    match schema {
        Value::Array(schemas) => schemas.into_iter().map(alone).collect(),
        Value::Object(object) if combines(&object) => Value::Object(object),
        Value::Object(object) if object.contains_key("enum") || object.contains_key("const") => {
            literals(object)
        }
        Value::Object(object) => {
            let part = |(keyword, value): (String, Value)| {
                let value = match value {
                    value if LITERAL.contains(&keyword.as_str()) => value,
                    Value::Object(named) if NAMED.contains(&keyword.as_str()) => {
                        named.into_iter().map(|(name, schema)| (name, alone(schema))).collect()
                    }
                    value => alone(value),
                };
                (keyword, value)
            };
            Value::Object(object.into_iter().map(part).collect())
        }
        other => other,
    }
}

/// The values of an `enum` or `const` as alternatives. Other keywords than `type` leave the schema as it is.
fn literals(mut object: Map<String, Value>) -> Value {
    let is_known =
        |keyword: &String| !says(keyword) || matches!(keyword.as_str(), "enum" | "const" | "type");
    let values = match (object.get("enum"), object.get("const")) {
        (Some(Value::Array(values)), None) => values.clone(),
        (None, Some(value)) => vec![value.clone()],
        _ => return Value::Object(object),
    };
    if !values.iter().any(has_rounded) || !object.keys().all(is_known) {
        return Value::Object(object);
    }
    let fits = |value: &Value| match object.get("type") {
        None => true,
        Some(Value::Array(names)) => names.iter().any(|name| is_of(value, name)),
        Some(name) => is_of(value, name),
    };
    let (large, others): (Vec<Value>, Vec<Value>) = values.into_iter().partition(has_rounded);
    let large: Vec<Value> = large.into_iter().filter(fits).collect();
    let mut arms: Vec<Value> =
        large.into_iter().map(|value| json!({"const": text(value)})).collect();
    object.shift_remove("const");
    if !others.is_empty() {
        let mut rest = object.clone();
        rest.retain(|keyword, _| keyword == "type");
        rest.insert("enum".to_owned(), Value::Array(others));
        arms.push(Value::Object(rest));
    }
    if arms.is_empty() {
        return json!(false);
    }
    object.shift_remove("enum");
    object.shift_remove("type");
    object.insert("anyOf".to_owned(), Value::Array(arms));
    Value::Object(object)
}

/// Whether a literal with such an integer, which is that integer or contains it, is of a type.
fn is_of(value: &Value, name: &Value) -> bool {
    match value {
        Value::Array(_) => name == "array",
        Value::Object(_) => name == "object",
        _ => name == "integer" || name == "number",
    }
}

/// The literal with texts in place of such integers.
fn text(value: Value) -> Value {
    match value {
        Value::Array(items) => items.into_iter().map(text).collect(),
        Value::Object(object) => {
            object.into_iter().map(|(key, value)| (key, text(value))).collect()
        }
        number if is_rounded(&number) => text_of(&number.to_string()).into(),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LARGE: i64 = 9_007_199_254_740_993;

    #[test]
    fn integers_alone_become_texts() {
        let text = json!({"const": text_of("9007199254740993")});
        for (schema, expected) in [
            (json!({"const": LARGE}), json!({"anyOf": [text]})),
            (
                json!({"type": "integer", "enum": [1, LARGE], "title": "x"}),
                json!({"title": "x", "anyOf": [text, {"type": "integer", "enum": [1]}]}),
            ),
            (
                json!({"type": "string", "enum": ["a", LARGE]}),
                json!({"anyOf": [{"type": "string", "enum": ["a"]}]}),
            ),
            (
                json!({"properties": {"a": {"items": {"const": [LARGE, 1]}}}}),
                json!({"properties": {"a": {"items": {"anyOf": [{"const": [text_of("9007199254740993"), 1]}]}}}}),
            ),
        ] {
            assert_eq!(marked(schema.clone()), expected, "{schema}");
        }
        assert_eq!(replaced(&json!([text, text]).to_string()), ["9007199254740993"]);
    }

    #[test]
    fn integers_beside_other_schemas_stay() {
        for schema in [
            json!({"const": 1}),
            json!({"const": LARGE, "minimum": 1}),
            json!({"allOf": [{"const": LARGE}, {"type": "string"}]}),
            json!({"type": "string", "anyOf": [{"const": LARGE}]}),
            json!({"$defs": {"a": {"const": LARGE}}, "properties": {"b": {"$ref": "#/$defs/a", "type": "string"}}}),
            json!({"const": LARGE, "title": text_of("1")}),
        ] {
            assert_eq!(marked(schema.clone()), schema);
        }
    }
}
