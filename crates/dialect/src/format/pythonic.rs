//! `[name(key='value', other=[1, None])]`: a list of calls in Python. Arguments are converted to JSON.

use serde_json::Value;

use super::{Arguments, Format, Head, Layout, Position, Tail};
use crate::callable::Callable;
use crate::probe::KEY;
use crate::scan::{Cursor, Scan, Stop};
use crate::written_call::WrittenCall;

/// Maximum nesting of values.
const MAX_DEPTH: usize = 64;

pub(super) const PYTHONIC: Format = Format {
    name: "pythonic",
    models: "Llama 3.2 and 4, ToolACE",
    head,
    arguments: Arguments::Keywords,
    tail: |text, _| tail(text),
    layout: Layout {
        open: "[",
        before_arguments: "(",
        after_arguments: ")",
        separator: ", ",
        close: "]",
        ..Layout::PLAIN
    },
    wrote,
    ..Format::PLAIN
};

fn wrote(call: &WrittenCall<'_>) -> bool {
    let begins = call.before("[").is_some_and(|before| call.begins_answer(before));
    let arguments = call.after.strip_prefix('(').and_then(|after| after.strip_prefix(KEY));
    begins && arguments.is_some_and(|after| after.starts_with('='))
}

pub(super) fn head(text: &str, position: Position, functions: &[Callable]) -> Scan<Head> {
    let mut cursor = Cursor::new(text);
    if position == Position::First {
        cursor.expect("[")?;
        cursor.white_space();
    }
    let name = cursor.word(|c| c.is_alphanumeric() || matches!(c, '_' | '-' | '.'))?;
    // A list at the start of an answer may be any list, and no mark tells them apart.
    if !functions.iter().any(|function| function.name == name) {
        return Err(Stop::No);
    }
    cursor.expect("(")?;
    let arguments = keywords(&mut cursor)?;
    Ok(Head {
        name: name.to_owned(),
        at: cursor.at(),
        arguments: Some(arguments),
        in_object: false,
    })
}

pub(super) fn tail(text: &str) -> Scan<Tail> {
    let mut cursor = Cursor::new(text);
    cursor.white_space();
    if cursor.accept("]")? {
        return Ok(Tail::end(cursor.at()));
    }
    cursor.expect(",")?;
    Ok(Tail { end: 0, separator: Some(cursor.at()) })
}

/// `key=value, ..)` as a JSON object.
fn keywords(cursor: &mut Cursor<'_>) -> Scan<String> {
    let item = |cursor: &mut Cursor<'_>| {
        let key = cursor.word(|c| c.is_alphanumeric() || c == '_')?;
        if key.is_empty() {
            return Err(Stop::No);
        }
        cursor.white_space();
        cursor.expect("=")?;
        cursor.white_space();
        Ok(format!("{}: {}", Value::from(key), value(cursor, 0)?))
    };
    Ok(format!("{{{}}}", items(cursor, ")", item)?))
}

/// A Python literal other than a string, as JSON.
pub(crate) fn literal(text: &str) -> Option<String> {
    // Numbers and booleans are read elsewhere, and a bare word is a string.
    if !text.starts_with(['{', '[', '(']) {
        return (text == "None").then(|| "null".to_owned());
    }
    let mut cursor = Cursor::new(text);
    let json = value(&mut cursor, 0).ok()?;
    cursor.rest().is_empty().then_some(json)
}

/// Items separated by commas, up to `end`, which is consumed.
fn items(
    cursor: &mut Cursor<'_>,
    end: &str,
    mut item: impl FnMut(&mut Cursor<'_>) -> Scan<String>,
) -> Scan<String> {
    let mut all = Vec::new();
    loop {
        cursor.white_space();
        if cursor.accept(end)? {
            return Ok(all.join(", "));
        }
        all.push(item(cursor)?);
        cursor.white_space();
        if !cursor.accept(",")? {
            cursor.expect(end)?;
            return Ok(all.join(", "));
        }
    }
}

/// A literal of Python or JSON, as JSON.
fn value(cursor: &mut Cursor<'_>, depth: usize) -> Scan<String> {
    if depth > MAX_DEPTH {
        return Err(Stop::No);
    }
    match cursor.peek()? {
        b'\'' | b'"' => Ok(Value::from(string(cursor)?).to_string()),
        b'[' | b'(' => {
            let end = if cursor.accept("[")? { "]" } else { ")" };
            cursor.advance(usize::from(end == ")"));
            Ok(format!("[{}]", items(cursor, end, |cursor| value(cursor, depth + 1))?))
        }
        b'{' => {
            cursor.advance(1);
            let item = |cursor: &mut Cursor<'_>| {
                let key = Value::from(string(cursor)?);
                cursor.white_space();
                cursor.expect(":")?;
                cursor.white_space();
                Ok(format!("{key}: {}", value(cursor, depth + 1)?))
            };
            Ok(format!("{{{}}}", items(cursor, "}", item)?))
        }
        _ => {
            let word = cursor.word(|c| c.is_alphanumeric() || matches!(c, '.' | '+' | '-'))?;
            match word {
                "True" | "true" => Ok("true".to_owned()),
                "False" | "false" => Ok("false".to_owned()),
                "None" | "null" => Ok("null".to_owned()),
                number => {
                    // JSON has fewer forms of numbers than Python. `1_000` and `0x1f` would be invalid arguments, so
                    // they are no call.
                    serde_json::from_str::<serde_json::Number>(number).map_err(|_| Stop::No)?;
                    Ok(number.to_owned())
                }
            }
        }
    }
}

/// The text of a Python string, without prefixes and triple quotes.
///
/// Source: the table of escape sequences in The Python Language Reference, 2.4.1.
pub(super) fn string(cursor: &mut Cursor<'_>) -> Scan<String> {
    let quote = match cursor.peek()? {
        b'\'' => '\'',
        b'"' => '"',
        _ => return Err(Stop::No),
    };
    cursor.advance(1);
    let mut text = String::new();
    loop {
        let character = next_char(cursor)?;
        match character {
            '\\' => match next_char(cursor)? {
                '\n' => {}
                'n' => text.push('\n'),
                't' => text.push('\t'),
                'r' => text.push('\r'),
                'b' => text.push('\u{8}'),
                'f' => text.push('\u{c}'),
                'x' => text.push(code_point(cursor, 2)?),
                'u' => text.push(code_point(cursor, 4)?),
                'U' => text.push(code_point(cursor, 8)?),
                plain @ ('\\' | '\'' | '"' | '/') => text.push(plain),
                // Python keeps the backslash of an unknown escape.
                other => text.extend(['\\', other]),
            },
            _ if character == quote => return Ok(text),
            other => text.push(other),
        }
    }
}

fn next_char(cursor: &mut Cursor<'_>) -> Scan<char> {
    let character = cursor.rest().chars().next().ok_or(Stop::Wait)?;
    cursor.advance(character.len_utf8());
    Ok(character)
}

/// A character by its number. JSON strings write characters beyond 16 bits as two surrogates.
fn code_point(cursor: &mut Cursor<'_>, num_digits: usize) -> Scan<char> {
    let code = hexadecimal(cursor, num_digits)?;
    if num_digits == 4 && (0xD800..0xDC00).contains(&code) {
        cursor.expect("\\u")?;
        let low = hexadecimal(cursor, 4)?;
        let low = low.checked_sub(0xDC00).filter(|low| *low < 0x400).ok_or(Stop::No)?;
        return char::from_u32(0x10000 + ((code - 0xD800) << 10) + low).ok_or(Stop::No);
    }
    char::from_u32(code).ok_or(Stop::No)
}

fn hexadecimal(cursor: &mut Cursor<'_>, num_digits: usize) -> Scan<u32> {
    let mut code = 0;
    for _ in 0..num_digits {
        code = code * 16 + next_char(cursor)?.to_digit(16).ok_or(Stop::No)?;
    }
    Ok(code)
}
