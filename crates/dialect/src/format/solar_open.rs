//! Solar Open: calls after a mark, each with an id, its name and its arguments after marks of their own.
//!
//! An answer is a sequence of messages: reasoning, then content or calls. The prompt has opened the first one.
//! Sources: the publisher's parsers for vLLM, of calls and of reasoning, and the published template.

use super::{Arguments, Format, Frame, Head, Layout, Tail};
use crate::scan::{Cursor, Scan, Stop};

const OPEN_ALL: &str = "<|tool_calls|>";
const CLOSE_ALL: &str = "<|calls|>";
const OPEN: &str = "<|tool_call:begin|>";
const CLOSE: &str = "<|tool_call:end|>";
const NAME: &str = "<|tool_call:name|>";
const ARGUMENTS: &str = "<|tool_call:args|>";

const BEGIN: &str = "<|begin|>assistant";
const CONTENT: &str = "<|content|>";
const END: &str = "<|end|>";
// The end of a whole answer. A token that ends the sequence is not in the text, but its id may be unknown.
const FLUSH: &str = "<|flush|>";

/// The texts around content.
pub(super) const FRAME: Frame = Frame {
    marks: &["<|begin|>", CONTENT, END, FLUSH],
    before_text: &[BEGIN, CONTENT],
    after_text: &[END],
    before_calls: &[BEGIN],
    dropped: &[BEGIN, CONTENT, END, FLUSH],
    ..Frame::NONE
};

pub(super) const SOLAR_OPEN: Format = Format {
    name: "solar_open",
    models: "Solar Open",
    marks: &[OPEN_ALL, CLOSE_ALL, OPEN, CLOSE, NAME, ARGUMENTS],
    openers: &[OPEN_ALL, OPEN],
    ends_reasoning: Some(r"<\|tool_call:begin\|>"),
    head: |text, _, _| head(text),
    arguments: Arguments::Json { closer: Some(CLOSE) },
    tail: |text, _| Tail::behind(text, &[CLOSE, CLOSE_ALL]),
    layout: Layout {
        open: OPEN_ALL,
        // Ten letters or digits, which are ignored, because the server creates ids.
        before_name: "<|tool_call:begin|>0000000000<|tool_call:name|>",
        before_arguments: ARGUMENTS,
        after_arguments: CLOSE,
        trigger: Some(OPEN_ALL),
        ..Layout::PLAIN
    },
    frame: &FRAME,
    wrote: |call| call.is_between(NAME, ARGUMENTS),
    ..Format::PLAIN
};

fn head(text: &str) -> Scan<Head> {
    let mut cursor = Cursor::new(text);
    if cursor.accept(OPEN_ALL)? {
        cursor.white_space();
    }
    cursor.expect(OPEN)?;
    cursor.until(NAME)?;
    let name = cursor.until(ARGUMENTS)?.trim();
    cursor.white_space();
    if cursor.peek()? != b'{' || name.is_empty() {
        return Err(Stop::No);
    }
    Ok(Head { name: name.to_owned(), at: cursor.at(), arguments: None, in_object: false })
}
