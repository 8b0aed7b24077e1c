//! `{"name": .., "parameters": {..}}` as the whole answer, or behind `<|python_tag|>`; several with `;` between them.

use super::{Head, Tail, object};
use crate::parser::Callable;
use crate::scan::{Cursor, Scan};

pub(super) const OPEN: &str = "<|python_tag|>";

pub(super) fn head(text: &str, functions: &[Callable]) -> Scan<Head> {
    let mut cursor = Cursor::new(text);
    if cursor.accept(OPEN)? {
        cursor.white_space();
    }
    object::head(&mut cursor, Some(functions))
}

pub(super) fn tail(text: &str) -> Scan<Tail> {
    let mut cursor = Cursor::new(text);
    object::tail(&mut cursor)?;
    let end = cursor.at();
    cursor.white_space();
    if !cursor.accept(";")? {
        return Ok(Tail::end(end));
    }
    Ok(Tail { end, separator: Some(cursor.at() - end) })
}
