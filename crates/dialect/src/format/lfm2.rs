//! LFM2: a list of calls in Python between two marks.

use super::{Head, Position, Tail, pythonic};
use crate::parser::Callable;
use crate::scan::{Cursor, Scan};

pub(super) const OPEN: &str = "<|tool_call_start|>";
pub(super) const CLOSE: &str = "<|tool_call_end|>";
pub(super) const MARKS: [&str; 2] = [OPEN, CLOSE];

pub(super) fn head(text: &str, position: Position, functions: &[Callable]) -> Scan<Head> {
    let mut cursor = Cursor::new(text);
    if position == Position::First {
        cursor.expect(OPEN)?;
        cursor.white_space();
    }
    let head = pythonic::head(cursor.rest(), position, functions)?;
    Ok(Head { at: cursor.at() + head.at, ..head })
}

pub(super) fn tail(text: &str) -> Scan<Tail> {
    let tail = pythonic::tail(text)?;
    if tail.separator.is_some() {
        return Ok(tail);
    }
    let behind = Tail::behind(&text[tail.end..], &[CLOSE])?;
    Ok(Tail::end(tail.end + behind.end))
}
