//! The events of a streamed response.

use axum::body::Bytes;
use candlepower_api::{ChatTokenLogprob, FinishReason, Usage};
use serde_json::{Value, json};

use super::Turn;
use super::object::Status;
use crate::generation::content_blocks::{Block, BlockEvent, Blocks};
use crate::generation::sse::{ChunkFormat, named_event};
use crate::generation::stream::Delta;
use crate::model::api_error::ApiError;

/// A writer of the events of one response.
pub(super) struct ResponseStream {
    /// `None` after the last event.
    turn: Option<Turn>,
    blocks: Blocks,
    num_events: u64,
    token_ids: Vec<u32>,
    finish: Option<FinishReason>,
}

impl ResponseStream {
    pub(super) fn new(turn: Turn, blocks: Blocks) -> Self {
        Self { turn: Some(turn), blocks, num_events: 0, token_ids: Vec::new(), finish: None }
    }

    /// An event with its sequence number.
    fn event(&mut self, kind: &str, mut body: Value) -> Bytes {
        body["type"] = kind.into();
        body["sequence_number"] = self.num_events.into();
        self.num_events += 1;
        named_event(kind, &body)
    }

    /// An event about the content of a block's item. Calls have no content parts.
    fn item_event(&mut self, kind: &str, index: usize, mut body: Value) -> Bytes {
        let block = &self.blocks.list()[index];
        body["item_id"] = self.turn.as_mut().map(|turn| turn.object.item_id(index, block)).into();
        body["output_index"] = index.into();
        if !matches!(block, Block::Call { .. }) {
            body["content_index"] = 0.into();
        }
        self.event(kind, body)
    }

    fn output_item(&mut self, kind: &str, index: usize, status: Status) -> Bytes {
        let block = &self.blocks.list()[index];
        let item = self.turn.as_mut().map(|turn| turn.object.item(index, block, status));
        self.event(kind, json!({"output_index": index, "item": item}))
    }

    /// The events for a change of a block. `logprobs` belong to the first text that is added to their block.
    fn block_event(
        &mut self,
        event: BlockEvent,
        logprobs: &mut Option<(usize, Vec<ChatTokenLogprob>)>,
    ) -> Bytes {
        match event {
            BlockEvent::Start(index) => self.start(index),
            BlockEvent::Delta(index, text) => {
                let (kind, body) = match self.blocks.list()[index] {
                    Block::Reasoning(_) => {
                        ("response.reasoning_text.delta", json!({"delta": text}))
                    }
                    Block::Text(_) => {
                        let logprobs = logprobs.take().filter(|(of, _)| *of == index);
                        let logprobs = logprobs.map_or_else(Vec::new, |(_, logprobs)| logprobs);
                        ("response.output_text.delta", json!({"delta": text, "logprobs": logprobs}))
                    }
                    Block::Call { .. } => {
                        ("response.function_call_arguments.delta", json!({"delta": text}))
                    }
                };
                self.item_event(kind, index, body)
            }
            BlockEvent::End(index) => self.end(index),
        }
    }

    fn part(&self, index: usize, block: &Block) -> Value {
        json!({"part": self.turn.as_ref().map(|turn| turn.object.part(index, block))})
    }

    fn start(&mut self, index: usize) -> Bytes {
        let added = self.output_item("response.output_item.added", index, Status::InProgress);
        let begun = self.blocks.begun(index);
        if matches!(begun, Block::Call { .. }) {
            return added;
        }
        let part = self.part(index, &begun);
        [added, self.item_event("response.content_part.added", index, part)].concat().into()
    }

    fn end(&mut self, index: usize) -> Bytes {
        let block = self.blocks.list()[index].clone();
        let (kind, body) = match &block {
            Block::Reasoning(text) => ("response.reasoning_text.done", json!({"text": text})),
            Block::Text(text) => {
                let logprobs =
                    self.turn.as_ref().map_or(&[][..], |turn| turn.object.logprobs(index));
                ("response.output_text.done", json!({"text": text, "logprobs": logprobs}))
            }
            Block::Call { name, arguments, .. } => {
                let given = self.turn.as_ref().map(|turn| turn.object.given_name(name).1);
                (
                    "response.function_call_arguments.done",
                    json!({"name": given, "arguments": arguments}),
                )
            }
        };
        let mut events = vec![self.item_event(kind, index, body)];
        if !matches!(block, Block::Call { .. }) {
            let part = self.part(index, &block);
            events.push(self.item_event("response.content_part.done", index, part));
        }
        let is_cut = self.blocks.is_cut_at(index, self.finish);
        let status = if is_cut { Status::Incomplete } else { Status::Completed };
        events.push(self.output_item("response.output_item.done", index, status));
        events.concat().into()
    }
}

impl ChunkFormat for ResponseStream {
    fn opening(&mut self, _: usize, _: Option<Usage>) -> Option<Bytes> {
        let response = self.turn.as_ref()?.object.in_progress();
        let events = [
            self.event("response.created", json!({"response": response})),
            self.event("response.in_progress", json!({"response": response})),
        ];
        Some(events.concat().into())
    }

    fn delta(&mut self, _: usize, delta: Delta, _: Option<Usage>) -> Bytes {
        self.token_ids.extend(&delta.token_ids);
        self.finish = delta.finish.as_ref().map(|finish| finish.reason);
        let (events, logprobs) = self.blocks.push_delta(delta);
        let mut logprobs = logprobs
            .zip(self.turn.as_mut())
            .map(|((index, tokens), turn)| (index, turn.add_logprobs(index, &tokens)));
        let event = |event| self.block_event(event, &mut logprobs);
        events.into_iter().map(event).collect::<Vec<Bytes>>().concat().into()
    }

    fn usage(&mut self, usage: Usage) -> Bytes {
        let (Some(turn), Some(reason)) = (self.turn.take(), self.finish) else {
            return Bytes::new();
        };
        let response = turn.finish(&self.blocks, &self.token_ids, reason, usage);
        let kind = match self.blocks.is_cut(reason) {
            false => "response.completed",
            true => "response.incomplete",
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
