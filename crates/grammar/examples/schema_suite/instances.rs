//! Serialization of instances: compact, with properties in the schema's order.

use serde_json::{Map, Value};

/// The instance with properties in the schema's order, in its own order, and in the reverse order. If a schema lists no
/// properties, the names from its other keywords have an order too.
pub(crate) fn spellings(schema: &Value, data: &Value) -> Vec<String> {
    let mut spellings = vec![ordered(schema, schema, data, 0).to_string(), data.to_string()];
    if let Value::Object(object) = data {
        let names: Vec<&String> = object.keys().collect();
        // Keys rotate through all shifts, in both directions: a grammar fixes the order, and it may be that of other
        // keywords than `properties`.
        for shift in 0..names.len() {
            let rotated = names[shift..]
                .iter()
                .chain(&names[..shift])
                .map(|name| ((*name).clone(), object[*name].clone()));
            let rotated: Vec<(String, Value)> = rotated.collect();
            let reversed = rotated.iter().rev().cloned();
            spellings.push(Value::Object(reversed.collect()).to_string());
            spellings.push(Value::Object(rotated.into_iter().collect()).to_string());
        }
    }
    spellings.dedup();
    spellings
}

/// The data with properties in the schema's order, then the others.
fn ordered(root: &Value, schema: &Value, data: &Value, depth: usize) -> Value {
    const MAX_DEPTH: usize = 64;
    if depth > MAX_DEPTH {
        return data.clone();
    }
    match data {
        Value::Object(object) => {
            let mut names = Vec::new();
            add_names(root, schema, &mut names, 0);
            let listed =
                names.iter().filter_map(|(name, schema)| Some((name, object.get(name)?, *schema)));
            let mut sorted = Map::new();
            for (name, value, schema) in listed {
                if !sorted.contains_key(name) {
                    sorted.insert(name.clone(), ordered(root, schema, value, depth + 1));
                }
            }
            for (name, value) in object {
                if !sorted.contains_key(name) {
                    let schema = schema.get("additionalProperties").unwrap_or(&Value::Null);
                    sorted.insert(name.clone(), ordered(root, schema, value, depth + 1));
                }
            }
            Value::Object(sorted)
        }
        Value::Array(items) => {
            let of_item = |index: usize| {
                let first = schema.get("prefixItems").and_then(|schemas| schemas.get(index));
                first.or_else(|| schema.get("items")).unwrap_or(&Value::Null)
            };
            Value::Array(
                items
                    .iter()
                    .enumerate()
                    .map(|(i, item)| ordered(root, of_item(i), item, depth + 1))
                    .collect(),
            )
        }
        other => other.clone(),
    }
}

/// Adds the properties that a schema lists, also through references and combinations.
fn add_names<'a>(
    root: &'a Value,
    schema: &'a Value,
    names: &mut Vec<(String, &'a Value)>,
    depth: usize,
) {
    const MAX_DEPTH: usize = 16;
    if depth > MAX_DEPTH {
        return;
    }
    let properties = schema.get("properties").and_then(Value::as_object);
    names.extend(properties.into_iter().flatten().map(|(name, schema)| (name.clone(), schema)));
    if let Some(Value::String(reference)) = schema.get("$ref")
        && let Some(pointer) = reference.strip_prefix('#')
        && let Some(target) = root.pointer(pointer)
    {
        add_names(root, target, names, depth + 1);
    }
    for keyword in ["allOf", "anyOf", "oneOf"] {
        for part in schema.get(keyword).and_then(Value::as_array).into_iter().flatten() {
            add_names(root, part, names, depth + 1);
        }
    }
}
