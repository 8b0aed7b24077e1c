//! Types of a value from its JSON schema, for formats whose text does not distinguish strings from other JSON.

use std::cell::Cell;

use serde_json::{Map, Value};

/// Maximum depth of schemas within schemas.
const MAX_DEPTH: usize = 16;
/// Maximum number of visited schemas.
const MAX_SCHEMAS: usize = 1 << 12;

/// A set of JSON types; integers are numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Types(u8);

impl Types {
    pub(crate) const NONE: Self = Self(0);
    pub(crate) const NULL: Self = Self(1);
    pub(crate) const BOOLEAN: Self = Self(2);
    pub(crate) const NUMBER: Self = Self(4);
    pub(crate) const STRING: Self = Self(8);
    pub(crate) const ARRAY: Self = Self(16);
    pub(crate) const OBJECT: Self = Self(32);
    pub(crate) const ALL: Self = Self(63);
    /// The types without a schema. A bare word is then a string rather than `true` or `null`.
    const UNSAID: Self = Self(Self::NUMBER.0 | Self::STRING.0 | Self::ARRAY.0 | Self::OBJECT.0);

    /// The types that `schema` allows, with references into `root`.
    pub(crate) fn of(schema: &Value, root: &Map<String, Value>) -> Self {
        Look::at(root).said(schema, 0).unwrap_or(Self::UNSAID)
    }

    /// The types of this set that `schema` does not exclude, with references into `root`.
    pub(crate) fn within(self, schema: &Map<String, Value>, root: &Map<String, Value>) -> Self {
        Look::at(root).said_by(schema, 0).map_or(self, |types| self.and(types))
    }

    /// The types that `schema` does not exclude.
    pub(crate) fn not_ruled_out(schema: &Value, root: &Map<String, Value>) -> Self {
        match schema {
            Value::Object(schema) => Self::ALL.within(schema, root),
            other if *other == Value::Bool(false) => Self::NONE,
            _ => Self::ALL,
        }
    }

    /// The types of the property `key` of an object.
    pub(crate) fn of_property(key: &str, object: Option<&Map<String, Value>>) -> Self {
        let Some(object) = object else { return Self::UNSAID };
        schema_of(key, object).map_or(Self::UNSAID, |schema| Self::of(schema, object))
    }

    /// Whether a value is a string or null, so that its text has no quotes.
    pub(crate) fn are_text(self) -> bool {
        self.have(Self::STRING) && self.0 & !(Self::STRING.0 | Self::NULL.0) == 0
    }

    pub(crate) fn have_string(self) -> bool {
        self.have(Self::STRING)
    }

    pub(crate) fn allow(self, value: &Value) -> bool {
        self.have(type_of(value))
    }

    pub(crate) fn and(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    pub(crate) fn have(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    /// The argument `text` as JSON. Python's literals are accepted, and text that is not a value of these types is a string.
    pub(crate) fn argument(self, text: &str) -> String {
        let is_null = text == "null" && self.allow(&Value::Null);
        if self.are_text() && !is_null {
            return Value::from(text).to_string();
        }
        let json = match text.trim() {
            "True" => "true",
            "False" => "false",
            "None" => "null",
            other => other,
        };
        let is_meant = |value: &Value| {
            // `None` for an integer becomes null rather than the string "None".
            let is_word = matches!(value, Value::Null | Value::Bool(_));
            self.allow(value) || (is_word && !self.have_string())
        };
        match serde_json::from_str(json) {
            Ok(value) if is_meant(&value) => json.to_owned(),
            _ => Value::from(text).to_string(),
        }
    }
}

/// The schema of the property `key` of an object.
fn schema_of<'a>(key: &str, object: &'a Map<String, Value>) -> Option<&'a Value> {
    let property = object.get("properties").and_then(|properties| properties.get(key));
    property.or_else(|| object.get("additionalProperties"))
}

/// Whether the schema of the property `key` of an object has this string, with references into the object.
pub(crate) fn has_text(text: &str, key: &str, object: &Map<String, Value>) -> bool {
    schema_of(key, object).is_some_and(|schema| Look::at(object).has_text(text, schema, 0))
}

fn type_of(value: &Value) -> Types {
    match value {
        Value::Null => Types::NULL,
        Value::Bool(_) => Types::BOOLEAN,
        Value::Number(_) => Types::NUMBER,
        Value::String(_) => Types::STRING,
        Value::Array(_) => Types::ARRAY,
        Value::Object(_) => Types::OBJECT,
    }
}

/// A bounded traversal of schemas, which may refer to each other in cycles.
struct Look<'a> {
    root: &'a Map<String, Value>,
    /// Number of schemas that may still be visited.
    left: Cell<usize>,
}

impl<'a> Look<'a> {
    fn at(root: &'a Map<String, Value>) -> Self {
        Self { root, left: Cell::new(MAX_SCHEMAS) }
    }

    /// The types that every keyword of the schema allows; `None` if none of them says.
    fn said(&self, schema: &Value, depth: usize) -> Option<Types> {
        self.said_by(schema.as_object().filter(|_| depth < MAX_DEPTH)?, depth)
    }

    fn said_by(&self, schema: &Map<String, Value>, depth: usize) -> Option<Types> {
        self.left.set(self.left.get().checked_sub(1)?);
        let inner = |schema: &Value| self.said(schema, depth + 1);
        let of_keyword = |(keyword, value): (&String, &Value)| match (keyword.as_str(), value) {
            ("type", Value::String(name)) => named(name),
            ("type", Value::Array(names)) => {
                union(names.iter().map(|name| name.as_str().and_then(named)))
            }
            ("const", value) => Some(type_of(value)),
            ("enum", Value::Array(values)) => {
                union(values.iter().map(|value| Some(type_of(value))))
            }
            ("anyOf" | "oneOf", Value::Array(schemas)) => union(schemas.iter().map(inner)),
            ("allOf", Value::Array(schemas)) => {
                let looked_at = schemas.iter().take_while(|_| self.left.get() > 0);
                // The limit also ends the loop: an `allOf` of thousands of references would visit nothing more, but
                // still be iterated at every level.
                looked_at.filter_map(inner).reduce(Types::and)
            }
            ("$ref", Value::String(reference)) => resolve(reference, self.root).and_then(inner),
            _ => None,
        };
        schema.iter().filter_map(of_keyword).reduce(Types::and)
    }

    /// Whether this string is among the values and lists of the schema, or of schemas that it refers to.
    fn has_text(&self, text: &str, schema: &Value, depth: usize) -> bool {
        // The limit also ends the loops, as in `said_by`.
        let inner = |schema: &Value| self.left.get() > 0 && self.has_text(text, schema, depth + 1);
        match schema {
            Value::String(found) => found == text,
            Value::Array(values) if depth < MAX_DEPTH => values.iter().any(inner),
            Value::Object(keywords) if depth < MAX_DEPTH => {
                let Some(left) = self.left.get().checked_sub(1) else { return false };
                self.left.set(left);
                keywords.iter().any(|(keyword, value)| match value {
                    Value::String(reference) if keyword == "$ref" => {
                        resolve(reference, self.root).is_some_and(inner)
                    }
                    value => inner(value),
                })
            }
            _ => false,
        }
    }
}

/// All of them; `None` if one of them is not known.
fn union(mut types: impl Iterator<Item = Option<Types>>) -> Option<Types> {
    types.try_fold(Types(0), |all, types| Some(Types(all.0 | types?.0)))
}

fn named(name: &str) -> Option<Types> {
    Some(match name {
        "null" => Types::NULL,
        "boolean" => Types::BOOLEAN,
        "number" | "integer" => Types::NUMBER,
        "string" => Types::STRING,
        "array" => Types::ARRAY,
        "object" => Types::OBJECT,
        _ => return None,
    })
}

/// The definition in `root` that a reference like `#/$defs/name` names.
pub(crate) fn resolve<'a>(reference: &str, root: &'a Map<String, Value>) -> Option<&'a Value> {
    let (keyword, name) = reference.strip_prefix("#/")?.split_once('/')?;
    root.get(keyword)?.pointer(&format!("/{name}"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn argument(schema: Value, text: &str) -> String {
        let root = json!({"$defs": {"color": {"enum": ["red", "7"]}}});
        Types::of(&schema, root.as_object().unwrap()).argument(text)
    }

    #[test]
    fn texts_of_strings_are_raw() {
        for schema in [
            json!({"type": "string"}),
            json!({"enum": ["7", "null"]}),
            json!({"const": "7"}),
            json!({"$ref": "#/$defs/color"}),
            json!({"allOf": [{"$ref": "#/$defs/color"}], "description": "A color."}),
        ] {
            for text in ["7", "", " a\n\"b\" <c> ", "None", "{}"] {
                assert_eq!(argument(schema.clone(), text), Value::from(text).to_string());
            }
            assert_eq!(argument(schema, "null"), "\"null\"");
        }
        for schema in [
            json!({"type": ["string", "null"]}),
            json!({"anyOf": [{"type": "string"}, {"type": "null"}]}),
            json!({"enum": ["a", null]}),
        ] {
            assert_eq!(argument(schema.clone(), "null"), "null");
            assert_eq!(argument(schema.clone(), "7"), "\"7\"");
            assert_eq!(argument(schema, "None"), "\"None\"");
        }
    }

    #[test]
    fn other_texts_are_json() {
        for (kind, text, value) in [
            ("integer", " 3\n", "3"),
            ("number", "1.50", "1.50"),
            ("number", "three", "\"three\""),
            ("integer", "\"3\"", "\"\\\"3\\\"\""),
            ("integer", "None", "null"),
            ("boolean", "True", "true"),
            ("boolean", "false", "false"),
            ("array", "[1, {\"a\": \"b\"}]", "[1, {\"a\": \"b\"}]"),
            ("array", "{}", "\"{}\""),
            ("object", "{\"a\": ", "\"{\\\"a\\\": \""),
        ] {
            assert_eq!(argument(json!({"type": kind}), text), value, "{kind}");
        }
        let mixed = json!({"type": ["string", "boolean"]});
        for (text, value) in [("True", "true"), ("7", "\"7\""), ("\"a\"", "\"a\""), ("a", "\"a\"")]
        {
            assert_eq!(argument(mixed.clone(), text), value);
        }
        for schema in [json!({}), json!(true), json!({"anyOf": [{"type": "null"}, {}]})] {
            for (text, value) in [("7", "7"), ("[]", "[]"), ("a", "\"a\""), ("true", "\"true\"")] {
                assert_eq!(argument(schema.clone(), text), value);
            }
        }
    }

    #[test]
    fn properties_without_a_name_may_have_a_schema() {
        let object = json!({"properties": {"a": {"type": "integer"}}, "additionalProperties": {"type": "string"}});
        let of = |key| Types::of_property(key, object.as_object());
        assert_eq!((of("a"), of("b")), (Types::NUMBER, Types::STRING));
        assert_eq!(Types::of_property("a", None), Types::UNSAID);
    }
}
