//! GLM-4, including the 0414 models: the function's name on its own line, then its arguments, as the whole answer.
//!
//! Its template writes tools but no calls. Sources: the published template of GLM-4-0414, and the examples of the
//! publisher's repository, which split an answer at its first line break.

use super::{Format, Head, Layout, Tail};
use crate::callable::Callable;
use crate::scan::{Cursor, Scan, Stop};

pub(super) const GLM4: Format = Format {
    name: "glm4",
    models: "GLM-4 and GLM-4-0414",
    head: |text, _, functions| head(text, functions),
    // Nothing follows the arguments: the end-of-sequence token ends the call.
    tail: |_, _| Ok(Tail::end(0)),
    layout: Layout { before_arguments: "\n", repeats: false, ..Layout::PLAIN },
    // The template's instruction after the tools: "use JSON for the arguments when you call the functions above".
    offered: &["在调用上述函数时，请使用 Json 格式表示调用的参数。"],
    ..Format::PLAIN
};

/// A call begins with the name of a callable function; any other text is content.
fn head(text: &str, functions: &[Callable]) -> Scan<Head> {
    let mut cursor = Cursor::new(text);
    let name = cursor.word(|c| c.is_alphanumeric() || matches!(c, '_' | '-' | '.'))?;
    cursor.expect("\n")?;
    cursor.white_space();
    let is_known = functions.iter().any(|function| function.name == name);
    if !is_known || cursor.peek()? != b'{' {
        return Err(Stop::No);
    }
    Ok(Head { name: name.to_owned(), at: cursor.at(), arguments: None, in_object: false })
}
