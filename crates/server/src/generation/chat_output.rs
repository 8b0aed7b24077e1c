//! The text of one choice becomes the parts of an answer: text, reasoning, calls.

use std::sync::Arc;

use candlepower_api::{
    ChatDelta, FinishReason, FunctionCall, FunctionCallDelta, ResponseMessage, ToolCall,
    ToolCallDelta,
};
use candlepower_dialect::{
    CallIds, Callable, Dialect, OutputEvent, OutputParser, Thinking, ToolFormat,
};
use uuid::Uuid;

/// How the answers to one request are read.
#[derive(Clone, Debug)]
pub(crate) struct AnswerFormat {
    pub(crate) dialect: Dialect,
    /// Where an answer stands before its first character.
    pub(crate) thinking: Thinking,
    /// The functions that may be called.
    pub(crate) functions: Option<Arc<[Callable]>>,
}

/// The answer of one choice, as it comes.
#[derive(Debug)]
pub(crate) struct Answer {
    parser: OutputParser,
    ids: CallIds,
    has_calls: bool,
    /// Whether the last call is not complete.
    in_call: bool,
}

/// What is added to an answer.
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
}

impl AnswerFormat {
    /// The answer of a choice, of which nothing came yet.
    pub(crate) fn answer(&self) -> Answer {
        let parser = OutputParser::new(self.dialect, self.thinking, self.functions.clone());
        let ids = self.dialect.tools.map_or(CallIds::Plain, ToolFormat::call_ids);
        Answer { parser, ids, has_calls: false, in_call: false }
    }
}

impl Answer {
    /// What the next piece of text adds; with the last piece, also what was held back.
    pub(crate) fn push(&mut self, text: &str, finish: Option<FinishReason>) -> Vec<AnswerPart> {
        let mut events = self.parser.push(text);
        if finish.is_some() {
            events.extend(self.parser.finish());
        }
        events.into_iter().filter_map(|event| self.part(event)).collect()
    }

    /// The chat message of the whole text.
    pub(crate) fn message(&mut self, text: &str, finish: FinishReason) -> ResponseMessage {
        let (mut content, mut reasoning, mut calls) = (String::new(), String::new(), Vec::new());
        for part in self.push(text, Some(finish)) {
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
            }
        }
        let says_nothing = content.is_empty() && !(calls.is_empty() && reasoning.is_empty());
        ResponseMessage {
            role: "assistant",
            content: (!says_nothing).then_some(content),
            refusal: None,
            reasoning_content: (!reasoning.is_empty()).then_some(reasoning),
            tool_calls: (!calls.is_empty()).then_some(calls),
        }
    }

    /// How the answer ended, if its text ended for this reason.
    pub(crate) fn finish_reason(&self, reason: FinishReason) -> FinishReason {
        match reason {
            FinishReason::Stop if self.has_calls && !self.in_call => FinishReason::ToolCalls,
            other => other,
        }
    }

    /// Whether the answer, whose text ended for this reason, is not complete.
    pub(crate) fn is_cut(&self, reason: FinishReason) -> bool {
        reason != FinishReason::Stop || self.in_call
    }

    fn part(&mut self, event: OutputEvent) -> Option<AnswerPart> {
        match event {
            OutputEvent::Content(text) => Some(AnswerPart::Text(text)),
            OutputEvent::Reasoning(text) => Some(AnswerPart::Reasoning(text)),
            OutputEvent::CallStart { index, name } => {
                (self.has_calls, self.in_call) = (true, true);
                Some(AnswerPart::CallStart { index, id: new_id(self.ids), name })
            }
            OutputEvent::CallArguments { index, fragment } => {
                Some(AnswerPart::CallArguments { index, fragment })
            }
            OutputEvent::CallEnd { .. } => {
                self.in_call = false;
                None
            }
        }
    }
}

impl From<AnswerPart> for ChatDelta {
    fn from(part: AnswerPart) -> Self {
        let call = |delta| Self { tool_calls: Some(vec![delta]), ..Self::default() };
        match part {
            AnswerPart::Text(text) => Self { content: Some(text), ..Self::default() },
            AnswerPart::Reasoning(text) => {
                Self { reasoning_content: Some(text), ..Self::default() }
            }
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

    fn answer(tools: ToolFormat) -> Answer {
        let dialect = Dialect {
            tools: Some(tools),
            reasoning: Some(candlepower_dialect::ReasoningFormat::Qwen3),
        };
        let functions = Some([Callable { name: "f".into(), parameters: None }].into());
        AnswerFormat { dialect, thinking: Thinking::Possible, functions }.answer()
    }

    const CALL: &str = "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}\n</tool_call>";

    #[test]
    fn a_message_has_what_the_text_has() {
        let stop = FinishReason::Stop;
        let mut plain = answer(ToolFormat::Hermes);
        let message = plain.message("Four.", stop);
        assert_eq!((message.content.as_deref(), message.tool_calls), (Some("Four."), None));
        assert_eq!(plain.finish_reason(stop), stop);
        assert_eq!(answer(ToolFormat::Hermes).message("", stop).content.as_deref(), Some(""));

        let mut calling = answer(ToolFormat::Hermes);
        let message = calling.message(&format!("<think>Hm</think>\n{CALL}\n{CALL}"), stop);
        assert_eq!((message.content, message.reasoning_content.as_deref()), (None, Some("Hm")));
        let calls = message.tool_calls.unwrap();
        assert_eq!(calls.len(), 2);
        assert!(calls.iter().all(|call| call.function.arguments == "{\"a\": 1}" && call.id.starts_with("call_")));
        assert_ne!(calls[0].id, calls[1].id);
        assert_eq!(calling.finish_reason(stop), FinishReason::ToolCalls);
        assert_eq!(calling.finish_reason(FinishReason::Length), FinishReason::Length);

        // A stop string has cut it.
        let mut cut = answer(ToolFormat::Hermes);
        let message = cut.message(CALL.strip_suffix("}}\n</tool_call>").unwrap(), stop);
        assert_eq!(message.tool_calls.unwrap()[0].function.arguments, "{\"a\": 1");
        assert_eq!((cut.finish_reason(stop), cut.is_cut(stop)), (stop, true));
        assert!(!calling.is_cut(stop) && calling.is_cut(FinishReason::Length));

        let message = answer(ToolFormat::Mistral).message("[TOOL_CALLS]f[ARGS]{}", stop);
        assert_eq!(message.tool_calls.unwrap()[0].id.len(), 9);
    }

    #[test]
    fn calls_come_in_the_chunks_of_the_protocol() {
        let mut calling = answer(ToolFormat::Hermes);
        let mut deltas = Vec::new();
        for piece in CALL.split_inclusive(|_| true) {
            deltas.extend(calling.push(piece, None));
        }
        deltas.extend(calling.push("", Some(FinishReason::Stop)));
        let parts = deltas
            .into_iter()
            .flat_map(|part| ChatDelta::from(part).tool_calls.unwrap())
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
