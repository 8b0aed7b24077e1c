//! The values of `--tool-call-parser` and `--reasoning-parser`: all formats, `auto` and `none`.

use candlepower_checkpoint::Choice;
use candlepower_dialect::{ReasoningFormat, ToolFormat};
use clap::builder::TypedValueParser;

use super::values::one_of;

/// The format of tool calls.
pub type ToolCallParser = ParserChoice<ToolFormat>;
/// The format of reasoning.
pub type ReasoningParser = ParserChoice<ReasoningFormat>;

/// The choice of a format for a model's answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ParserChoice<F> {
    /// The format that the chat template writes.
    Auto,
    /// No format: the whole answer is content.
    None,
    /// This format.
    Format(F),
}

impl<F> ParserChoice<F> {
    /// The format of answers; `found` is the one of the chat template.
    pub fn or_found(self, found: Option<F>) -> Option<F> {
        match self {
            Self::Auto => found,
            Self::None => None,
            Self::Format(format) => Some(format),
        }
    }
}

pub(super) fn tool_call_parser() -> impl TypedValueParser<Value = ToolCallParser> {
    let none = "Disable tool calling; requests with tools get 400";
    choice("Detect from the chat template", none, ToolFormat::ALL, ToolFormat::name)
}

pub(super) fn reasoning_parser() -> impl TypedValueParser<Value = ReasoningParser> {
    let none = "Do not split reasoning; return it as content";
    choice("Detect from the chat template", none, ReasoningFormat::ALL, ReasoningFormat::name)
}

/// Parses `auto`, `none` and the names of all formats.
fn choice<F: Copy + Send + Sync + 'static>(
    auto: &'static str,
    none: &'static str,
    all: &'static [F],
    name: fn(F) -> &'static str,
) -> impl TypedValueParser<Value = ParserChoice<F>> {
    let (auto, none) = ((ParserChoice::Auto, "auto", auto), (ParserChoice::None, "none", none));
    let words = [auto, none].map(|(value, name, help)| Choice::new(value, name, help));
    let format = move |format: &F| Choice::new(ParserChoice::Format(*format), name(*format), "");
    one_of(words.into_iter().chain(all.iter().map(format)))
}
