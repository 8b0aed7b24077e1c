//! POST /v1/messages and /v1/messages/count_tokens, compatible with Anthropic's Messages API.

use axum::body::Bytes;
use axum::response::{IntoResponse, Response};
use candlepower_api::{
    ErrorResponse, FinishReason, MessagesPrompt, MessagesRequest, Role, StopReason, Usage,
};
use serde_json::{Value, json};
use uuid::Uuid;

use crate::generation::chat_output::AnswerFormat;
use crate::generation::content_blocks::{Block, BlockEvent, Blocks};
use crate::generation::conversation::Conversation;
use crate::generation::detokenize::Finish;
use crate::generation::encoded_prompt::EncodedPrompt;
use crate::generation::params::{Generation, StreamShape};
use crate::generation::pictures;
use crate::generation::preparation::Preparation;
use crate::generation::prompt::{CallPaths, ChatPrompt, check_prompt};
use crate::generation::request::Incoming;
use crate::generation::sse::{self, ChunkFormat, named_event};
use crate::generation::stream::{Delta, finish_all};
use crate::generation::submit::{UsageCounter, check_queue, limits, submit};
use crate::generation::tools::ToolUse;
use crate::model::api_error::{ApiError, ApiResult};
use crate::model::served_model::LoadedModel;

/// Generates the next message of a conversation (Anthropic Messages API).
#[utoipa::path(
    post,
    path = "/v1/messages",
    tag = "Generation",
    request_body = MessagesRequest,
    responses(
        (status = 200, description = "The message; server-sent events with `stream`", body = Object),
        (status = 400, description = "A field is invalid; `param` names it", body = ErrorResponse),
        (status = 404, description = "The model does not exist", body = ErrorResponse),
        (status = 429, description = "The queue is full, or a limit of the API key is reached", body = ErrorResponse),
    )
)]
pub(crate) async fn create_message(request: Incoming) -> ApiResult<Response> {
    let Prepared { model_name, generation, prompt, answers } =
        request.prepare(Prepared::new).await?;
    let prompts = [prompt];
    let choices = submit(&request, &prompts, &generation)?;
    let mut usage = UsageCounter::new(&prompts, 1);
    let mut format = MessageFormat {
        id: format!("msg_{}", Uuid::new_v4().simple()),
        model_name,
        blocks: Blocks::new(answers.answer()),
        finish: None,
    };
    if generation.stream.is_some() {
        // The first event reports the prompt's tokens, the last one the answer's.
        let shape = StreamShape { include_usage: true, continuous_usage: true };
        return Ok(sse::respond(format, choices, usage, shape));
    }
    let finished = finish_all(choices).await?.remove(0);
    usage.prompt(0, finished.num_cached_tokens);
    usage.generated(finished.delta.token_ids.len());
    format.take(finished.delta);
    Ok(axum::Json(format.message(usage.usage())).into_response())
}

/// Counts the tokens of a conversation.
#[utoipa::path(
    post,
    path = "/v1/messages/count_tokens",
    tag = "Tokens",
    request_body = MessagesPrompt,
    responses(
        (status = 200, description = "An object with `input_tokens`", body = Object),
        (status = 400, description = "A field is invalid; `param` names it", body = ErrorResponse),
    )
)]
pub(crate) async fn count_tokens(request: Incoming) -> ApiResult<axum::Json<Value>> {
    let input_tokens = request.prepare(num_tokens).await?;
    Ok(axum::Json(json!({"input_tokens": input_tokens})))
}

fn num_tokens(body: &[u8], model: &Preparation<'_, LoadedModel>) -> ApiResult<usize> {
    let request = MessagesPrompt::parse(body)?;
    model.asked_name(request.model.as_deref())?;
    model.leave_out_all(&request.not_held);
    let tools = ToolUse::new(request.tool_options.as_ref(), model)?;
    let prompt = chat_prompt(&request)?;
    let images = pictures::read(model, model, &request.messages)?;
    let prompt = ChatPrompt { images: &images, tools: tools.definitions(), ..prompt };
    Ok(prompt.encode(model, model)?.len())
}

/// A validated and tokenized request.
struct Prepared {
    model_name: String,
    generation: Generation,
    prompt: EncodedPrompt,
    answers: AnswerFormat,
}

impl Prepared {
    fn new(body: &[u8], model: &Preparation<'_, LoadedModel>) -> ApiResult<Self> {
        let MessagesRequest { prompt: request, generation } = MessagesRequest::parse(body)?;
        let model_name = model.asked_name(request.model.as_deref())?;
        model.leave_out_all(&request.not_held);
        let limits = limits(model, model.config, 1);
        let output = generation.constraint.as_ref();
        let mut generation = Generation::new(&generation, &limits)
            .map_err(|error| error.about("stop", "stop_sequences"))?;
        check_queue(model, "messages", 1, 1)?;
        let conversation = Conversation {
            prompt: chat_prompt(&request)?,
            tools: request.tool_options.as_ref(),
            output,
        };
        let (prompt, answers) = conversation.prepare(model, &mut generation)?;
        check_prompt(model, "messages", &prompt.token_ids, false)?;
        Ok(Self { model_name, generation, prompt, answers })
    }
}

/// The prompt of a conversation, without tools. If the assistant's message is the last one, the model continues it.
fn chat_prompt(request: &MessagesPrompt) -> ApiResult<ChatPrompt<'_>> {
    let last = request.messages.last().filter(|message| message.role == Role::Assistant);
    if last.is_some_and(|message| message.tool_calls.is_some()) {
        let message =
            "The last message has tool calls: add a message with their results (`tool_result`).";
        return Err(ApiError::invalid("messages", message));
    }
    Ok(ChatPrompt {
        continue_final_message: Some(last.is_some()),
        thinking: Some(&request.thinking),
        call_paths: Some(CallPaths { num_stored: 0, paths: &request.call_paths }),
        ..ChatPrompt::new(&request.messages)
    })
}

/// The state of an answer while it is generated.
struct MessageFormat {
    id: String,
    model_name: String,
    blocks: Blocks,
    finish: Option<Finish>,
}

impl MessageFormat {
    fn take(&mut self, delta: Delta) -> Vec<BlockEvent> {
        let reason = delta.finish.as_ref().map(|finish| finish.reason);
        let events = self.blocks.push(delta.parts, reason);
        if let Some(finish) = delta.finish {
            let reason = match finish.reason {
                // An answer with an incomplete call must not end with `tool_use`: clients would run the call.
                FinishReason::Stop if self.blocks.is_cut(finish.reason) => FinishReason::Length,
                other => self.blocks.finish_reason(other),
            };
            self.finish = Some(Finish { reason, ..finish });
        }
        events
    }

    /// The message so far.
    fn message(&self, usage: Usage) -> Value {
        let (stop_reason, stop_sequence) = stop(self.finish.as_ref());
        let content: Vec<Value> = self.blocks.list().iter().map(content_block).collect();
        json!({
            "id": self.id, "type": "message", "role": "assistant", "model": self.model_name, "content": content,
            "stop_reason": stop_reason, "stop_sequence": stop_sequence, "usage": usage_of(usage),
        })
    }

    fn event(&self, event: BlockEvent) -> Bytes {
        match event {
            BlockEvent::Start(index) => {
                let block = content_block(&self.blocks.begun(index));
                typed_event("content_block_start", json!({"index": index, "content_block": block}))
            }
            BlockEvent::Delta(index, text) => {
                let delta = match self.blocks.list()[index] {
                    Block::Reasoning(_) => json!({"type": "thinking_delta", "thinking": text}),
                    Block::Text(_) => json!({"type": "text_delta", "text": text}),
                    Block::Call { .. } => {
                        json!({"type": "input_json_delta", "partial_json": text})
                    }
                };
                typed_event("content_block_delta", json!({"index": index, "delta": delta}))
            }
            BlockEvent::End(index) => typed_event("content_block_stop", json!({"index": index})),
        }
    }
}

/// A block of the message. Signatures are empty, because the reasoning is not hidden from the client.
fn content_block(block: &Block) -> Value {
    match block {
        Block::Reasoning(text) => json!({"type": "thinking", "thinking": text, "signature": ""}),
        Block::Text(text) => json!({"type": "text", "text": text}),
        Block::Call { id, name, arguments } => {
            json!({"type": "tool_use", "id": id, "name": name, "input": input(arguments)})
        }
    }
}

/// The arguments of a call as an object, which this API requires.
///
/// Source: Anthropic's documentation of streamed tool use, for arguments that are not an object because they were cut.
fn input(arguments: &str) -> Value {
    match serde_json::from_str(arguments) {
        Ok(input @ Value::Object(_)) => input,
        _ if arguments.is_empty() => json!({}),
        _ => json!({"INVALID_JSON": arguments}),
    }
}

/// The stop reason, and the stop sequence of the request that was found.
fn stop(finish: Option<&Finish>) -> (Value, Value) {
    match finish {
        None => (Value::Null, Value::Null),
        Some(Finish { stop_reason: Some(StopReason::Text(text)), .. }) => {
            ("stop_sequence".into(), text.as_str().into())
        }
        Some(Finish { reason: FinishReason::Length, .. }) => ("max_tokens".into(), Value::Null),
        Some(Finish { reason: FinishReason::ToolCalls, .. }) => ("tool_use".into(), Value::Null),
        // An answer that was aborted at shutdown is incomplete.
        Some(Finish { reason: FinishReason::Abort, .. }) => ("pause_turn".into(), Value::Null),
        Some(_) => ("end_turn".into(), Value::Null),
    }
}

/// The usage, in which cached prompt tokens are counted apart from the others.
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
    /// The number of cached prompt tokens is not known yet; the last event has it.
    fn opening(&mut self, _: usize, usage: Option<Usage>) -> Option<Bytes> {
        let message = self.message(usage.unwrap_or_default());
        Some(typed_event("message_start", json!({"message": message})))
    }

    fn delta(&mut self, _: usize, delta: Delta, _: Option<Usage>) -> Bytes {
        let events = self.take(delta);
        events.into_iter().map(|event| self.event(event)).collect::<Vec<_>>().concat().into()
    }

    fn usage(&mut self, usage: Usage) -> Bytes {
        let (stop_reason, stop_sequence) = stop(self.finish.as_ref());
        let delta = json!({"stop_reason": stop_reason, "stop_sequence": stop_sequence});
        let events = [
            typed_event("message_delta", json!({"delta": delta, "usage": usage_of(usage)})),
            typed_event("message_stop", json!({})),
        ];
        events.concat().into()
    }

    fn error(&mut self, error: &ApiError) -> Bytes {
        named_event("error", &error.to_anthropic())
    }

    fn keep_alive(&mut self) -> Bytes {
        typed_event("ping", json!({}))
    }

    fn close(&mut self) -> Option<Bytes> {
        None
    }
}
