//! Constraints of hostile clients: deep, wide, with many patterns, in every field, with escaped names.

use fastrand::Rng;
use serde_json::{Map, Value, json};

/// Definitions, each of which is within a keyword of the previous one.
pub(crate) fn chain(len: usize, random: &mut Rng) -> Value {
    let keyword = random.u8(0..8);
    let wrap = |next: Value| match keyword {
        0 => next,
        1 => json!({"items": next}),
        2 => json!({"type": "object", "properties": {"a": next}}),
        3 => json!({"allOf": [next]}),
        4 => json!({"anyOf": [next, {"type": "null"}]}),
        5 => json!({"additionalProperties": next}),
        6 => json!({"prefixItems": [next]}),
        _ => json!({"not": {"not": next}}),
    };
    let definition = |index: usize| {
        let next = json!({"$ref": format!("#/$defs/a{}", index + 1)});
        (format!("a{index}"), wrap(next))
    };
    let mut definitions: Map<String, Value> = (0..len).map(definition).collect();
    definitions.insert(format!("a{len}"), json!({}));
    json!({"$ref": "#/$defs/a0", "$defs": definitions})
}

pub(crate) fn named(num: usize, value: impl Fn(usize) -> Value) -> Map<String, Value> {
    (0..num).map(|index| (format!("p{index}"), value(index))).collect()
}

/// A schema that is deep, wide, or has many patterns.
pub(crate) fn schema(random: &mut Rng) -> Value {
    // Sizes from 16 to 8192, so that both accepted and refused ones occur.
    let size = 1 << random.u32(4..14);
    match random.u8(0..7) {
        0 | 1 => chain(size, random),
        2 => {
            let properties = named(size, |_| json!({"type": "string"}));
            let required: Vec<String> = properties.keys().cloned().collect();
            json!({"type": "object", "properties": properties, "required": required})
        }
        3 => json!({"enum": [named(size, |index| index.into())]}),
        4 => {
            json!({"type": "object", "patternProperties": (0..size).map(|index| (format!("^p{index}$"), json!({"type": "string"}))).collect::<Map<_, _>>()})
        }
        5 => json!({"type": "string", "pattern": format!("^(a{{{size}}}){{{size}}}$")}),
        _ => json!({"allOf": vec![json!({"minLength": 1}); size]}),
    }
}

/// A request with a schema in one of the fields for it.
pub(crate) fn request(schema: Value, random: &mut Rng) -> (&'static str, Value) {
    let mut chat =
        json!({"model": "demo", "messages": [{"role": "user", "content": "a"}], "max_tokens": 4});
    let function = json!({"type": "function", "function": {"name": "f", "strict": true, "parameters": schema}});
    let (field, value) = match random.u8(0..8) {
        0 => ("structured_outputs", json!({"json": schema})),
        1 => (
            "response_format",
            json!({"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}),
        ),
        2 => ("structured_outputs", json!({"grammar": format!("start: %json {schema}")})),
        3 => {
            let tag = json!({"structures": [{"begin": "<a>", "schema": schema, "end": "</a>"}], "triggers": ["<a"]});
            ("structured_outputs", json!({"structural_tag": tag.to_string()}))
        }
        4 => ("tools", json!([function])),
        5 => {
            let format = json!({"type": "json_schema", "name": "a", "schema": schema});
            return (
                "/v1/responses",
                json!({"model": "demo", "input": "a", "text": {"format": format}, "max_output_tokens": 4}),
            );
        }
        6 => {
            let body = json!({"model": "demo", "prompt": "a", "max_tokens": 4, "structured_outputs": {"json": schema}});
            return ("/v1/completions", body);
        }
        _ => {
            chat["max_tokens"] = 16.into();
            ("output_config", json!({"format": {"type": "json_schema", "schema": schema}}))
        }
    };
    chat[field] = value;
    let path = if field == "output_config" { "/v1/messages" } else { "/v1/chat/completions" };
    (path, chat)
}

/// The body with one letter of each field name escaped, as JSON allows.
pub(crate) fn escaped(body: &Value) -> String {
    let names = ["response_format", "structured_outputs", "json_schema", "output_config", "tools"];
    names.iter().fold(body.to_string(), |body, name| {
        let (first, rest) = name.split_at(1);
        let escaped = format!("\"\\u{:04x}{rest}\"", first.as_bytes()[0]);
        body.replace(&format!("\"{name}\""), &escaped)
    })
}
