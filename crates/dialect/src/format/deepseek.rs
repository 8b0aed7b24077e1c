//! DeepSeek: calls within a section, each with a separator between its name and its arguments.
//!
//! V3 writes `function`, the separator, the name and a fenced block of JSON; V3.1 the name, the separator and the JSON.

use super::{Head, Tail};
use crate::scan::{Cursor, Scan, Stop};

pub(super) const OPEN_ALL: &str = "<｜tool▁calls▁begin｜>";
pub(super) const CLOSE_ALL: &str = "<｜tool▁calls▁end｜>";
pub(super) const OPEN: &str = "<｜tool▁call▁begin｜>";
pub(super) const CLOSE: &str = "<｜tool▁call▁end｜>";
pub(super) const SEPARATOR: &str = "<｜tool▁sep｜>";
pub(super) const MARKS: [&str; 5] = [OPEN_ALL, CLOSE_ALL, OPEN, CLOSE, SEPARATOR];

/// Both versions are read, whichever the template has.
pub(super) fn head(text: &str) -> Scan<Head> {
    let mut cursor = Cursor::new(text);
    if cursor.accept(OPEN_ALL)? {
        cursor.white_space();
    }
    cursor.expect(OPEN)?;
    let before = cursor.until(SEPARATOR)?.trim();
    cursor.white_space();
    let name = match cursor.peek()? {
        b'{' => before,
        _ => {
            let name = cursor.until("\n")?.trim();
            cursor.white_space();
            if cursor.accept("```")? {
                cursor.accept("json")?;
            }
            name
        }
    };
    cursor.white_space();
    if cursor.peek()? != b'{' || name.is_empty() {
        return Err(Stop::No);
    }
    Ok(Head { name: name.to_owned(), at: cursor.at(), arguments: None, in_object: false })
}

pub(super) fn tail(text: &str) -> Scan<Tail> {
    Tail::behind(text, &["```", CLOSE, CLOSE_ALL])
}
