//! The text of one answer, in pieces, becomes events.

use std::sync::Arc;

use crate::callable::Callable;
use crate::event::{Events, OutputEvent};
use crate::format::{ReasoningFormat, Thinking, ToolFormat};
use crate::harmony::HarmonyParser;
use crate::reasoning::ReasoningParser;
use crate::tool::ToolParser;

/// How a model writes what is not plain text; `None` where it does not, or nobody knows how.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Dialect {
    /// Its calls.
    pub tools: Option<ToolFormat>,
    /// Its reasoning.
    pub reasoning: Option<ReasoningFormat>,
}

impl Dialect {
    /// Whether answers are rows of messages.
    pub fn is_harmony(self) -> bool {
        self.tools == Some(ToolFormat::GptOss) || self.reasoning == Some(ReasoningFormat::GptOss)
    }

    /// Texts that tell the parts of an answer apart. Where the tokenizer has them as special tokens, the parser has to see
    /// them all the same.
    pub fn marks(self) -> Vec<&'static str> {
        let reasoning = self.reasoning.and_then(ReasoningFormat::marks);
        let mut marks =
            Vec::from_iter(reasoning.map(|(open, close)| [open, close]).into_iter().flatten());
        let tools = if self.is_harmony() { Some(ToolFormat::GptOss) } else { self.tools };
        marks.extend(tools.map_or(&[][..], ToolFormat::marks));
        marks
    }
}

/// Takes the text of one answer in pieces. Events of the pieces, neighbours of one kind joined, are those of the whole.
#[derive(Debug)]
pub struct OutputParser(Stages);

#[derive(Debug)]
enum Stages {
    Harmony(HarmonyParser),
    Marked { reasoning: Option<ReasoningParser>, tools: Option<ToolParser> },
}

impl OutputParser {
    /// For an answer that stands at `thinking` before its first character. `functions` are those that may be called;
    /// without them calls are content, and so are calls of others.
    pub fn new(dialect: Dialect, thinking: Thinking, functions: Option<Arc<[Callable]>>) -> Self {
        Self::of(dialect, thinking, functions, false)
    }

    /// The same, for an answer that is calls and nothing else: where it breaks off, the beginning of a call is no content.
    pub fn of_calls(
        dialect: Dialect,
        thinking: Thinking,
        functions: Option<Arc<[Callable]>>,
    ) -> Self {
        Self::of(dialect, thinking, functions, true)
    }

    fn of(
        dialect: Dialect,
        thinking: Thinking,
        functions: Option<Arc<[Callable]>>,
        are_required: bool,
    ) -> Self {
        if dialect.is_harmony() {
            return Self(Stages::Harmony(HarmonyParser::new(functions)));
        }
        let calls = dialect.tools.map(ToolFormat::format).zip(functions);
        let reasoning = |format| ReasoningParser::new(format, thinking, calls.clone());
        Self(Stages::Marked {
            reasoning: dialect.reasoning.and_then(reasoning),
            tools: calls
                .map(|(format, functions)| ToolParser::new(format, functions, are_required)),
        })
    }

    /// Takes the next piece; what is certain by now.
    pub fn push(&mut self, text: &str) -> Vec<OutputEvent> {
        let mut events = Events::default();
        match &mut self.0 {
            Stages::Harmony(parser) => parser.push(text, &mut events),
            Stages::Marked { reasoning: None, tools } => tell(tools, text, &mut events),
            Stages::Marked { reasoning: Some(reasoning), tools } => {
                let content = reasoning.push(text, &mut events);
                if let (Some(mark), Some(tools)) = (reasoning.take_unclosed(), &mut *tools) {
                    tools.leave_out(mark);
                }
                tell(tools, &content, &mut events);
            }
        }
        events.into_vec()
    }

    /// The rest when no more text comes, since the model has ended. Nothing is pushed after it.
    pub fn finish(&mut self) -> Vec<OutputEvent> {
        self.end(false)
    }

    /// The same where the text breaks off: a call that has only begun is no content.
    pub fn cut(&mut self) -> Vec<OutputEvent> {
        self.end(true)
    }

    /// Functions that were called and that are not among those that may be: their calls are content.
    pub fn unknown_functions(&self) -> &[String] {
        match &self.0 {
            Stages::Harmony(parser) => parser.unknown(),
            Stages::Marked { tools, .. } => tools.as_ref().map_or(&[], ToolParser::unknown),
        }
    }

    fn end(&mut self, is_cut: bool) -> Vec<OutputEvent> {
        let mut events = Events::default();
        match &mut self.0 {
            Stages::Harmony(parser) => parser.finish(&mut events),
            Stages::Marked { reasoning, tools } => {
                if let Some(reasoning) = reasoning {
                    let content = reasoning.finish(&mut events);
                    tell(tools, &content, &mut events);
                }
                if let Some(tools) = tools {
                    tools.finish(is_cut, &mut events);
                }
            }
        }
        events.into_vec()
    }
}

/// Content, in which there may be calls.
fn tell(tools: &mut Option<ToolParser>, content: &str, events: &mut Events) {
    match tools {
        Some(tools) => tools.push(content, events),
        None => events.content(content),
    }
}

#[cfg(test)]
mod tests;
