//! The conversation: turns of the user, of the model and of tools.

use serde_json::{Value, json};

use super::answer::{Answer, Call};

/// One turn.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Turn {
    User {
        text: String,
        /// `data:` URLs.
        images: Vec<String>,
    },
    Assistant {
        answer: Answer,
        /// Whether the user stopped it, or the connection broke off.
        is_stopped: bool,
    },
    /// The result of a call.
    Tool { call: Call, result: String },
}

/// A conversation.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Conversation {
    pub(super) system: Option<String>,
    pub(super) turns: Vec<Turn>,
}

impl Conversation {
    /// Adds a message of the user. It replaces an earlier one without an answer.
    pub(super) fn ask(&mut self, text: String, images: Vec<String>) {
        while matches!(self.turns.last(), Some(Turn::User { .. })) {
            self.turns.pop();
        }
        self.turns.push(Turn::User { text, images });
    }

    /// Adds an answer, unless nothing was written.
    pub(super) fn answer(&mut self, answer: Answer, is_stopped: bool) {
        if !answer.is_empty() || !is_stopped {
            self.turns.push(Turn::Assistant { answer, is_stopped });
        }
    }

    /// Removes the newest message of the user and all behind it. Returns whether there was one.
    pub(super) fn undo(&mut self) -> bool {
        let at = self.turns.iter().rposition(|turn| matches!(turn, Turn::User { .. }));
        self.turns.truncate(at.unwrap_or(self.turns.len()));
        at.is_some()
    }

    /// Removes the newest answer, so that another can be generated. Returns whether something is there to be answered.
    pub(super) fn take_back(&mut self) -> bool {
        // Results of tools stay if their answer is taken back.
        let is_answer = |turn: &Turn| matches!(turn, Turn::Assistant { .. });
        if self.turns.last().is_some_and(is_answer) {
            self.turns.pop();
        }
        !self.turns.is_empty()
    }

    /// Removes calls whose results are missing, back to the message that led to them.
    pub(super) fn drop_open_calls(&mut self) {
        let has_calls = |turn: &Turn| matches!(turn, Turn::Assistant { answer, .. } if !answer.calls.is_empty());
        if let Some(at) = self.turns.iter().rposition(has_calls) {
            self.turns.truncate(at);
        }
    }

    /// The messages of a request.
    pub(super) fn messages(&self) -> Vec<Value> {
        let system = self.system.iter().map(|text| json!({"role": "system", "content": text}));
        system.chain(self.turns.iter().map(message)).collect()
    }
}

fn message(turn: &Turn) -> Value {
    match turn {
        Turn::User { text, images } if images.is_empty() => {
            json!({"role": "user", "content": text})
        }
        Turn::User { text, images } => {
            let images =
                images.iter().map(|url| json!({"type": "image_url", "image_url": {"url": url}}));
            let text = (!text.is_empty()).then(|| json!({"type": "text", "text": text}));
            json!({"role": "user", "content": images.chain(text).collect::<Vec<_>>()})
        }
        Turn::Assistant { answer, .. } => {
            let mut message = json!({"role": "assistant", "content": answer.content});
            if !answer.reasoning.is_empty() {
                message["reasoning_content"] = answer.reasoning.as_str().into();
            }
            if !answer.calls.is_empty() {
                let call = |call: &Call| {
                    let function = json!({"name": call.name, "arguments": call.arguments});
                    json!({"id": call.id, "type": "function", "function": function})
                };
                message["tool_calls"] = answer.calls.iter().map(call).collect();
            }
            message
        }
        Turn::Tool { call, result } => {
            json!({"role": "tool", "tool_call_id": call.id, "name": call.name, "content": result})
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(content: &str) -> Answer {
        Answer { content: content.into(), ..Answer::default() }
    }

    #[test]
    fn turns_are_taken_back_and_replaced() {
        let mut conversation = Conversation::default();
        assert!(!conversation.undo() && !conversation.take_back());
        conversation.ask("a".into(), Vec::new());
        conversation.answer(said("b"), false);
        conversation.ask("lost".into(), Vec::new());
        conversation.answer(Answer::default(), true);
        conversation.ask("c".into(), Vec::new());
        let contents: Vec<String> = conversation
            .messages()
            .iter()
            .map(|message| message["content"].as_str().unwrap().to_owned())
            .collect();
        assert_eq!(contents, ["a", "b", "c"]);
        conversation.answer(said("d"), false);
        assert!(conversation.take_back());
        assert_eq!(conversation.turns.len(), 3);
        assert!(conversation.undo());
        assert_eq!(conversation.turns.len(), 2);
    }

    #[test]
    fn calls_without_results_are_dropped() {
        let mut conversation = Conversation::default();
        conversation.ask("a".into(), Vec::new());
        let calls = vec![Call::default(), Call::default()];
        conversation.answer(Answer { calls, ..Answer::default() }, false);
        conversation.turns.push(Turn::Tool { call: Call::default(), result: "1".into() });
        conversation.drop_open_calls();
        assert_eq!(conversation.messages(), [json!({"role": "user", "content": "a"})]);
    }
}
