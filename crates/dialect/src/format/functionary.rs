//! Functionary 3.1: `<function=name>{..}</function>`. Functionary 3.2: `>>>name` and a line with the arguments, where the prompt ends
//! with the first `>>>`; content is the same with the name `all`.
//!
//! Sources: the published templates, in llama.cpp `meetkai-functionary-medium-v3.1.jinja` and `meetkai-functionary-medium-v3.2.jinja`,
//! and llama.cpp's parser of version 3.2.

use super::{Arguments, Format, Frame, Head, Layout, Position, Tail};
use crate::callable::Callable;
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

const RECIPIENT: &str = ">>>";
/// The recipient of content.
const ALL: &str = "all";

pub(super) const FUNCTIONARY_V32: Format = Format {
    name: "functionary_v32",
    models: "Functionary 3.2",
    openers: &[RECIPIENT],
    head: |text, position, functions| addressed(text, position, functions),
    // The next mark or the end-of-sequence token ends a call.
    tail: |_, _| Ok(Tail::end(0)),
    layout: Layout { before_arguments: "\n", separator: RECIPIENT, ..Layout::PLAIN },
    frame: &Frame {
        before_text: &["all\n"],
        first: "all\n",
        dropped: &[">>>all\n"],
        ..Frame::NONE
    },
    wrote: |call| call.is_between(RECIPIENT, "\n{"),
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

/// A recipient that is a function. The mark before the first one is in the prompt.
fn addressed(text: &str, position: Position, functions: &[Callable]) -> Scan<Head> {
    let mut cursor = Cursor::new(text);
    let is_marked = cursor.accept(RECIPIENT)?;
    let name = cursor.word(|c| c.is_alphanumeric() || matches!(c, '_' | '-' | '.'))?;
    cursor.expect("\n")?;
    cursor.white_space();
    let is_known = functions.iter().any(|function| function.name == name);
    // Without a mark, the first line of a text may be one word, and braces may follow it.
    let is_call = name != ALL && !name.is_empty() && (is_known || is_marked);
    if !is_call || position == Position::Next || cursor.peek()? != b'{' {
        return Err(Stop::No);
    }
    Ok(Head { name: name.to_owned(), at: cursor.at(), arguments: None, in_object: false })
}
