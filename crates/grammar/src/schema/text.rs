//! Keywords for strings as regular expressions of whole texts, for formats of calls in which strings have no quotes.

use llguidance::regex_to_lark;
use regex_syntax::hir::{Hir, HirKind, Look};
use serde_json::{Map, Value};

use super::{ecma, formats};

/// Keywords for strings that [`expressions`] supports.
pub const TEXT_KEYWORDS: [&str; 4] = ["pattern", "format", "minLength", "maxLength"];
/// Any text.
const ANY: &str = "(?s:.*)";
/// Maximum bytes of a pattern to parse, because each group of it uses stack.
const MAX_PATTERN_BYTES: usize = 4 << 10;

/// Regular expressions that a text must match as a whole to satisfy a schema's keywords for strings.
///
/// # Errors
/// The keyword that cannot be enforced.
pub fn expressions(schema: &Map<String, Value>) -> Result<Vec<String>, String> {
    let mut all = Vec::new();
    if let Some(pattern) = schema.get("pattern") {
        let whole = pattern.as_str().and_then(whole);
        all.push(whole.ok_or("`pattern`")?);
    }
    if let Some(format) = schema.get("format").and_then(Value::as_str) {
        for said in formats::of_text(format) {
            all.extend(expressions(&said)?);
        }
    }
    let count = |keyword: &str| match schema.get(keyword) {
        None => Ok(None),
        Some(value) => match value.as_f64() {
            Some(count) if count >= 0.0 && count.fract() == 0.0 => Ok(Some(count as u64)),
            _ => Err(format!("`{keyword}`")),
        },
    };
    match (count("minLength")?, count("maxLength")?) {
        (None, None) => {}
        (least, most) => {
            let most = most.map(|most| most.to_string()).unwrap_or_default();
            // JSON Schema counts characters, and so does a regular expression over Unicode.
            all.push(format!("(?s:.){{{},{most}}}", least.unwrap_or(0)));
        }
    }
    Ok(all)
}

/// Whether all of these expressions match the empty text as a whole; `false` if unknown.
pub fn match_empty(expressions: &[String]) -> bool {
    expressions.iter().all(|expression| {
        let parsed = regex_syntax::Parser::new().parse(expression);
        parsed.is_ok_and(|parsed| parsed.properties().minimum_len() == Some(0))
    })
}

/// Whether a pattern can be turned into an expression of whole texts.
pub(super) fn is_held(pattern: &str) -> bool {
    whole(pattern).is_some()
}

/// An expression of the whole texts in which a pattern matches; `None` if the pattern has anchors inside.
fn whole(pattern: &str) -> Option<String> {
    if pattern.len() > MAX_PATTERN_BYTES {
        return None;
    }
    // The library's own form, in which `\d` and `\w` are those of ASCII, as in ECMA-262.
    let pattern = regex_to_lark(&ecma::translate(pattern).ok()?, "dw");
    let parsed = regex_syntax::Parser::new().parse(&pattern).ok()?;
    Some(at_ends(&parsed, true, true)?.to_string())
}

/// An expression at the start of a text, at its end, or both: without its anchors, and with any text in place of missing ones.
fn at_ends(expression: &Hir, begins: bool, ends: bool) -> Option<Hir> {
    let any = || regex_syntax::Parser::new().parse(ANY).ok();
    match expression.kind() {
        // Each arm has anchors of its own: `^a|b$` is open at one end in each.
        HirKind::Alternation(arms) => {
            let arms = arms.iter().map(|arm| at_ends(arm, begins, ends));
            Some(Hir::alternation(arms.collect::<Option<_>>()?))
        }
        HirKind::Capture(group) => at_ends(&group.sub, begins, ends),
        // A concatenation has at least two parts. Only the first one can have the start's anchor, and only the last
        // one the end's.
        HirKind::Concat(parts) => {
            let is_anchor =
                |part: &Hir, look| matches!(part.kind(), HirKind::Look(at) if *at == look);
            let (mut parts, mut open) = (parts.as_slice(), (begins, ends));
            if begins && is_anchor(&parts[0], Look::Start) {
                (parts, open.0) = (&parts[1..], false);
            }
            if let Some((last, before)) = parts.split_last()
                && ends
                && is_anchor(last, Look::End)
            {
                (parts, open.1) = (before, false);
            }
            let count = parts.len();
            let mut written = Vec::with_capacity(count + 2);
            for (place, part) in parts.iter().enumerate() {
                let (first, last) = (place == 0 && open.0, place + 1 == count && open.1);
                written.push(at_ends(part, first, last)?);
            }
            if count == 0 && (open.0 || open.1) {
                written.push(any()?);
            }
            Some(Hir::concat(written))
        }
        HirKind::Look(Look::Start) if begins => {
            if ends {
                any()
            } else {
                Some(Hir::empty())
            }
        }
        HirKind::Look(Look::End) if ends => {
            if begins {
                any()
            } else {
                Some(Hir::empty())
            }
        }
        HirKind::Look(_) => None,
        // A repeated anchor, as in `(^a)*`, is refused by this call.
        HirKind::Repetition(repetition) if !begins && !ends => {
            let mut repetition = repetition.clone();
            repetition.sub = Box::new(at_ends(&repetition.sub, false, false)?);
            Some(Hir::repetition(repetition))
        }
        HirKind::Empty | HirKind::Literal(_) | HirKind::Class(_) | HirKind::Repetition(_) => {
            let inner = match expression.kind() {
                HirKind::Repetition(_) => at_ends(expression, false, false)?,
                _ => expression.clone(),
            };
            let before = begins.then(any).into_iter().flatten();
            let behind = ends.then(any).into_iter().flatten();
            Some(Hir::concat(before.chain([inner]).chain(behind).collect()))
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn patterns_are_found_anywhere_but_where_they_are_anchored() {
        for (pattern, texts, others) in [
            ("a+b", &["a\nab", "xaabx"][..], &["a", "b"][..]),
            ("^a|b$", &["a\nx", "xb"], &["xa", "bx"]),
            ("^(a|b)$", &["a", "b"], &["ab", "a\n"]),
            ("^$", &[""], &["a"]),
            ("^", &["", "a"], &[]),
            (r"^\d{2}\s$", &["12 "], &["1\u{663} ", "12"]),
            ("(^a|b)c", &["acx", "xbc"], &["xac"]),
            ("(?:ab){2}$", &["xabab"], &["ababx"]),
        ] {
            let whole = whole(pattern).unwrap_or_else(|| panic!("{pattern}"));
            let matches = |text: &str| {
                let mut builder = llguidance::derivre::RegexBuilder::new();
                let expression = builder.mk_regex(&whole).unwrap();
                builder.to_regex(expression).is_match(text)
            };
            assert!(texts.iter().all(|text| matches(text)), "{pattern}: {whole}");
            assert!(!others.iter().any(|text| matches(text)), "{pattern}: {whole}");
        }
        for refused in [r"\bword\b", "a^b", "(?=a)b", "("] {
            assert_eq!(whole(refused), None, "{refused}");
        }
    }

    #[test]
    fn keywords_of_strings_are_expressions() {
        let of = |schema: Value| expressions(schema.as_object().unwrap());
        assert_eq!(of(json!({"minLength": 2})), Ok(vec!["(?s:.){2,}".to_owned()]));
        assert_eq!(of(json!({"maxLength": 3.0})), Ok(vec!["(?s:.){0,3}".to_owned()]));
        assert_eq!(of(json!({"format": "unknown"})), Ok(vec![]));
        for format in [
            "date-time",
            "date",
            "time",
            "duration",
            "email",
            "hostname",
            "ipv4",
            "ipv6",
            "uri",
            "uuid",
            "json-pointer",
        ] {
            assert!(!of(json!({"format": format})).unwrap().is_empty(), "{format}");
        }
        assert_eq!(of(json!({"pattern": r"\b"})), Err("`pattern`".to_owned()));
        assert_eq!(of(json!({"minLength": -1})), Err("`minLength`".to_owned()));
    }
}
