//! `<tool_call>{"name": .., "arguments": {..}}</tool_call>`.

use super::{Head, Tail, object};
use crate::scan::{Cursor, Scan, Stop};

pub(super) const OPEN: &str = "<tool_call>";
pub(super) const CLOSE: &str = "</tool_call>";

pub(super) fn head(text: &str) -> Scan<Head> {
    let mut cursor = Cursor::new(text);
    cursor.expect(OPEN)?;
    cursor.white_space();
    object::head(&mut cursor, None)
}

/// Models forget the object's brace, or the mark behind it.
pub(super) fn tail(text: &str) -> Scan<Tail> {
    let mut cursor = Cursor::new(text);
    let mut end = match object::tail(&mut cursor) {
        Ok(()) => cursor.at(),
        Err(Stop::Wait) => return Err(Stop::Wait),
        Err(Stop::No) => 0,
    };
    let mut cursor = Cursor::new(&text[end..]);
    cursor.white_space();
    if cursor.accept(CLOSE)? {
        end += cursor.at();
    }
    Ok(Tail::end(end))
}
