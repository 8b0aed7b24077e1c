//! Functionary 3.1: `<function=name>{..}</function>`.
//!
//! Source: the published template, in llama.cpp `meetkai-functionary-medium-v3.1.jinja`.

use super::{Arguments, Format, Head, Layout, Tail};
use crate::scan::{Cursor, Scan, Stop};

const OPEN: &str = "<function=";
const CLOSE: &str = "</function>";

pub(super) const FUNCTIONARY_V31: Format = Format {
    name: "functionary_v31",
    models: "Functionary 3.1",
    openers: &[OPEN],
    head: |text, _, _| head(text),
    arguments: Arguments::Json { closer: Some(CLOSE) },
    tail: |text, _| Tail::behind(text, &[CLOSE]),
    layout: Layout {
        before_name: OPEN,
        before_arguments: ">",
        after_arguments: CLOSE,
        trigger: Some(OPEN),
        ..Layout::PLAIN
    },
    wrote: |call| call.is_between(OPEN, ">{"),
    ..Format::PLAIN
};

fn head(text: &str) -> Scan<Head> {
    let mut cursor = Cursor::new(text);
    cursor.expect(OPEN)?;
    let name = cursor.word(|c| c.is_alphanumeric() || matches!(c, '_' | '-' | '.'))?;
    cursor.expect(">")?;
    cursor.white_space();
    if cursor.peek()? != b'{' || name.is_empty() {
        return Err(Stop::No);
    }
    Ok(Head { name: name.to_owned(), at: cursor.at(), arguments: None, in_object: false })
}
