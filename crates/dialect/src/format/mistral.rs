//! `[TOOL_CALLS]`, then a list of `{"name": .., "arguments": {..}}`, or a name, `[ARGS]` and the arguments.

use super::{Head, Position, Tail, object};
use crate::scan::{Cursor, Scan, Stop};

pub(super) const OPEN: &str = "[TOOL_CALLS]";
pub(super) const ARGS: &str = "[ARGS]";
pub(super) const CALL_ID: &str = "[CALL_ID]";

/// Both forms are read, whichever the template has.
pub(super) fn head(text: &str, position: Position) -> Scan<Head> {
    let mut cursor = Cursor::new(text);
    if position == Position::Next {
        return object::head(&mut cursor, None);
    }
    cursor.expect(OPEN)?;
    cursor.white_space();
    if cursor.accept("[")? {
        cursor.white_space();
        return object::head(&mut cursor, None);
    }
    let name = cursor.word(|c| c.is_alphanumeric() || matches!(c, '_' | '-' | '.'))?.to_owned();
    if name.is_empty() {
        return Err(Stop::No);
    }
    if cursor.accept(CALL_ID)? {
        cursor.word(char::is_alphanumeric)?;
    }
    cursor.accept(ARGS)?;
    cursor.white_space();
    match cursor.peek()? {
        b'{' => Ok(Head { name, at: cursor.at(), arguments: None, in_object: false }),
        _ => Err(Stop::No),
    }
}

/// Behind an object of the list.
pub(super) fn tail(text: &str) -> Scan<Tail> {
    let mut cursor = Cursor::new(text);
    object::tail(&mut cursor)?;
    let end = cursor.at();
    cursor.white_space();
    if cursor.accept("]")? {
        return Ok(Tail::end(cursor.at()));
    }
    if !cursor.accept(",")? {
        return Ok(Tail::end(end));
    }
    Ok(Tail { end, separator: Some(cursor.at() - end) })
}
