//! From a request's texts and conversations to token ids.

use std::time::{SystemTime, UNIX_EPOCH};

use candlepower_api::{ChatMessage, PastToolCall, Role};
use candlepower_dialect::{NoContent, PastCalls};
use candlepower_tokenizer::{AddSpecialTokens, LocalTime, Prompt, PromptEnd, RenderInput};
use serde_json::{Map, Value};

use crate::generation::cancellation;
use crate::model::api_error::{ApiError, ApiResult};
use crate::model::served_model::{LoadedModel, ModelCard};

/// Bytes of a prompt's limit for each token of the context; common text has four bytes a token.
pub(crate) const BYTES_PER_TOKEN: usize = 16;

/// How a conversation becomes a prompt.
pub(crate) struct ChatPrompt<'a> {
    pub(crate) messages: &'a [ChatMessage],
    /// What the model may call, a list in the form of the protocol.
    pub(crate) tools: Option<&'a Value>,
    pub(crate) add_generation_prompt: Option<bool>,
    pub(crate) continue_final_message: Option<bool>,
    pub(crate) chat_template_kwargs: Option<&'a Map<String, Value>>,
    pub(crate) reasoning_effort: Option<&'a str>,
    pub(crate) add_special_tokens: bool,
}

impl<'a> ChatPrompt<'a> {
    /// The usual prompt of a conversation, which ends with the opening of the assistant's turn.
    pub(crate) fn new(messages: &'a [ChatMessage]) -> Self {
        Self {
            messages,
            tools: None,
            add_generation_prompt: None,
            continue_final_message: None,
            chat_template_kwargs: None,
            reasoning_effort: None,
            add_special_tokens: false,
        }
    }
}

impl ChatPrompt<'_> {
    /// The prompt's token ids.
    pub(crate) fn encode(&self, model: &LoadedModel) -> ApiResult<Vec<u32>> {
        self.tokenize(model, &self.render(model)?)
    }

    /// The prompt as the template writes it.
    pub(crate) fn render(&self, model: &LoadedModel) -> ApiResult<Prompt> {
        let template = model.chat_template.as_ref().ok_or_else(|| {
            ApiError::invalid(
                "messages",
                "This model has no chat template: use /v1/completions, or start the server with --chat-template.",
            )
        })?;
        let mut kwargs = self.chat_template_kwargs.cloned().unwrap_or_default();
        if let Some(effort) = self.reasoning_effort {
            kwargs.entry("reasoning_effort").or_insert_with(|| effort.into());
        }
        let messages = template_messages(self.messages, model.knows_developer, model.past_calls);
        let given = text_bytes(&messages) + self.tools.map_or(0, text_bytes);
        check_text_bytes(model, "messages", given)?;
        let input = RenderInput {
            messages: &messages,
            tools: self.tools,
            documents: None,
            end: self.end()?,
            chat_template_kwargs: &kwargs,
            now: now(),
        };
        let prompt = template.prompt(&input, &model.tokenizer).map_err(invalid_messages)?;
        check_text_length(model, "messages", prompt.text())?;
        check_text_bytes(model, "messages", prompt.text().len())?;
        Ok(prompt)
    }

    /// The token ids of a rendered prompt.
    pub(crate) fn tokenize(&self, model: &LoadedModel, prompt: &Prompt) -> ApiResult<Vec<u32>> {
        let add = add_special_tokens(self.add_special_tokens);
        let cancelled = cancellation::flag();
        let ids = model.tokenizer.encode_prompt_until(prompt, add, &cancelled);
        ids.map_err(invalid_messages)
    }

    fn end(&self) -> ApiResult<PromptEnd> {
        match (self.add_generation_prompt, self.continue_final_message.unwrap_or(false)) {
            (Some(true), true) => Err(ApiError::invalid(
                "continue_final_message",
                "`continue_final_message` and `add_generation_prompt` cannot both be true.",
            )),
            (_, true) => Ok(PromptEnd::ContinueFinalMessage),
            (Some(false), false) => Ok(PromptEnd::LastMessage),
            (None | Some(true), false) => Ok(PromptEnd::GenerationPrompt),
        }
    }
}

fn invalid_messages(error: candlepower_tokenizer::Error) -> ApiError {
    ApiError::invalid("messages", candlepower_api::clip(&error.to_string()))
}

/// The token ids of a text. A text that cannot fit the context is refused without looking at all of it.
pub(crate) fn encode(
    model: &LoadedModel,
    param: &'static str,
    text: &str,
    add_special: bool,
) -> ApiResult<Vec<u32>> {
    check_text_length(model, param, text)?;
    encode_any_length(model, param, text, add_special)
}

/// The token ids of a text, which may be longer than the context, but not without bound.
pub(crate) fn encode_any_length(
    model: &ModelCard,
    param: &'static str,
    text: &str,
    add_special: bool,
) -> ApiResult<Vec<u32>> {
    check_text_bytes(model, param, text.len())?;
    model
        .tokenizer
        .encode_until(text, add_special_tokens(add_special), &cancellation::flag())
        .map_err(|error| ApiError::invalid(param, candlepower_api::clip(&error.to_string())))
}

fn add_special_tokens(add: bool) -> AddSpecialTokens {
    if add { AddSpecialTokens::Yes } else { AddSpecialTokens::No }
}

/// Refuses a text that cannot fit the context, without tokenizing it.
pub(crate) fn check_text_length(
    model: &ModelCard,
    param: impl Into<String>,
    text: &str,
) -> ApiResult<()> {
    // Normalisation may shorten a text, but not to a quarter.
    let least_tokens = text.len() / model.max_token_bytes / 4;
    let context = model.max_model_len;
    if least_tokens <= context {
        return Ok(());
    }
    let message = format!(
        "This model's maximum context length is {context} tokens, but the prompt has at least {least_tokens}."
    );
    Err(ApiError::context_length(param, message))
}

/// Refuses the texts of a prompt that have more bytes than the server takes.
pub(crate) fn check_text_bytes(
    model: &ModelCard,
    param: impl Into<String>,
    num_bytes: usize,
) -> ApiResult<()> {
    let limit = model.max_prompt_bytes;
    if num_bytes <= limit {
        return Ok(());
    }
    let message = format!(
        "The text has {num_bytes} bytes, and this server takes at most {limit} for one prompt: shorten it, or start the \
         server with a larger --max-prompt-bytes."
    );
    Err(ApiError::context_length(param, message))
}

/// The bytes of all texts in a JSON value. Each value counts as some, because a template writes something for it.
fn text_bytes(value: &Value) -> usize {
    const BYTES_PER_VALUE: usize = 8;
    BYTES_PER_VALUE
        + match value {
            Value::String(text) => text.len(),
            Value::Array(items) => items.iter().map(text_bytes).sum(),
            Value::Object(fields) => {
                fields.iter().map(|(name, value)| name.len() + text_bytes(value)).sum()
            }
            Value::Null | Value::Bool(_) | Value::Number(_) => 0,
        }
}

/// Checks that a prompt has tokens, all of them of the model, and leaves room for an answer.
pub(crate) fn check_prompt(
    model: &LoadedModel,
    param: &'static str,
    token_ids: &[u32],
    only_scores: bool,
) -> ApiResult<()> {
    if token_ids.is_empty() {
        return Err(ApiError::invalid(param, "The prompt is empty: it needs at least one token."));
    }
    let (context, len) = (model.max_model_len, token_ids.len());
    let message = format!(
        "This model's maximum context length is {context} tokens, but the prompt has {len}."
    );
    if len > context {
        return Err(ApiError::context_length(param, message));
    }
    if len == context && !only_scores {
        let message = format!("{message} At least one token must be left for the answer.");
        return Err(ApiError::context_length(param, message));
    }
    let vocab_size = model.vocab_size;
    match token_ids.iter().find(|id| **id as usize >= vocab_size) {
        Some(id) => Err(ApiError::invalid(
            param,
            format!("Token id {id} is outside the model's vocabulary of {vocab_size}."),
        )),
        None => Ok(()),
    }
}

/// The messages as templates know them; calls in the form that the template takes.
fn template_messages(
    messages: &[ChatMessage],
    knows_developer: bool,
    past_calls: PastCalls,
) -> Value {
    let message = |message: &ChatMessage| {
        let mut object = Map::new();
        let role = match message.role {
            Role::Developer if knows_developer => "developer",
            Role::System | Role::Developer => "system",
            Role::User => "user",
            Role::Assistant => "assistant",
            Role::Tool => "tool",
        };
        object.insert("role".into(), role.into());
        let mut optional = |key: &str, value: Option<Value>| {
            if let Some(value) = value {
                object.insert(key.into(), value);
            }
        };
        optional("content", content(message, past_calls.no_content));
        optional("name", message.name.clone().map(Value::from));
        optional("tool_call_id", message.tool_call_id.clone().map(Value::from));
        optional("reasoning_content", message.reasoning_content.clone().map(Value::from));
        optional(
            "tool_calls",
            message
                .tool_calls
                .as_ref()
                .map(|calls| calls.iter().map(|call| tool_call(call, past_calls)).collect()),
        );
        Value::Object(object)
    };
    let mut messages: Vec<Value> = messages.iter().map(message).collect();
    past_calls.name_calls(&mut messages);
    messages.into()
}

/// What a message says, and in the form that the template takes where it says nothing beside its calls.
fn content(message: &ChatMessage, no_content: NoContent) -> Option<Value> {
    let Some(content) = &message.content else { return no_content.value() };
    let text = content.to_text();
    let is_null = no_content == NoContent::Null && message.tool_calls.is_some() && text.is_empty();
    Some(if is_null { Value::Null } else { text.into() })
}

/// A call with its arguments as the template takes them; the protocol has them as a string of JSON.
fn tool_call(PastToolCall(call): &PastToolCall, past_calls: PastCalls) -> Value {
    let mut call = call.clone();
    if let Some(arguments) =
        call.get_mut("function").and_then(|function| function.get_mut("arguments"))
    {
        past_calls.shape_arguments(arguments);
    }
    Value::Object(call)
}

/// The time, in UTC.
fn now() -> LocalTime {
    LocalTime { unix_s: i64::try_from(unix_seconds()).unwrap_or(i64::MAX), utc_offset_s: 0 }
}

/// Seconds since 1970.
pub(crate) fn unix_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |duration| duration.as_secs())
}

#[cfg(test)]
mod tests {
    use candlepower_api::ChatCompletionRequest;
    use serde_json::json;

    use super::*;

    fn messages(messages: Value) -> Vec<ChatMessage> {
        let body = json!({"model": "m", "messages": messages}).to_string();
        ChatCompletionRequest::parse(body.as_bytes()).unwrap().messages
    }

    #[test]
    fn templates_get_plain_text_and_known_roles() {
        let messages = messages(json!([
            {"role": "developer", "content": "be brief"},
            {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        ]));
        assert_eq!(
            template_messages(&messages, false, PastCalls::default()),
            json!([{"role": "system", "content": "be brief"}, {"role": "user", "content": "a\nb"}])
        );
        assert_eq!(
            template_messages(&messages, true, PastCalls::default())[0]["role"],
            "developer"
        );
    }

    #[test]
    fn arguments_of_calls_become_objects() {
        let messages = messages(json!([{"role": "assistant", "content": null, "tool_calls": [
            {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{\"x\": 1}"}},
            {"id": "d", "type": "function", "function": {"name": "g", "arguments": "not json"}},
        ]}]));
        let rendered = template_messages(&messages, false, PastCalls::default());
        assert_eq!(rendered[0]["tool_calls"][0]["function"]["arguments"], json!({"x": 1}));
        assert_eq!(rendered[0]["tool_calls"][1]["function"]["arguments"], "not json");
    }

    #[test]
    fn calls_have_the_form_that_the_template_takes() {
        let call = json!({"id": "c", "type": "function", "function": {"name": "f", "arguments": "{\"x\": 1}"}});
        let turn =
            |content: Value| json!({"role": "assistant", "content": content, "tool_calls": [call]});
        let messages = messages(json!([turn(Value::Null), turn(json!("")), turn(json!("a"))]));
        for (no_content, contents) in [
            (NoContent::Absent, [None, Some(json!("")), Some(json!("a"))]),
            (NoContent::Empty, [Some(json!("")), Some(json!("")), Some(json!("a"))]),
            (NoContent::Null, [Some(Value::Null), Some(Value::Null), Some(json!("a"))]),
        ] {
            let past_calls =
                PastCalls { arguments_as_text: true, no_content, ..PastCalls::default() };
            let rendered = template_messages(&messages, false, past_calls);
            for (turn, content) in rendered.as_array().unwrap().iter().zip(contents) {
                assert_eq!(turn.get("content"), content.as_ref(), "{no_content:?}");
                assert_eq!(turn["tool_calls"][0], call);
            }
        }
    }

    #[test]
    fn prompts_end_in_one_of_three_ways() {
        let end = |add, go_on| {
            ChatPrompt {
                messages: &[],
                tools: None,
                add_generation_prompt: add,
                continue_final_message: go_on,
                chat_template_kwargs: None,
                reasoning_effort: None,
                add_special_tokens: false,
            }
            .end()
        };
        assert_eq!(end(None, None), Ok(PromptEnd::GenerationPrompt));
        assert_eq!(end(Some(false), None), Ok(PromptEnd::LastMessage));
        assert_eq!(end(None, Some(true)), Ok(PromptEnd::ContinueFinalMessage));
        assert!(end(Some(true), Some(true)).is_err());
    }
}
