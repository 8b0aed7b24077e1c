//! Checks of grammars in Lark syntax: depth of rules, because the library follows them by recursion, and attributes.

use std::collections::{HashMap, HashSet};

use serde_json::{Deserializer, Value};

use crate::{Error, Result};

/// The root rule.
const START: &str = "start";
/// The maximum nesting of rules, each counted with the brackets around it.
const MAX_DEPTH: usize = 400;

/// Attributes without effect here: tokens are sampled at the request's temperature, and captures are not returned.
const IDLE_ATTRIBUTES: [&str; 4] = ["temperature", "capture", "stop_capture", "stop_capture_name"];

/// Names in a definition, each with the number of brackets around it.
type References<'a> = Vec<(&'a str, usize)>;

/// Refuses a grammar in Lark syntax whose rules are nested too deeply.
///
/// # Errors
/// [`Error::Constraint`] with the rule.
pub(crate) fn check_depth(grammar: &str) -> Result<()> {
    let definitions = definitions(grammar);
    // In the order of the text, as in the library: a known name is not entered again.
    let mut seen = HashSet::from([START]);
    // The names of the path, the depth of each, and the number of its references followed so far.
    // A list instead of recursion: this check must bear any depth.
    let mut way = vec![(START, 0, 0)];
    while let Some((name, depth, next)) = way.last_mut() {
        let Some(&(reference, brackets)) = definitions.get(*name).and_then(|all| all.get(*next))
        else {
            way.pop();
            continue;
        };
        *next += 1;
        // The library recurses for each bracket, too.
        let deeper = *depth + 1 + brackets;
        if deeper > MAX_DEPTH {
            return Err(Error::Constraint(format!(
                "rule `{name}` is nested in more than {MAX_DEPTH} others; use fewer levels"
            )));
        }
        if definitions.contains_key(reference) && seen.insert(reference) {
            way.push((reference, deeper, 0));
        }
    }
    Ok(())
}

/// Refuses attributes of rules that the library would accept without effect.
///
/// # Errors
/// [`Error::Constraint`] with the rule and the attribute.
pub(crate) fn check_attributes(grammar: &str) -> Result<()> {
    // The state: a rule's name at the start of a line, a bracket after it, and an attribute's name at the start of the brackets.
    let (mut rule, mut in_brackets, mut is_line_start, mut is_key) = (None, false, true, false);
    let mut rest = grammar;
    while let Some((first, token)) = next_token(rest) {
        rest = &rest[token.len()..];
        match first {
            ' ' | '\t' | '\r' => continue,
            '!' | '?' if is_line_start => continue,
            '\n' => (rule, in_brackets, is_line_start) = (None, false, true),
            '[' if rule.is_some() => (in_brackets, is_key) = (true, true),
            ',' if in_brackets => is_key = true,
            _ if is_name(first) && is_line_start => (rule, is_line_start) = (Some(token), false),
            _ if in_brackets && is_key => {
                if IDLE_ATTRIBUTES.contains(&token) {
                    let name = rule.unwrap_or(START);
                    return Err(Error::Constraint(format!(
                        "rule `{name}`: the attribute `{token}` has no effect here; remove it"
                    )));
                }
                is_key = false;
            }
            // A priority may be between a rule's name and its attributes.
            '.' => {}
            _ if is_name(first) && rule.is_some() && !in_brackets => {}
            ']' | ':' if !in_brackets || first == ']' => (rule, in_brackets) = (None, false),
            _ => is_line_start = false,
        }
    }
    Ok(())
}

/// Rules and terminals with their references. Those of nested grammars count as the grammar's own.
fn definitions(grammar: &str) -> HashMap<&str, References<'_>> {
    let mut definitions: HashMap<&str, References<'_>> = HashMap::new();
    let mut current = START;
    let mut brackets = Vec::new();
    let mut is_line_start = true;
    let mut rest = grammar;
    while let Some((first, token)) = next_token(rest) {
        rest = &rest[token.len()..];
        match first {
            '(' | '[' | '{' => brackets.push(first),
            ')' | ']' | '}' => drop(brackets.pop()),
            // Only in parentheses does a definition continue with a name in another line.
            _ if is_name(first) && is_line_start && !matches!(brackets.last(), Some('(' | '[')) => {
                current = token;
                definitions.entry(current).or_default();
            }
            _ if is_name(first) => {
                definitions.entry(current).or_default().push((token, brackets.len()));
            }
            _ => {}
        }
        // A prefix of a rule's name only affects its syntax tree.
        is_line_start =
            first == '\n' || (is_line_start && matches!(first, ' ' | '\t' | '\r' | '!' | '?'));
    }
    definitions
}

/// A part of a grammar.
#[derive(Debug, PartialEq)]
pub(crate) enum Part<'a> {
    Text(&'a str),
    /// The schema after a `%json`.
    Json(Value),
}

/// The schemas of a grammar and the text between them.
///
/// # Errors
/// [`Error::Constraint`] if no JSON is after a `%json`.
pub(crate) fn parts(grammar: &str) -> Result<Vec<Part<'_>>> {
    const MARK: &str = "%json";
    let (mut parts, mut begin, mut at) = (Vec::new(), 0, 0);
    while let Some((first, token)) = next_token(&grammar[at..]) {
        let is_schema = first == '%' && grammar[at..].starts_with(MARK);
        if !is_schema {
            at += token.len();
            continue;
        }
        parts.push(Part::Text(&grammar[begin..at]));
        at += MARK.len();
        let mut values = Deserializer::from_str(&grammar[at..]).into_iter::<Value>();
        let schema = values.next().transpose();
        let schema = schema.map_err(|error| Error::Constraint(format!("a `%json`: {error}")))?;
        parts.extend(schema.map(Part::Json));
        at += values.byte_offset();
        begin = at;
    }
    parts.push(Part::Text(&grammar[begin..]));
    Ok(parts)
}

/// The first character of the next token, and the token.
fn next_token(rest: &str) -> Option<(char, &str)> {
    let first = rest.chars().next()?;
    let len = match first {
        '"' => quoted_len(rest, '"'),
        '#' => rest.find('\n').unwrap_or(rest.len()),
        '/' if rest.starts_with("//") => rest.find('\n').unwrap_or(rest.len()),
        '/' => quoted_len(rest, '/'),
        _ if is_name(first) => rest.find(|other| !is_name(other)).unwrap_or(rest.len()),
        _ => first.len_utf8(),
    };
    Some((first, &rest[..len]))
}

fn is_name(character: char) -> bool {
    character.is_ascii_alphanumeric() || matches!(character, '_' | '-')
}

/// The length of the text before the next `mark`, or of all of it.
fn quoted_len(text: &str, mark: char) -> usize {
    // The mark that opens the text must not end it, so the first character counts as escaped.
    let mut is_escaped = true;
    for (at, character) in text.char_indices() {
        if character == mark && !is_escaped {
            return at + 1;
        }
        is_escaped = at > 0 && character == '\\' && !is_escaped;
    }
    text.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn schemas_are_told_from_the_text_around_them() {
        let grammar =
            "start: \"%json\" a // %json {\na: %json {\"const\": \"}\"} b\nb: /%json/ %json true\n";
        let text = |text| Part::Text(text);
        let json = Part::Json;
        assert_eq!(
            parts(grammar),
            Ok(vec![
                text("start: \"%json\" a // %json {\na: "),
                json(serde_json::json!({"const": "}"})),
                text(" b\nb: /%json/ "),
                json(true.into()),
                text("\n"),
            ])
        );
        assert!(parts("start: %json {\"a\"").is_err());
    }

    /// `count` rules, each of which is the next one in brackets.
    fn chain(len: usize, open: &str, close: &str) -> String {
        let rule = |index: usize| format!("r{index}: {open}r{}{close} \"x\"\n", index + 1);
        format!("start: r0\n{}r{len}: \"y\"\n", (0..len).map(rule).collect::<String>())
    }

    #[test]
    fn rules_lead_only_so_deep() {
        assert_eq!(check_depth(&chain(MAX_DEPTH - 1, "", "")), Ok(()));
        let error = check_depth(&chain(MAX_DEPTH, "", "")).unwrap_err();
        assert!(error.to_string().contains("nested in more than"), "{error}");
        assert!(check_depth(&chain(150, "((", "))")).is_err());
        check_depth(&chain(100, "((", "))")).unwrap();
    }

    #[test]
    fn attributes_without_effect_are_refused_by_name() {
        for (grammar, named) in [
            ("start: a\na[temperature=0.5]: /x/", "rule `a`: the attribute `temperature`"),
            (
                "start: a\n?a [max_tokens=3, temperature=0.5]: /x/",
                "rule `a`: the attribute `temperature`",
            ),
            ("start: gen\ngen[capture]: /x+/", "rule `gen`: the attribute `capture`"),
            ("gen.2[lazy, capture=\"x\"]: /x+/\nstart: gen", "rule `gen`: the attribute `capture`"),
            (
                "start[stop=\"]\", stop_capture=\"x\"]: /x+/",
                "rule `start`: the attribute `stop_capture`",
            ),
        ] {
            let error = check_attributes(grammar).unwrap_err().to_string();
            assert!(error.contains(named), "{grammar}: {error}");
        }
        for grammar in [
            "start: a[1]\na[max_tokens=3, stop=\"temperature\"]: /[temperature]/",
            "start: \"[temperature\" temperature\ntemperature: /x/ // a[temperature=1]",
            "start: a\n# b[capture]: x\na: \"x\"",
        ] {
            check_attributes(grammar).unwrap();
        }
    }

    #[test]
    fn texts_comments_and_cycles_lead_nowhere() {
        let grammar = "?start: item+ // start: (((\nitem.1: \"r0 (\" | /[(\\/]r/ | (item\n  item)\n# x: y\nOTHER: item\n";
        let found = definitions(grammar);
        assert_eq!(found["start"], [("item", 0)]);
        assert_eq!(found["item"], [("1", 0), ("item", 1), ("item", 1)]);
        assert_eq!(found["OTHER"], [("item", 0)]);
        assert_eq!(check_depth(grammar), Ok(()));
        // Many rules on one level are not deep.
        let wide: String = (0..5_000).map(|index| format!("w{index}: \"x\"\n")).collect();
        let all: Vec<String> = (0..5_000).map(|index| format!("w{index}")).collect();
        assert_eq!(check_depth(&format!("start: {}\n{wide}", all.join(" | "))), Ok(()));
    }
}
