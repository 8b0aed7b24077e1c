//! DeepSeek: calls within a section, each with a separator between its name and its arguments.
//!
//! V3 writes `function`, the separator, the name and a fenced block of JSON; V3.1 the name, the separator and the JSON.

use super::{Arguments, Format, Head, Layout, Tail};
use crate::scan::{Cursor, Scan, Stop};

const OPEN_ALL: &str = "<｜tool▁calls▁begin｜>";
const CLOSE_ALL: &str = "<｜tool▁calls▁end｜>";
const OPEN: &str = "<｜tool▁call▁begin｜>";
const CLOSE: &str = "<｜tool▁call▁end｜>";
const SEPARATOR: &str = "<｜tool▁sep｜>";

pub(super) const DEEPSEEK_V3: Format = Format {
    name: "deepseek_v3",
    models: "DeepSeek V3 and R1",
    layout: Layout {
        open: OPEN_ALL,
        before_name: "<｜tool▁call▁begin｜>function<｜tool▁sep｜>",
        before_arguments: "\n```json\n",
        after_arguments: "\n```<｜tool▁call▁end｜>",
        separator: "\n",
        close: CLOSE_ALL,
        trigger: Some(OPEN_ALL),
        ..Layout::PLAIN
    },
    wrote: |call| call.is_between("<｜tool▁call▁begin｜>function<｜tool▁sep｜>", ""),
    ..EITHER
};

pub(super) const DEEPSEEK_V31: Format = Format {
    name: "deepseek_v31",
    models: "DeepSeek V3.1",
    layout: Layout {
        open: OPEN_ALL,
        before_name: OPEN,
        before_arguments: SEPARATOR,
        after_arguments: CLOSE,
        close: CLOSE_ALL,
        trigger: Some(OPEN_ALL),
        ..Layout::PLAIN
    },
    wrote: |call| call.is_between(OPEN, ""),
    ..EITHER
};

const EITHER: Format = Format {
    marks: &[OPEN_ALL, CLOSE_ALL, OPEN, CLOSE, SEPARATOR],
    openers: &[OPEN_ALL, OPEN],
    // The section's mark alone does not end reasoning. The parser waits for a call's head, which needs this mark.
    ends_reasoning: Some(OPEN),
    head: |text, _, _| head(text),
    arguments: Arguments::Json { closer: Some(CLOSE) },
    tail: |text, _| Tail::behind(text, &["```", CLOSE, CLOSE_ALL]),
    ..Format::PLAIN
};

/// Parses both versions, regardless of the template's.
fn head(text: &str) -> Scan<Head> {
    let mut cursor = Cursor::new(text);
    if cursor.accept(OPEN_ALL)? {
        cursor.white_space();
    }
    cursor.expect(OPEN)?;
    let before = cursor.until(SEPARATOR)?.trim();
    cursor.white_space();
    // V3.1 has the arguments after the separator, and V3 has the name there. A brace tells them apart, because a name
    // has none.
    let name = match cursor.peek()? {
        b'{' => before,
        _ => {
            let name = cursor.until("\n")?.trim();
            cursor.white_space();
            if cursor.accept("```")? {
                cursor.accept("json")?;
            }
            name
        }
    };
    cursor.white_space();
    if cursor.peek()? != b'{' || name.is_empty() {
        return Err(Stop::No);
    }
    Ok(Head { name: name.to_owned(), at: cursor.at(), arguments: None, in_object: false })
}
