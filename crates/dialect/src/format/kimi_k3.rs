//! Kimi K3: parts of an answer between `<|open|>NAME<|sep|>` and `<|close|>NAME<|sep|>`. Reasoning, content and calls are such parts. A
//! call has one for each argument, with its type as an attribute.
//!
//! Sources: the template `Kimi-K3.jinja` and the parser of llama.cpp, and vLLM's parsers `kimi_k3` of reasoning and calls.

use super::xml::{Attribute, Marks};
use super::{Arguments, Format, Frame, Layout};

const OPEN_ALL: &str = "<|open|>tools<|sep|>";
const OPEN: &str = "<|open|>call tool=\"";
const OPEN_TEXT: &str = "<|open|>response<|sep|>";
const CLOSE_TEXT: &str = "<|close|>response<|sep|>";
const CLOSE_MESSAGE: &str = "<|close|>message<|sep|>";
/// The special tokens. The names between them are plain text.
const SPECIAL: &[&str] = &["<|open|>", "<|close|>", "<|sep|>"];

/// The parts around content.
pub(super) const FRAME: Frame = Frame {
    marks: SPECIAL,
    before_text: &[OPEN_TEXT],
    after_text: &[CLOSE_TEXT, CLOSE_MESSAGE],
    // The template writes empty content before calls.
    before_calls: &[OPEN_TEXT, CLOSE_TEXT],
    dropped: &[OPEN_TEXT, CLOSE_TEXT, CLOSE_MESSAGE],
    ..Frame::NONE
};

const MARKS: Marks = Marks {
    open_all: OPEN_ALL,
    open: OPEN,
    after_name: "\"",
    after_attributes: "<|sep|>",
    before_key: "<|open|>argument key=\"",
    after_key: "\"<|sep|>",
    before_value: "",
    after_value: "<|close|>argument<|sep|>",
    close: "<|close|>call<|sep|>",
    close_all: "<|close|>tools<|sep|>",
    on_lines: false,
    attribute: Attribute::Type,
    instead: &[],
};

pub(super) const KIMI_K3: Format = Format {
    name: "kimi_k3",
    models: "Kimi K3",
    marks: SPECIAL,
    openers: &[OPEN_ALL, OPEN],
    ends_reasoning: Some(r#"<\|open\|>call tool=""#),
    head: |text, _, _| MARKS.head(text),
    arguments: Arguments::Elements(&MARKS),
    tail: |text, _| MARKS.tail(text),
    layout: Layout {
        open: OPEN_ALL,
        before_name: OPEN,
        before_number: Some("\" index=\""),
        before_arguments: "\"<|sep|>",
        after_arguments: "<|close|>call<|sep|>",
        close: "<|close|>tools<|sep|>",
        trigger: Some(OPEN_ALL),
        ..Layout::PLAIN
    },
    frame: &FRAME,
    wrote: |call| call.is_between(OPEN, "\" index=\""),
    ..Format::PLAIN
};
