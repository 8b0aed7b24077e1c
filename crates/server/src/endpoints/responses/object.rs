//! The response object, while it is generated and when it is complete.

use std::collections::BTreeMap;

use candlepower_api::{
    ChatTokenLogprob, FinishReason, GenerationFields, ResponsesRequest, Tool, ToolChoice,
    ToolOptions, Usage,
};
use serde_json::{Value, json};
use uuid::Uuid;

use crate::generation::content_blocks::{Block, Blocks};
use crate::generation::prompt::unix_seconds;

/// The fields of a response that come from its request, and the ids of its items.
pub(super) struct ResponseObject {
    pub(super) id: String,
    /// Ids of the items that have begun.
    item_ids: Vec<String>,
    /// Whether the server stores it.
    pub(super) store: bool,
    request: ResponsesRequest,
    created_at: u64,
    temperature: f64,
    top_p: f64,
    presence_penalty: f64,
    frequency_penalty: f64,
    /// Log-probabilities of each text block, by its index.
    logprobs: BTreeMap<usize, Vec<ChatTokenLogprob>>,
}

impl ResponseObject {
    pub(super) fn new(request: ResponsesRequest, generation: &GenerationFields) -> Self {
        Self {
            id: format!("resp_{}", Uuid::new_v4().simple()),
            item_ids: Vec::new(),
            store: request.store.unwrap_or(true),
            created_at: unix_seconds(),
            temperature: generation.temperature.unwrap_or(1.0),
            top_p: generation.top_p.unwrap_or(1.0),
            presence_penalty: generation.presence_penalty.unwrap_or(0.0),
            frequency_penalty: generation.frequency_penalty.unwrap_or(0.0),
            logprobs: BTreeMap::new(),
            request,
        }
    }

    /// Adds log-probabilities of more tokens of a text.
    pub(super) fn add_logprobs(&mut self, index: usize, logprobs: Vec<ChatTokenLogprob>) {
        self.logprobs.entry(index).or_default().extend(logprobs);
    }

    /// Log-probabilities of a text so far.
    pub(super) fn logprobs(&self, index: usize) -> &[ChatTokenLogprob] {
        self.logprobs.get(&index).map_or(&[], Vec::as_slice)
    }

    /// The content part of a message or reasoning item.
    pub(super) fn part(&self, index: usize, block: &Block) -> Value {
        match block {
            Block::Reasoning(text) => json!({"type": "reasoning_text", "text": text}),
            Block::Text(text) | Block::Call { arguments: text, .. } => json!({
                "type": "output_text", "text": text, "annotations": [], "logprobs": self.logprobs(index),
            }),
        }
    }

    /// The object before anything is generated.
    pub(super) fn in_progress(&self) -> Value {
        self.with("in_progress", Value::Null, json!([]), Value::Null)
    }

    /// The object when all is generated; `num_reasoning_tokens` of the tokens are reasoning.
    pub(super) fn finished(
        &mut self,
        blocks: &Blocks,
        reason: FinishReason,
        usage: Usage,
        num_reasoning_tokens: usize,
    ) -> Value {
        let is_cut = blocks.is_cut(reason);
        let (status, details) = match reason {
            FinishReason::Length => ("incomplete", json!({"reason": "max_output_tokens"})),
            FinishReason::Abort => ("cancelled", Value::Null),
            // An incomplete call. The protocol has no reason for that; `max_output_tokens` is the nearest.
            FinishReason::Stop | FinishReason::ToolCalls if is_cut => {
                ("incomplete", json!({"reason": "max_output_tokens"}))
            }
            FinishReason::Stop | FinishReason::ToolCalls => ("completed", Value::Null),
        };
        let usage = json!({
            "input_tokens": usage.prompt_tokens,
            "input_tokens_details": {"cached_tokens": usage.prompt_tokens_details.cached_tokens},
            "output_tokens": usage.completion_tokens,
            "output_tokens_details": {"reasoning_tokens": num_reasoning_tokens},
            "total_tokens": usage.total_tokens,
        });
        let items = blocks.list().iter().enumerate().map(|(index, block)| {
            let is_cut = blocks.is_cut_at(index, Some(reason));
            self.item(index, block, if is_cut { Status::Incomplete } else { Status::Completed })
        });
        let items: Vec<Value> = items.collect();
        self.with(status, details, json!(items), usage)
    }

    /// The item of a block. In progress, it has no content.
    pub(super) fn item(&mut self, index: usize, block: &Block, status: Status) -> Value {
        let id = self.item_id(index, block);
        let is_begun = status == Status::InProgress;
        let content = || if is_begun { json!([]) } else { json!([self.part(index, block)]) };
        match block {
            Block::Reasoning(_) => json!({
                "id": id, "type": "reasoning", "status": status.as_str(), "summary": [], "content": content(),
                "encrypted_content": null,
            }),
            Block::Text(_) => json!({
                "id": id, "type": "message", "role": "assistant", "status": status.as_str(), "content": content(),
            }),
            Block::Call { id: call_id, name, arguments } => {
                let (namespace, name) = self.given_name(name);
                let mut item = json!({
                    "id": id, "type": "function_call", "status": status.as_str(), "call_id": call_id, "name": name,
                    "arguments": if is_begun { "" } else { arguments },
                });
                if let Some(namespace) = namespace {
                    item["namespace"] = namespace.into();
                }
                item
            }
        }
    }

    /// The namespace and the name of a function in the request.
    pub(super) fn given_name<'a>(&'a self, name: &'a str) -> (Option<&'a str>, &'a str) {
        let options = self.request.tool_options.as_ref();
        options.map_or((None, name), |options| options.given_name(name))
    }

    /// Id of the item of a block; items begin in order.
    pub(super) fn item_id(&mut self, index: usize, block: &Block) -> String {
        let kind = match block {
            Block::Reasoning(_) => "rs",
            Block::Text(_) => "msg",
            Block::Call { .. } => "fc",
        };
        if index == self.item_ids.len() {
            // The id leads to the response, in which a later request may refer to the item.
            let response = self.id.trim_start_matches("resp_");
            self.item_ids.push(format!("{kind}_{response}_{index}"));
        }
        self.item_ids[index].clone()
    }

    fn with(&self, status: &str, incomplete_details: Value, output: Value, usage: Value) -> Value {
        let request = &self.request;
        let format = request.text.as_ref().and_then(|text| text.format.as_ref());
        let tools = request.tool_options.as_ref();
        let effort = request.thinking.effort.as_ref().map(|effort| &effort.value);
        let ended = matches!(status, "completed" | "incomplete" | "cancelled");
        let mut object = json!({
            "id": self.id,
            "object": "response",
            "created_at": self.created_at,
            "completed_at": ended.then(unix_seconds),
            "status": status,
            "background": false,
            "error": null,
            "incomplete_details": incomplete_details,
            "instructions": request.instructions,
            "max_output_tokens": request.max_output_tokens,
            "metadata": request.metadata.clone().unwrap_or_default(),
            "model": request.model,
            "output": output,
            "parallel_tool_calls": tools.is_none_or(|options| options.parallel),
            "previous_response_id": request.previous_response_id,
            "presence_penalty": self.presence_penalty,
            "frequency_penalty": self.frequency_penalty,
            "top_logprobs": request.top_logprobs.unwrap_or(0),
            "reasoning": {"effort": effort, "summary": null},
            "store": self.store,
            "temperature": self.temperature,
            "text": {"format": format.map_or(json!({"type": "text"}), |format| json!(format))},
            "tool_choice": tools.map_or(json!("auto"), chosen),
            "tools": tools.map_or(Vec::new(), |options| described(&options.tools)),
            "top_p": self.top_p,
            "truncation": "disabled",
            "usage": usage,
        });
        if let Some(object) = object.as_object_mut() {
            object.extend(request.echoed.clone());
        }
        if object["service_tier"].is_null() {
            object["service_tier"] = "default".into();
        }
        object
    }
}

/// Status of an item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Status {
    InProgress,
    Completed,
    Incomplete,
}

impl Status {
    fn as_str(self) -> &'static str {
        match self {
            Self::InProgress => "in_progress",
            Self::Completed => "completed",
            Self::Incomplete => "incomplete",
        }
    }
}

/// Tools in the format of this API, with functions inside their namespaces.
fn described(tools: &[Tool]) -> Vec<Value> {
    let mut all: Vec<Value> = Vec::new();
    for tool in tools {
        let mut described = tool.definition["function"].clone();
        described["type"] = "function".into();
        described["strict"] = tool.strict.into();
        let Some(namespace) = &tool.namespace else {
            all.push(described);
            continue;
        };
        described["name"] = tool.given_name().into();
        let last = all
            .last_mut()
            .filter(|last| last["type"] == "namespace" && last["name"] == **namespace);
        match last.and_then(|last| last["tools"].as_array_mut()) {
            Some(members) => members.push(described),
            None => all.push(json!({"type": "namespace", "name": namespace, "tools": [described]})),
        }
    }
    all
}

/// A tool choice in the format of this API.
fn chosen(options: &ToolOptions) -> Value {
    let named = |name: &String| match options.given_name(name) {
        (None, name) => json!({"type": "function", "name": name}),
        (Some(namespace), name) => {
            json!({"type": "function", "name": name, "namespace": namespace})
        }
    };
    match &options.choice {
        ToolChoice::None => "none".into(),
        ToolChoice::Auto => "auto".into(),
        ToolChoice::Required => "required".into(),
        ToolChoice::Function(name) => named(name),
        ToolChoice::Allowed(allowed) => json!({
            "type": "allowed_tools", "mode": allowed.mode.as_str(),
            "tools": allowed.names.iter().map(named).collect::<Vec<_>>(),
        }),
    }
}
