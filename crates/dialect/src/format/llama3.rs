//! `{"name": .., "parameters": {..}}` as the whole answer, or after `<|python_tag|>`.
//! Several calls are separated by `;`, `,` or line breaks.

use super::{Format, Head, Layout, Tail, object};
use crate::callable::Callable;
use crate::scan::{Cursor, Scan};
use crate::written_call::WrittenCall;

const OPEN: &str = "<|python_tag|>";

pub(super) const LLAMA3_JSON: Format = Format {
    name: "llama3_json",
    models: "Llama 3.1 and later",
    marks: &[OPEN],
    openers: &[OPEN],
    head: |text, _, functions| head(text, functions),
    tail: |text, _| tail(text),
    layout: Layout {
        before_name: "{\"name\": \"",
        before_arguments: "\", \"parameters\": ",
        after_arguments: "}",
        // The templates of these models refuse several calls in a turn.
        repeats: false,
        ..Layout::PLAIN
    },
    wrote,
    ..Format::PLAIN
};

fn wrote(call: &WrittenCall<'_>) -> bool {
    let begins = call.before_object().is_some_and(|before| call.begins_answer(before));
    // Other models write bare objects with `arguments`. Llama's key is `parameters`.
    begins && call.after.contains("\"parameters\"")
}

fn head(text: &str, functions: &[Callable]) -> Scan<Head> {
    let mut cursor = Cursor::new(text);
    if cursor.accept(OPEN)? {
        cursor.white_space();
    }
    object::head(&mut cursor, Some(functions))
}

/// The end of a call. Models also put line breaks or commas between calls.
fn tail(text: &str) -> Scan<Tail> {
    let mut cursor = Cursor::new(text);
    object::tail(&mut cursor)?;
    let end = cursor.at();
    let separator = object::next(&mut cursor, &[";", ","])?.then(|| cursor.at() - end);
    Ok(Tail { end, separator })
}
