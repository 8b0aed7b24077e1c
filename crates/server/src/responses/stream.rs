//! The events of a streamed response.

use axum::body::Bytes;
use candlepower_api::{FinishReason, Usage};
use candlepower_engine::TokenLogprobs;
use serde_json::{Value, json};

use super::Turn;
use super::object::part;
use crate::api_error::ApiError;
use crate::sse::{ChunkFormat, named_event};
use crate::stream::Delta;

/// Writes the events of one response.
pub(super) struct ResponseStream {
    /// `None` when the last event is written.
    turn: Option<Turn>,
    num_events: u64,
    text: String,
    token_ids: Vec<u32>,
    finish: Option<FinishReason>,
}

impl ResponseStream {
    pub(super) fn new(turn: Turn) -> Self {
        Self {
            turn: Some(turn),
            num_events: 0,
            text: String::new(),
            token_ids: Vec::new(),
            finish: None,
        }
    }

    /// One event, numbered.
    fn event(&mut self, kind: &str, mut body: Value) -> Bytes {
        body["type"] = kind.into();
        body["sequence_number"] = self.num_events.into();
        self.num_events += 1;
        named_event(kind, &body)
    }

    /// One event about the text, which is the only part of the only item.
    fn text_event(&mut self, kind: &str, mut body: Value) -> Bytes {
        body["item_id"] = self.turn.as_ref().map(|turn| turn.object.item_id.clone()).into();
        body["output_index"] = 0.into();
        body["content_index"] = 0.into();
        self.event(kind, body)
    }

    fn item(&self, status: &str, text: Option<&str>) -> Value {
        let item = self.turn.as_ref().map(|turn| turn.object.item(status, text));
        json!({"output_index": 0, "item": item})
    }
}

impl ChunkFormat for ResponseStream {
    fn opening(&mut self, _: usize, _: Option<Usage>) -> Option<Bytes> {
        let response = self.turn.as_ref()?.object.in_progress();
        let item = self.item("in_progress", None);
        let events = [
            self.event("response.created", json!({"response": response})),
            self.event("response.in_progress", json!({"response": response})),
            self.event("response.output_item.added", item),
            self.text_event("response.content_part.added", json!({"part": part("")})),
        ];
        Some(events.concat().into())
    }

    fn prompt(
        &mut self,
        _: usize,
        _: Option<Vec<Option<TokenLogprobs>>>,
        _: Option<Usage>,
    ) -> Option<Bytes> {
        None
    }

    fn delta(&mut self, _: usize, delta: Delta, _: Option<Usage>) -> Bytes {
        self.token_ids.extend(&delta.token_ids);
        self.text.push_str(&delta.text);
        let mut events = Vec::new();
        if !delta.text.is_empty() {
            let body = json!({"delta": delta.text, "logprobs": []});
            events.push(self.text_event("response.output_text.delta", body));
        }
        if let Some(finish) = delta.finish {
            self.finish = Some(finish.reason);
            let text = self.text.clone();
            let status =
                if finish.reason == FinishReason::Stop { "completed" } else { "incomplete" };
            let done = json!({"text": text, "logprobs": []});
            events.push(self.text_event("response.output_text.done", done));
            events
                .push(self.text_event("response.content_part.done", json!({"part": part(&text)})));
            let item = self.item(status, Some(&text));
            events.push(self.event("response.output_item.done", item));
        }
        events.concat().into()
    }

    fn usage(&mut self, usage: Usage) -> Bytes {
        let (Some(turn), Some(reason)) = (self.turn.take(), self.finish) else {
            return Bytes::new();
        };
        let response = turn.finish(std::mem::take(&mut self.text), &self.token_ids, reason, usage);
        let kind = match reason {
            FinishReason::Stop => "response.completed",
            _ => "response.incomplete",
        };
        self.event(kind, json!({"response": response}))
    }

    fn error(&mut self, error: &ApiError) -> Bytes {
        let body = error.to_body().error;
        let event = json!({"code": body.code, "message": body.message, "param": body.param});
        self.event("error", event)
    }

    fn close(&mut self) -> Option<Bytes> {
        None
    }
}
