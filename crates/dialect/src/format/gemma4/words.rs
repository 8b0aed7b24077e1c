//! Words without the marks of a string: keys, literals, and strings in other quotes. Also writes values in this notation.

use serde_json::Value;

use super::Marks;
use crate::format::pythonic;
use crate::scan::{Cursor, Scan, Stop};

/// Maximum bytes of a key.
const MAX_KEY_BYTES: usize = 4 << 10;

/// The text as a JSON string.
pub(super) fn quoted(text: &str) -> String {
    Value::from(text).to_string()
}

/// A key with its colon, and their number of bytes.
pub(super) fn key(text: &str, marks: &Marks) -> Scan<(String, usize)> {
    let near = &text[..text.floor_char_boundary(MAX_KEY_BYTES)];
    match key_within(near, marks) {
        // Without this limit, text without a colon would be held back to the end of the answer.
        Err(Stop::Wait) if text.len() >= MAX_KEY_BYTES => Err(Stop::No),
        other => other,
    }
}

fn key_within(text: &str, marks: &Marks) -> Scan<(String, usize)> {
    let mut cursor = Cursor::new(text);
    let key = if cursor.accept(marks.quote)? {
        cursor.until(marks.quote)?.to_owned()
    } else if matches!(cursor.peek()?, b'"' | b'\'') {
        pythonic::string(&mut cursor)?
    } else {
        let is_end = |c| matches!(c, ':' | '=' | ',' | '{' | '}' | '[' | ']' | '<' | '\n');
        cursor.word(|c| !is_end(c))?.trim_end().to_owned()
    };
    cursor.white_space();
    if key.is_empty() || !(cursor.accept(":")? || cursor.accept("=")?) {
        return Err(Stop::No);
    }
    Ok((key, cursor.at()))
}

/// A value without the marks of a string, as JSON, and whether it is a string. If the schema expects a string, literals other than null
/// are strings too.
pub(super) fn bare(
    cursor: &mut Cursor<'_>,
    ended: bool,
    wants_text: bool,
    marks: &Marks,
) -> Scan<(String, bool)> {
    let rest = cursor.rest();
    if let Some((text, length)) = in_quotes(rest, ended, marks)? {
        cursor.advance(length);
        return Ok((quoted(&text), true));
    }
    // Null stays null, because an optional string is often given as null.
    let is_literal = |word: &&str| *word == "null" || !wants_text;
    let literal_in = |text: &str| literal(text.trim()).filter(is_literal).map(str::to_owned);
    let end = rest.find([',', '}', ']']);
    if let Some((end, value)) = end.and_then(|end| Some((end, literal_in(&rest[..end])?))) {
        cursor.advance(end);
        return Ok((value, false));
    }
    // A string without its first mark still has its second one, before the marks of another string.
    let behind_all = end.filter(|_| ended).map(|_| (marks.close, rest.len()));
    // Without a mark, it is open whether a comma or a bracket belongs to the string. So the value waits for the next
    // mark, or for the end of the answer.
    let (mark, at) = first_mark(rest, marks).or(behind_all).ok_or(Stop::Wait)?;
    let before = &rest[..at];
    let opens =
        // A mark after one of these characters begins the next string. Otherwise it ends this one.
        before.trim_end().ends_with([':', '=', ',', '{', '[']) && end.is_some_and(|end| end < at);
    if mark == marks.quote && !opens {
        cursor.advance(at + mark.len());
        return Ok((quoted(before), true));
    }
    let end = end.map_or(at, |end| end.min(at));
    let word = rest[..end].trim_end();
    if word.is_empty() {
        return Err(Stop::No);
    }
    cursor.advance(end);
    Ok(literal_in(word).map_or_else(|| (quoted(word), true), |value| (value, false)))
}

/// A string in quotes of JSON or Python, with its number of bytes and a mark that may follow.
fn in_quotes(text: &str, ended: bool, marks: &Marks) -> Scan<Option<(String, usize)>> {
    if !text.starts_with(['"', '\'']) {
        return Ok(None);
    }
    let mark = first_mark(text, marks);
    // The quotes must close before the next mark. An apostrophe, as in `'90s music`, does not.
    let mut cursor = Cursor::new(&text[..mark.map_or(text.len(), |(_, at)| at)]);
    let string = match pythonic::string(&mut cursor) {
        Ok(string) => string,
        Err(Stop::Wait) if mark.is_none() && !ended => return Err(Stop::Wait),
        Err(_) => return Ok(None),
    };
    let mut cursor = Cursor::new(&text[cursor.at()..]);
    let before = text.len() - cursor.rest().len();
    cursor.white_space();
    if cursor.accept(marks.quote)? {
        return Ok(Some((string, before + cursor.at())));
    }
    // Other text after the closing quote means that the quotes are a part of the string, as in `"a" or "b"`.
    let is_end = matches!(cursor.peek()?, b',' | b'}' | b']') || { cursor }.accept(marks.close)?;
    Ok(is_end.then_some((string, before)))
}

/// The first end mark of a string or of the call, and its position.
fn first_mark(text: &str, marks: &Marks) -> Option<(&'static str, usize)> {
    let found = [marks.quote, marks.close].map(|mark| text.find(mark).map(|at| (mark, at)));
    found.into_iter().flatten().min_by_key(|(_, at)| *at)
}

/// The word as JSON, if it is a literal of JSON, or of Python, which older templates write.
fn literal(word: &str) -> Option<&str> {
    match word {
        "true" | "True" => Some("true"),
        "false" | "False" => Some("false"),
        "null" | "None" => Some("null"),
        // The text of a number is kept. A parsed number would lose digits beyond those of a double.
        _ => is_number(word).then_some(word),
    }
}

/// Whether the word is a JSON number of any size.
fn is_number(word: &str) -> bool {
    let word = word.strip_prefix('-').unwrap_or(word);
    let (mantissa, exponent) = match word.split_once(['e', 'E']) {
        Some((mantissa, exponent)) => {
            (mantissa, exponent.strip_prefix(['+', '-']).unwrap_or(exponent))
        }
        None => (word, "0"),
    };
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, "0"));
    let are_digits =
        |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    [whole, fraction, exponent].into_iter().all(are_digits)
        && (whole == "0" || !whole.starts_with('0'))
}

/// A value in the template's notation, or the part that cannot be written in it.
pub(crate) fn written(value: &Value, marks: &Marks) -> Result<String, String> {
    match value {
        Value::String(text) if marks.all.iter().any(|mark| text.contains(mark)) => {
            Err("a value with marks of a tool call".to_owned())
        }
        Value::String(text) => Ok([marks.quote, text, marks.quote].concat()),
        Value::Array(values) => {
            let values = values.iter().map(|value| written(value, marks));
            let values = values.collect::<Result<Vec<_>, _>>()?;
            Ok(format!("[{}]", values.join(",")))
        }
        Value::Object(members) => {
            let mut members = members.iter().collect::<Vec<_>>();
            // The order of Jinja's `dictsort`, which ignores case.
            members.sort_by_key(|(key, _)| key.to_lowercase());
            let member = |(key, value): (&String, &Value)| match is_key(key) {
                true => Ok(format!("{key}:{}", written(value, marks)?)),
                false => Err(format!("the name `{key}`")),
            };
            let members = members.into_iter().map(member).collect::<Result<Vec<_>, _>>()?;
            Ok(format!("{{{}}}", members.join(",")))
        }
        other => Ok(other.to_string()),
    }
}

/// Whether the parser reads the name as one key.
pub(crate) fn is_key(name: &str) -> bool {
    let is_mark =
        |c: char| c.is_control() || matches!(c, ':' | '=' | ',' | '{' | '}' | '[' | ']' | '<');
    !name.is_empty()
        && name.trim() == name
        && !name.starts_with(['"', '\''])
        && !name.contains(is_mark)
}
