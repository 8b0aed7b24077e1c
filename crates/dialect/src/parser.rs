//! Parses the text of one answer, in pieces, to events.

use std::sync::Arc;

use crate::callable::Callable;
use crate::event::{Events, OutputEvent};
use crate::format::{Frame, ReasoningFormat, Thinking, ToolFormat, Unframing};
use crate::harmony::HarmonyParser;
use crate::reasoning::ReasoningParser;
use crate::tool::ToolParser;

/// The formats of a model's reasoning and tool calls; `None` if it has none, or the format is unknown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Dialect {
    /// Format of tool calls.
    pub tools: Option<ToolFormat>,
    /// Format of reasoning.
    pub reasoning: Option<ReasoningFormat>,
}

impl Dialect {
    /// Whether answers are sequences of harmony messages.
    pub fn is_harmony(self) -> bool {
        self.tools == Some(ToolFormat::GptOss) || self.reasoning == Some(ReasoningFormat::GptOss)
    }

    /// Texts that mark the parts of an answer. The parser must see them, also if they are special tokens of the tokenizer.
    pub fn marks(self) -> Vec<&'static str> {
        let reasoning = self.reasoning.and_then(ReasoningFormat::marks);
        let mut marks =
            Vec::from_iter(reasoning.map(|(open, close)| [open, close]).into_iter().flatten());
        let tools = if self.is_harmony() { Some(ToolFormat::GptOss) } else { self.tools };
        // Harmony's marks delimit every message, so they are needed even if only the reasoning is configured as
        // gpt-oss.
        marks.extend(tools.map_or(&[][..], ToolFormat::marks));
        marks.extend(self.frame().marks);
        // Formats of reasoning and of calls may share marks.
        let mut seen = Vec::new();
        marks.retain(|mark| {
            !seen.contains(mark) && {
                seen.push(*mark);
                true
            }
        });
        marks
    }

    /// The texts around content.
    pub(crate) fn frame(self) -> &'static Frame {
        let of_reasoning = self.reasoning.map(|format| format.format().frame);
        let of_calls = self.tools.map(|format| format.format().frame);
        let frames = [of_reasoning, of_calls].into_iter().flatten();
        frames.into_iter().find(|frame| !frame.is_empty()).unwrap_or(&Frame::NONE)
    }
}

/// A parser of one answer in pieces. The merged events of the pieces equal those of the whole text.
#[derive(Debug)]
pub struct OutputParser {
    stages: Stages,
    unframing: Option<Unframing>,
}

#[derive(Debug)]
enum Stages {
    Harmony(HarmonyParser),
    Marked { reasoning: Option<ReasoningParser>, tools: Option<ToolParser> },
}

impl OutputParser {
    /// A parser for an answer that begins at `thinking`. `functions` are the callable ones; without them calls are content, and so are
    /// calls of other functions.
    pub fn new(dialect: Dialect, thinking: Thinking, functions: Option<Arc<[Callable]>>) -> Self {
        Self::of(dialect, thinking, functions, false)
    }

    /// A parser for an answer that consists of calls only. If it is cut, the start of a call is not content.
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
            let stages = Stages::Harmony(HarmonyParser::new(functions));
            return Self { stages, unframing: None };
        }
        let frame = dialect.frame();
        let unframing = (!frame.is_empty()).then(|| Unframing::new(frame));
        // Without callable functions there is no tool parser at all, and calls pass as content.
        let calls = dialect.tools.map(ToolFormat::format).zip(functions);
        let reasoning = |format| ReasoningParser::new(format, thinking, calls.clone());
        let stages = Stages::Marked {
            reasoning: dialect.reasoning.and_then(reasoning),
            tools: calls
                .map(|(format, functions)| ToolParser::new(format, functions, are_required)),
        };
        Self { stages, unframing }
    }

    /// Parses the next piece; returns the events that are certain.
    pub fn push(&mut self, text: &str) -> Vec<OutputEvent> {
        let mut events = Events::default();
        match &mut self.stages {
            Stages::Harmony(parser) => parser.push(text, &mut events),
            Stages::Marked { reasoning: None, tools } => emit(tools, text, &mut events),
            Stages::Marked { reasoning: Some(reasoning), tools } => {
                let content = reasoning.push(text, &mut events);
                // The model may still close the reasoning after the call. That mark would otherwise become content.
                if let (Some(mark), Some(tools)) = (reasoning.take_unclosed(), &mut *tools) {
                    tools.leave_out(mark);
                }
                emit(tools, &content, &mut events);
            }
        }
        self.without_frame(events.into_vec(), false)
    }

    /// Returns the remaining events at the model's end. Nothing may be pushed after it.
    pub fn finish(&mut self) -> Vec<OutputEvent> {
        self.end(false)
    }

    /// The same for a text that was cut: the start of a call is not content.
    pub fn cut(&mut self) -> Vec<OutputEvent> {
        self.end(true)
    }

    /// Functions that were called and are not callable. Their calls are content.
    pub fn unknown_functions(&self) -> &[String] {
        match &self.stages {
            Stages::Harmony(parser) => parser.unknown(),
            Stages::Marked { tools, .. } => tools.as_ref().map_or(&[], ToolParser::unknown),
        }
    }

    fn end(&mut self, is_cut: bool) -> Vec<OutputEvent> {
        let mut events = Events::default();
        match &mut self.stages {
            Stages::Harmony(parser) => parser.finish(is_cut, &mut events),
            Stages::Marked { reasoning, tools } => {
                if let Some(reasoning) = reasoning {
                    // The reasoning ends first, because its held text may be content, in which a call may begin.
                    let content = reasoning.finish(&mut events);
                    emit(tools, &content, &mut events);
                }
                if let Some(tools) = tools {
                    tools.finish(is_cut, &mut events);
                }
            }
        }
        self.without_frame(events.into_vec(), true)
    }

    fn without_frame(&mut self, events: Vec<OutputEvent>, ended: bool) -> Vec<OutputEvent> {
        match &mut self.unframing {
            Some(unframing) => unframing.events(events, ended),
            None => events,
        }
    }
}

/// Parses content, which may contain calls.
fn emit(tools: &mut Option<ToolParser>, content: &str, events: &mut Events) {
    match tools {
        Some(tools) => tools.push(content, events),
        None => events.content(content),
    }
}

#[cfg(test)]
mod tests;
