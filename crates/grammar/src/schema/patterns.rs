//! `patternProperties` that match only names in `properties`: their schemas move to these properties.
//!
//! The library would allow a comma before a further name, although none could come after it, so that the output could not end.

use llguidance::derivre::{RegexAst, RegexBuilder};
use llguidance::regex_to_lark;
use serde_json::{Map, Value, json};

/// The limit of work for one pattern. Beyond it, the pattern stays unchanged.
const FUEL: u64 = 100_000;
/// Maximum names that a pattern is compared with.
const MAX_NAMES: usize = 200;

/// Moves the schemas of such patterns to the properties.
pub(super) fn known_names(schema: &mut Map<String, Value>) {
    let Some(Value::Object(patterns)) = schema.get("patternProperties") else { return };
    let properties = schema.get("properties").and_then(Value::as_object);
    let required = schema.get("required").and_then(Value::as_array).into_iter().flatten();
    let required = required.filter_map(Value::as_str);
    let mut names: Vec<&str> =
        properties.into_iter().flat_map(Map::keys).map(String::as_str).collect();
    // A required name that only a pattern describes is known, too.
    names.extend(required.filter(|name| !properties.is_some_and(|all| all.contains_key(*name))));
    if names.is_empty() || names.len() > MAX_NAMES {
        return;
    }
    let mut moved = Vec::new();
    for (pattern, said) in patterns {
        if let Some(matching) = only_of(pattern, &names) {
            let matching: Vec<String> = matching.into_iter().map(str::to_owned).collect();
            moved.push((pattern.clone(), said.clone(), matching));
        }
    }
    for (pattern, said, matching) in moved {
        if let Some(Value::Object(patterns)) = schema.get_mut("patternProperties") {
            patterns.shift_remove(&pattern);
        }
        let properties = schema.entry("properties").or_insert_with(|| json!({}));
        let Value::Object(properties) = properties else { return };
        for name in matching {
            let both = match properties.get(&name) {
                Some(own) => json!({"allOf": [own, said]}),
                None => said.clone(),
            };
            properties.insert(name, both);
        }
    }
    if schema.get("patternProperties") == Some(&json!({})) {
        schema.shift_remove("patternProperties");
    }
}

/// The names that match a pattern, if it matches no others.
fn only_of<'a>(pattern: &str, names: &[&'a str]) -> Option<Vec<&'a str>> {
    let search = RegexAst::SearchRegex(regex_to_lark(pattern, "dw"));
    let mut builder = RegexBuilder::new();
    let search = builder.mk(&search).ok()?;
    let mut regex = builder.to_regex_limited(search, FUEL).ok()?;
    let matching: Vec<&str> = names.iter().copied().filter(|name| regex.is_match(name)).collect();
    let literals = matching.iter().map(|name| RegexAst::Literal((*name).to_owned())).collect();
    // The texts that match the pattern and are none of these names. If there are none, the pattern says nothing more
    // than the properties.
    let others = RegexAst::And(vec![
        RegexAst::ExprRef(search),
        RegexAst::Not(Box::new(RegexAst::Or(literals))),
    ]);
    let others = builder.mk(&others).ok()?;
    let mut others = builder.to_regex_limited(others, FUEL).ok()?;
    others.always_empty().then_some(matching)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_of_known_names_go_to_the_properties() {
        let of = |schema: Value| {
            let Value::Object(mut object) = schema else { panic!("no object") };
            known_names(&mut object);
            Value::Object(object)
        };
        for (schema, expected) in [
            (
                json!({"properties": {"a": {"minimum": 1}}, "patternProperties": {"^[ab]$": {"maximum": 2}}, "required": ["b"]}),
                json!({"properties": {"a": {"allOf": [{"minimum": 1}, {"maximum": 2}]}, "b": {"maximum": 2}}, "required": ["b"]}),
            ),
            (
                json!({"patternProperties": {"^a$": {}, "^b": {}}, "required": ["a"]}),
                json!({"patternProperties": {"^b": {}}, "required": ["a"], "properties": {"a": {}}}),
            ),
        ] {
            assert_eq!(of(schema.clone()), expected, "{schema}");
        }
        for kept in [
            json!({"properties": {"a": {}}, "patternProperties": {"^[ab]$": {}}}),
            json!({"patternProperties": {"^a$": {}}}),
            json!({"properties": {"a": {}}, "patternProperties": {"a": {}}}),
        ] {
            assert_eq!(of(kept.clone()), kept);
        }
    }
}
