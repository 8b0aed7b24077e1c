//! LFM2: a list of calls in Python between two marks.

use super::{Arguments, Format, Head, Layout, Position, Tail, object, pythonic};
use crate::callable::Callable;
use crate::scan::{Cursor, Scan};

const OPEN: &str = "<|tool_call_start|>";
const CLOSE: &str = "<|tool_call_end|>";

pub(super) const LFM2: Format = Format {
    name: "lfm2",
    models: "LFM2",
    marks: &[OPEN, CLOSE],
    openers: &[OPEN],
    ends_reasoning: Some(r"<\|tool_call_start\|>"),
    head,
    arguments: Arguments::Keywords,
    tail,
    layout: Layout {
        open: "<|tool_call_start|>[",
        before_arguments: "(",
        after_arguments: ")",
        separator: ", ",
        close: "]<|tool_call_end|>",
        trigger: Some(OPEN),
        ..Layout::PLAIN
    },
    // The templates of LFM2 write no calls, only tools.
    // The second one is of LFM2.5.
    offered: &["List of tools: <|tool_list_start|>[", "List of tools: [{"],
    wrote: |call| {
        let before = call.before_object();
        let is_object = before.is_some_and(|before| before.ends_with("<|tool_call_start|>["));
        is_object || call.is_between("<|tool_call_start|>[", "(")
    },
    ..Format::PLAIN
};

/// The start of a call. Some templates write objects in the list.
fn head(text: &str, position: Position, functions: &[Callable]) -> Scan<Head> {
    let mut cursor = Cursor::new(text);
    if position == Position::First {
        cursor.expect(OPEN)?;
        cursor.white_space();
        let mut list = cursor;
        list.expect("[")?;
        list.white_space();
        if list.peek()? == b'{' {
            return object::head(&mut list, None);
        }
    } else if cursor.peek()? == b'{' {
        return object::head(&mut cursor, None);
    }
    // `pythonic::head` counts from the cursor, and this function from the mark.
    let head = pythonic::head(cursor.rest(), position, functions)?;
    Ok(Head { at: cursor.at() + head.at, ..head })
}

fn tail(text: &str, in_object: bool) -> Scan<Tail> {
    let mut cursor = Cursor::new(text);
    if in_object {
        object::tail(&mut cursor)?;
    }
    let end = cursor.at();
    let tail = pythonic::tail(cursor.rest())?;
    if tail.separator.is_some() {
        return Ok(Tail { end, ..tail });
    }
    let behind = Tail::behind(&text[end + tail.end..], &[CLOSE])?;
    Ok(Tail::end(end + tail.end + behind.end))
}
