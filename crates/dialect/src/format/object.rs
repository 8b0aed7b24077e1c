//! A call as a JSON object, `{"name": .., "arguments": {..}}`, for several formats.

use serde_json::Value;

use super::Head;
use crate::callable::Callable;
use crate::scan::{Cursor, Scan, Stop};

/// The object up to its arguments. If the arguments come first, or are not an object, it is parsed as a whole.
///
/// An object without a mark may be an answer in JSON. It is a call only if its name is one of `functions`. That is decided at the first
/// other key, so that a JSON answer is not held back.
pub(super) fn head(cursor: &mut Cursor<'_>, functions: Option<&[Callable]>) -> Scan<Head> {
    cursor.expect("{")?;
    let (mut name, mut arguments) = (None, None);
    loop {
        cursor.white_space();
        if cursor.peek()? == b'}' {
            // The object is complete here. A call without arguments is one of a function without parameters.
            let arguments = Some(arguments.unwrap_or_else(|| "{}".to_owned()));
            let name = name.ok_or(Stop::No)?;
            return Ok(Head { name, at: cursor.at(), arguments, in_object: true });
        }
        match (key(cursor)?.as_str(), &name) {
            // `tool_name` is Command R's key. One parser serves all formats.
            ("name" | "tool_name", _) => {
                let found = cursor.json_string()?;
                let is_found = |function: &Callable| function.name == found;
                if functions.is_some_and(|functions| !functions.iter().any(is_found)) {
                    return Err(Stop::No);
                }
                name = Some(found);
            }
            // With the name known, the arguments can be passed on while they arrive.
            ("arguments" | "parameters", Some(known)) if cursor.peek()? == b'{' => {
                let name = known.clone();
                return Ok(Head { name, at: cursor.at(), arguments: None, in_object: true });
            }
            ("arguments" | "parameters", _) => arguments = Some(as_object(cursor.json_value()?)?),
            (other, _) if functions.is_some() && !matches!(other, "type" | "id") => {
                return Err(Stop::No);
            }
            _ => {
                cursor.json_value()?;
            }
        }
        cursor.white_space();
        if !cursor.accept(",")? && cursor.peek()? != b'}' {
            return Err(Stop::No);
        }
    }
}

/// The rest of the object after its arguments.
pub(super) fn tail(cursor: &mut Cursor<'_>) -> Scan<()> {
    cursor.white_space();
    while cursor.accept(",")? {
        cursor.white_space();
        key(cursor)?;
        cursor.json_value()?;
        cursor.white_space();
    }
    cursor.expect("}")
}

/// Whether another object follows, perhaps after one of these separators; the cursor is then before it, otherwise after white
/// space.
pub(super) fn next(cursor: &mut Cursor<'_>, separators: &[&str]) -> Scan<bool> {
    cursor.white_space();
    let mut behind = *cursor;
    for separator in separators {
        if behind.accept(separator)? {
            behind.white_space();
            break;
        }
    }
    let is_object = behind.peek()? == b'{';
    if is_object {
        *cursor = behind;
    }
    Ok(is_object)
}

/// A key and its colon.
fn key(cursor: &mut Cursor<'_>) -> Scan<String> {
    let key = cursor.json_string()?;
    cursor.white_space();
    cursor.expect(":")?;
    cursor.white_space();
    Ok(key)
}

/// Arguments as an object; they may be JSON text or missing.
fn as_object(value: &str) -> Scan<String> {
    if value.starts_with('{') {
        return Ok(value.to_owned());
    }
    match serde_json::from_str::<Option<Value>>(value) {
        Ok(None) => Ok("{}".to_owned()),
        Ok(Some(Value::String(text))) if text.trim_start().starts_with('{') => Ok(text),
        _ => Err(Stop::No),
    }
}
