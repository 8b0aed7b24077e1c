//! Kimi K2: calls within a section, each with an id in place of a name, `functions.NAME:NUMBER`, before its arguments.

use super::{Head, Tail};
use crate::scan::{Cursor, Scan, Stop};

pub(super) const OPEN_ALL: &str = "<|tool_calls_section_begin|>";
pub(super) const CLOSE_ALL: &str = "<|tool_calls_section_end|>";
pub(super) const OPEN: &str = "<|tool_call_begin|>";
pub(super) const CLOSE: &str = "<|tool_call_end|>";
pub(super) const ARGUMENTS: &str = "<|tool_call_argument_begin|>";
pub(super) const MARKS: [&str; 5] = [OPEN_ALL, CLOSE_ALL, OPEN, CLOSE, ARGUMENTS];

/// The number says nothing: calls are numbered as they come.
pub(super) fn head(text: &str) -> Scan<Head> {
    let mut cursor = Cursor::new(text);
    if cursor.accept(OPEN_ALL)? {
        cursor.white_space();
    }
    cursor.expect(OPEN)?;
    let id = cursor.until(ARGUMENTS)?.trim();
    let name = id.rsplit_once(':').map_or(id, |(name, _)| name);
    let name = name.strip_prefix("functions.").unwrap_or(name);
    cursor.white_space();
    if cursor.peek()? != b'{' || name.is_empty() {
        return Err(Stop::No);
    }
    Ok(Head { name: name.to_owned(), at: cursor.at(), arguments: None, in_object: false })
}

pub(super) fn tail(text: &str) -> Scan<Tail> {
    Tail::behind(text, &[CLOSE, CLOSE_ALL])
}
