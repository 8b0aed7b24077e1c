//! The keyword arguments of a call in Python, `a=1, b='x'`, from a JSON schema: values in the notation of JSON, which
//! the parser of such calls reads too.

use candlepower_grammar::{Constraint, without_unused_definitions};
use serde_json::{Map, Value};

use super::elements::ANNOTATIONS;
use super::{Function, Lark};
use crate::error::{Error, Result};

/// Keywords of the schema that say nothing that is not held; others cannot be.
const KNOWN: [&str; 4] = ["type", "properties", "required", "additionalProperties"];

/// An argument that a function takes.
pub(super) struct Property<'a> {
    pub(super) name: &'a str,
    pub(super) schema: Value,
    pub(super) is_required: bool,
}

impl<'a> Property<'a> {
    /// Those of the schema of a function's arguments, in its order, then those that it only requires.
    ///
    /// # Errors
    /// What of the schema cannot be held in calls that are written in this `notation`.
    pub(super) fn all(schema: &'a Map<String, Value>, notation: &str) -> Result<Vec<Self>, String> {
        let is_held = |key: &str| KNOWN.contains(&key) || ANNOTATIONS.contains(&key);
        if let Some(key) = schema.keys().find(|key| !is_held(key)) {
            return Err(format!("`{key}` cannot be held in calls that are written as {notation}"));
        }
        Ok(Self::named_by(schema))
    }

    /// Those of any schema of objects.
    pub(super) fn named_by(schema: &'a Map<String, Value>) -> Vec<Self> {
        let properties = schema.get("properties").and_then(Value::as_object);
        let required = schema.get("required").and_then(Value::as_array).into_iter().flatten();
        let required = Vec::from_iter(required.filter_map(Value::as_str));
        let is_known = |name: &str| properties.is_some_and(|all| all.contains_key(name));
        let known = properties.into_iter().flatten().map(|(name, schema)| Self {
            name,
            schema: schema.clone(),
            is_required: required.contains(&name.as_str()),
        });
        let others = schema.get("additionalProperties").unwrap_or(&Value::Bool(true));
        let others = required.iter().filter(|name| !is_known(name)).map(|name| Self {
            name,
            schema: others.clone(),
            is_required: true,
        });
        known.chain(others).collect()
    }
}

impl Lark<'_> {
    /// The arguments of function `index`: required ones always, all of them in the schema's order.
    pub(super) fn keywords(&mut self, index: usize, function: &Function<'_>) -> Result<String> {
        let refuse = |reason: String| Error::Parameters { function: index, reason };
        let empty = Map::new();
        let schema = function.parameters.unwrap_or(&empty);
        let properties = Property::all(schema, "Python").map_err(refuse)?;
        for (place, Property { name, schema: value, .. }) in properties.iter().enumerate() {
            if !is_identifier(name) {
                return Err(refuse(format!("the property `{name}` is no name in Python")));
            }
            let value = Constraint::JsonSchema(with_definitions(value, schema))
                .as_lark_value(self.tokenizer)?;
            self.rule(&format!("v{index}_{place}"), &value);
            self.rule(&format!("p{index}_{place}"), &format!("\"{name}=\" v{index}_{place}"));
        }
        let are_required = properties.iter().map(|property| property.is_required);
        Ok(self.members(&index.to_string(), ", ", are_required))
    }

    /// The members of an object, `p{name}_0`, `p{name}_1` and so on, with separators between those that are written.
    pub(super) fn members(
        &mut self,
        name: &str,
        separator: &str,
        are_required: impl ExactSizeIterator<Item = bool>,
    ) -> String {
        let count = are_required.len();
        // From place i on: `i{name}_{i}` is what may follow where nothing was written yet, `m{name}_{i}` where it was.
        for (place, is_required) in are_required.enumerate() {
            let (this, next) = (format!("p{name}_{place}"), place + 1);
            let (first, more) = match is_required {
                true => (
                    format!("{this} m{name}_{next}"),
                    format!("\"{separator}\" {this} m{name}_{next}"),
                ),
                false => (
                    format!("{this} m{name}_{next} | i{name}_{next}"),
                    format!("(\"{separator}\" {this})? m{name}_{next}"),
                ),
            };
            self.rule(&format!("i{name}_{place}"), &first);
            self.rule(&format!("m{name}_{place}"), &more);
        }
        self.rule(&format!("i{name}_{count}"), "\"\"");
        self.rule(&format!("m{name}_{count}"), "\"\"");
        format!("i{name}_0")
    }
}

fn is_identifier(name: &str) -> bool {
    let begins = name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
    begins && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}

/// The schema of a value, with the definitions that it refers to.
pub(super) fn with_definitions(value: &Value, schema: &Map<String, Value>) -> Value {
    let Value::Object(value) = value else { return value.clone() };
    let mut value = value.clone();
    for name in ["$defs", "definitions"] {
        if let Some(definitions) = schema.get(name) {
            value.entry(name).or_insert_with(|| definitions.clone());
        }
    }
    without_unused_definitions(&Value::Object(value))
}
