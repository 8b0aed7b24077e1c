//! The keyword arguments of a call in Python, `a=1, b='x'`, from a JSON schema: values in the notation of JSON, which
//! the parser of such calls reads too.

use candlepower_grammar::Constraint;
use serde_json::{Map, Value, json};

use super::{Function, Lark};
use crate::error::{Error, Result};

/// Keywords of the schema that say nothing that is not held; others cannot be.
const KNOWN: [&str; 9] = [
    "type",
    "properties",
    "required",
    "additionalProperties",
    "$defs",
    "definitions",
    "title",
    "description",
    "$schema",
];

impl Lark<'_> {
    /// The arguments of function `index`: required ones always, all of them in the schema's order.
    pub(super) fn keywords(&mut self, index: usize, function: &Function<'_>) -> Result<String> {
        let refuse = |reason: String| Error::Parameters { function: index, reason };
        let empty = Map::new();
        let schema = function.parameters.unwrap_or(&empty);
        if let Some(key) = schema.keys().find(|key| !KNOWN.contains(&key.as_str())) {
            let reason = format!("`{key}` cannot be held in calls that are written as Python");
            return Err(refuse(reason));
        }
        let properties = schema.get("properties").and_then(Value::as_object).unwrap_or(&empty);
        let required = schema.get("required").and_then(Value::as_array).into_iter().flatten();
        let required = Vec::from_iter(required.filter_map(Value::as_str));
        let others = required.iter().filter(|name| !properties.contains_key(**name));
        let names = properties.keys().map(String::as_str).chain(others.copied());
        let names = names.collect::<Vec<_>>();
        for (place, name) in names.iter().enumerate() {
            if !is_identifier(name) {
                return Err(refuse(format!("the property `{name}` is no name in Python")));
            }
            let value = properties.get(*name).cloned().unwrap_or(json!(true));
            let value = Constraint::JsonSchema(with_definitions(value, schema))
                .as_lark_value(self.tokenizer)?;
            self.rule(&format!("v{index}_{place}"), &value);
            self.rule(&format!("p{index}_{place}"), &format!("\"{name}=\" v{index}_{place}"));
        }
        // From place i on: `i{index}_{i}` is what may follow where nothing was written yet, `m{index}_{i}` where it was.
        for (place, name) in names.iter().enumerate() {
            let (this, next) = (format!("p{index}_{place}"), place + 1);
            let (first, more) = match required.contains(name) {
                true => {
                    (format!("{this} m{index}_{next}"), format!("\", \" {this} m{index}_{next}"))
                }
                false => (
                    format!("{this} m{index}_{next} | i{index}_{next}"),
                    format!("(\", \" {this})? m{index}_{next}"),
                ),
            };
            self.rule(&format!("i{index}_{place}"), &first);
            self.rule(&format!("m{index}_{place}"), &more);
        }
        self.rule(&format!("i{index}_{}", names.len()), "\"\"");
        self.rule(&format!("m{index}_{}", names.len()), "\"\"");
        Ok(format!("i{index}_0"))
    }
}

fn is_identifier(name: &str) -> bool {
    let begins = name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
    begins && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}

/// The schema of a value, with the definitions that it may refer to.
fn with_definitions(value: Value, schema: &Map<String, Value>) -> Value {
    let Value::Object(mut value) = value else { return value };
    for name in ["$defs", "definitions"] {
        if let Some(definitions) = schema.get(name) {
            value.entry(name).or_insert_with(|| definitions.clone());
        }
    }
    Value::Object(value)
}
