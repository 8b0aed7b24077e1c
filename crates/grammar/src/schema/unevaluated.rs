//! `unevaluatedProperties` and `unevaluatedItems`, if the schema evaluates the same properties and items of every value.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

/// Maximum chain of references.
const MAX_DEPTH: usize = 16;
/// Keywords whose evaluation depends on the value.
const CONDITIONAL: [&str; 11] = [
    "anyOf",
    "oneOf",
    "if",
    "then",
    "else",
    "not",
    "dependentSchemas",
    "dependencies",
    "contains",
    "$dynamicRef",
    "$recursiveRef",
];

/// The properties and items that a schema evaluates.
#[derive(Default)]
struct Evaluated {
    names: BTreeSet<String>,
    patterns: BTreeSet<String>,
    all_properties: bool,
    items: usize,
    all_items: bool,
}

/// Replaces the keywords in `prepared`; they stay if that is not possible.
pub(super) fn replaced(
    root: &Value,
    schema: &Map<String, Value>,
    prepared: &mut Map<String, Value>,
) -> Vec<Value> {
    let keywords = ["unevaluatedProperties", "unevaluatedItems"];
    let mut evaluated = Evaluated::default();
    if keywords.iter().all(|keyword| !schema.contains_key(*keyword))
        || evaluated.add(root, schema, 0).is_none()
    {
        return Vec::new();
    }
    let mut found = Vec::new();
    if let Some(rest) = prepared.shift_remove(keywords[0])
        && !evaluated.all_properties
    {
        let all = |names: BTreeSet<String>| {
            names.into_iter().map(|name| (name, json!(true))).collect::<Map<_, _>>()
        };
        let patterns =
            // These patterns come from the original schema, and `prepared` has translated ones.
            evaluated.patterns.iter().map(|pattern| super::ecma::translated(pattern)).collect();
        found.push(json!({
            "properties": all(evaluated.names), "patternProperties": all(patterns), "additionalProperties": rest,
        }));
    }
    if let Some(rest) = prepared.shift_remove(keywords[1])
        && !evaluated.all_items
    {
        found.push(json!({"prefixItems": vec![true; evaluated.items], "items": rest}));
    }
    found
}

impl Evaluated {
    /// Adds a schema's own and referenced properties and items; `None` if they depend on the value.
    fn add(&mut self, root: &Value, schema: &Map<String, Value>, depth: usize) -> Option<()> {
        let is_conditional = CONDITIONAL.iter().any(|keyword| schema.contains_key(*keyword));
        // Another base URI would change the targets of references.
        if is_conditional || depth > MAX_DEPTH || (depth > 0 && schema.contains_key("$id")) {
            return None;
        }
        let keys = |keyword| {
            schema.get(keyword).and_then(Value::as_object).into_iter().flat_map(Map::keys).cloned()
        };
        self.names.extend(keys("properties"));
        self.patterns.extend(keys("patternProperties"));
        self.all_properties |= schema.contains_key("additionalProperties");
        // At depth 0 this is the keyword that is being replaced.
        self.all_properties |= depth > 0 && schema.contains_key("unevaluatedProperties");
        let prefix = schema.get("prefixItems").and_then(Value::as_array).map_or(0, Vec::len);
        self.items = self.items.max(prefix);
        self.all_items |= schema.contains_key("items");
        self.all_items |= depth > 0 && schema.contains_key("unevaluatedItems");
        for part in schema.get("allOf").and_then(Value::as_array).into_iter().flatten() {
            self.add_value(root, part, depth)?;
        }
        if let Some(reference) = schema.get("$ref") {
            let pointer = reference.as_str()?.strip_prefix('#')?;
            self.add_value(root, root.pointer(pointer)?, depth)?;
        }
        Some(())
    }

    fn add_value(&mut self, root: &Value, schema: &Value, depth: usize) -> Option<()> {
        match schema {
            Value::Object(schema) => self.add(root, schema, depth + 1),
            Value::Bool(_) => Some(()),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::prepared;
    use super::*;

    #[test]
    fn what_is_evaluated_in_any_case_is_allowed_besides() {
        let schema = json!({
            "$defs": {"base": {"properties": {"a": {}}, "prefixItems": [true]}}, "$ref": "#/$defs/base",
            "allOf": [{"patternProperties": {"^b": {}}}], "unevaluatedProperties": false, "unevaluatedItems": {"type": "null"},
        });
        let found = prepared(&schema);
        assert_eq!(found.get("unevaluatedProperties"), None);
        assert_eq!(
            found["allOf"].as_array().unwrap()[1..],
            [
                json!({"properties": {"a": true}, "patternProperties": {"^b": true}, "additionalProperties": false}),
                json!({"prefixItems": [true], "items": {"type": "null"}}),
            ]
        );
    }

    #[test]
    fn what_depends_on_the_instance_stays() {
        let schema = json!({"anyOf": [{"properties": {"a": {}}}], "unevaluatedProperties": false});
        assert_eq!(prepared(&schema), schema);
    }
}
