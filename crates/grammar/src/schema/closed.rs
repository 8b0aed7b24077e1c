//! Closing of objects: they accept only declared keys. JSON Schema allows any other key beside `properties`, and models that
//! are constrained to a schema would write such keys again and again. So most servers close objects.
//!
//! Declared keys are those that `unevaluatedProperties: false` would allow: the keys of the whole composition for an object.
//! Source: JSON Schema Core 2020-12, section 11.3.

use std::collections::{BTreeSet, HashMap};

use serde_json::{Map, Value, json};

use super::{DEFINITIONS, LITERAL, references};
use crate::{Error, Result};

/// Maximum visits of schemas, with several for a schema in several compositions.
const BUDGET: usize = 400_000;
/// Keywords of conditions, in which nothing is closed: a stricter condition would allow more.
const CONDITIONS: [&str; 4] = ["not", "if", "contains", "propertyNames"];
/// Keywords that define which other keys are allowed.
const OTHERS: [&str; 2] = ["additionalProperties", "unevaluatedProperties"];
/// Keywords whose values describe the same object.
const COMPOSED: [&str; 8] =
    ["allOf", "anyOf", "oneOf", "if", "then", "else", "dependentSchemas", "dependencies"];
/// Keywords with arrays of names by name.
const DEPENDENT: [&str; 2] = ["dependentRequired", "dependencies"];
/// Keywords of alternatives, each of which is closed on its own.
const ALTERNATIVES: [&str; 2] = ["anyOf", "oneOf"];

/// The schema with closed objects, except those without declared keys and those that define which other keys are allowed.
///
/// # Errors
/// [`Error::Constraint`] for a schema with too many compositions.
pub fn closed(schema: &Value) -> Result<Value> {
    let is_old = super::is_old(super::draft(schema));
    let root = references::to_definitions(schema, is_old);
    let mut closing =
        Closing { root: &root, is_old, names: HashMap::new(), waiting: Vec::new(), budget: BUDGET };
    let mut made = Map::new();
    let mut closed = closing.location(&root, &Declared::default());
    // Recursive definitions end here: each definition has at most two variants, and each is made once.
    while let Some((name, variant, target)) = closing.waiting.pop() {
        let schema = match variant {
            Variant::Closed => closing.location(target, &Declared::default()),
            Variant::Part => closing.part(target),
        };
        made.insert(name, schema);
    }
    if closing.budget == 0 {
        return Err(Error::Constraint(
            "it has too many compositions (`allOf`, `anyOf`, `$ref` ..)".to_owned(),
        ));
    }
    if let (Value::Object(closed), false) = (&mut closed, made.is_empty()) {
        let definitions = closed.entry("$defs").or_insert_with(|| json!({}));
        if let Value::Object(definitions) = definitions {
            definitions.extend(made);
        }
    }
    Ok(references::without_unused_definitions(&closed))
}

/// The two uses of a definition.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Variant {
    /// It describes a value alone.
    Closed,
    /// It describes a value together with other schemas.
    Part,
}

/// The declared keys of an object.
#[derive(Clone, Default)]
struct Declared {
    names: BTreeSet<String>,
    patterns: BTreeSet<String>,
    /// The minimum number of keys.
    least: u64,
    /// Whether the schema defines which other keys are allowed.
    says_others: bool,
}

impl Declared {
    fn is_nothing(&self) -> bool {
        self.names.is_empty() && self.patterns.is_empty()
    }

    /// Whether objects are closed: only if they stay satisfiable.
    fn closes(&self) -> bool {
        // A closed object with fewer declared keys than `minProperties` would have no value.
        let has_enough = !self.patterns.is_empty() || self.least <= self.names.len() as u64;
        !self.is_nothing() && !self.says_others && has_enough
    }

    /// Keywords that close an object with these keys.
    fn closing(&self) -> Map<String, Value> {
        let all = |keys: &BTreeSet<String>| -> Value {
            keys.iter().map(|key| (key.clone(), json!(true))).collect::<Map<_, _>>().into()
        };
        let mut closing = Map::from_iter([("properties".to_owned(), all(&self.names))]);
        if !self.patterns.is_empty() {
            closing.insert("patternProperties".to_owned(), all(&self.patterns));
        }
        closing.insert("additionalProperties".to_owned(), json!(false));
        closing
    }
}

struct Closing<'a> {
    root: &'a Value,
    /// Whether the draft is older than 2019: keywords beside `$ref` are ignored.
    is_old: bool,
    /// Names of the new definitions, by reference and variant.
    names: HashMap<(String, Variant), String>,
    waiting: Vec<(String, Variant, &'a Value)>,
    /// The number of schemas that may still be visited.
    budget: usize,
}

impl<'a> Closing<'a> {
    fn spend(&mut self) -> bool {
        self.budget = self.budget.saturating_sub(1);
        self.budget > 0
    }

    /// A schema that describes a value alone, except for the keys that `outer` declares.
    fn location(&mut self, schema: &'a Value, outer: &Declared) -> Value {
        let Value::Object(object) = schema else {
            return match schema {
                Value::Bool(true) if outer.closes() => Value::Object(outer.closing()),
                other => other.clone(),
            };
        };
        if !self.spend() {
            return schema.clone();
        }
        let reference = object.get("$ref").and_then(Value::as_str);
        if let Some(reference) = reference.filter(|_| self.is_alone(object, outer)) {
            let mut made = object.clone();
            if let Some(name) = self.definition(reference, Variant::Closed) {
                made.insert("$ref".to_owned(), format!("#/$defs/{name}").into());
            }
            return Value::Object(made);
        }
        let mut part = self.part_of(object);
        let arms = ALTERNATIVES.into_iter().find(|keyword| self.has_alternatives(object, keyword));
        let follows = ["then", "else"].iter().any(|keyword| object.contains_key(*keyword));
        let is_conditional = arms.is_none() && object.contains_key("if") && follows;
        let mut declared = outer.clone();
        self.add(object, &mut declared, |keyword| {
            Some(keyword) == arms || (is_conditional && ["if", "then", "else"].contains(&keyword))
        });
        if declared.says_others || !may_be_object(object) {
            return Value::Object(part);
        }
        if let Some((keyword, Some(Value::Array(arms)))) =
            arms.map(|keyword| (keyword, object.get(keyword)))
        {
            let arms = arms.iter().map(|arm| self.location(arm, &declared)).collect();
            part.insert(keyword.to_owned(), Value::Array(arms));
        } else if is_conditional {
            let anything = &Value::Bool(true);
            // Keys of a condition are declared only if it is met.
            let mut met = declared.clone();
            self.add_all(object.get("if"), &mut met);
            let then = self.location(object.get("then").unwrap_or(anything), &met);
            let otherwise = self.location(object.get("else").unwrap_or(anything), &declared);
            part.insert("then".to_owned(), then);
            part.insert("else".to_owned(), otherwise);
        } else if declared.closes() {
            close(&mut part, &declared);
        }
        Value::Object(part)
    }

    /// Whether a schema has alternatives that are closed one by one. Alternatives of `oneOf` exclude each other by negation,
    /// which can be expressed for closed ones only if their types differ.
    fn has_alternatives(&self, object: &Map<String, Value>, keyword: &str) -> bool {
        let Some(Value::Array(arms)) = object.get(keyword) else { return false };
        let has_type = |arm: &Value| {
            let target = arm.get("$ref").and_then(Value::as_str);
            let target = target.and_then(|reference| self.target(reference));
            target.unwrap_or(arm).get("type").is_some()
        };
        keyword == "anyOf" || arms.iter().all(has_type)
    }

    /// Whether a schema is only a reference.
    fn is_alone(&self, object: &Map<String, Value>, outer: &Declared) -> bool {
        const BESIDE: [&str; 8] = [
            "$ref",
            "title",
            "description",
            "default",
            "examples",
            "deprecated",
            "$defs",
            "definitions",
        ];
        outer.is_nothing()
            && (self.is_old || object.keys().all(|keyword| BESIDE.contains(&keyword.as_str())))
    }

    /// The name of a new definition: a variant of the reference's target.
    fn definition(&mut self, reference: &str, variant: Variant) -> Option<String> {
        let target = self.target(reference)?;
        let key = (reference.to_owned(), variant);
        if let Some(name) = self.names.get(&key) {
            return Some(name.clone());
        }
        let kind = if variant == Variant::Closed { "closed" } else { "part" };
        let last = reference.rsplit('/').next().unwrap_or_default();
        let mut name = format!("{kind}-{last}");
        while self.is_taken(&name) {
            name.push('-');
        }
        self.names.insert(key, name.clone());
        self.waiting.push((name.clone(), variant, target));
        Some(name)
    }

    fn is_taken(&self, name: &str) -> bool {
        let is_there =
            |keyword: &str| self.root.get(keyword).is_some_and(|all| all.get(name).is_some());
        DEFINITIONS.iter().any(|keyword| is_there(keyword))
            || self.names.values().any(|taken| taken == name)
    }

    fn target(&self, reference: &str) -> Option<&'a Value> {
        self.root.pointer(reference.strip_prefix('#')?)
    }

    /// A schema that describes a value together with others: only the values within that value are closed.
    fn part(&mut self, schema: &'a Value) -> Value {
        match schema {
            Value::Object(object) if self.spend() => Value::Object(self.part_of(object)),
            other => other.clone(),
        }
    }

    fn part_of(&mut self, object: &'a Map<String, Value>) -> Map<String, Value> {
        let is_reference = self.is_old && object.contains_key("$ref");
        let counts = |keyword: &str| !is_reference || keyword == "$ref";
        let mut part = Map::new();
        for (keyword, value) in object {
            let value = if counts(keyword) { self.keyword(keyword, value) } else { value.clone() };
            part.insert(keyword.clone(), value);
        }
        part
    }

    fn keyword(&mut self, keyword: &str, value: &'a Value) -> Value {
        let nothing = Declared::default();
        match (keyword, value) {
            ("$ref", Value::String(reference)) => match self.definition(reference, Variant::Part) {
                Some(name) => format!("#/$defs/{name}").into(),
                None => value.clone(),
            },
            _ if CONDITIONS.contains(&keyword) || LITERAL.contains(&keyword) => value.clone(),
            // Conditions may refer to the unchanged definitions.
            _ if DEFINITIONS.contains(&keyword) => value.clone(),
            ("properties" | "patternProperties", Value::Object(named)) => named
                .iter()
                .map(|(name, schema)| (name.clone(), self.location(schema, &nothing)))
                .collect::<Map<_, _>>()
                .into(),
            ("dependentSchemas" | "dependencies", Value::Object(named)) => named
                .iter()
                .map(|(name, schema)| (name.clone(), self.part(schema)))
                .collect::<Map<_, _>>()
                .into(),
            ("prefixItems" | "items", Value::Array(items)) => {
                items.iter().map(|item| self.location(item, &nothing)).collect()
            }
            (
                "items"
                | "additionalItems"
                | "unevaluatedItems"
                | "additionalProperties"
                | "unevaluatedProperties",
                schema,
            ) => self.location(schema, &nothing),
            (_, Value::Array(schemas)) if COMPOSED.contains(&keyword) => {
                schemas.iter().map(|schema| self.part(schema)).collect()
            }
            (_, schema) if COMPOSED.contains(&keyword) => self.part(schema),
            (_, other) => other.clone(),
        }
    }

    fn add_all(&mut self, schema: Option<&'a Value>, declared: &mut Declared) {
        if let Some(object) = schema.and_then(Value::as_object) {
            self.add(object, declared, |_| false);
        }
    }

    /// Adds the declarations of a schema and of all schemas composed with it, except for the keywords `left_out`.
    fn add(
        &mut self,
        schema: &'a Map<String, Value>,
        declared: &mut Declared,
        left_out: impl Fn(&str) -> bool,
    ) {
        let mut entered = BTreeSet::new();
        let mut rest: Vec<&'a Value> = Vec::new();
        let mut next = Some(schema);
        let mut is_first = true;
        while let Some(object) = next {
            if !self.spend() {
                return;
            }
            add_own(object, declared);
            let is_reference = object.get("$ref").and_then(Value::as_str);
            for (keyword, value) in
                object.iter().filter(|_| !(self.is_old && is_reference.is_some()))
            {
                let is_composed = COMPOSED.contains(&keyword.as_str());
                if !is_composed || (is_first && left_out(keyword)) {
                    continue;
                }
                match value {
                    Value::Array(schemas) => rest.extend(schemas),
                    Value::Object(named) if keyword.starts_with("depend") => {
                        rest.extend(named.values())
                    }
                    schema => rest.push(schema),
                }
            }
            if let Some(reference) = is_reference
                && let Some(target) = self.target(reference)
                && entered.insert(reference)
            {
                rest.push(target);
            }
            is_first = false;
            next = std::iter::from_fn(|| rest.pop()).find_map(Value::as_object);
        }
    }
}

/// Adds the declarations of a schema's own keywords.
fn add_own(object: &Map<String, Value>, declared: &mut Declared) {
    let keys = |keyword: &str| {
        object.get(keyword).and_then(Value::as_object).into_iter().flat_map(Map::keys)
    };
    declared.names.extend(keys("properties").cloned());
    declared.patterns.extend(keys("patternProperties").cloned());
    let texts = |value: &Value| -> Vec<String> {
        let all = value.as_array().into_iter().flatten();
        all.filter_map(Value::as_str).map(str::to_owned).collect()
    };
    declared.names.extend(object.get("required").into_iter().flat_map(texts));
    for keyword in DEPENDENT {
        let needed = object.get(keyword).and_then(Value::as_object).into_iter().flatten();
        for (_, names) in needed.filter(|(_, names)| names.is_array()) {
            declared.names.extend(texts(names));
        }
    }
    let least = object.get("minProperties").and_then(Value::as_f64).unwrap_or(0.0);
    declared.least = declared.least.max(least as u64);
    declared.says_others |= OTHERS.iter().any(|keyword| object.contains_key(*keyword));
    // A literal is complete already.
    declared.says_others |= ["const", "enum"].iter().any(|keyword| object.contains_key(*keyword));
}

fn may_be_object(object: &Map<String, Value>) -> bool {
    match object.get("type") {
        Some(Value::String(name)) => name == "object",
        Some(Value::Array(names)) => names.iter().any(|name| name == "object"),
        _ => true,
    }
}

/// Closes an object in its own schema, or beside the schemas that it is composed of.
fn close(part: &mut Map<String, Value>, declared: &Declared) {
    let is_composed =
        part.contains_key("$ref") || COMPOSED.iter().any(|keyword| part.contains_key(*keyword));
    let mut closing = declared.closing();
    // `additionalProperties` looks only at the keywords beside it. A part of its own declares the keys of the whole
    // composition.
    if is_composed {
        super::add_to_all_of(part, vec![Value::Object(closing)]);
        return;
    }
    for keyword in ["properties", "patternProperties"] {
        let Some(Value::Object(all)) = closing.get_mut(keyword) else { continue };
        if let Some(Value::Object(own)) = part.shift_remove(keyword) {
            // The declared properties in their order, then names that are only required.
            // The order of properties is the order in which the model writes them.
            let mut merged = own;
            for (name, schema) in std::mem::take(all) {
                merged.entry(name).or_insert(schema);
            }
            *all = merged;
        }
    }
    part.extend(closing);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn becomes(schema: Value, expected: Value) {
        assert_eq!(closed(&schema).unwrap(), expected, "{schema}");
    }

    #[test]
    fn objects_with_declared_keys_are_closed() {
        becomes(
            json!({"type": "object", "properties": {"a": {"properties": {"b": {}}}}, "required": ["c"]}),
            json!({
                "type": "object", "required": ["c"],
                "properties": {"a": {"properties": {"b": {}}, "additionalProperties": false}, "c": true},
                "additionalProperties": false,
            }),
        );
        becomes(
            json!({"items": {"patternProperties": {"^a": {}}}}),
            json!({"items": {"properties": {}, "patternProperties": {"^a": {}}, "additionalProperties": false}}),
        );
        for open in [
            json!({"type": "object"}),
            json!({"properties": {}, "description": "No key."}),
            json!({"properties": {"a": {}}, "additionalProperties": {"type": "integer"}}),
            json!({"properties": {"a": {}}, "allOf": [{"additionalProperties": true}]}),
            json!({"properties": {"a": {}}, "minProperties": 2}),
            json!({"not": {"properties": {"a": {}}}, "contains": {"properties": {"a": {}}}}),
            json!({"enum": [{"a": 1}], "properties": {"b": {}}}),
            json!({"type": "string", "properties": {"b": {}}}),
        ] {
            becomes(open.clone(), open);
        }
    }

    #[test]
    fn keys_of_the_whole_composition_are_declared() {
        let closing = |names: &[&str]| {
            let names: Map<_, _> =
                names.iter().map(|name| ((*name).to_owned(), json!(true))).collect();
            json!({"properties": names, "additionalProperties": false})
        };
        becomes(
            json!({"allOf": [{"properties": {"a": {}}}, {"required": ["b"]}], "dependentSchemas": {"a": {"properties": {"c": {}}}}}),
            json!({
                "allOf": [{"properties": {"a": {}}}, {"required": ["b"]}, closing(&["a", "b", "c"])],
                "dependentSchemas": {"a": {"properties": {"c": {}}}},
            }),
        );
        becomes(
            json!({"properties": {"a": {}}, "anyOf": [{"required": ["b"]}, {"type": "null"}, true]}),
            json!({
                "properties": {"a": {}},
                "anyOf": [
                    {"required": ["b"], "properties": {"a": true, "b": true}, "additionalProperties": false},
                    {"type": "null"}, closing(&["a"]),
                ],
            }),
        );
        becomes(
            json!({"if": {"required": ["a"]}, "then": {"required": ["b"]}}),
            json!({
                "if": {"required": ["a"]},
                "then": {"required": ["b"], "properties": {"a": true, "b": true}, "additionalProperties": false},
                "else": true,
            }),
        );
    }

    #[test]
    fn a_definition_is_closed_where_it_is_all_that_is_said() {
        let node = json!({"properties": {"next": {"$ref": "#/$defs/node"}}});
        becomes(
            json!({
                "$defs": {"node": node, "unused": {}},
                "properties": {
                    "alone": {"$ref": "#/$defs/node", "description": "One."},
                    "more": {"$ref": "#/$defs/node", "properties": {"b": {}}},
                    "none": {"not": {"$ref": "#/$defs/node"}},
                },
            }),
            json!({
                "properties": {
                    "alone": {"$ref": "#/$defs/closed-node", "description": "One."},
                    "more": {
                        "$ref": "#/$defs/part-node", "properties": {"b": {}},
                        "allOf": [{"properties": {"b": true, "next": true}, "additionalProperties": false}],
                    },
                    "none": {"not": {"$ref": "#/$defs/node"}},
                },
                "additionalProperties": false,
                "$defs": {
                    "node": {"properties": {"next": {"$ref": "#/$defs/node"}}},
                    "part-node": {"properties": {"next": {"$ref": "#/$defs/closed-node"}}},
                    "closed-node": {"properties": {"next": {"$ref": "#/$defs/closed-node"}}, "additionalProperties": false},
                },
            }),
        );
    }

    #[test]
    fn compositions_are_looked_through_within_bounds() {
        let reference = |index: usize| json!({"$ref": format!("#/$defs/d{index}")});
        let chain = |index: usize| {
            (
                format!("d{index}"),
                json!({"allOf": [reference(index + 1)], "properties": {"a": reference(index + 1)}}),
            )
        };
        let definitions: Map<String, Value> = (0..3000).map(chain).collect();
        let error = closed(&json!({"$defs": definitions, "$ref": "#/$defs/d0"})).unwrap_err();
        assert!(error.to_string().contains("too many compositions"), "{error}");
    }
}
