//! Integers of `enum` and `const`, and ranges of integers, that the library would round to double precision.
//!
//! Such an integer or range becomes a text that no schema has. In the compiled grammar, the lexeme of that text becomes the digits of
//! the integer, or a regular expression of the range (`lexemes.rs`).

use serde_json::{Map, Value, json};

use super::integers::Range;
use super::numbers::{is_rounded, large_range, supported};
use super::{DEFINITIONS, LITERAL, NAMED};

/// The beginning of the text. The digits follow.
const MARKER: &str = "candlepower's exact integer ";
/// Maximum texts of a schema with exact ranges: names and literals, each of which becomes a lexeme. Looking for the text of a range among
/// more of them would take too long, so their bounds are rounded inwards.
const MAX_TEXTS: usize = 60;
/// Keywords that do not constrain a value.
pub(super) const ANNOTATIONS: [&str; 8] =
    ["title", "description", "default", "examples", "$schema", "$id", "$comment", "deprecated"];

/// The text in place of an integer.
pub(crate) fn text_of(digits: &str) -> String {
    format!("{MARKER}{digits}")
}

/// The digits of all integers that were replaced in the text of a constraint.
pub(crate) fn replaced(constraint: &str) -> Vec<String> {
    let behind = constraint.split(MARKER).skip(1);
    let digits = behind.map(|text| {
        let is_part = |c: char| c.is_ascii_digit() || matches!(c, '-' | '.');
        let end = text.find(|c: char| !is_part(c)).unwrap_or(text.len());
        text[..end].to_owned()
    });
    // A text of the schema's author is not meant, unless it has such an integer.
    let is_meant = |digits: &String| {
        let is_integer =
            serde_json::from_str(digits).is_ok_and(|number: Value| is_rounded(&number));
        is_integer || Range::of(digits).is_some()
    };
    let mut all: Vec<String> = digits.filter(is_meant).collect();
    all.sort_unstable();
    all.dedup();
    all
}

/// A prepared schema in which such integers are replaced, as far as no other schema applies to the same value. The text is no number:
/// another schema would refuse it, or take it as a text. Ranges that are not replaced are rounded inwards.
pub(super) fn marked(schema: Value) -> Value {
    let has_large = has_rounded(&schema) || has_range(&schema);
    if !has_large {
        return schema;
    }
    let marked = match schema.to_string().contains(MARKER) || refers_beside(&schema) {
        true => schema,
        false => {
            let takes_ranges = schema.to_string().matches('"').count() <= 2 * MAX_TEXTS;
            alone(schema, takes_ranges)
        }
    };
    rounded(marked)
}

/// Whether a schema in this one has a range that the library would round.
fn has_range(value: &Value) -> bool {
    match value {
        Value::Array(items) => items.iter().any(has_range),
        Value::Object(object) => large_range(object).is_some() || object.values().any(has_range),
        _ => false,
    }
}

/// The schema with all remaining ranges rounded inwards.
fn rounded(schema: Value) -> Value {
    match schema {
        Value::Array(schemas) => schemas.into_iter().map(rounded).collect(),
        Value::Object(mut object) if large_range(&object).is_some() => {
            // Such a schema has no step, so nothing is left over.
            supported(&mut object);
            Value::Object(object)
        }
        Value::Object(object) => Value::Object(with_parts(object, &rounded)),
        other => other,
    }
}

/// The schema with `change` applied to the schemas within it.
fn with_parts(object: Map<String, Value>, change: &dyn Fn(Value) -> Value) -> Map<String, Value> {
    let part = |(keyword, value): (String, Value)| {
        let value = match value {
            value if LITERAL.contains(&keyword.as_str()) => value,
            Value::Object(named) if NAMED.contains(&keyword.as_str()) => {
                named.into_iter().map(|(name, schema)| (name, change(schema))).collect()
            }
            value => change(value),
        };
        (keyword, value)
    };
    object.into_iter().map(part).collect()
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

fn alone(schema: Value, takes_ranges: bool) -> Value {
    match schema {
        Value::Array(schemas) => {
            schemas.into_iter().map(|schema| alone(schema, takes_ranges)).collect()
        }
        Value::Object(object) if combines(&object) => Value::Object(object),
        Value::Object(object) if object.contains_key("enum") || object.contains_key("const") => {
            literals(object)
        }
        Value::Object(object) => match large_range(&object).filter(|_| takes_ranges) {
            Some((least, most)) if least > most => json!(false),
            Some((least, most)) => json!({"const": text_of(&Range { least, most }.to_string())}),
            None => {
                let takes_ranges = takes_ranges && !has_alternative_text(&object);
                Value::Object(with_parts(object, &|schema| alone(schema, takes_ranges)))
            }
        },
        other => other,
    }
}

/// Whether a value may be a text by one of several schemas. The text of a range could not be told from others.
fn has_alternative_text(object: &Map<String, Value>) -> bool {
    let arms = ["anyOf", "oneOf"].into_iter().filter_map(|keyword| object.get(keyword)?.as_array());
    let may_be_text = |arm: &Value| match arm.get("type") {
        Some(Value::String(name)) => name == "string",
        _ => true,
    };
    arms.flatten().any(may_be_text)
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
    fn ranges_alone_become_texts() {
        let range = |text: &str| json!({"const": text_of(text)});
        for (schema, expected) in [
            (
                json!({"type": "integer", "minimum": LARGE, "maximum": LARGE + 7}),
                range("9007199254740993..9007199254741000"),
            ),
            (
                json!({"type": "integer", "exclusiveMinimum": LARGE}),
                range("9007199254740994..99999999999999999999"),
            ),
            (
                json!({"type": "integer", "maximum": i64::MIN, "title": "x"}),
                range("-99999999999999999999..-9223372036854775808"),
            ),
            (
                json!({"type": "integer", "minimum": 1e19, "maximum": 2e19}),
                range("10000000000000000000..20000000000000000000"),
            ),
            (json!({"type": "integer", "exclusiveMinimum": LARGE, "maximum": LARGE}), json!(false)),
        ] {
            let schema = json!({"properties": {"a": schema}});
            assert_eq!(marked(schema.clone()), json!({"properties": {"a": expected}}), "{schema}");
        }
        // Among other schemas for the same value, and among very many others, bounds are rounded.
        let large = json!({"type": "integer", "maximum": LARGE});
        let small = json!({"type": "integer", "maximum": 9_007_199_254_740_992.0});
        let beside = |range: &Value| json!({"allOf": [range, {"type": "integer"}]});
        assert_eq!(marked(beside(&large)), beside(&small));
        let or_text = |range: &Value| json!({"anyOf": [{"type": "string"}, range]});
        assert_eq!(marked(or_text(&large)), or_text(&small));
        let or_null = |range: &Value| json!({"anyOf": [{"type": "null"}, range]});
        assert_eq!(
            marked(or_null(&large)),
            or_null(&range("-99999999999999999999..9007199254740993"))
        );
        let names: Vec<String> = (0..100).map(|number| format!("n{number}")).collect();
        let among = |range: &Value| json!({"properties": {"a": range, "b": {"enum": names}}});
        assert_eq!(marked(among(&large)), among(&small));
        for kept in [
            json!({"type": "integer", "minimum": i64::MIN + 1, "maximum": LARGE, "multipleOf": 3}),
            json!({"type": "integer", "minimum": 0, "maximum": i64::MAX}),
            json!({"type": "integer", "maximum": 1e30}),
            json!({"type": "number", "maximum": LARGE}),
        ] {
            assert_eq!(marked(kept.clone()), kept);
        }
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
