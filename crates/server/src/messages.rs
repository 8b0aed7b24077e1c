//! POST /v1/messages and /v1/messages/count_tokens, in the shape of Anthropic's clients.

use std::sync::Arc;
use std::time::Instant;

use axum::Extension;
use axum::body::Bytes;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use candlepower_api::{
    ChatMessage, ErrorResponse, FinishReason, MessagesRequest, Role, StopReason, Usage,
};
use candlepower_engine::TokenLogprobs;
use serde_json::{Value, json};
use uuid::Uuid;

use crate::api_error::{ApiError, ApiResult};
use crate::body::JsonBytes;
use crate::config::ServeConfig;
use crate::constraint;
use crate::generate::{UsageCounter, check_queue, limits, submit};
use crate::params::{Generation, StreamShape};
use crate::prompt::{ChatPrompt, check_prompt, prepare};
use crate::sse::{self, ChunkFormat, named_event};
use crate::state::{AppState, LoadedModel};
use crate::stream::{Delta, finish_all};
use crate::text::Finish;

/// Continues a conversation.
#[utoipa::path(
    post,
    path = "/v1/messages",
    tag = "Generation",
    request_body = MessagesRequest,
    responses(
        (status = 200, description = "The message; with `stream`, server-sent events", body = Object),
        (status = 400, description = "A field cannot be taken as it is; `param` names it", body = ErrorResponse),
        (status = 404, description = "No such model", body = ErrorResponse),
        (status = 429, description = "The queue is full", body = ErrorResponse),
    )
)]
pub(crate) async fn create_message(
    State(state): State<AppState>,
    Extension(model): Extension<Arc<LoadedModel>>,
    JsonBytes(body): JsonBytes,
) -> ApiResult<Response> {
    let arrived = Instant::now();
    let prepared = {
        let (state, model) = (state.clone(), Arc::clone(&model));
        let len = constraint::preparation_cost(&body);
        prepare(&state.clone(), len, move || Prepared::new(&body, &model, state.config())).await?
    };
    let Prepared { model_name, generation, prompt } = prepared;
    let prompts = [prompt];
    let choices = submit(&state, &model, &prompts, &generation, arrived)?;
    let mut usage = UsageCounter::new(&prompts, 1);
    let format =
        MessageFormat { id: format!("msg_{}", Uuid::new_v4().simple()), model_name, finish: None };
    if generation.stream.is_some() {
        // The first event says what the prompt cost, the last one what the answer did.
        let shape = StreamShape { include_usage: true, continuous_usage: true };
        return Ok(sse::respond(format, choices, usage, shape));
    }
    let finished = finish_all(choices).await?.remove(0);
    usage.prompt(0, finished.num_cached_tokens);
    usage.generated(finished.delta.token_ids.len());
    let content = json!([{"type": "text", "text": finished.delta.text}]);
    let message = format.message(content, finished.delta.finish.as_ref(), usage.usage());
    Ok(axum::Json(message).into_response())
}

/// Says how many tokens a conversation has.
#[utoipa::path(
    post,
    path = "/v1/messages/count_tokens",
    tag = "Tokens",
    request_body = Object,
    responses(
        (status = 200, description = "`input_tokens`", body = Object),
        (status = 400, description = "A field cannot be taken as it is; `param` names it", body = ErrorResponse),
    )
)]
pub(crate) async fn count_tokens(
    State(state): State<AppState>,
    Extension(model): Extension<Arc<LoadedModel>>,
    JsonBytes(body): JsonBytes,
) -> ApiResult<axum::Json<Value>> {
    let len = body.len();
    let count = move || {
        let (name, messages) = MessagesRequest::parse_count(&body)?;
        model.check_name(&name)?;
        Ok(encode(&messages, None, &model)?.len())
    };
    let input_tokens = prepare(&state, len, count).await?;
    Ok(axum::Json(json!({"input_tokens": input_tokens})))
}

/// A request that was checked and turned into tokens.
struct Prepared {
    model_name: String,
    generation: Generation,
    prompt: Vec<u32>,
}

impl Prepared {
    fn new(body: &[u8], model: &LoadedModel, config: &ServeConfig) -> ApiResult<Self> {
        let request = MessagesRequest::parse(body)?;
        model.check_name(&request.model)?;
        let limits = limits(model, config, 1);
        let mut generation = Generation::new(&request.generation, &limits)
            .map_err(|error| error.about("stop", "stop_sequences"))?;
        check_queue(model, config, 1, 1)?;
        generation.grammar = constraint::compile(model, request.generation.constraint.as_ref())?;
        let effort = request.output_config.as_ref().and_then(|config| config.effort.as_deref());
        let prompt = encode(&request.messages, effort, model)?;
        check_prompt(model, "messages", &prompt, false)?;
        Ok(Self { model_name: request.model, generation, prompt })
    }
}

/// The tokens of a conversation; the assistant's last message is left open.
fn encode(
    messages: &[ChatMessage],
    reasoning_effort: Option<&str>,
    model: &LoadedModel,
) -> ApiResult<Vec<u32>> {
    let is_open = messages.last().is_some_and(|message| message.role == Role::Assistant);
    let prompt = ChatPrompt {
        continue_final_message: Some(is_open),
        reasoning_effort,
        ..ChatPrompt::new(messages)
    };
    prompt.encode(model)
}

/// How answers are written.
struct MessageFormat {
    id: String,
    model_name: String,
    finish: Option<Finish>,
}

impl MessageFormat {
    fn message(&self, content: Value, finish: Option<&Finish>, usage: Usage) -> Value {
        let (stop_reason, stop_sequence) = stop(finish);
        json!({
            "id": self.id, "type": "message", "role": "assistant", "model": self.model_name, "content": content,
            "stop_reason": stop_reason, "stop_sequence": stop_sequence, "usage": usage_of(usage),
        })
    }
}

/// Why it stopped, and at which of the request's strings.
fn stop(finish: Option<&Finish>) -> (Value, Value) {
    match finish {
        None => (Value::Null, Value::Null),
        Some(Finish { stop_reason: Some(StopReason::Text(text)), .. }) => {
            ("stop_sequence".into(), text.as_str().into())
        }
        Some(Finish { reason: FinishReason::Length, .. }) => ("max_tokens".into(), Value::Null),
        // What the server cut short when it stopped is not complete.
        Some(Finish { reason: FinishReason::Abort, .. }) => ("pause_turn".into(), Value::Null),
        Some(_) => ("end_turn".into(), Value::Null),
    }
}

/// Tokens from the cache are counted apart from the others of the prompt.
fn usage_of(usage: Usage) -> Value {
    let cached = usage.prompt_tokens_details.cached_tokens;
    json!({
        "input_tokens": usage.prompt_tokens - cached, "cache_read_input_tokens": cached,
        "cache_creation_input_tokens": 0, "output_tokens": usage.completion_tokens,
    })
}

fn typed_event(kind: &str, mut body: Value) -> Bytes {
    body["type"] = kind.into();
    named_event(kind, &body)
}

impl ChunkFormat for MessageFormat {
    fn opening(&mut self, _: usize, _: Option<Usage>) -> Option<Bytes> {
        None
    }

    fn prompt(
        &mut self,
        _: usize,
        _: Option<Vec<Option<TokenLogprobs>>>,
        usage: Option<Usage>,
    ) -> Option<Bytes> {
        let message = self.message(json!([]), None, usage.unwrap_or_default());
        let block = json!({"index": 0, "content_block": {"type": "text", "text": ""}});
        let events = [
            typed_event("message_start", json!({"message": message})),
            typed_event("content_block_start", block),
        ];
        Some(events.concat().into())
    }

    fn delta(&mut self, _: usize, delta: Delta, _: Option<Usage>) -> Bytes {
        self.finish = delta.finish.or(self.finish.take());
        if delta.text.is_empty() {
            return Bytes::new();
        }
        let text = json!({"type": "text_delta", "text": delta.text});
        typed_event("content_block_delta", json!({"index": 0, "delta": text}))
    }

    fn usage(&mut self, usage: Usage) -> Bytes {
        let (stop_reason, stop_sequence) = stop(self.finish.as_ref());
        let delta = json!({"stop_reason": stop_reason, "stop_sequence": stop_sequence});
        let events = [
            typed_event("content_block_stop", json!({"index": 0})),
            typed_event("message_delta", json!({"delta": delta, "usage": usage_of(usage)})),
            typed_event("message_stop", json!({})),
        ];
        events.concat().into()
    }

    fn error(&mut self, error: &ApiError) -> Bytes {
        typed_event("error", json!({"error": error.to_body().error}))
    }

    fn close(&mut self) -> Option<Bytes> {
        None
    }
}
