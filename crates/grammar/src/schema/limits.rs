//! Checks for keywords that the library would accept but not enforce: distinct names, large integers, and too wide objects.

use std::collections::BTreeSet;

use serde_json::{Map, Value};

use super::numbers::{check_bounds, check_literal};
use super::{LITERAL, NAMED};
use crate::{Error, Result};

/// Maximum optional properties of an object. With as many, compiling takes a second, and each token some milliseconds.
const MAX_OPTIONAL: usize = 1000;
/// Keywords whose schemas apply together with those around them.
const BESIDE: [&str; 3] = ["allOf", "anyOf", "oneOf"];

/// Refuses a prepared schema with parts that would not be enforced.
///
/// # Errors
/// [`Error::Constraint`] with the keyword.
pub(crate) fn check(schema: &Value) -> Result<()> {
    if *schema == Value::Bool(false) {
        return Err(Error::Constraint("no finite value satisfies it".to_owned()));
    }
    check_within(schema, schema, &BTreeSet::new())
}

/// `around` are the names that enclosing schemas require of the same object.
fn check_within(root: &Value, schema: &Value, around: &BTreeSet<&str>) -> Result<()> {
    let Value::Object(object) = schema else { return Ok(()) };
    check_reference(root, object)?;
    check_bounds(object)?;
    let mut required = around.clone();
    add_required(object, &mut required);
    check_free_names(object, &required)?;
    check_width(object, &required)?;
    for (keyword, value) in object {
        let keyword = keyword.as_str();
        let nothing = BTreeSet::new();
        // Only these keywords describe the same object. Names that are required around a property say nothing of its
        // value.
        let required = if BESIDE.contains(&keyword) { &required } else { &nothing };
        match value {
            literal if matches!(keyword, "const" | "enum") => check_literal(keyword, literal)?,
            _ if LITERAL.contains(&keyword) => {}
            Value::Object(named) if NAMED.contains(&keyword) => {
                named.values().try_for_each(|schema| check_within(root, schema, required))?;
            }
            Value::Array(schemas) => {
                schemas.iter().try_for_each(|schema| check_within(root, schema, required))?;
            }
            schema => check_within(root, schema, required)?,
        }
    }
    Ok(())
}

/// Checks a reference, because the library's error does not name its position, and it reads `#/` as `#`.
fn check_reference(root: &Value, object: &Map<String, Value>) -> Result<()> {
    let Some(Value::String(reference)) = object.get("$ref") else { return Ok(()) };
    match reference.strip_prefix('#') {
        Some(pointer) if root.pointer(pointer).is_none() => Err(Error::Constraint(format!(
            "`$ref` \"{reference}\" points to nothing in the schema"
        ))),
        _ => Ok(()),
    }
}

/// Adds the names that an object's schema and its `allOf` require.
fn add_required<'a>(object: &'a Map<String, Value>, required: &mut BTreeSet<&'a str>) {
    let list = |keyword: &str| object.get(keyword).and_then(Value::as_array).into_iter().flatten();
    required.extend(list("required").filter_map(Value::as_str));
    for schema in list("allOf").filter_map(Value::as_object) {
        add_required(schema, required);
    }
}

/// Checks `minProperties`. Additional names may repeat, so that all of them count as one.
fn check_free_names(object: &Map<String, Value>, required: &BTreeSet<&str>) -> Result<()> {
    let Some(least) = object.get("minProperties").and_then(Value::as_u64) else { return Ok(()) };
    let may_be_object = match object.get("type") {
        Some(Value::String(kind)) => kind == "object",
        Some(Value::Array(kinds)) => kinds.iter().any(|kind| kind == "object"),
        _ => true,
    };
    // The one is a name beyond the required ones.
    if !may_be_object || least <= required.len() as u64 + 1 {
        return Ok(());
    }
    Err(Error::Constraint(format!(
        "`minProperties` is {least}, but only {} names are required: additional names may repeat, so that only one \
         of them counts; lower `minProperties` or require more names",
        required.len()
    )))
}

fn check_width(object: &Map<String, Value>, required: &BTreeSet<&str>) -> Result<()> {
    let Some(Value::Object(properties)) = object.get("properties") else { return Ok(()) };
    let optional = properties.keys().filter(|name| !required.contains(name.as_str())).count();
    if optional <= MAX_OPTIONAL {
        return Ok(());
    }
    Err(Error::Constraint(format!(
        "{optional} of an object's `properties` are optional, but the maximum is {MAX_OPTIONAL}"
    )))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::prepared;
    use super::*;

    #[test]
    fn free_names_count_as_one() {
        let free = json!({"type": "object", "additionalProperties": {"type": "integer"}});
        let with = |more: Value| {
            let mut schema = free.clone();
            schema.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            check(&prepared(&schema))
        };
        for held in [
            json!({"minProperties": 1}),
            json!({"minProperties": 2.0, "required": ["a"]}),
            json!({"minProperties": 3, "required": ["a"], "allOf": [{"required": ["b"]}]}),
            json!({"allOf": [{"minProperties": 2}], "required": ["a", "b"]}),
            json!({"properties": {"minProperties": {"type": "string", "minProperties": 2}}}),
            json!({"not": {"maxProperties": 0}}),
            json!({"enum": [{"minProperties": 2}]}),
        ] {
            assert_eq!(with(held.clone()), Ok(()), "{held}");
        }
        for refused in [
            json!({"minProperties": 2}),
            json!({"minProperties": 3, "required": ["a"]}),
            json!({"anyOf": [{"minProperties": 2}, {"required": ["a"]}]}),
            json!({"not": {"maxProperties": 1}}),
            json!({"propertyNames": {"pattern": "^[ab]$"}, "minProperties": 2, "maxProperties": 2}),
            json!({"properties": {"a": {"minProperties": 2}}, "required": ["a", "b"]}),
        ] {
            let error = with(refused.clone()).unwrap_err().to_string();
            assert!(error.contains("minProperties"), "{error}: {refused}");
        }
    }

    #[test]
    fn objects_are_only_so_wide() {
        let object = |num: usize, required: &[&str]| {
            let properties = (0..num).map(|index| (format!("p{index}"), json!(true)));
            let properties: Map<String, Value> = properties.collect();
            check(&json!({"items": {"properties": properties, "required": required}}))
        };
        object(MAX_OPTIONAL, &[]).unwrap();
        object(MAX_OPTIONAL + 1, &["p7"]).unwrap();
        let error = object(MAX_OPTIONAL + 1, &["other"]).unwrap_err().to_string();
        assert!(error.contains("1001 of an object's `properties`"), "{error}");
    }
}
