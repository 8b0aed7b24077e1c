//! `oneOf` as `anyOf` with disjoint alternatives.

use serde_json::{Map, Value, json};

use super::Preparation;

/// Maximum depth of references and combinations to find out whether two alternatives are disjoint.
const MAX_DEPTH: usize = 16;

/// The bit of a JSON type; integers are numbers.
fn type_bit(name: &str) -> u8 {
    match name {
        "null" => 1,
        "boolean" => 2,
        "number" | "integer" => 4,
        "string" => 8,
        "array" => 16,
        "object" => 32,
        _ => 0xff,
    }
}
const OBJECT: u8 = 32;

impl Preparation<'_> {
    /// `oneOf` in other keywords; `None` if alternatives may overlap and the negation of one of them cannot be expressed.
    pub(super) fn one_of(&self, arms: &Value) -> Option<Value> {
        let arms = arms.as_array()?;
        let exclusive = arms.iter().enumerate().map(|(index, arm)| {
            let others = arms.iter().enumerate().filter(|(other, _)| *other != index);
            let overlapping = others.filter(|(_, other)| !self.are_disjoint(arm, other, 0));
            let nots = overlapping
                // The exact negation comes first. `lacking` is stricter: it may refuse valid objects, and allows no
                // invalid one.
                .map(|(_, other)| self.negated(other, 0).or_else(|| self.lacking(arm, other)));
            let mut all = nots.collect::<Option<Vec<Value>>>()?;
            all.insert(0, arm.clone());
            Some(if all.len() == 1 { all.remove(0) } else { json!({"allOf": all}) })
        });
        Some(json!({"anyOf": exclusive.collect::<Option<Vec<Value>>>()?}))
    }

    /// Objects that `other` refuses because they lack a key that it requires and `arm` does not. It may refuse more objects.
    fn lacking(&self, arm: &Value, other: &Value) -> Option<Value> {
        let of_arm = self.required(arm, 0);
        let lacked = self.required(other, 0).into_iter().find(|name| !of_arm.contains(name))?;
        Some(json!({"type": "object", "properties": {lacked: false}}))
    }

    /// The keys that a schema, the target of its reference and its parts in `allOf` require.
    fn required<'b>(&'b self, schema: &'b Value, depth: usize) -> Vec<&'b str> {
        let Some(object) = schema.as_object().filter(|_| depth <= MAX_DEPTH && self.spend(1))
        else {
            return Vec::new();
        };
        let target = object.get("$ref").and_then(|reference| self.target(reference));
        let mut names = target.map(|target| self.required(target, depth + 1)).unwrap_or_default();
        if !self.is_reference(object) {
            let own = object.get("required").and_then(Value::as_array);
            names.extend(own.into_iter().flatten().filter_map(Value::as_str));
            let parts = object.get("allOf").and_then(Value::as_array);
            names.extend(
                parts.into_iter().flatten().flat_map(|part| self.required(part, depth + 1)),
            );
        }
        names
    }

    /// Whether no value satisfies two of them; `false` if unknown.
    pub(super) fn are_all_disjoint(&self, arms: &[Value]) -> bool {
        arms.iter()
            .enumerate()
            .all(|(index, arm)| arms[..index].iter().all(|other| self.are_disjoint(arm, other, 0)))
    }

    /// Whether no value satisfies both; `false` if unknown.
    fn are_disjoint(&self, one: &Value, other: &Value, depth: usize) -> bool {
        if depth > MAX_DEPTH {
            return false;
        }
        let pair = match (one, other) {
            (Value::Bool(false), _) | (_, Value::Bool(false)) => return true,
            (Value::Object(one), Value::Object(other)) => (one, other),
            _ => return false,
        };
        // Two enums are compared value by value, so the work is the product of their lengths.
        let num_literals = |schema: &Map<String, Value>| literals(schema).map_or(1, <[Value]>::len);
        if !self.spend(num_literals(pair.0).saturating_mul(num_literals(pair.1))) {
            return false;
        }
        let is_reference = |schema: &Map<String, Value>| self.is_reference(schema);
        self.has_disjoint_part(pair.0, other, depth)
            || self.has_disjoint_part(pair.1, one, depth)
            || (!is_reference(pair.0)
                && !is_reference(pair.1)
                && (excludes(pair.0, pair.1) || self.has_disjoint_property(pair, depth)))
    }

    /// Whether a schema is only a reference: before 2019, keywords beside `$ref` are ignored.
    fn is_reference(&self, schema: &Map<String, Value>) -> bool {
        self.is_old && schema.contains_key("$ref")
    }

    /// Whether the target of `one`'s reference, or a part that all its values satisfy, is disjoint from `other`.
    fn has_disjoint_part(&self, one: &Map<String, Value>, other: &Value, depth: usize) -> bool {
        let is_apart = |part: &Value| self.are_disjoint(part, other, depth + 1);
        if one.get("$ref").and_then(|reference| self.target(reference)).is_some_and(is_apart) {
            return true;
        }
        let parts = |keyword: &str| one.get(keyword).and_then(Value::as_array);
        !self.is_reference(one)
            && (parts("allOf").is_some_and(|parts| parts.iter().any(is_apart))
                || parts("anyOf").is_some_and(|parts| parts.iter().all(is_apart))
                || parts("oneOf").is_some_and(|parts| parts.iter().all(is_apart)))
    }

    /// Whether both describe objects and require a property for which they are disjoint.
    fn has_disjoint_property(
        &self,
        (one, other): (&Map<String, Value>, &Map<String, Value>),
        depth: usize,
    ) -> bool {
        // One of them has to allow objects only. Otherwise a number, say, could satisfy both.
        if types(one) != OBJECT && types(other) != OBJECT {
            return false;
        }
        let names = |schema: &Map<String, Value>| -> Vec<String> {
            let names = schema.get("required").and_then(Value::as_array).into_iter().flatten();
            names.filter_map(|name| Some(name.as_str()?.to_owned())).collect()
        };
        names(one)
            .iter()
            .chain(&names(other))
            .any(|name| self.are_disjoint(property(one, name), property(other, name), depth + 1))
    }
}

/// Whether two schemas have no type or no literal in common.
fn excludes(one: &Map<String, Value>, other: &Map<String, Value>) -> bool {
    if types(one) & types(other) == 0 {
        return true;
    }
    let (Some(one), Some(other)) = (literals(one), literals(other)) else { return false };
    one.iter().all(|one| other.iter().all(|other| are_different(one, other)))
}

/// The types that a schema allows, as far as its own keywords say.
fn types(schema: &Map<String, Value>) -> u8 {
    let said = match schema.get("type") {
        Some(Value::String(name)) => type_bit(name),
        Some(Value::Array(names)) => names
            .iter()
            .map(|name| name.as_str().map_or(0xff, type_bit))
            .fold(0, |all, one| all | one),
        _ => 0xff,
    };
    let of_literal = |literal: &Value| match literal {
        Value::Null => type_bit("null"),
        Value::Bool(_) => type_bit("boolean"),
        Value::Number(_) => type_bit("number"),
        Value::String(_) => type_bit("string"),
        Value::Array(_) => type_bit("array"),
        Value::Object(_) => OBJECT,
    };
    let literal = literals(schema)
        .map_or(0xff, |literals| literals.iter().map(of_literal).fold(0, |all, one| all | one));
    said & literal
}

/// The only values of a schema, if it lists them.
fn literals(schema: &Map<String, Value>) -> Option<&[Value]> {
    let one = schema.get("const").map(std::slice::from_ref);
    one.or_else(|| Some(schema.get("enum")?.as_array()?.as_slice()))
}

/// Whether two literals are certainly different; arrays and objects are not compared.
fn are_different(one: &Value, other: &Value) -> bool {
    match (one, other) {
        // `1` and `1.0` are one value in JSON Schema.
        (Value::Number(one), Value::Number(other)) => one.as_f64() != other.as_f64(),
        (Value::Array(_), Value::Array(_)) | (Value::Object(_), Value::Object(_)) => false,
        _ => one != other,
    }
}

/// The schema of a property, if `properties` has it.
fn property<'a>(schema: &'a Map<String, Value>, name: &str) -> &'a Value {
    const ANY: &Value = &Value::Bool(true);
    let listed = schema.get("properties").and_then(|properties| properties.get(name));
    match listed {
        Some(listed) => listed,
        // A pattern may describe the name, and no pattern is compared here.
        None if schema.contains_key("patternProperties") => ANY,
        None => schema.get("additionalProperties").unwrap_or(ANY),
    }
}

#[cfg(test)]
mod tests {
    use super::super::prepared;
    use super::*;

    #[test]
    fn arms_that_are_disjoint_are_any_of() {
        let tagged = |tag: &str| json!({"type": "object", "properties": {"kind": {"const": tag}}, "required": ["kind"]});
        let closed = |name: &str| json!({"type": "object", "properties": {name: {}}, "required": [name], "additionalProperties": false});
        for arms in [
            [json!({"type": "string"}), json!({"type": ["null", "integer"]})],
            [json!({"enum": [1, "a"]}), json!({"enum": [2, "b", null]})],
            [tagged("a"), tagged("b")],
            [closed("a"), closed("b")],
            [
                json!({"allOf": [{"type": "string"}]}),
                json!({"anyOf": [{"type": "null"}, {"const": 1}]}),
            ],
        ] {
            assert_eq!(prepared(&json!({"oneOf": arms})), json!({"allOf": [{"anyOf": arms}]}));
        }
        let refs = json!([{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/b"}]);
        let defs = json!({"a": tagged("a"), "b": tagged("b")});
        let found = prepared(&json!({"oneOf": refs, "$defs": defs}));
        assert_eq!(found["allOf"], json!([{"anyOf": refs}]));
    }

    #[test]
    fn arms_that_overlap_refuse_each_other() {
        let found = prepared(&json!({"oneOf": [{"minLength": 2}, {"maxLength": 4}]}));
        let (short, long) =
            (json!({"type": "string", "maxLength": 1}), json!({"type": "string", "minLength": 5}));
        let arms = json!([
            {"allOf": [{"minLength": 2}, long]}, {"allOf": [{"maxLength": 4}, short]},
        ]);
        assert_eq!(found, json!({"allOf": [{"anyOf": arms}]}));
        // Both allow values that are not objects, and the second one cannot be negated.
        let kept = json!({"oneOf": [{"properties": {"a": {"const": 1}}, "required": ["a"]}, {"pattern": "x"}]});
        assert_eq!(prepared(&kept), kept);
    }

    #[test]
    fn open_objects_that_overlap_lack_what_the_others_require() {
        let arm = |name: &str, format: &str| json!({"type": "object", "properties": {name: {"type": "string", "format": format}}, "required": [name], "additionalProperties": true});
        let arms = [arm("page", "uuid"), arm("database", "uuid")];
        let lacks = |name: &str| json!({"type": "object", "properties": {name: false}});
        let found = prepared(&json!({"oneOf": arms}));
        let exclusive = &found["allOf"][0]["anyOf"];
        assert_eq!(exclusive[0]["allOf"][1], lacks("database"), "{found}");
        assert_eq!(exclusive[1]["allOf"][1], lacks("page"), "{found}");
        // The first one requires all keys that the second one requires.
        let mut both = arms[0].clone();
        both["required"] = json!(["page", "database"]);
        let kept = json!({"oneOf": [both, arms[1]]});
        assert_eq!(prepared(&kept).get("allOf"), None);
    }

    #[test]
    fn what_refers_to_itself_ends() {
        let defs = json!({"a": {"oneOf": [{"$ref": "#/$defs/a"}, {"not": {"$ref": "#/$defs/a"}}]}});
        let schema = json!({"$ref": "#/$defs/a", "$defs": defs});
        assert_eq!(prepared(&schema), schema);
    }
}
