//! Converts texts and conversations of requests to token ids.

use std::time::{SystemTime, UNIX_EPOCH};

use candlepower_api::{ChatMessage, ThinkingOptions};
use candlepower_tokenizer::{AddSpecialTokens, LocalTime, Prompt, PromptEnd, RenderInput};
use serde_json::{Map, Value};

use crate::generation::encoded_prompt::EncodedPrompt;
use crate::generation::pictures::Resized;
use crate::generation::preparation::Preparation;
use crate::generation::template_form::{MendedCall, template_messages};
use crate::generation::{cancellation, image_tokens, thinking};
use crate::model::api_error::{ApiError, ApiResult};
use crate::model::served_model::{LoadedModel, ModelCard};

/// Bytes of a prompt's limit for each token of the context. Common text has four bytes a token.
pub(crate) const BYTES_PER_TOKEN: usize = 16;

/// A conversation, with all options of its prompt.
pub(crate) struct ChatPrompt<'a> {
    pub(crate) messages: &'a [ChatMessage],
    /// The images of the messages, in their order.
    pub(crate) images: &'a [Resized],
    /// Tools, as a list in the format of the OpenAI API.
    pub(crate) tools: Option<&'a Value>,
    pub(crate) add_generation_prompt: Option<bool>,
    pub(crate) continue_final_message: Option<bool>,
    pub(crate) chat_template_kwargs: Option<&'a Map<String, Value>>,
    pub(crate) documents: Option<&'a Value>,
    pub(crate) thinking: Option<&'a ThinkingOptions>,
    pub(crate) add_special_tokens: bool,
    /// The places of calls in the request; `None` if they are those of the messages.
    pub(crate) call_paths: Option<CallPaths<'a>>,
}

/// The paths of the arguments of all calls of a conversation.
#[derive(Clone, Copy)]
pub(crate) struct CallPaths<'a> {
    /// Number of calls in the stored conversation before those of the request.
    pub(crate) num_stored: usize,
    /// Paths of the arguments of the request's calls.
    pub(crate) paths: &'a [String],
}

impl CallPaths<'_> {
    /// The path of the arguments of the `number`-th call.
    fn of(self, number: usize) -> String {
        let path = number.checked_sub(self.num_stored).and_then(|number| self.paths.get(number));
        path.map_or_else(|| "previous_response_id".to_owned(), String::clone)
    }
}

impl<'a> ChatPrompt<'a> {
    /// The default prompt of a conversation, which ends with the start of the assistant's turn.
    pub(crate) fn new(messages: &'a [ChatMessage]) -> Self {
        Self {
            messages,
            images: &[],
            tools: None,
            add_generation_prompt: None,
            continue_final_message: None,
            chat_template_kwargs: None,
            documents: None,
            thinking: None,
            add_special_tokens: false,
            call_paths: None,
        }
    }
}

/// A rendered prompt, and the parts of the conversation that the template cannot render.
pub(crate) struct Rendered {
    pub(crate) prompt: Prompt,
    /// Paths of arguments of earlier calls that are not JSON objects, and were replaced by empty ones.
    pub(crate) mended: Vec<String>,
}

impl Rendered {
    /// Notes the replaced arguments for the response header.
    pub(crate) fn tell<M>(&self, preparation: &Preparation<'_, M>) {
        for path in &self.mended {
            preparation.leave_out(path, Some("no JSON object"));
        }
    }
}

impl ChatPrompt<'_> {
    /// The prompt's token ids and images, of a request that generates nothing.
    pub(crate) fn encode<M>(
        &self,
        model: &LoadedModel,
        preparation: &Preparation<'_, M>,
    ) -> ApiResult<EncodedPrompt> {
        let rendered = self.render(model)?;
        rendered.tell(preparation);
        self.tokenize(model, &rendered.prompt)
    }

    /// The path of the arguments of a call.
    fn path_of(&self, MendedCall { message, call }: MendedCall) -> String {
        let Some(paths) = self.call_paths else {
            return format!("messages[{message}].tool_calls[{call}].function.arguments");
        };
        let calls = |message: &ChatMessage| message.tool_calls.as_ref().map_or(0, Vec::len);
        let num_before: usize = self.messages[..message].iter().map(calls).sum();
        paths.of(num_before + call)
    }

    /// Renders the prompt with the chat template.
    pub(crate) fn render(&self, model: &LoadedModel) -> ApiResult<Rendered> {
        let template = model.chat_template.as_ref().ok_or_else(|| {
            ApiError::invalid(
                "messages",
                "This model has no chat template: use /v1/completions, or start the server with --chat-template.",
            )
        })?;
        let mut kwargs = self.chat_template_kwargs.cloned().unwrap_or_default();
        if let Some(options) = self.thinking {
            thinking::pass_to_template(options, model, &mut kwargs);
        }
        let Overrides { documents, add_generation_prompt } = Overrides::take(&mut kwargs)?;
        let documents = match (&documents, self.documents) {
            (Some(_), Some(_)) => {
                return Err(given_twice("documents"));
            }
            (given, own) => given.as_ref().or(own),
        };
        if documents.is_some() && !model.takes_documents {
            let message = "The chat template of this model does not support `documents`: put them into a message.";
            return Err(ApiError::invalid("documents", message));
        }
        let mut mended = Vec::new();
        let messages = template_messages(self.messages, model, &mut mended);
        let given = [self.tools, documents].into_iter().flatten().map(text_bytes).sum::<usize>();
        check_text_bytes(model, "messages", text_bytes(&messages) + given)?;
        let input = RenderInput {
            messages: &messages,
            tools: self.tools,
            documents,
            end: self.end(add_generation_prompt)?,
            chat_template_kwargs: &kwargs,
            now: now(),
        };
        let prompt = template.prompt(&input, &model.tokenizer).map_err(invalid_messages)?;
        check_text_length(model, "messages", prompt.text())?;
        check_text_bytes(model, "messages", prompt.text().len())?;
        let mended = mended.into_iter().map(|call| self.path_of(call)).collect();
        Ok(Rendered { prompt, mended })
    }

    /// The token ids of a rendered prompt, with those of its images.
    pub(crate) fn tokenize(
        &self,
        model: &LoadedModel,
        prompt: &Prompt,
    ) -> ApiResult<EncodedPrompt> {
        let add = add_special_tokens(self.add_special_tokens);
        let cancelled = cancellation::flag();
        let encode = |prompt: &Prompt| {
            let ids = model.tokenizer.encode_prompt_until(prompt, add, &cancelled);
            ids.map_err(invalid_messages)
        };
        let support = model.images.support().filter(|_| !self.images.is_empty());
        let Some(support) = support else { return encode(prompt).map(EncodedPrompt::from) };
        let spelled_out = image_tokens::spelled_out(prompt, support);
        let token_ids = encode(spelled_out.as_ref().unwrap_or(prompt))?;
        image_tokens::place(token_ids, self.images, support, model.max_model_len)
    }

    /// The end of the prompt; `by_kwargs` is the value of `add_generation_prompt` in the template's variables.
    fn end(&self, by_kwargs: Option<bool>) -> ApiResult<PromptEnd> {
        let add_generation_prompt = match (self.add_generation_prompt, by_kwargs) {
            (Some(one), Some(other)) if one != other => {
                return Err(given_twice("add_generation_prompt"));
            }
            (one, other) => one.or(other),
        };
        match (add_generation_prompt, self.continue_final_message.unwrap_or(false)) {
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

/// Variables in `chat_template_kwargs` that are also fields of the request.
struct Overrides {
    documents: Option<Value>,
    add_generation_prompt: Option<bool>,
}

impl Overrides {
    /// Removes them from the variables.
    fn take(kwargs: &mut Map<String, Value>) -> ApiResult<Self> {
        for name in ["messages", "tools"] {
            if kwargs.remove(name).is_some_and(|value| !value.is_null()) {
                let message = format!(
                    "`chat_template_kwargs.{name}` is not allowed: use the field `{name}` instead."
                );
                return Err(ApiError::invalid(format!("chat_template_kwargs.{name}"), message));
            }
        }
        let documents = kwargs.remove("documents").filter(|documents| !documents.is_null());
        let is_list = |documents: &Value| {
            documents.as_array().is_some_and(|list| list.iter().all(Value::is_object))
        };
        if documents.as_ref().is_some_and(|documents| !is_list(documents)) {
            let message = "`chat_template_kwargs.documents` must be a list of objects.";
            return Err(ApiError::invalid("chat_template_kwargs.documents", message));
        }
        let add_generation_prompt = match kwargs.remove("add_generation_prompt") {
            None | Some(Value::Null) => None,
            Some(Value::Bool(add)) => Some(add),
            Some(_) => {
                let message = "`chat_template_kwargs.add_generation_prompt` must be true or false.";
                return Err(ApiError::invalid(
                    "chat_template_kwargs.add_generation_prompt",
                    message,
                ));
            }
        };
        Ok(Self { documents, add_generation_prompt })
    }
}

fn given_twice(name: &str) -> ApiError {
    let message = format!("`{name}` and `chat_template_kwargs.{name}` differ: give one of them.");
    ApiError::invalid(format!("chat_template_kwargs.{name}"), message)
}

/// The error of a conversation. Its end is cut, because a template's error may quote the conversation there.
fn invalid_messages(error: candlepower_tokenizer::Error) -> ApiError {
    const MAX_CHARS: usize = 190;
    let message = error.to_string();
    let cut = message.char_indices().nth(MAX_CHARS);
    let message = cut.map_or(message.clone(), |(at, _)| format!("{}...", &message[..at]));
    ApiError::invalid("messages", message)
}

/// The token ids of a text. A text that cannot fit the context is refused without tokenizing it.
pub(crate) fn encode(
    model: &LoadedModel,
    param: &'static str,
    text: &str,
    add_special: bool,
) -> ApiResult<Vec<u32>> {
    check_text_length(model, param, text)?;
    encode_any_length(model, param, text, add_special)
}

/// The token ids of a text that may be longer than the context, up to `--max-prompt-bytes`.
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
    // Normalization may shorten a text, but not to less than a quarter.
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

/// Refuses texts of a prompt with more bytes than the limit: tokenizing takes some hundred bytes of memory for a byte of text.
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
        "The text has {num_bytes} bytes, and this server accepts at most {limit} for one prompt: shorten it, or start the \
         server with a larger --max-prompt-bytes."
    );
    Err(ApiError::context_length(param, message))
}

/// The bytes of all texts in a JSON value. Each value adds a few, because a template writes something for it.
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

/// Checks that a prompt is not empty, has valid token ids, and leaves space for an answer.
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
        let message = format!(
            "{message} Shorten it by at least one token, so that there is space for the answer."
        );
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

/// The current time in UTC.
fn now() -> LocalTime {
    LocalTime { unix_s: i64::try_from(unix_seconds()).unwrap_or(i64::MAX), utc_offset_s: 0 }
}

/// Seconds since 1970.
pub(crate) fn unix_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |duration| duration.as_secs())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn variables_of_the_template_that_are_fields_are_not_lost() {
        let take = |kwargs: Value| Overrides::take(&mut kwargs.as_object().unwrap().clone());
        let taken = take(json!({"documents": [{"a": 1}], "add_generation_prompt": false})).unwrap();
        assert_eq!(taken.documents, Some(json!([{"a": 1}])));
        assert_eq!(taken.add_generation_prompt, Some(false));
        for (kwargs, param) in [
            (json!({"tools": []}), "chat_template_kwargs.tools"),
            (json!({"messages": []}), "chat_template_kwargs.messages"),
            (json!({"documents": ["a"]}), "chat_template_kwargs.documents"),
            (json!({"add_generation_prompt": 1}), "chat_template_kwargs.add_generation_prompt"),
        ] {
            let error = take(kwargs).err().unwrap().to_body().error;
            assert_eq!(error.param.as_deref(), Some(param));
        }
    }

    #[test]
    fn prompts_end_in_one_of_three_ways() {
        let end = |add, go_on| {
            let prompt = ChatPrompt {
                add_generation_prompt: add,
                continue_final_message: go_on,
                ..ChatPrompt::new(&[])
            };
            prompt.end(None)
        };
        assert_eq!(end(None, None), Ok(PromptEnd::GenerationPrompt));
        assert_eq!(end(Some(false), None), Ok(PromptEnd::LastMessage));
        assert_eq!(end(None, Some(true)), Ok(PromptEnd::ContinueFinalMessage));
        assert!(end(Some(true), Some(true)).is_err());
    }
}
