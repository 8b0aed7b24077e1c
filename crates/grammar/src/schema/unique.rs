//! `uniqueItems` over few values: the arrays without repetition, one by one.

use serde_json::{Map, Value, json};

/// Maximum number of arrays.
const MAX_LISTS: usize = 400;

/// Alternatives that are equivalent to `uniqueItems`. Without them, the keyword stays and is refused.
pub(super) fn lists(root: &Value, schema: &mut Map<String, Value>) -> Option<Value> {
    if schema.get("uniqueItems") != Some(&json!(true)) || schema.contains_key("prefixItems") {
        return None;
    }
    let count =
        |keyword: &str| schema.get(keyword).and_then(Value::as_f64).map(|count| count as usize);
    let (least, most) = (count("minItems").unwrap_or(0), count("maxItems"));
    // One item is always unique.
    if most.is_some_and(|most| most <= 1) {
        schema.shift_remove("uniqueItems");
        return None;
    }
    let values = values(root, schema.get("items")?)?;
    let mut lists: Vec<Vec<&Value>> = vec![Vec::new()];
    let mut begin = 0;
    // Each array, extended by each value that it does not have.
    while begin < lists.len() {
        let list = lists[begin].clone();
        begin += 1;
        if most.is_some_and(|most| list.len() >= most) {
            continue;
        }
        for value in &values {
            if !list.iter().any(|item| is_equal(item, value)) {
                lists.push([list.as_slice(), &[value]].concat());
            }
        }
        // Five values have 326 arrays without repetition, and six have 1,957.
        if lists.len() > MAX_LISTS {
            return None;
        }
    }
    let lists = lists.into_iter().filter(|list| list.len() >= least);
    let arms: Vec<Value> = lists
        .map(|list| {
            let items: Vec<Value> = list.iter().map(|value| json!({"const": value})).collect();
            match items.len() {
                0 => json!({"maxItems": 0}),
                len => json!({"prefixItems": items, "items": false, "minItems": len}),
            }
        })
        .collect();
    schema.shift_remove("uniqueItems");
    Some(json!({"anyOf": arms}))
}

/// The values of a schema, if it lists them.
fn values(root: &Value, items: &Value) -> Option<Vec<Value>> {
    let object = items.as_object()?;
    let says = |keyword: &str| !matches!(keyword, "title" | "description" | "default" | "examples");
    let said: Vec<_> = object.iter().filter(|(keyword, _)| says(keyword)).collect();
    let has_type = object.contains_key("type");
    match said.as_slice() {
        [(keyword, Value::String(reference))] if *keyword == "$ref" => {
            let target = root.pointer(reference.strip_prefix('#')?)?;
            let is_reference = target.get("$ref").is_some();
            if is_reference { None } else { values(root, target) }
        }
        [(keyword, value)] if *keyword == "type" && **value == json!("boolean") => {
            Some(vec![json!(true), json!(false)])
        }
        // Another keyword could exclude some of the values.
        _ if said.len() != 1 + usize::from(has_type) => None,
        _ => {
            let of_type = |value: &&Value| match object.get("type").and_then(Value::as_str) {
                Some("string") => value.is_string(),
                Some("integer" | "number") => value.is_number(),
                Some("boolean") => value.is_boolean(),
                Some(_) => false,
                None => true,
            };
            match (object.get("enum"), object.get("const")) {
                (Some(Value::Array(values)), None)
                    if values.iter().all(|value| of_type(&value)) =>
                {
                    Some(values.clone())
                }
                (None, Some(value)) if of_type(&value) => Some(vec![value.clone()]),
                _ => None,
            }
        }
    }
}

/// Whether two values are equal in the sense of JSON Schema: `1.0` is `1`.
fn is_equal(a: &Value, b: &Value) -> bool {
    match (a.as_f64(), b.as_f64()) {
        (Some(a), Some(b)) => a == b,
        _ => a == b,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(schema: Value) -> (Option<Value>, bool) {
        let root = json!({"$defs": {"color": {"enum": ["red", "blue"], "type": "string"}}});
        let Value::Object(mut object) = schema else { panic!("no object") };
        let lists = lists(&root, &mut object);
        (lists, object.contains_key("uniqueItems"))
    }

    #[test]
    fn lists_of_few_values_are_written_out() {
        let of = |values: &Value| {
            let values = values.as_array().unwrap();
            let items: Vec<Value> = values.iter().map(|value| json!({"const": value})).collect();
            json!({"prefixItems": items, "items": false, "minItems": values.len()})
        };
        let all = json!({"anyOf": [of(&json!(["red"])), of(&json!(["blue"])), of(&json!(["red", "blue"])), of(&json!(["blue", "red"]))]});
        let schema =
            json!({"uniqueItems": true, "items": {"$ref": "#/$defs/color"}, "minItems": 1});
        assert_eq!(said(schema), (Some(all), false));
        let (lists, stays) = said(json!({"uniqueItems": true, "items": {"type": "boolean"}}));
        assert_eq!((lists.unwrap()["anyOf"].as_array().unwrap().len(), stays), (5, false));
        assert_eq!(said(json!({"uniqueItems": true, "maxItems": 1})), (None, false));
        let numbers = said(json!({"uniqueItems": true, "items": {"enum": [1, 1.0]}})).0.unwrap();
        assert_eq!(numbers["anyOf"].as_array().unwrap().len(), 3);
    }

    #[test]
    fn other_lists_stay() {
        for items in [
            json!({"type": "string"}),
            json!({"enum": [1, 2, 3, 4, 5, 6]}),
            json!({"enum": ["a", 1], "type": "string"}),
            json!({"enum": ["a"], "pattern": "b"}),
        ] {
            assert_eq!(said(json!({"uniqueItems": true, "items": items})), (None, true), "{items}");
        }
    }
}
