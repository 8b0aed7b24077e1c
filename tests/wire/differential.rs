//! Random schemas over HTTP. A model that would generate a fixed text generates only what the schema allows, and so
//! does a model that is made to call a function.

use candlepower_testing::schemas::Pairs;
use serde_json::{Value, json};

use crate::support::{Scripted, ServerBuilder};

const SCHEMAS: usize = 42;
const TEXTS: usize = 12;
/// Extra tokens for a text that the schema has diverted from the fixed one.
const MORE_TOKENS: usize = 8;
/// Most digits of numbers that the other implementation, which uses float64, can divide exactly.
const EXACT_DIGITS: usize = 15;

/// Formats with an element or a keyword for each argument, in which each property has a grammar of its own.
const FORMATS_OF_ELEMENTS: [&str; 4] = ["qwen3_coder", "glm45", "minimax_m2", "pythonic"];
const SCHEMAS_OF_FORMAT: usize = 16;
const CHOICES: u64 = 6;

/// Whether the other implementation would round a number before it divides it.
fn is_rounded(schema: &Value, text: &str) -> bool {
    let is_long = |digits: &str| digits.len() > EXACT_DIGITS;
    schema.to_string().contains("multipleOf")
        && text.split(|c: char| !c.is_ascii_digit()).any(is_long)
}

fn validator(schema: &Value) -> Result<jsonschema::Validator, String> {
    let options = jsonschema::options().should_validate_formats(true);
    options.build(schema).map_err(|error| error.to_string())
}

#[test]
fn what_comes_is_valid_by_another_implementation() {
    let mut source = Pairs::new(83);
    let mut pairs: Vec<(Value, String)> = Vec::new();
    while pairs.len() < SCHEMAS * TEXTS {
        let schema = source.schema(3);
        let says_nothing = schema.get("$ref").is_some();
        if !says_nothing && validator(&schema).is_ok() {
            let texts = (0..TEXTS).map(|_| source.instance(&schema, &schema, 4));
            pairs.extend(texts.map(|text| (schema.clone(), text)));
        }
    }
    let texts: Vec<&str> = pairs.iter().map(|(_, text)| text.as_str()).collect();
    let model = Scripted::start("{{ messages }}", &[], &texts, "");
    let (mut as_meant, mut finished, mut refused) = (0, 0, 0);
    for (i, (schema, text)) in pairs.iter().enumerate() {
        let format = json!({"type": "json_schema", "json_schema": {"name": "s", "schema": schema}});
        let more = json!({"response_format": format, "max_tokens": text.len() + MORE_TOKENS});
        let answer = model.complete(i, more);
        let validator = validator(schema).unwrap();
        if answer.status == 400 {
            let reason = answer.text();
            // Integers in `enum` that float64 cannot represent are refused by name.
            let is_known = reason.contains("double precision");
            let value = serde_json::from_str(text).unwrap();
            assert!(is_known || !validator.is_valid(&value), "{text}, {schema}: {reason}");
            refused += 1;
            continue;
        }
        let choice = &answer.ok()["choices"][0];
        let written = choice["text"].as_str().unwrap();
        if choice["finish_reason"] == "length" {
            continue;
        }
        assert_eq!(choice["finish_reason"], "stop", "{text} of {schema}");
        if is_rounded(schema, written) {
            continue;
        }
        finished += 1;
        let value = serde_json::from_str(written).unwrap();
        assert!(validator.is_valid(&value), "{written} is no instance of {schema}");
        as_meant += usize::from(written == text);
    }
    println!("{} pairs: {refused} refused, {finished} finished, {as_meant} as meant", pairs.len());
    // The test shows little if most texts are diverted.
    assert!(as_meant * 4 > pairs.len(), "{as_meant} of {} came as meant", pairs.len());
}

/// Schemas of functions. Those with references are the hard ones where a property has a grammar of its own.
#[test]
fn calls_are_valid_by_another_implementation() {
    let (mut tried, mut refused, mut finished, mut faults) = (0, 0, 0, Vec::new());
    for (index, format) in FORMATS_OF_ELEMENTS.iter().enumerate() {
        let flags = format!("--tool-call-parser {format}");
        let server = ServerBuilder::new("demo").flags(&flags).start();
        let mut source = Pairs::new(index as u64);
        let mut schemas = 0;
        while schemas < SCHEMAS_OF_FORMAT {
            let schema = with_names_of_elements(source.schema(3));
            let refers = schema.to_string().contains("$ref");
            let Ok(validator) = validator(&schema) else { continue };
            if schema["type"] != "object" || !refers {
                continue;
            }
            (schemas, tried) = (schemas + 1, tried + 1);
            let function = json!({"name": "f", "parameters": schema});
            let body = json!({
                "messages": [{"role": "user", "content": "q"}], "tools": [{"type": "function", "function": function}],
                "tool_choice": "required", "parallel_tool_calls": false, "n": CHOICES, "seed": 1, "temperature": 1, "max_tokens": 120,
                "model": "demo",
            });
            let answer = server.post("/v1/chat/completions", &body);
            if answer.status == 400 {
                refused += 1;
                continue;
            }
            if answer.status != 200 {
                faults.push(format!("{format}, schema {tried}: {schema}: {}", answer.text()));
                continue;
            }
            for choice in answer.ok()["choices"].as_array().unwrap() {
                if choice["finish_reason"] != "tool_calls" {
                    continue;
                }
                let call = &choice["message"]["tool_calls"][0]["function"];
                let arguments = call["arguments"].as_str().unwrap();
                if is_rounded(&schema, arguments) {
                    continue;
                }
                finished += 1;
                let value: Value = serde_json::from_str(arguments).unwrap();
                if !validator.is_valid(&value) {
                    faults.push(format!("{format}, schema {tried}: {schema}: {arguments}"));
                }
            }
        }
    }
    println!("{tried} schemas: {refused} refused, {finished} calls finished");
    assert!(faults.is_empty(), "{} faults:\n{}", faults.len(), faults.join("\n"));
    // The test shows little if few calls end.
    assert!(finished > tried, "{finished} calls of {tried} schemas have finished");
}

/// The schema with properties whose names can be those of elements, and without patterns for others.
fn with_names_of_elements(mut schema: Value) -> Value {
    match &mut schema {
        Value::Array(schemas) => {
            for schema in schemas {
                *schema = with_names_of_elements(schema.take());
            }
        }
        Value::Object(object) => {
            object.remove("patternProperties");
            if let Some(Value::Object(properties)) = object.get_mut("properties") {
                properties.retain(|name, _| name.chars().all(|c| c.is_ascii_alphanumeric()));
            }
            let names = object.get("properties").and_then(Value::as_object);
            let is_there = |name: &Value| {
                names.is_some_and(|names| names.contains_key(name.as_str().unwrap()))
            };
            if object.get("required").is_some_and(|names| !is_there(&names[0])) {
                object.remove("required");
            }
            for schema in object.values_mut() {
                *schema = with_names_of_elements(schema.take());
            }
        }
        _ => {}
    }
    schema
}
