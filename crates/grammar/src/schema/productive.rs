//! Pruning of endlessly recursive schemas, whose values would contain each other without end: they become `false`, so that
//! a model does not begin a value that it cannot finish.

use std::collections::HashMap;

use serde_json::{Map, Value, json};

use super::{DEFINITIONS, LITERAL, NAMED};

/// Maximum visited schemas. Beyond it, schemas stay unchanged.
const BUDGET: usize = 2_000_000;

/// The prepared schema, in which schemas without finite values are `false`.
pub(super) fn pruned(root: &Value) -> Value {
    let mut targets = HashMap::new();
    add_targets(root, root, &mut targets);
    // Without references, no schema can contain itself.
    if targets.is_empty() {
        return root.clone();
    }
    let mut search = Search { root, finite: targets, budget: BUDGET };
    search.run();
    if search.budget == 0 || search.finite.values().all(|is_finite| *is_finite) {
        return root.clone();
    }
    search.written(root)
}

/// Adds the targets of all references, at first without a known finite value.
fn add_targets<'a>(root: &'a Value, schema: &'a Value, targets: &mut HashMap<&'a str, bool>) {
    match schema {
        Value::Array(schemas) => {
            schemas.iter().for_each(|schema| add_targets(root, schema, targets));
        }
        Value::Object(object) => {
            for (keyword, value) in object {
                match value {
                    Value::String(reference) if keyword == "$ref" => {
                        let pointer = reference.strip_prefix('#');
                        if pointer.is_some_and(|pointer| root.pointer(pointer).is_some()) {
                            targets.insert(reference, false);
                        }
                    }
                    Value::Object(named) if NAMED.contains(&keyword.as_str()) => {
                        named.values().for_each(|schema| add_targets(root, schema, targets));
                    }
                    _ if LITERAL.contains(&keyword.as_str()) => {}
                    other => add_targets(root, other, targets),
                }
            }
        }
        _ => {}
    }
}

struct Search<'a> {
    root: &'a Value,
    /// Whether the target of a reference is known to have a finite value.
    finite: HashMap<&'a str, bool>,
    budget: usize,
}

impl<'a> Search<'a> {
    /// Repeats the search until it finds no further finite values.
    fn run(&mut self) {
        loop {
            let unknown = self.finite.iter().filter(|(_, is_finite)| !**is_finite);
            let unknown: Vec<&'a str> = unknown.map(|(reference, _)| *reference).collect();
            let mut has_found = false;
            for reference in unknown {
                // `add_targets` keeps only references that begin with `#`.
                let target = self.root.pointer(&reference[1..]);
                if target.is_some_and(|target| self.is_finite(target)) {
                    self.finite.insert(reference, true);
                    has_found = true;
                }
            }
            if !has_found || self.budget == 0 {
                return;
            }
        }
    }

    /// Whether a schema has a finite value, by the targets known so far.
    fn is_finite(&mut self, schema: &Value) -> bool {
        let Value::Object(object) = schema else { return *schema != json!(false) };
        self.budget = self.budget.saturating_sub(1);
        if self.budget == 0 {
            // Beyond the budget, a schema counts as finite, which changes nothing.
            return true;
        }
        let reference = object.get("$ref").and_then(Value::as_str);
        if reference.is_some_and(|reference| self.finite.get(reference) == Some(&false)) {
            return false;
        }
        let list = |keyword: &str| object.get(keyword).and_then(Value::as_array);
        if list("allOf").is_some_and(|all| !all.iter().all(|schema| self.is_finite(schema))) {
            return false;
        }
        for keyword in ["anyOf", "oneOf"] {
            if list(keyword).is_some_and(|arms| !arms.iter().any(|arm| self.is_finite(arm))) {
                return false;
            }
        }
        // A literal is finite whatever the other keywords say.
        object.contains_key("const") || object.contains_key("enum") || self.has_kind(object)
    }

    /// Whether one of a schema's types has a finite value.
    fn has_kind(&mut self, object: &Map<String, Value>) -> bool {
        let kinds = match object.get("type") {
            Some(Value::String(kind)) => vec![kind.as_str()],
            Some(Value::Array(kinds)) => kinds.iter().filter_map(Value::as_str).collect(),
            _ => return true,
        };
        kinds.into_iter().any(|kind| match kind {
            "object" => self.has_object(object),
            "array" => self.has_array(object),
            _ => true,
        })
    }

    fn has_object(&mut self, object: &Map<String, Value>) -> bool {
        let required = object.get("required").and_then(Value::as_array).into_iter().flatten();
        let properties = object.get("properties");
        required.filter_map(Value::as_str).all(|name| {
            let property = properties.and_then(|properties| properties.get(name));
            // Only required properties matter: an optional one can be left out.
            property.is_none_or(|property| self.is_finite(property))
        })
    }

    fn has_array(&mut self, object: &Map<String, Value>) -> bool {
        let least = object.get("minItems").and_then(Value::as_u64).unwrap_or(0);
        let prefix = object.get("prefixItems").and_then(Value::as_array);
        let prefix = prefix.map_or(&[][..], Vec::as_slice);
        let num_required = prefix.len().min(usize::try_from(least).unwrap_or(usize::MAX));
        let prefix_is_finite = prefix[..num_required].iter().all(|item| self.is_finite(item));
        let needs_more = least > prefix.len() as u64;
        let items = object.get("items").filter(|_| needs_more);
        prefix_is_finite && items.is_none_or(|items| self.is_finite(items))
    }

    /// The schema, in which schemas without finite values are `false`.
    fn written(&mut self, schema: &Value) -> Value {
        match schema {
            Value::Object(_) if !self.is_finite(schema) => json!(false),
            Value::Object(object) => {
                let mut written = Map::new();
                for (keyword, value) in object {
                    let value = match value {
                        _ if DEFINITIONS.contains(&keyword.as_str()) => self.named(value),
                        Value::Object(_) if NAMED.contains(&keyword.as_str()) => self.named(value),
                        other if LITERAL.contains(&keyword.as_str()) => other.clone(),
                        other => self.written(other),
                    };
                    written.insert(keyword.clone(), value);
                }
                Value::Object(written)
            }
            Value::Array(schemas) => schemas.iter().map(|schema| self.written(schema)).collect(),
            other => other.clone(),
        }
    }

    fn named(&mut self, schemas: &Value) -> Value {
        let named = schemas.as_object().into_iter().flatten();
        named
            .map(|(name, schema)| (name.clone(), self.written(schema)))
            .collect::<Map<_, _>>()
            .into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_no_end_is_false() {
        for (schema, expected) in [
            (json!({"$ref": "#"}), json!(false)),
            (
                json!({"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]}),
                json!(false),
            ),
            (
                json!({
                    "$defs": {"x": {"type": "array", "items": {"$ref": "#/$defs/x"}, "minItems": 1}},
                    "properties": {"a": {"$ref": "#/$defs/x"}, "b": {"items": {"$ref": "#/$defs/x"}}},
                }),
                json!({"$defs": {"x": false}, "properties": {"a": false, "b": {"items": false}}}),
            ),
            (
                json!({"$defs": {"x": {"anyOf": [{"$ref": "#/$defs/x"}, {"$ref": "#/$defs/y"}]}, "y": {"$ref": "#/$defs/x"}}, "$ref": "#/$defs/y"}),
                json!(false),
            ),
        ] {
            assert_eq!(pruned(&schema), expected, "{schema}");
        }
        for kept in [
            json!({"type": "object", "properties": {"a": {"$ref": "#"}}}),
            json!({"type": "object", "properties": {"a": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}}, "required": ["a"]}),
            json!({"type": "array", "items": {"$ref": "#"}}),
            json!({"type": ["array", "string"], "items": {"$ref": "#"}, "minItems": 1}),
            json!({"enum": [{"$ref": "#"}], "properties": {"$ref": {"type": "string"}}}),
        ] {
            assert_eq!(pruned(&kept), kept);
        }
    }
}
