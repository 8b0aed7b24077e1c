//! The formats of calls and of reasoning that users can ask for: those that there are, and two words besides.

use candlepower_dialect::{ReasoningFormat, ToolFormat};
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};

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
    let auto = PossibleValue::new("auto").help("As the chat template writes them");
    let none = PossibleValue::new("none").help("In no way: functions are refused");
    choice(auto, none, ToolFormat::ALL, ToolFormat::name)
}

pub(super) fn reasoning_parser() -> impl TypedValueParser<Value = ReasoningParser> {
    let auto = PossibleValue::new("auto").help("As the chat template writes it");
    let none = PossibleValue::new("none").help("Not at all: it is content");
    choice(auto, none, ReasoningFormat::ALL, ReasoningFormat::name)
}

/// Takes `auto`, `none` and the names of all formats.
fn choice<F: Copy + Send + Sync + 'static>(
    auto: PossibleValue,
    none: PossibleValue,
    all: &'static [F],
    name: fn(F) -> &'static str,
) -> impl TypedValueParser<Value = ParserChoice<F>> {
    let names = all.iter().map(|format| PossibleValue::new(name(*format)));
    PossibleValuesParser::new([auto, none].into_iter().chain(names)).map(move |text| {
        if text == "none" {
            return ParserChoice::None;
        }
        let asked = all.iter().find(|format| name(**format) == text);
        asked.map_or(ParserChoice::Auto, |format| ParserChoice::Format(*format))
    })
}
