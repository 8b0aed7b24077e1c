//! Kimi K2: calls within a section, each with an id instead of a name, `functions.NAME:NUMBER`, before its arguments.

use super::{Arguments, Format, Head, Layout, Tail};
use crate::scan::{Cursor, Scan, Stop};

const OPEN_ALL: &str = "<|tool_calls_section_begin|>";
const CLOSE_ALL: &str = "<|tool_calls_section_end|>";
// Some models write the section's marks in the singular. Source: vLLM's parser of Kimi K2.
const OPEN_ALL_TOO: &str = "<|tool_call_section_begin|>";
const CLOSE_ALL_TOO: &str = "<|tool_call_section_end|>";
const OPEN: &str = "<|tool_call_begin|>";
const CLOSE: &str = "<|tool_call_end|>";
const ARGUMENTS: &str = "<|tool_call_argument_begin|>";

pub(super) const KIMI_K2: Format = Format {
    name: "kimi_k2",
    models: "Kimi K2",
    marks: &[OPEN_ALL, OPEN_ALL_TOO, CLOSE_ALL, CLOSE_ALL_TOO, OPEN, CLOSE, ARGUMENTS],
    openers: &[OPEN_ALL, OPEN_ALL_TOO, OPEN],
    ends_reasoning: Some(r"<\|tool_call_begin\|>"),
    head: |text, _, _| head(text),
    arguments: Arguments::Json { closer: Some(CLOSE) },
    tail: |text, _| Tail::behind(text, &[CLOSE, CLOSE_ALL, CLOSE_ALL_TOO]),
    layout: Layout {
        open: OPEN_ALL,
        before_name: "<|tool_call_begin|>functions.",
        // The number makes ids unique within a conversation: `functions.NAME:NUMBER`.
        before_number: Some(":"),
        before_arguments: ARGUMENTS,
        after_arguments: CLOSE,
        close: CLOSE_ALL,
        trigger: Some(OPEN_ALL),
        ..Layout::PLAIN
    },
    wrote: |call| {
        call.is_between("<|tool_call_begin|>functions.", ":0<|tool_call_argument_begin|>")
    },
    ..Format::PLAIN
};

/// The start of a call. The number is ignored, because calls are numbered in their order.
fn head(text: &str) -> Scan<Head> {
    let mut cursor = Cursor::new(text);
    if cursor.accept(OPEN_ALL)? || cursor.accept(OPEN_ALL_TOO)? {
        cursor.white_space();
    }
    cursor.expect(OPEN)?;
    let id = cursor.until(ARGUMENTS)?.trim();
    // A name may contain a colon, so the last one separates the number.
    let name = id.rsplit_once(':').map_or(id, |(name, _)| name);
    let name = name.strip_prefix("functions.").unwrap_or(name);
    cursor.white_space();
    if cursor.peek()? != b'{' || name.is_empty() {
        return Err(Stop::No);
    }
    Ok(Head { name: name.to_owned(), at: cursor.at(), arguments: None, in_object: false })
}
