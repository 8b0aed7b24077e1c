//! Random schemas over HTTP. A model that would generate a fixed text generates only what the schema allows.

use candlepower_testing::schemas::Pairs;
use serde_json::{Value, json};

use crate::support::Scripted;

const SCHEMAS: usize = 42;
const TEXTS: usize = 12;
/// Extra tokens for a text that the schema has diverted from the fixed one.
const MORE_TOKENS: usize = 8;
/// Most digits of numbers that the other implementation, which uses float64, can divide exactly.
const EXACT_DIGITS: usize = 15;

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
