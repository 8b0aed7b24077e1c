//! Splits the text of one choice into content, reasoning and tool calls.

use std::sync::Arc;

use candlepower_api::{
    ChatDelta, FinishReason, FunctionCall, FunctionCallDelta, ResponseMessage, ToolCall,
    ToolCallDelta,
};
use candlepower_dialect::{
    CallIds, Callable, Dialect, OutputEvent, OutputParser, Thinking, ToolFormat,
};
use uuid::Uuid;

/// The format in which the answers to one request are parsed.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct AnswerFormat {
    pub(crate) dialect: Dialect,
    /// Whether reasoning is open before the first character of an answer.
    pub(crate) thinking: Thinking,
    /// The tools that an answer may call.
    pub(crate) functions: Option<Arc<[Callable]>>,
    /// Whether an answer consists of tool calls only.
    pub(crate) are_calls: bool,
}

/// The state of one choice's answer while it is generated.
#[derive(Debug)]
pub(crate) struct Answer {
    ids: CallIds,
    has_calls: bool,
    /// Whether the last call is incomplete.
    in_call: bool,
    /// Whether an earlier call is incomplete.
    has_broken_call: bool,
}

/// An addition to an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum AnswerPart {
    Text(String),
    Reasoning(String),
    /// A call begins; calls are numbered from 0.
    CallStart {
        index: usize,
        id: String,
        name: String,
    },
    /// More of the arguments of the last call.
    CallArguments {
        index: usize,
        fragment: String,
    },
    /// The last call is complete.
    CallEnd,
}

impl AnswerFormat {
    /// The parser of a choice's text.
    pub(crate) fn parser(&self) -> OutputParser {
        let new = if self.are_calls { OutputParser::of_calls } else { OutputParser::new };
        new(self.dialect, self.thinking, self.functions.clone())
    }

    /// The state of a choice's answer before its first token.
    pub(crate) fn answer(&self) -> Answer {
        let ids = self.dialect.tools.map_or(CallIds::Plain, ToolFormat::call_ids);
        Answer { ids, has_calls: false, in_call: false, has_broken_call: false }
    }
}

impl Answer {
    /// The parts that a piece adds.
    pub(crate) fn push(&mut self, piece: Vec<OutputEvent>) -> Vec<AnswerPart> {
        piece.into_iter().map(|event| self.part(event)).collect()
    }

    /// The chat message of the whole answer.
    pub(crate) fn message(&mut self, whole: Vec<OutputEvent>) -> ResponseMessage {
        let (mut content, mut reasoning, mut calls) = (String::new(), String::new(), Vec::new());
        for part in self.push(whole) {
            match part {
                AnswerPart::Text(text) => content.push_str(&text),
                AnswerPart::Reasoning(text) => reasoning.push_str(&text),
                AnswerPart::CallStart { id, name, .. } => {
                    let function = FunctionCall { name, arguments: String::new() };
                    calls.push(ToolCall { id, kind: "function", function });
                }
                AnswerPart::CallArguments { index, fragment } => {
                    calls[index].function.arguments.push_str(&fragment);
                }
                AnswerPart::CallEnd => {}
            }
        }
        let says_nothing = content.is_empty() && !(calls.is_empty() && reasoning.is_empty());
        ResponseMessage {
            role: "assistant",
            content: (!says_nothing).then_some(content),
            refusal: None,
            reasoning: (!reasoning.is_empty()).then(|| reasoning.clone()),
            reasoning_content: (!reasoning.is_empty()).then_some(reasoning),
            tool_calls: (!calls.is_empty()).then_some(calls),
        }
    }

    /// The finish reason of the answer, from that of its text.
    pub(crate) fn finish_reason(&self, reason: FinishReason) -> FinishReason {
        match reason {
            FinishReason::Stop if self.has_calls && !self.is_broken() => FinishReason::ToolCalls,
            other => other,
        }
    }

    /// Whether the answer is incomplete, given the finish reason of its text.
    pub(crate) fn is_cut(&self, reason: FinishReason) -> bool {
        reason != FinishReason::Stop || self.is_broken()
    }

    /// Whether a call is incomplete.
    fn is_broken(&self) -> bool {
        self.in_call || self.has_broken_call
    }

    fn part(&mut self, event: OutputEvent) -> AnswerPart {
        match event {
            OutputEvent::Content(text) => AnswerPart::Text(text),
            OutputEvent::Reasoning(text) => AnswerPart::Reasoning(text),
            OutputEvent::CallStart { index, name } => {
                self.has_broken_call |= self.in_call;
                (self.has_calls, self.in_call) = (true, true);
                AnswerPart::CallStart { index, id: new_id(self.ids), name }
            }
            OutputEvent::CallArguments { index, fragment } => {
                AnswerPart::CallArguments { index, fragment }
            }
            OutputEvent::CallEnd { .. } => {
                self.in_call = false;
                AnswerPart::CallEnd
            }
        }
    }
}

impl AnswerPart {
    /// The part as a chunk's delta. The end of a call is not sent.
    pub(crate) fn delta(self) -> Option<ChatDelta> {
        let call =
            |delta| Some(ChatDelta { tool_calls: Some(vec![delta]), ..ChatDelta::default() });
        match self {
            AnswerPart::Text(text) => {
                Some(ChatDelta { content: Some(text), ..ChatDelta::default() })
            }
            AnswerPart::Reasoning(text) => {
                let reasoning = Some(text.clone());
                Some(ChatDelta { reasoning_content: Some(text), reasoning, ..ChatDelta::default() })
            }
            AnswerPart::CallEnd => None,
            AnswerPart::CallStart { index, id, name } => {
                let function =
                    FunctionCallDelta { name: Some(name), arguments: Some(String::new()) };
                call(ToolCallDelta { index, id: Some(id), kind: Some("function"), function })
            }
            AnswerPart::CallArguments { index, fragment } => {
                let function = FunctionCallDelta { name: None, arguments: Some(fragment) };
                call(ToolCallDelta { index, id: None, kind: None, function })
            }
        }
    }
}

fn new_id(ids: CallIds) -> String {
    let unique = Uuid::new_v4().simple().to_string();
    match ids {
        CallIds::Plain => format!("call_{}", &unique[..24]),
        CallIds::NineLetters => unique[..9].to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn format(tools: ToolFormat) -> AnswerFormat {
        let dialect = Dialect {
            tools: Some(tools),
            reasoning: Some(candlepower_dialect::ReasoningFormat::Qwen3),
        };
        let functions = Some([Callable { name: "f".into(), parameters: None }].into());
        AnswerFormat { dialect, thinking: Thinking::Possible, functions, are_calls: false }
    }

    /// An answer parsed as a whole, and its message.
    fn message(tools: ToolFormat, text: &str) -> (Answer, ResponseMessage) {
        let (mut answer, mut parser) = (format(tools).answer(), format(tools).parser());
        let events = [parser.push(text), parser.finish()].concat();
        let message = answer.message(events);
        (answer, message)
    }

    const CALL: &str = "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}\n</tool_call>";

    #[test]
    fn a_message_has_what_the_text_has() {
        let stop = FinishReason::Stop;
        let (plain, said) = message(ToolFormat::Hermes, "Four.");
        assert_eq!((said.content.as_deref(), said.tool_calls), (Some("Four."), None));
        assert_eq!(plain.finish_reason(stop), stop);
        assert_eq!(message(ToolFormat::Hermes, "").1.content.as_deref(), Some(""));

        let text = format!("<think>Hm</think>\n{CALL}\n{CALL}");
        let (calling, said) = message(ToolFormat::Hermes, &text);
        assert_eq!((said.content, said.reasoning_content.as_deref()), (None, Some("Hm")));
        let calls = said.tool_calls.unwrap();
        assert_eq!(calls.len(), 2);
        assert!(calls.iter().all(|call| call.function.arguments == "{\"a\": 1}" && call.id.starts_with("call_")));
        assert_ne!(calls[0].id, calls[1].id);
        assert_eq!(calling.finish_reason(stop), FinishReason::ToolCalls);
        assert_eq!(calling.finish_reason(FinishReason::Length), FinishReason::Length);

        let cut = CALL.strip_suffix("}}\n</tool_call>").unwrap();
        let (answer, said) = message(ToolFormat::Hermes, cut);
        assert_eq!(said.tool_calls.unwrap()[0].function.arguments, "{\"a\": 1");
        assert_eq!((answer.finish_reason(stop), answer.is_cut(stop)), (stop, true));
        assert!(!calling.is_cut(stop) && calling.is_cut(FinishReason::Length));

        // A truncated call counts even if a complete one follows.
        let broken = format!("{cut}</tool_call>\n{CALL}");
        let (answer, said) = message(ToolFormat::Hermes, &broken);
        assert_eq!(said.tool_calls.unwrap().len(), 2);
        assert_eq!((answer.finish_reason(stop), answer.is_cut(stop)), (stop, true));

        let (_, said) = message(ToolFormat::Mistral, "[TOOL_CALLS]f[ARGS]{}");
        assert_eq!(said.tool_calls.unwrap()[0].id.len(), 9);
    }

    #[test]
    fn calls_come_in_the_chunks_of_the_protocol() {
        let format = format(ToolFormat::Hermes);
        let (mut calling, mut parser) = (format.answer(), format.parser());
        let mut deltas = Vec::new();
        for piece in CALL.split_inclusive(|_| true) {
            deltas.extend(calling.push(parser.push(piece)));
        }
        deltas.extend(calling.push(parser.finish()));
        let parts = deltas
            .into_iter()
            .filter_map(AnswerPart::delta)
            .flat_map(|delta| delta.tool_calls.unwrap())
            .collect::<Vec<_>>();
        let (first, more) = parts.split_first().unwrap();
        assert!(first.id.is_some() && first.kind == Some("function"));
        assert_eq!(first.function.name.as_deref(), Some("f"));
        assert_eq!(first.function.arguments.as_deref(), Some(""));
        assert!(
            more.iter().all(|part| part.id.is_none() && part.kind.is_none() && part.index == 0)
        );
        let fragments = more.iter().filter_map(|part| part.function.arguments.as_deref());
        assert_eq!(
            fragments.collect::<Vec<_>>(),
            "{\"a\": 1}".split("").filter(|c| !c.is_empty()).collect::<Vec<_>>()
        );
    }
}
