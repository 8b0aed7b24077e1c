//! Negation of schemas if keywords can express it: for `not`, `if`, and the other alternatives of `oneOf`.

use serde_json::{Map, Value, json};

use super::{Preparation, whole};

/// Maximum nesting of schemas, with references followed.
const MAX_DEPTH: usize = 16;
/// Maximum characters of the excluded strings.
const MAX_LITERAL_CHARS: usize = 1_000;
const TYPES: [&str; 6] = ["null", "boolean", "number", "string", "array", "object"];
/// Keywords that every value satisfies.
const ANNOTATIONS: [&str; 14] = [
    "$schema",
    "$id",
    "$anchor",
    "$comment",
    "$defs",
    "definitions",
    "title",
    "description",
    "default",
    "examples",
    "deprecated",
    "readOnly",
    "writeOnly",
    "discriminator",
];
/// Keywords that every value satisfies if they are `true`.
const APPLICATORS: [&str; 6] = [
    "items",
    "additionalItems",
    "additionalProperties",
    "propertyNames",
    "unevaluatedItems",
    "unevaluatedProperties",
];

impl Preparation<'_> {
    /// A schema of all values that another one refuses; `None` if keywords cannot express it.
    pub(super) fn negated(&self, schema: &Value, depth: usize) -> Option<Value> {
        if depth > MAX_DEPTH || !self.spend(1) {
            return None;
        }
        let object = match schema {
            Value::Bool(all) => return Some(json!(!all)),
            Value::Object(object) => object,
            _ => return None,
        };
        if let (true, Some(reference)) = (self.is_old, object.get("$ref")) {
            return self.negated(self.target(reference)?, depth + 1);
        }
        let mut any = Vec::new();
        for (keyword, value) in object {
            // A keyword that every value satisfies has no negation, and would add `false` to the alternatives.
            let is_idle = ANNOTATIONS.contains(&keyword.as_str())
                || (APPLICATORS.contains(&keyword.as_str()) && is_true(value));
            if !is_idle {
                any.push(self.keyword_negated(keyword, value, depth)?);
            }
        }
        Some(any_of(any))
    }

    /// The negation of a keyword that does not depend on others.
    fn keyword_negated(&self, keyword: &str, value: &Value, depth: usize) -> Option<Value> {
        let not = |schema: &Value| self.negated(schema, depth + 1);
        let nots =
            |schemas: &Value| schemas.as_array()?.iter().map(not).collect::<Option<Vec<_>>>();
        Some(match keyword {
            "$ref" => not(self.target(value)?)?,
            "not" => value.clone(),
            "allOf" => any_of(nots(value)?),
            "anyOf" => json!({"allOf": nots(value)?}),
            "type" => types_negated(value)?,
            "const" => self.literals_negated(std::slice::from_ref(value))?,
            "enum" => self.literals_negated(value.as_array()?)?,
            "minimum" => bound("exclusiveMaximum", value)?,
            "exclusiveMinimum" => bound("maximum", value)?,
            "maximum" => bound("exclusiveMinimum", value)?,
            "exclusiveMaximum" => bound("minimum", value)?,
            "minLength" => fewer("string", "maxLength", value)?,
            "maxLength" => more("string", "minLength", value)?,
            "minItems" => fewer("array", "maxItems", value)?,
            "maxItems" => more("array", "minItems", value)?,
            "minProperties" => fewer("object", "maxProperties", value)?,
            "maxProperties" => more("object", "minProperties", value)?,
            // The negations of keywords for one type name that type: a value of another type satisfies the keyword.
            "required" => {
                let missing = value.as_array()?.iter().map(|name| {
                    let name = name.as_str()?;
                    Some(json!({"type": "object", "properties": {name: false}}))
                });
                any_of(missing.collect::<Option<Vec<_>>>()?)
            }
            "properties" => {
                let wrong = value.as_object()?.iter().map(|(name, schema)| {
                    let not = not(schema)?;
                    Some(json!({"type": "object", "required": [name], "properties": {name: not}}))
                });
                any_of(wrong.collect::<Option<Vec<_>>>()?)
            }
            // Older drafts ignore `prefixItems`.
            "prefixItems" if self.is_2020 => {
                let wrong = value.as_array()?.iter().enumerate().map(|(index, schema)| {
                    let mut items = vec![json!(true); index];
                    items.push(not(schema)?);
                    Some(json!({"type": "array", "minItems": index + 1, "prefixItems": items}))
                });
                any_of(wrong.collect::<Option<Vec<_>>>()?)
            }
            _ => return None,
        })
    }

    /// All values except these literals, which must not be arrays or objects.
    fn literals_negated(&self, literals: &[Value]) -> Option<Value> {
        let (mut numbers, mut texts, mut flags) = (Vec::new(), Vec::new(), Vec::new());
        let mut types = vec!["array", "object"];
        for literal in literals {
            match literal {
                Value::Null => {}
                Value::Bool(flag) => flags.push(*flag),
                // A rounded literal would leave a gap at the wrong number.
                Value::Number(number) => numbers.push(number.as_f64().filter(is_exact)?),
                Value::String(text) => texts.push(text.chars().collect::<Vec<char>>()),
                Value::Array(_) | Value::Object(_) => return None,
            }
        }
        let mut any = Vec::new();
        if !literals.contains(&Value::Null) {
            types.push("null");
        }
        any.extend(
            [true, false]
                .iter()
                .filter(|flag| !flags.contains(flag))
                .map(|flag| json!({"const": flag})),
        );
        if numbers.is_empty() {
            types.push("number");
        }
        any.extend(gaps(numbers));
        let num_chars = texts.iter().map(Vec::len).sum::<usize>();
        // The expression of all other texts has a branch for each character of these.
        if num_chars > MAX_LITERAL_CHARS || !self.spend(literals.len() + num_chars) {
            return None;
        }
        let texts: Vec<&[char]> = texts.iter().map(Vec::as_slice).collect();
        any.push(json!({"type": "string", "pattern": format!("^{}$", other_than(&texts))}));
        any.push(json!({"type": types}));
        Some(json!({"anyOf": any}))
    }

    /// The target of a plain reference.
    pub(super) fn target(&self, reference: &Value) -> Option<&Value> {
        self.root.pointer(reference.as_str()?.strip_prefix('#')?)
    }
}

fn is_true(schema: &Value) -> bool {
    *schema == json!(true) || schema.as_object().is_some_and(Map::is_empty)
}

/// Any of these schemas; `false` if there are none.
fn any_of(mut schemas: Vec<Value>) -> Value {
    schemas.retain(|schema| *schema != json!(false));
    match schemas.len() {
        0 => json!(false),
        1 => schemas.remove(0),
        _ => json!({"anyOf": schemas}),
    }
}

fn types_negated(types: &Value) -> Option<Value> {
    let types = match types {
        Value::String(_) => std::slice::from_ref(types),
        Value::Array(types) => types,
        _ => return None,
    };
    let known = |name: &Value| {
        // No keyword means a number that is not an integer.
        TYPES.iter().any(|known| name == known)
            || (name == "integer" && types.contains(&json!("number")))
    };
    let others: Vec<&str> =
        TYPES.iter().copied().filter(|name| !types.contains(&json!(name))).collect();
    types.iter().all(known).then(|| json!({"type": others}))
}

fn bound(keyword: &str, value: &Value) -> Option<Value> {
    value.is_number().then(|| json!({"type": "number", keyword: value}))
}

fn fewer(kind: &str, keyword: &str, value: &Value) -> Option<Value> {
    let least = whole(value.as_number()?).as_u64()?;
    Some(match least.checked_sub(1) {
        Some(most) => json!({"type": kind, keyword: most}),
        None => json!(false),
    })
}

fn more(kind: &str, keyword: &str, value: &Value) -> Option<Value> {
    let most = whole(value.as_number()?).as_u64()?;
    Some(json!({"type": kind, keyword: most.checked_add(1)?}))
}

/// Whether double precision represents the written integer exactly.
fn is_exact(number: &f64) -> bool {
    const LARGEST: f64 = 9_007_199_254_740_992.0;
    number.abs() < LARGEST
}

/// Schemas for the numbers below, between and above these.
fn gaps(mut numbers: Vec<f64>) -> Vec<Value> {
    numbers.sort_by(f64::total_cmp);
    numbers.dedup();
    let (Some(first), Some(last)) = (numbers.first(), numbers.last()) else { return Vec::new() };
    let between = numbers.windows(2).map(
        |pair| json!({"type": "number", "exclusiveMinimum": pair[0], "exclusiveMaximum": pair[1]}),
    );
    std::iter::once(json!({"type": "number", "exclusiveMaximum": first}))
        .chain(between)
        .chain([json!({"type": "number", "exclusiveMinimum": last})])
        .collect()
}

/// A regular expression of every text except these.
fn other_than(texts: &[&[char]]) -> String {
    const ANY: &str = r"[\u{0}-\u{10ffff}]";
    if texts.is_empty() {
        return format!("{ANY}*");
    }
    // A tree over common prefixes: the text ends early, differs in its next character, or goes on with one of these
    // characters and differs later.
    let mut firsts: Vec<char> = texts.iter().filter_map(|text| text.first().copied()).collect();
    firsts.sort_unstable();
    firsts.dedup();
    let escaped = |character: &char| format!("\\u{{{:x}}}", u32::from(*character));
    let mut any = Vec::new();
    if texts.iter().all(|text| !text.is_empty()) {
        any.push(String::new());
    }
    let class: String = firsts.iter().map(escaped).collect();
    any.push(if class.is_empty() { format!("{ANY}+") } else { format!("[^{class}]{ANY}*") });
    for first in &firsts {
        let rests: Vec<&[char]> = texts
            .iter()
            .filter(|text| text.first() == Some(first))
            .map(|text| &text[1..])
            .collect();
        any.push(format!("{}{}", escaped(first), other_than(&rests)));
    }
    format!("({})", any.join("|"))
}

#[cfg(test)]
mod tests {
    use super::super::prepared;
    use super::*;

    fn negated(schema: Value) -> Value {
        let found = prepared(&json!({"not": schema}));
        match found {
            Value::Object(mut found) if found.len() == 1 && found.contains_key("allOf") => {
                found["allOf"][0].take()
            }
            other => other,
        }
    }

    #[test]
    fn each_keyword_is_negated_on_its_own() {
        for (schema, not) in [
            (
                json!({"type": ["number", "integer"]}),
                json!({"type": ["null", "boolean", "string", "array", "object"]}),
            ),
            (json!({"minLength": 3}), json!({"type": "string", "maxLength": 2})),
            (json!({"minItems": 0}), json!(false)),
            (json!({"maxProperties": 1.0}), json!({"type": "object", "minProperties": 2})),
            (
                json!({"type": "object", "properties": {"a": {"type": "string"}}, "title": "x"}),
                json!({"anyOf": [
                    {"type": ["null", "boolean", "number", "string", "array"]},
                    {"type": "object", "required": ["a"], "properties": {"a": {"type": ["null", "boolean", "number", "array", "object"]}}},
                ]}),
            ),
            (
                json!({"required": ["a", "b"]}),
                json!({"anyOf": [
                    {"type": "object", "properties": {"a": false}}, {"type": "object", "properties": {"b": false}},
                ]}),
            ),
            (
                json!({"anyOf": [{"maximum": 1.5}, {"minimum": 5}]}),
                json!({"allOf": [{"type": "number", "exclusiveMinimum": 1.5}, {"type": "number", "exclusiveMaximum": 5}]}),
            ),
        ] {
            assert_eq!(negated(schema.clone()), not, "{schema}");
        }
        for kept in [json!({"type": "integer"}), json!({"pattern": "a"}), json!({"const": [1]})] {
            assert_eq!(negated(kept.clone()), json!({"not": kept}));
        }
    }

    #[test]
    fn other_texts_are_all_but_those() {
        let texts = ["ab", "a", "b"].map(|text| text.chars().collect::<Vec<_>>());
        let texts: Vec<&[char]> = texts.iter().map(Vec::as_slice).collect();
        let any = r"[\u{0}-\u{10ffff}]";
        let after_ab = format!("({any}+)");
        let after_a = format!(r"([^\u{{62}}]{any}*|\u{{62}}{after_ab})");
        let expected =
            format!(r"(|[^\u{{61}}\u{{62}}]{any}*|\u{{61}}{after_a}|\u{{62}}{after_ab})");
        assert_eq!(other_than(&texts), expected);
    }
}
