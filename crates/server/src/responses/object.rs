//! The response as JSON, while it is generated and when it is done.

use candlepower_api::{FinishReason, GenerationFields, ResponsesRequest, Usage};
use serde_json::{Value, json};
use uuid::Uuid;

use crate::prompt::unix_seconds;

/// What is known of a response from its request.
pub(super) struct ResponseObject {
    pub(super) id: String,
    pub(super) item_id: String,
    /// Whether the server is to hold it.
    pub(super) store: bool,
    request: ResponsesRequest,
    created_at: u64,
    temperature: f64,
    top_p: f64,
}

impl ResponseObject {
    pub(super) fn new(request: ResponsesRequest, generation: &GenerationFields) -> Self {
        Self {
            id: format!("resp_{}", Uuid::new_v4().simple()),
            item_id: format!("msg_{}", Uuid::new_v4().simple()),
            store: request.store.unwrap_or(true),
            created_at: unix_seconds(),
            temperature: generation.temperature.unwrap_or(1.0),
            top_p: generation.top_p.unwrap_or(1.0),
            request,
        }
    }

    /// Before anything is generated.
    pub(super) fn in_progress(&self) -> Value {
        self.with("in_progress", Value::Null, json!([]), Value::Null)
    }

    /// When all is generated.
    pub(super) fn finished(&self, text: &str, reason: FinishReason, usage: Usage) -> Value {
        let (status, details) = match reason {
            FinishReason::Length => ("incomplete", json!({"reason": "max_output_tokens"})),
            FinishReason::Abort => ("cancelled", Value::Null),
            _ => ("completed", Value::Null),
        };
        let item_status = if status == "completed" { status } else { "incomplete" };
        let usage = json!({
            "input_tokens": usage.prompt_tokens,
            "input_tokens_details": {"cached_tokens": usage.prompt_tokens_details.cached_tokens},
            "output_tokens": usage.completion_tokens,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": usage.total_tokens,
        });
        self.with(status, details, json!([self.item(item_status, Some(text))]), usage)
    }

    /// The message, with its text if that is complete.
    pub(super) fn item(&self, status: &str, text: Option<&str>) -> Value {
        let content: Vec<Value> = text.into_iter().map(part).collect();
        json!({
            "id": self.item_id, "type": "message", "role": "assistant", "status": status, "content": content,
        })
    }

    fn with(&self, status: &str, incomplete_details: Value, output: Value, usage: Value) -> Value {
        let request = &self.request;
        let format = request.text.as_ref().and_then(|text| text.format.as_ref());
        json!({
            "id": self.id,
            "object": "response",
            "created_at": self.created_at,
            "status": status,
            "error": null,
            "incomplete_details": incomplete_details,
            "instructions": request.instructions,
            "max_output_tokens": request.max_output_tokens,
            "metadata": request.metadata.clone().unwrap_or_default(),
            "model": request.model,
            "output": output,
            "parallel_tool_calls": true,
            "previous_response_id": request.previous_response_id,
            "reasoning": {"effort": request.reasoning_effort, "summary": null},
            "store": self.store,
            "temperature": self.temperature,
            "text": {"format": format.map_or(json!({"type": "text"}), |format| json!(format))},
            "tool_choice": "auto",
            "tools": [],
            "top_p": self.top_p,
            "truncation": "disabled",
            "usage": usage,
        })
    }
}

/// A part of a message.
pub(super) fn part(text: &str) -> Value {
    json!({"type": "output_text", "text": text, "annotations": [], "logprobs": []})
}
