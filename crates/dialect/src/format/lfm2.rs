//! LFM2: a list of calls in Python between two marks.

use super::{Arguments, Format, Head, Layout, Position, Tail, pythonic};
use crate::callable::Callable;
use crate::scan::{Cursor, Scan};

const OPEN: &str = "<|tool_call_start|>";
const CLOSE: &str = "<|tool_call_end|>";

pub(super) const LFM2: Format = Format {
    name: "lfm2",
    models: "LFM2",
    marks: &[OPEN, CLOSE],
    openers: &[OPEN],
    head,
    arguments: Arguments::Keywords,
    tail: |text, _| tail(text),
    layout: Layout {
        open: "<|tool_call_start|>[",
        before_arguments: "(",
        after_arguments: ")",
        separator: ", ",
        close: "]<|tool_call_end|>",
        trigger: Some(OPEN),
        ..Layout::PLAIN
    },
    wrote: |call| call.is_between("<|tool_call_start|>[", "("),
    ..Format::PLAIN
};

fn head(text: &str, position: Position, functions: &[Callable]) -> Scan<Head> {
    let mut cursor = Cursor::new(text);
    if position == Position::First {
        cursor.expect(OPEN)?;
        cursor.white_space();
    }
    let head = pythonic::head(cursor.rest(), position, functions)?;
    Ok(Head { at: cursor.at() + head.at, ..head })
}

fn tail(text: &str) -> Scan<Tail> {
    let tail = pythonic::tail(text)?;
    if tail.separator.is_some() {
        return Ok(tail);
    }
    let behind = Tail::behind(&text[tail.end..], &[CLOSE])?;
    Ok(Tail::end(tail.end + behind.end))
}
