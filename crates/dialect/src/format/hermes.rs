//! `<tool_call>{"name": .., "arguments": {..}}</tool_call>`.

use super::{Arguments, Format, Head, Layout, Position, Tail, object};
use crate::scan::{Cursor, Scan, Stop};

const OPEN: &str = "<tool_call>";
const CLOSE: &str = "</tool_call>";

pub(super) const HERMES: Format = Format {
    name: "hermes",
    models: "Hermes, Qwen, Granite",
    marks: &[OPEN, CLOSE],
    openers: &[OPEN],
    // The mark alone occurs in reasoning about calls. A call goes on with an object or a list.
    ends_reasoning: Some(r"<tool_call>[ \t\r\n]*[\[{]"),
    head: |text, position, _| head(text, position),
    arguments: Arguments::Json { closer: Some(CLOSE) },
    tail: |text, _| tail(text),
    layout: Layout {
        // White space and order are those of Qwen's templates. The grammar forces them, so that forced calls look
        // like those of the training.
        before_name: "<tool_call>\n{\"name\": \"",
        before_arguments: "\", \"arguments\": ",
        after_arguments: "}\n</tool_call>",
        separator: "\n",
        trigger: Some(OPEN),
        ..Layout::PLAIN
    },
    wrote: |call| call.before_object().is_some_and(|before| before.ends_with(OPEN)),
    ..Format::PLAIN
};

/// One call, or a list of calls, because models sometimes put several calls between the marks of one.
fn head(text: &str, position: Position) -> Scan<Head> {
    let mut cursor = Cursor::new(text);
    if position == Position::First {
        cursor.expect(OPEN)?;
        cursor.white_space();
        if cursor.accept("[")? {
            cursor.white_space();
        }
    }
    object::head(&mut cursor, None)
}

/// The end of a call. Models sometimes omit the closing brace or the mark.
fn tail(text: &str) -> Scan<Tail> {
    let mut cursor = Cursor::new(text);
    // Without the object's closing brace nothing of it is consumed, and the marks below are looked for at once.
    let mut end = match object::tail(&mut cursor) {
        Ok(()) => cursor.at(),
        Err(Stop::Wait) => return Err(Stop::Wait),
        Err(Stop::No) => 0,
    };
    let mut cursor = Cursor::new(&text[end..]);
    if object::next(&mut cursor, &[","])? {
        return Ok(Tail { end, separator: Some(cursor.at()) });
    }
    if cursor.accept("]")? {
        cursor.white_space();
    }
    if cursor.accept(CLOSE)? {
        end += cursor.at();
    }
    Ok(Tail::end(end))
}
