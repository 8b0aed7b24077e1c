//! Rewriting of JSON schemas for the library: stricter where it would allow too much, and without keywords that others can express.
//! The library refuses the remaining keywords that it does not support, and names them.

mod closed;
mod ecma;
mod exact;
mod formats;
mod integers;
mod limits;
mod negation;
mod numbers;
mod one_of;
mod patterns;
mod productive;
mod references;
mod text;
mod unenforced;
mod unevaluated;
mod unique;

use std::cell::Cell;

use serde_json::{Map, Number, Value, json};

pub use closed::closed;
pub(crate) use ecma::check_patterns;
pub(crate) use exact::{replaced as exact_integers, text_of as text_of_integer};
pub(crate) use integers::Range;
pub(crate) use limits::check;
pub use references::without_unused_definitions;
pub use text::{TEXT_KEYWORDS, expressions, match_empty};
pub use unenforced::take_unenforced_patterns;

/// Keywords whose values are named schemas.
pub(crate) const NAMED: [&str; 5] =
    ["properties", "patternProperties", "$defs", "definitions", "dependentSchemas"];
/// Keywords for definitions, which are used only by references.
pub(crate) const DEFINITIONS: [&str; 2] = ["$defs", "definitions"];
/// Keywords whose values are not schemas.
pub(crate) const LITERAL: [&str; 5] = ["const", "enum", "default", "examples", "x-guidance"];
/// Keywords whose values are counts, which may be written as `2.0`.
pub(crate) const COUNTS: [&str; 6] =
    ["minItems", "maxItems", "minLength", "maxLength", "minProperties", "maxProperties"];
/// The maximum depth of references and alternatives in `propertyNames`.
const MAX_NAMES_DEPTH: usize = 16;
/// Keywords that have an effect only together.
const CONDITION: [&str; 3] = ["if", "then", "else"];

/// Maximum schemas and literals visited to negate schemas and to find disjoint ones. Beyond it, schemas stay unchanged.
const BUDGET: usize = 20_000;

/// The schema with plain references.
pub(crate) fn with_plain_references(schema: &Value) -> Value {
    references::plain(schema, is_old(draft(schema)))
}

/// The schema with each reference pointing to a definition of the root, so that a part of it can be used alone, together with
/// these definitions.
pub fn with_references_to_definitions(schema: Map<String, Value>) -> Map<String, Value> {
    let schema = Value::Object(schema);
    match references::to_definitions(&schema, is_old(draft(&schema))) {
        Value::Object(schema) => schema,
        _ => Map::new(),
    }
}

/// Finds schemas of one root that exclude each other, with one budget for all of them.
#[derive(Debug)]
pub struct Exclusions {
    root: Value,
    budget: Cell<usize>,
}

impl Exclusions {
    /// For schemas in `root`, whose references must be plain.
    pub fn new(root: Map<String, Value>) -> Self {
        Self { root: Value::Object(root), budget: Cell::new(BUDGET) }
    }

    /// Whether no value is valid by two of these schemas; `false` if unknown.
    pub fn are_disjoint(&self, schemas: &[Value]) -> bool {
        let draft = draft(&self.root);
        let budget = Cell::new(self.budget.get());
        let preparation =
            Preparation { root: &self.root, is_old: is_old(draft), is_2020: false, budget };
        let are_disjoint = preparation.are_all_disjoint(schemas);
        self.budget.set(preparation.budget.get());
        are_disjoint
    }
}

fn draft(schema: &Value) -> &str {
    schema.get("$schema").and_then(Value::as_str).unwrap_or_default()
}

fn is_old(draft: &str) -> bool {
    ["draft-03", "draft-04", "draft-06", "draft-07"].iter().any(|old| draft.contains(old))
}

/// The schema, prepared for the library.
pub(crate) fn prepared(schema: &Value) -> Value {
    let draft = draft(schema);
    let is_old = is_old(draft);
    let is_2020 = draft.is_empty() || draft.contains("2020-12");
    // The order matters: negation and disjointness follow plain references, and pruning needs all keywords in their
    // final form.
    let root = references::plain(schema, is_old);
    let preparation = Preparation { root: &root, is_old, is_2020, budget: Cell::new(BUDGET) };
    exact::marked(productive::pruned(&preparation.schema(&root)))
}

struct Preparation<'a> {
    root: &'a Value,
    /// The number of schemas that may still be visited.
    budget: Cell<usize>,
    /// Whether the draft is older than 2019: keywords beside `$ref` are ignored.
    is_old: bool,
    is_2020: bool,
}

impl Preparation<'_> {
    fn schema(&self, schema: &Value) -> Value {
        match schema {
            Value::Object(object) if self.is_old && object.contains_key("$ref") => schema.clone(),
            Value::Object(object) => Value::Object(self.object(object)),
            Value::Array(schemas) => schemas.iter().map(|schema| self.schema(schema)).collect(),
            other => other.clone(),
        }
    }

    /// Whether `num` more schemas may be visited.
    fn spend(&self, num: usize) -> bool {
        let left = self.budget.get().checked_sub(num);
        self.budget.set(left.unwrap_or(0));
        left.is_some()
    }

    fn object(&self, object: &Map<String, Value>) -> Map<String, Value> {
        let mut said = object.clone();
        // Keywords are replaced before the parts are prepared, so that new schemas are prepared, too.
        let more = self.by_other_keywords(&mut said);
        add_to_all_of(&mut said, more);
        let mut prepared: Map<String, Value> = said
            .iter()
            .map(|(keyword, value)| (keyword.clone(), self.value(keyword, value)))
            .collect();
        let mut more = numbers::exact(&mut prepared);
        if let Some(Value::String(format)) = object.get("format") {
            prepared.shift_remove("format");
            let (known, schemas) = formats::enforced(format);
            prepared.extend(known.map(|known| ("format".to_owned(), known.into())));
            more.extend(schemas);
        }
        if self.is_2020 {
            more.extend(unevaluated::replaced(self.root, object, &mut prepared));
        }
        add_to_all_of(&mut prepared, more);
        patterns::known_names(&mut prepared);
        prepared
    }

    /// Takes keywords out of a schema and returns equivalent schemas of other keywords.
    fn by_other_keywords(&self, schema: &mut Map<String, Value>) -> Vec<Value> {
        let mut more = dependencies(schema);
        if schema.get("uniqueItems") == Some(&json!(false)) {
            schema.shift_remove("uniqueItems");
        }
        more.extend(contains(schema));
        more.extend(unique::lists(self.root, schema));
        more.extend(self.condition(schema));
        let mut replace = |keyword: &str, by: &dyn Fn(&Value) -> Option<Value>| {
            if let Some(said) = schema.get(keyword).and_then(by) {
                schema.shift_remove(keyword);
                more.extend((said != json!(true)).then_some(said));
            }
        };
        replace("propertyNames", &|names| self.names(names, 0));
        replace("not", &|schema| self.negated(schema, 0));
        replace("oneOf", &|arms| self.one_of(arms));
        more
    }

    /// `propertyNames` with references and alternatives resolved.
    fn names(&self, names: &Value, depth: usize) -> Option<Value> {
        let said = plain_names(names);
        if said.is_some() || depth == MAX_NAMES_DEPTH || !self.spend(1) {
            return said;
        }
        let object = names.as_object()?;
        let says = |keyword: &str| !matches!(keyword, "title" | "description" | "type");
        let mut said = object.iter().filter(|(keyword, _)| says(keyword));
        let (keyword, value) = said.next().filter(|_| said.next().is_none())?;
        let inner = |names: &Value| self.names(names, depth + 1);
        match (keyword.as_str(), value) {
            ("$ref", Value::String(reference)) => {
                inner(self.root.pointer(reference.strip_prefix('#')?)?)
            }
            ("allOf", Value::Array(all)) => {
                let all = all.iter().map(inner).collect::<Option<Vec<_>>>()?;
                Some(json!({"allOf": all}))
            }
            // Each name may match another alternative.
            ("anyOf" | "oneOf", Value::Array(arms)) => {
                let arms = arms.iter().map(inner).collect::<Option<Vec<_>>>()?;
                let (mut names, mut patterns) = (Map::new(), Map::new());
                for arm in &arms {
                    let arm = arm.as_object()?;
                    let has_other = arm.get("additionalProperties") != Some(&json!(false));
                    let keys = |keyword: &str| arm.get(keyword).and_then(Value::as_object);
                    names.extend(keys("properties").filter(|_| !has_other)?.clone());
                    patterns.extend(keys("patternProperties")?.clone());
                }
                // A name might match two patterns, which `oneOf` forbids.
                let is_exclusive = keyword == "oneOf" && !patterns.is_empty();
                (!is_exclusive).then(|| of_names(names.into(), patterns.into()))
            }
            _ => None,
        }
    }

    /// `if`, `then` and `else` as alternatives: the condition and `then`, or its negation and `else`.
    fn condition(&self, schema: &mut Map<String, Value>) -> Option<Value> {
        let said = match (schema.get("if"), schema.get("then"), schema.get("else")) {
            (None, ..) | (Some(_), None, None) => None,
            (Some(condition), then, otherwise) => {
                let or_true = |schema: Option<&Value>| schema.cloned().unwrap_or(json!(true));
                let not = self.negated(condition, 0)?;
                Some(json!({"anyOf": [
                    {"allOf": [condition, or_true(then)]}, {"allOf": [not, or_true(otherwise)]},
                ]}))
            }
        };
        CONDITION.iter().for_each(|keyword| drop(schema.shift_remove(*keyword)));
        said
    }

    fn value(&self, keyword: &str, value: &Value) -> Value {
        match value {
            Value::Object(named) if NAMED.contains(&keyword) => {
                let is_pattern = keyword == "patternProperties";
                let name =
                    |name: &String| if is_pattern { ecma::translated(name) } else { name.clone() };
                Value::Object(
                    named.iter().map(|(key, value)| (name(key), self.schema(value))).collect(),
                )
            }
            Value::String(pattern) if keyword == "pattern" => ecma::translated(pattern).into(),
            Value::Number(number) if COUNTS.contains(&keyword) => Value::Number(whole(number)),
            Value::Object(_) | Value::Array(_) if !LITERAL.contains(&keyword) => self.schema(value),
            other => other.clone(),
        }
    }
}

/// `2.0` as `2`.
fn whole(number: &Number) -> Number {
    // 2^53: beyond it, not every integer is a double.
    const LARGEST: f64 = 9_007_199_254_740_992.0;
    match number.as_f64() {
        Some(value)
            if number.is_f64() && value.fract() == 0.0 && (0.0..LARGEST).contains(&value) =>
        {
            Number::from(value as u64)
        }
        _ => number.clone(),
    }
}

/// Adds schemas to `allOf`.
fn add_to_all_of(schema: &mut Map<String, Value>, mut more: Vec<Value>) {
    if more.is_empty() {
        return;
    }
    let mut all = match schema.shift_remove("allOf") {
        Some(Value::Array(all)) => all,
        // A value that is not an array is invalid, and will be refused.
        other => other.into_iter().collect(),
    };
    all.append(&mut more);
    schema.insert("allOf".to_owned(), Value::Array(all));
}

/// `contains` in other keywords if it means every item or none; otherwise it stays.
fn contains(schema: &mut Map<String, Value>) -> Option<Value> {
    const KEYWORDS: [&str; 3] = ["contains", "minContains", "maxContains"];
    let (least, most) = (schema.get("minContains"), schema.get("maxContains"));
    let is_idle = least.and_then(Value::as_f64) == Some(0.0) && most.is_none();
    let said = match schema.get("contains") {
        None => None,
        Some(_) if is_idle => None,
        Some(Value::Bool(true)) => {
            let mut count = Map::from_iter([("minItems".to_owned(), json!(1))]);
            count.extend(least.map(|least| ("minItems".to_owned(), least.clone())));
            count.extend(most.map(|most| ("maxItems".to_owned(), most.clone())));
            Some(Value::Object(count))
        }
        // No item can match, so only values that are not arrays are left.
        Some(Value::Bool(false)) if least.is_none() => {
            Some(json!({"type": ["null", "boolean", "number", "string", "object"]}))
        }
        Some(_) => return None,
    };
    KEYWORDS.iter().for_each(|keyword| drop(schema.shift_remove(*keyword)));
    said
}

/// `dependentRequired`, `dependentSchemas` and the older `dependencies` as alternatives: the property is absent, or its
/// dependencies are satisfied.
fn dependencies(schema: &mut Map<String, Value>) -> Vec<Value> {
    let mut found = Vec::new();
    for keyword in ["dependentRequired", "dependentSchemas", "dependencies"] {
        let Some(Value::Object(dependencies)) = schema.get(keyword) else { continue };
        for (name, needed) in dependencies {
            let needed = match needed {
                Value::Array(names) => json!({"required": names}),
                schema => schema.clone(),
            };
            let there = json!({"allOf": [{"required": [name]}, needed]});
            found.push(json!({"anyOf": [{"properties": {name: false}}, there]}));
        }
        schema.shift_remove(keyword);
    }
    found
}

/// Objects whose names are all among these.
fn of_names(properties: Value, patterns: Value) -> Value {
    json!({"properties": properties, "patternProperties": patterns, "additionalProperties": false})
}

/// `propertyNames` as keywords for properties, if possible; other forms are refused.
fn plain_names(names: &Value) -> Option<Value> {
    let only = of_names;
    let of_literals = |literals: &[Value]| {
        let names = literals.iter().filter_map(Value::as_str);
        only(
            names.map(|name| (name.to_owned(), json!(true))).collect::<Map<_, _>>().into(),
            json!({}),
        )
    };
    let object = match names {
        Value::Object(object) => object,
        Value::Bool(all) => {
            return Some(if *all { json!(true) } else { json!({"maxProperties": 0}) });
        }
        _ => return None,
    };
    let mut keywords: Vec<(&str, &Value)> =
        object.iter().map(|(keyword, value)| (keyword.as_str(), value)).collect();
    keywords.retain(|(keyword, value)| {
        let is_type = *keyword == "type" && **value == json!("string");
        !(is_type || matches!(*keyword, "title" | "description"))
    });
    match keywords.as_slice() {
        [] => Some(json!(true)),
        [("pattern", Value::String(pattern))] => Some(only(json!({}), json!({pattern: true}))),
        // `[\s\S]` instead of `.`, which does not match line breaks.
        [("maxLength", most)] => {
            Some(only(json!({}), json!({format!("^[\\s\\S]{{0,{most}}}$"): true})))
        }
        [("minLength", least)] => {
            Some(only(json!({}), json!({format!("^[\\s\\S]{{{least},}}$"): true})))
        }
        [("enum", Value::Array(literals))] => Some(of_literals(literals)),
        [("const", literal)] => Some(of_literals(std::slice::from_ref(literal))),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_schema_stays_as_it_is() {
        let schema = json!({
            "enum": [{"format": "time", "minItems": 2.0}], "properties": {"format": {"type": "string"}, "not": {}},
            "const": {"if": 1}, "required": ["dependencies"],
        });
        assert_eq!(prepared(&schema), schema);
        let old = json!({"$schema": "http://json-schema.org/draft-07/schema#", "$ref": "#/a", "minItems": 2.0, "not": {}});
        assert_eq!(prepared(&old), old);
    }

    #[test]
    fn keywords_are_said_by_others() {
        for (schema, said) in [
            (json!({"maxItems": 2.0}), json!({"maxItems": 2})),
            (json!({"then": {}, "else": {}}), json!({})),
            (
                json!({"contains": true, "maxContains": 2}),
                json!({"allOf": [{"minItems": 1, "maxItems": 2}]}),
            ),
            (json!({"contains": {"const": 1}, "minContains": 0.0}), json!({})),
            (
                json!({"dependentRequired": {"a": ["b"]}}),
                json!({"allOf": [{"anyOf": [{"properties": {"a": false}}, {"allOf": [{"required": ["a"]}, {"required": ["b"]}]}]}]}),
            ),
            (
                json!({"not": {"not": {"uniqueItems": true}}}),
                json!({"allOf": [{"uniqueItems": true}]}),
            ),
            (
                json!({"allOf": [{"minItems": 1}], "not": {"type": ["number", "string", "null"]}}),
                json!({"allOf": [{"minItems": 1}, {"type": ["boolean", "array", "object"]}]}),
            ),
            (
                json!({"propertyNames": {"pattern": "^a"}}),
                json!({"allOf": [{"properties": {}, "patternProperties": {"^a": true}, "additionalProperties": false}]}),
            ),
        ] {
            assert_eq!(prepared(&schema), said, "{schema}");
        }
        for kept in [
            json!({"not": {"type": "integer"}}),
            json!({"propertyNames": {"minLength": 1, "maxLength": 2}}),
            json!({"if": {"pattern": "a"}, "then": {"minLength": 2}}),
            json!({"contains": {"const": 1}, "maxContains": 2}),
        ] {
            assert_eq!(prepared(&kept), kept);
        }
    }
}
