//! Removal of patterns that cannot be enforced, such as those with look-around, so that the rest of a schema is still enforced.

use llguidance::derivre::{RegexAst, RegexBuilder};
use llguidance::regex_to_lark;
use regex_syntax::ast::ErrorKind;
use serde_json::{Map, Value};

use super::{LITERAL, NAMED, ecma, text};

/// Maximum nesting of schemas.
const MAX_DEPTH: usize = 64;
/// Keywords in which a more permissive schema makes the enclosing one stricter.
const CONDITIONS: [&str; 3] = ["not", "if", "oneOf"];

/// Takes out the patterns that cannot be enforced and returns their paths, such as `properties.a.pattern`. With `is_raw`, strings
/// are written without the quotes of JSON.
///
/// Patterns in conditions stay, because without them valid values would be refused.
pub fn take_unenforced_patterns(schema: &mut Map<String, Value>, is_raw: bool) -> Vec<String> {
    let mut taken = Vec::new();
    take(schema, is_raw, &mut Vec::new(), &mut taken);
    taken
}

fn take(
    schema: &mut Map<String, Value>,
    is_raw: bool,
    path: &mut Vec<String>,
    taken: &mut Vec<String>,
) {
    // Deeper patterns stay, and are refused by name if they cannot be enforced.
    if path.len() > MAX_DEPTH {
        return;
    }
    let mut note = |path: &[String], last: &[&str]| {
        let names = path.iter().map(String::as_str).chain(last.iter().copied());
        taken.push(names.collect::<Vec<_>>().join("."));
    };
    let pattern = schema.get("pattern").and_then(Value::as_str);
    if pattern.is_some_and(|pattern| !stays(pattern, is_raw)) {
        schema.shift_remove("pattern");
        note(path, &["pattern"]);
    }
    if let Some(Value::Object(patterns)) = schema.get_mut("patternProperties") {
        let unenforced = patterns.keys().filter(|pattern| !stays(pattern, is_raw));
        for pattern in unenforced.cloned().collect::<Vec<_>>() {
            patterns.shift_remove(&pattern);
            note(path, &["patternProperties", &pattern]);
        }
    }
    for (keyword, value) in schema.iter_mut() {
        if LITERAL.contains(&keyword.as_str()) || CONDITIONS.contains(&keyword.as_str()) {
            continue;
        }
        path.push(keyword.clone());
        match value {
            Value::Object(named) if NAMED.contains(&keyword.as_str()) => {
                for (name, schema) in named.iter_mut() {
                    path.push(name.clone());
                    take_within(schema, is_raw, path, taken);
                    path.pop();
                }
            }
            Value::Array(schemas) => {
                for (index, schema) in schemas.iter_mut().enumerate() {
                    path.push(index.to_string());
                    take_within(schema, is_raw, path, taken);
                    path.pop();
                }
            }
            schema => take_within(schema, is_raw, path, taken),
        }
        path.pop();
    }
}

fn take_within(schema: &mut Value, is_raw: bool, path: &mut Vec<String>, taken: &mut Vec<String>) {
    if let Value::Object(schema) = schema {
        take(schema, is_raw, path, taken);
    }
}

/// Whether a pattern can be enforced, or is invalid, which is an error of the request.
fn stays(pattern: &str, is_raw: bool) -> bool {
    let translated = ecma::translate(pattern).ok();
    // The pattern is judged in the form in which it would be compiled.
    let expression = translated.as_ref().map(|pattern| regex_to_lark(pattern, "dw"));
    let is_wrong = match regex_syntax::Parser::new().parse(expression.as_deref().unwrap_or(pattern))
    {
        Err(regex_syntax::Error::Parse(error)) => !matches!(
            error.kind(),
            // Other engines support `\Z` and the like.
            ErrorKind::UnsupportedLookAround
                | ErrorKind::UnsupportedBackreference
                | ErrorKind::EscapeUnrecognized
        ),
        _ => false,
    };
    let is_held = || {
        expression
            .is_some_and(|regex| RegexBuilder::new().mk(&RegexAst::SearchRegex(regex)).is_ok())
    };
    is_wrong || is_held() && (!is_raw || text::is_held(pattern))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn patterns_that_cannot_be_held_are_taken_out() {
        let schema = json!({
            "properties": {
                "a": {"type": "string", "pattern": "(?=a)b", "minLength": 1},
                "b": {"type": "array", "items": [{"pattern": "^a$"}, {"pattern": r"\bx"}]},
                "pattern": {"const": {"pattern": "(?!a)"}},
                "c": {"not": {"pattern": "(?=a)"}},
            },
            "patternProperties": {"(?<!a)b": {"type": "integer"}, "^x": true},
            "$defs": {"d": {"anyOf": [{"pattern": r"(a)\1"}, {"pattern": "(a"}]}},
        });
        let mut rest = schema.as_object().unwrap().clone();
        let taken = take_unenforced_patterns(&mut rest, false);
        assert_eq!(
            taken,
            [
                "patternProperties.(?<!a)b",
                "properties.a.pattern",
                "properties.b.items.1.pattern",
                "$defs.d.anyOf.0.pattern",
            ]
        );
        let mut expected = schema;
        expected["properties"]["a"] = json!({"type": "string", "minLength": 1});
        expected["properties"]["b"]["items"][1] = json!({});
        expected["patternProperties"] = json!({"^x": true});
        expected["$defs"]["d"]["anyOf"][0] = json!({});
        // An invalid pattern is an error of the request.
        assert_eq!(expected["$defs"]["d"]["anyOf"][1], json!({"pattern": "(a"}));
        assert_eq!(Value::Object(rest), expected);
    }

    #[test]
    fn raw_texts_have_limits_of_their_own() {
        let schema = json!({"properties": {"a": {"pattern": format!("^{}$", "a".repeat(5000))}}});
        let of = |is_raw| {
            take_unenforced_patterns(&mut schema.as_object().unwrap().clone(), is_raw).len()
        };
        assert_eq!((of(false), of(true)), (0, 1));
    }
}
