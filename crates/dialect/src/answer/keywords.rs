//! Grammar rules for keyword arguments in Python, `a=1, b='x'`, from a JSON schema. Values are in JSON, which the parser of such calls
//! also reads.

use candlepower_grammar::{Constraint, without_unused_definitions};
use serde_json::{Map, Value};

use super::elements::ANNOTATIONS;
use super::{Function, Lark, escaped};
use crate::error::{Error, Result};

/// Keywords of a schema that are enforced. Others cannot be enforced.
const KNOWN: [&str; 4] = ["type", "properties", "required", "additionalProperties"];

/// An argument of a function.
pub(super) struct Property<'a> {
    pub(super) name: &'a str,
    pub(super) schema: Value,
    pub(super) is_required: bool,
}

impl<'a> Property<'a> {
    /// The properties of a function's schema, in its order, then names that occur in `required` only.
    ///
    /// # Errors
    /// The keyword that cannot be enforced in this `notation`.
    pub(super) fn all(schema: &'a Map<String, Value>, notation: &str) -> Result<Vec<Self>, String> {
        let is_enforced = |key: &str| KNOWN.contains(&key) || ANNOTATIONS.contains(&key);
        if let Some(key) = schema.keys().find(|key| !is_enforced(key)) {
            return Err(format!("`{key}` cannot be enforced in tool calls in {notation}"));
        }
        Ok(Self::named_by(schema))
    }

    /// The properties of any schema of objects.
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
        // JSON Schema allows `required` to name a key that `properties` lacks. `additionalProperties` then describes
        // its value.
        let others = schema.get("additionalProperties").unwrap_or(&Value::Bool(true));
        let others = required.iter().filter(|name| !is_known(name)).map(|name| Self {
            name,
            schema: others.clone(),
            is_required: true,
        });
        known.chain(others).collect()
    }
}

/// The schema of undeclared keys, if the schema of an object says that they are allowed.
pub(super) fn undeclared(schema: &Map<String, Value>) -> Option<&Value> {
    schema.get("additionalProperties").filter(|others| !allows_nothing(others))
}

/// Whether a schema allows no value, in the two forms in which generators of schemas write it.
pub(super) fn allows_nothing(schema: &Value) -> bool {
    let is_any =
        |schema: &Value| *schema == Value::Bool(true) || *schema == Value::Object(Map::new());
    *schema == Value::Bool(false) || schema.get("not").is_some_and(is_any)
}

/// A terminal without the declared keys, which have rules of their own.
pub(super) fn without_declared(terminal: &str, declared: &[&str]) -> String {
    match declared {
        [] => terminal.to_owned(),
        declared => {
            let declared = declared.iter().map(|key| escaped(key)).collect::<Vec<_>>();
            format!("{terminal} & ~/({})/", declared.join("|"))
        }
    }
}

impl Lark<'_> {
    /// The arguments of function `index`, in the schema's order; required ones are always present.
    pub(super) fn keywords(&mut self, index: usize, function: &Function<'_>) -> Result<String> {
        let refuse = |reason: String| Error::Parameters { function: index, reason };
        let empty = Map::new();
        let schema = function.parameters.unwrap_or(&empty);
        let properties = Property::all(schema, "Python").map_err(refuse)?;
        // Python's calls follow their schema also if the function is not strict: this format has no rule for any
        // arguments.
        for (place, Property { name, schema: value, .. }) in properties.iter().enumerate() {
            if !is_identifier(name) {
                return Err(refuse(format!("the property `{name}` is not a valid name in Python")));
            }
            let value = Constraint::JsonSchema(with_definitions(value, schema))
                .as_lark_value(self.tokenizer)?;
            self.rule(&format!("v{index}_{place}"), &value);
            self.rule(&format!("p{index}_{place}"), &format!("\"{name}=\" v{index}_{place}"));
        }
        let other = match undeclared(schema) {
            None => None,
            Some(others) => {
                let value = Constraint::JsonSchema(with_definitions(others, schema))
                    .as_lark_value(self.tokenizer)?;
                let (key, other) = (format!("KEY{index}"), format!("o{index}"));
                let declared = properties.iter().map(|property| property.name).collect::<Vec<_>>();
                self.rule(&key, &without_declared("/[A-Za-z_][A-Za-z0-9_]{0,200}/", &declared));
                self.rule(&format!("v{index}_o"), &value);
                self.rule(&other, &format!("{key} \"=\" v{index}_o"));
                Some(other)
            }
        };
        let are_required = properties.iter().map(|property| property.is_required);
        Ok(self.members(&index.to_string(), ", ", are_required, other.as_deref()))
    }

    /// The members of an object, `p{name}_0`, `p{name}_1` and so on, then any number of `other` ones, with separators between those
    /// that are present.
    pub(super) fn members(
        &mut self,
        name: &str,
        separator: &str,
        are_required: impl ExactSizeIterator<Item = bool>,
        other: Option<&str>,
    ) -> String {
        let count = are_required.len();
        // Members from index i on: `i{name}_{i}` if no member was written before, `m{name}_{i}` if one was.
        // Two rules for each place avoid a choice of all subsets: the grammar grows linearly with the number of
        // properties.
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
        let (first, more) = match other {
            None => ("\"\"".to_owned(), "\"\"".to_owned()),
            Some(other) => {
                let more = format!("(\"{separator}\" {other})*");
                (format!("({other} {more})?"), more)
            }
        };
        self.rule(&format!("i{name}_{count}"), &first);
        self.rule(&format!("m{name}_{count}"), &more);
        format!("i{name}_0")
    }
}

fn is_identifier(name: &str) -> bool {
    let begins = name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
    begins && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}

/// The schema of a value, with all definitions of its root.
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
