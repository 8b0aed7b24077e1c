//! `[TOOL_CALLS]`, then a list of `{"name": .., "arguments": {..}}`, or a name, `[ARGS]` and the arguments.

use super::{CallIds, Format, Head, Layout, Position, Tail, object};
use crate::scan::{Cursor, Scan, Stop};

const OPEN: &str = "[TOOL_CALLS]";
const ARGS: &str = "[ARGS]";
const CALL_ID: &str = "[CALL_ID]";

/// `[TOOL_CALLS]name[ARGS]{..}`.
pub(super) const MISTRAL: Format = Format {
    name: "mistral",
    models: "Mistral from its tokenizer's version 11 on",
    layout: Layout {
        before_name: OPEN,
        before_arguments: ARGS,
        trigger: Some(OPEN),
        ..Layout::PLAIN
    },
    wrote: |call| call.is_between(OPEN, ""),
    ..EITHER
};

/// `[TOOL_CALLS][{"name": .., "arguments": ..}]`.
pub(super) const MISTRAL_LIST: Format = Format {
    name: "mistral_list",
    models: "Mistral before version 11",
    layout: Layout {
        open: "[TOOL_CALLS][",
        before_name: "{\"name\": \"",
        before_arguments: "\", \"arguments\": ",
        after_arguments: "}",
        separator: ", ",
        close: "]",
        trigger: Some(OPEN),
        ..Layout::PLAIN
    },
    wrote: |call| {
        let is_list = |before: &str| {
            ["[TOOL_CALLS][", "[TOOL_CALLS] ["].iter().any(|list| before.ends_with(list))
        };
        call.before_object().is_some_and(is_list)
    },
    ..EITHER
};

const EITHER: Format = Format {
    marks: &[OPEN, ARGS, CALL_ID],
    openers: &[OPEN],
    ends_reasoning: Some(r"\[TOOL_CALLS\]"),
    head: |text, position, _| head(text, position),
    tail: |text, in_object| if in_object { tail(text) } else { Err(Stop::No) },
    // The templates raise an error for ids of any other form.
    call_ids: CallIds::NineLetters,
    ..Format::PLAIN
};

/// Parses both forms, regardless of the template's.
fn head(text: &str, position: Position) -> Scan<Head> {
    let mut cursor = Cursor::new(text);
    if position == Position::Next {
        return object::head(&mut cursor, None);
    }
    cursor.expect(OPEN)?;
    cursor.white_space();
    if cursor.accept("[")? {
        cursor.white_space();
        return object::head(&mut cursor, None);
    }
    let name = cursor.word(|c| c.is_alphanumeric() || matches!(c, '_' | '-' | '.'))?.to_owned();
    if name.is_empty() {
        return Err(Stop::No);
    }
    // Version 11 of the tokenizer writes ids, and version 13 does not.
    if cursor.accept(CALL_ID)? {
        cursor.word(char::is_alphanumeric)?;
    }
    // Models sometimes omit this mark, and the brace suffices.
    cursor.accept(ARGS)?;
    cursor.white_space();
    match cursor.peek()? {
        b'{' => Ok(Head { name, at: cursor.at(), arguments: None, in_object: false }),
        _ => Err(Stop::No),
    }
}

/// The text after an object of the list.
fn tail(text: &str) -> Scan<Tail> {
    let mut cursor = Cursor::new(text);
    object::tail(&mut cursor)?;
    let end = cursor.at();
    cursor.white_space();
    if cursor.accept("]")? {
        return Ok(Tail::end(cursor.at()));
    }
    if !cursor.accept(",")? {
        return Ok(Tail::end(end));
    }
    Ok(Tail { end, separator: Some(cursor.at() - end) })
}
