//! A hundred schemas: values of many kinds, alone and in objects, arrays, alternatives and recursion.

use serde_json::{Value, json};

/// All schemas.
pub fn schemas() -> Vec<Value> {
    let values = values();
    let mut schemas = values.clone();
    let within = within();
    for (number, value) in values.iter().cycle().take(100 - values.len()).enumerate() {
        // Three consecutive values get different wrappings.
        schemas.push(within[number % within.len()](
            value.clone(),
            values[(number * 7 + 3) % values.len()].clone(),
        ));
    }
    schemas
}

fn values() -> Vec<Value> {
    vec![
        json!({"type": "null"}),
        json!({"type": "boolean"}),
        json!({"type": "integer", "minimum": 0, "maximum": 9}),
        json!({"type": "integer", "minimum": -3, "exclusiveMaximum": 1234}),
        json!({"type": "integer", "multipleOf": 5, "minimum": 0, "maximum": 1000}),
        json!({"type": "integer", "exclusiveMinimum": 99_990, "maximum": 100_010}),
        json!({"type": "number", "minimum": -0.5, "maximum": 0.75}),
        json!({"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1}),
        json!({"type": "number", "minimum": 1e3}),
        json!({"type": "string", "maxLength": 0}),
        json!({"type": "string", "minLength": 1, "maxLength": 4}),
        json!({"type": "string", "minLength": 3, "maxLength": 3}),
        json!({"type": "string", "pattern": "^[a-z]{2,5}-[0-9]+$"}),
        json!({"type": "string", "pattern": "^(\\+|-)?\\d{1,3}$"}),
        json!({"type": "string", "pattern": "^[^\"\\\\a-y]{0,6}$"}),
        json!({"type": "string", "format": "date"}),
        json!({"type": "string", "format": "time"}),
        json!({"type": "string", "format": "date-time"}),
        json!({"type": "string", "format": "uuid"}),
        json!({"type": "string", "format": "ipv4"}),
        json!({"enum": ["red", "green", "bl\"ack", "é", 7, null, [1], {"a": false}]}),
        json!({"const": {"kind": "fixed", "list": [1, 2.5, "x"]}}),
        json!({"type": ["string", "integer", "null"], "maxLength": 3, "minimum": 0, "maximum": 50}),
        json!({"anyOf": [{"type": "boolean"}, {"type": "string", "enum": ["maybe"]}, {"const": 0}]}),
        json!({"allOf": [{"type": "integer", "minimum": 5}, {"maximum": 12}, {"multipleOf": 2}]}),
        json!({"oneOf": [{"type": "integer", "maximum": 3, "minimum": -3}, {"type": "null"}]}),
        json!({"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 99}, "minItems": 2, "maxItems": 5}),
        json!({"type": "array", "prefixItems": [{"type": "boolean"}, {"const": "x"}], "items": false}),
        json!({"type": "array", "maxItems": 0}),
        json!({"type": "object", "additionalProperties": false}),
    ]
}

/// Functions that put one or two values into a larger schema.
fn within() -> Vec<fn(Value, Value) -> Value> {
    vec![
        |first, second| {
            json!({"type": "object", "properties": {"first": first, "second": second},
                "required": ["first", "second"], "additionalProperties": false})
        },
        |first, second| {
            json!({"type": "object", "properties": {"maybe": first, "a \"quoted\" name": second, "last": {"type": "null"}},
                "required": ["last"], "additionalProperties": false})
        },
        |first, _| json!({"type": "array", "items": first, "minItems": 1, "maxItems": 3}),
        |first, second| json!({"type": "array", "prefixItems": [first, second], "items": false, "minItems": 2}),
        |first, second| {
            json!({"anyOf": [
                {"type": "object", "properties": {"is": {"const": 1}, "of": first}, "required": ["is", "of"], "additionalProperties": false},
                {"type": "object", "properties": {"is": {"const": 2}, "of": second}, "required": ["is", "of"], "additionalProperties": false},
            ]})
        },
        |first, second| {
            json!({"$defs": {"first": first, "pair": {"type": "array", "prefixItems": [{"$ref": "#/$defs/first"}, second],
                "items": false, "minItems": 2}}, "type": "object", "properties": {"left": {"$ref": "#/$defs/pair"},
                "right": {"$ref": "#/$defs/first"}}, "required": ["left", "right"], "additionalProperties": false})
        },
        |first, _| {
            json!({"$defs": {"tree": {"type": "object", "properties": {"value": first, "next": {"anyOf": [
                {"type": "null"}, {"$ref": "#/$defs/tree"}]}}, "required": ["value", "next"], "additionalProperties": false}},
                "$ref": "#/$defs/tree"})
        },
        |first, _| json!({"type": "object", "patternProperties": {"^k[0-9]$": first}, "additionalProperties": false}),
        |first, second| {
            json!({"type": "object", "properties": {"outer": {"type": "object", "properties": {"inner": {"type": "object",
                "properties": {"deep": first}, "required": ["deep"], "additionalProperties": false}},
                "required": ["inner"], "additionalProperties": false}, "beside": second},
                "required": ["outer", "beside"], "additionalProperties": false})
        },
        |first, _| {
            json!({"allOf": [{"type": "object", "properties": {"a": first}, "required": ["a"]},
                {"properties": {"a": true, "b": {"type": "boolean"}}, "required": ["b"], "additionalProperties": false}]})
        },
    ]
}
