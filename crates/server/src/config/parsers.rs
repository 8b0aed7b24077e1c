//! The formats of calls and of reasoning that users can ask for: those that there are, and two words besides.

use candlepower_checkpoint::Choice;
use candlepower_dialect::{ReasoningFormat, ToolFormat};
use clap::builder::TypedValueParser;

use super::values::one_of;

/// How calls of functions are written.
pub type ToolCallParser = ParserChoice<ToolFormat>;
/// How reasoning is set apart.
pub type ReasoningParser = ParserChoice<ReasoningFormat>;

/// The format that a model's answers are read in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ParserChoice<F> {
    /// The one that its chat template writes.
    Auto,
    /// None: what the model writes is content.
    None,
    /// This one.
    Format(F),
}

impl<F> ParserChoice<F> {
    /// The format of answers, where `found` is the one of the chat template.
    pub fn or_found(self, found: Option<F>) -> Option<F> {
        match self {
            Self::Auto => found,
            Self::None => None,
            Self::Format(format) => Some(format),
        }
    }
}

pub(super) fn tool_call_parser() -> impl TypedValueParser<Value = ToolCallParser> {
    let none = "In no way: functions are refused";
    choice("As the chat template writes them", none, ToolFormat::ALL, ToolFormat::name)
}

pub(super) fn reasoning_parser() -> impl TypedValueParser<Value = ReasoningParser> {
    let none = "Not at all: it is content";
    choice("As the chat template writes it", none, ReasoningFormat::ALL, ReasoningFormat::name)
}

/// Takes `auto`, `none` and the names of all formats.
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
