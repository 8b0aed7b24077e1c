//! The request of POST /v1/chat/completions.

use std::fmt;
use std::sync::Arc;

use serde::de::{Deserializer, Error, MapAccess, Visitor};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

use crate::error::{FieldError, excerpt};
use crate::fields::{Absent, Fields};
use crate::generation::GenerationFields;
use crate::image::ImagePart;
use crate::not_held::NotHeld;
use crate::thinking::ThinkingOptions;

mod content;
pub(crate) mod tools;

pub use content::{Content, ContentPart, TextPart};
use content::{GivenContent, reasoning_of};
pub use tools::{
    AllowedMode, AllowedTools, FunctionCall, FunctionCallDelta, MAX_TOOLS, PastToolCall, Tool,
    ToolCall, ToolCallDelta, ToolChoice, ToolOptions,
};

/// A conversation that the model continues.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
pub struct ChatCompletionRequest {
    /// Model name, from GET /v1/models; default: the served model.
    pub model: Option<String>,
    /// The conversation so far; at least one message.
    #[schema(min_items = 1)]
    pub messages: Vec<ChatMessage>,
    /// Sampling parameters, stops, constraints and streaming.
    #[serde(flatten)]
    pub generation: GenerationFields,
    /// Return log-probabilities of the generated tokens.
    #[schema(default = false)]
    pub logprobs: Option<bool>,
    /// Return this number of most likely tokens at each position; needs `logprobs`.
    pub top_logprobs: Option<i64>,
    /// Variables for the chat template.
    pub chat_template_kwargs: Option<Map<String, Value>>,
    /// End the prompt with the start of the assistant's turn.
    #[schema(default = true)]
    pub add_generation_prompt: Option<bool>,
    /// Leave the last message open, so that the model continues it.
    #[schema(default = false)]
    pub continue_final_message: Option<bool>,
    /// Put the last message before the content, if it is the assistant's.
    #[schema(default = false)]
    pub echo: Option<bool>,
    /// Add the tokenizer's special tokens around the rendered prompt.
    #[schema(default = false)]
    pub add_special_tokens: Option<bool>,
    /// Documents for the answer, a list of objects, for chat templates that support them.
    #[schema(value_type = Option<Vec<Object>>)]
    pub documents: Option<Value>,
    /// Reasoning effort, passed to the chat template; `none` switches reasoning off.
    pub reasoning_effort: Option<String>,
    /// Reasoning options, in all their forms.
    #[serde(flatten)]
    #[schema(value_type = WireThinking)]
    pub thinking: ThinkingOptions,
    /// Tools and tool choice.
    #[serde(flatten)]
    #[schema(value_type = tools::WireToolOptions)]
    pub tool_options: Option<ToolOptions>,
    /// Ignored parts of the request.
    #[serde(skip)]
    #[schema(ignore)]
    pub not_held: NotHeld,
}

/// The reasoning fields in JSON.
#[derive(ToSchema)]
#[schema(as = ThinkingFields)]
#[expect(dead_code, reason = "it describes the fields for the OpenAPI document")]
pub(crate) struct WireThinking {
    /// Maximum number of reasoning tokens; then the server closes the reasoning.
    #[schema(minimum = 0)]
    thinking_token_budget: Option<i64>,
    /// An object with `effort`, `max_tokens` (a budget) and `enabled`.
    #[schema(value_type = Option<Object>)]
    reasoning: Option<Value>,
    /// An object with `type` (`enabled`, `adaptive` or `disabled`) and `budget_tokens`.
    #[schema(value_type = Option<Object>)]
    thinking: Option<Value>,
    /// Switch reasoning on or off.
    enable_thinking: Option<bool>,
}

impl ChatCompletionRequest {
    /// Parses a request body.
    pub fn parse(body: &[u8]) -> Result<Self, FieldError> {
        let mut fields = Fields::parse(body)?;
        let thinking = ThinkingOptions::take(&mut fields)?;
        let mut request = Self {
            model: fields.take("model")?,
            messages: take_messages(&mut fields)?,
            generation: GenerationFields::take(&mut fields)?,
            logprobs: fields.take("logprobs")?,
            top_logprobs: fields.take_integer("top_logprobs")?,
            chat_template_kwargs: fields.take("chat_template_kwargs")?,
            add_generation_prompt: fields.take("add_generation_prompt")?,
            continue_final_message: fields.take("continue_final_message")?,
            echo: fields.take("echo")?,
            add_special_tokens: fields.take("add_special_tokens")?,
            documents: take_documents(&mut fields)?,
            reasoning_effort: thinking.effort.as_ref().map(|effort| effort.value.clone()),
            thinking,
            tool_options: ToolOptions::take(&mut fields)?,
            not_held: NotHeld::default(),
        };
        refuse_modalities(&mut fields)?;
        take_verbosity(&mut fields)?;
        request.not_held = fields.finish()?;
        Ok(request)
    }
}

pub(crate) fn take_messages(fields: &mut Fields<'_>) -> Result<Vec<ChatMessage>, FieldError> {
    let mut messages: Vec<ChatMessage> = fields.require("messages")?;
    if messages.is_empty() {
        return Err(FieldError::new("messages", "`messages` is empty: give at least one message."));
    }
    for (index, message) in messages.iter_mut().enumerate() {
        let role = message.role;
        for image in message.content.iter_mut().flat_map(Content::images_mut) {
            // Nobody else has the image yet, so that this copies nothing.
            Arc::make_mut(image).path.insert_str(0, &format!("messages[{index}].content"));
            check_image_role(role, &image.path)?;
        }
    }
    Ok(messages)
}

/// Refuses the image at `path` in a message whose role has none.
pub(crate) fn check_image_role(role: Role, path: &str) -> Result<(), FieldError> {
    if matches!(role, Role::User | Role::Tool) {
        return Ok(());
    }
    let message =
        "Only messages of the roles user and tool may have images: move the image to one of them.";
    Err(FieldError::new(path, message))
}

/// The documents; `None` for an empty list.
fn take_documents(fields: &mut Fields<'_>) -> Result<Option<Value>, FieldError> {
    let documents: Option<Vec<Map<String, Value>>> = fields.take("documents")?;
    let documents = documents.filter(|documents| !documents.is_empty());
    Ok(documents.map(|documents| documents.into_iter().map(Value::Object).collect()))
}

/// Takes `verbosity`, which no chat template supports.
fn take_verbosity(fields: &mut Fields<'_>) -> Result<(), FieldError> {
    let verbosity: Option<String> = fields.take("verbosity")?;
    leave_out_verbosity(fields, "verbosity", verbosity.as_deref())
}

/// Ignores a verbosity other than the default, and notes it for the response header.
pub(crate) fn leave_out_verbosity(
    fields: &mut Fields<'_>,
    path: &str,
    verbosity: Option<&str>,
) -> Result<(), FieldError> {
    match verbosity {
        None | Some("medium") => Ok(()),
        Some(verbosity @ ("low" | "high")) => {
            fields.leave_out(path, Some(verbosity));
            Ok(())
        }
        Some(other) => {
            let message =
                format!("`{path}` is `{}`; it must be low, medium or high.", excerpt(other));
            Err(FieldError::new(path, message))
        }
    }
}

/// Refuses outputs other than text.
fn refuse_modalities(fields: &mut Fields<'_>) -> Result<(), FieldError> {
    if fields.take::<Vec<String>>("modalities")?.is_some_and(|modalities| modalities != ["text"]) {
        return Err(FieldError::new(
            "modalities",
            "`modalities` other than [\"text\"] are not supported: leave it out.",
        ));
    }
    Ok(())
}

/// One message of a conversation.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
pub struct ChatMessage {
    /// Role of the author.
    pub role: Role,
    /// Content of the message. It may be null in messages of the assistant and of tools. It may be absent only if `tool_calls` or
    /// `reasoning_content` is present.
    pub content: Option<Content>,
    /// Name of the author or of the tool, for templates that use it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Tool calls that the assistant made in this message.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Vec<ToolCall>>)]
    pub tool_calls: Option<Vec<PastToolCall>>,
    /// In a tool's message: id of the call that it answers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool_call_id: Option<String>,
    /// Reasoning of the assistant before this message, for templates that use it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reasoning_content: Option<String>,
}

impl<'de> Deserialize<'de> for ChatMessage {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(ChatMessageVisitor)
    }
}

impl ChatMessage {
    /// The images, in their order.
    pub fn images(&self) -> impl Iterator<Item = &Arc<ImagePart>> {
        self.content.iter().flat_map(Content::images)
    }
}

struct ChatMessageVisitor;

impl<'de> Visitor<'de> for ChatMessageVisitor {
    type Value = ChatMessage;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a message: an object with `role` and `content`")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<ChatMessage, A::Error> {
        let mut role = None;
        let mut message = ChatMessage {
            role: Role::User,
            content: None,
            name: None,
            tool_calls: None,
            tool_call_id: None,
            reasoning_content: None,
        };
        let (mut reasoning, mut refusal, mut failed) = (None, None, None);
        let mut has_content = false;
        while let Some(key) = map.next_key::<String>()? {
            match key.as_str() {
                "role" => role = Some(map.next_value()?),
                "content" => {
                    has_content = true;
                    if let Some(GivenContent { content, reasoning: found }) = map.next_value()? {
                        message.content = Some(content);
                        reasoning = reasoning.or(found);
                    }
                }
                // Reasoning in the fields of other servers.
                "thinking_blocks" | "reasoning_details" => {
                    let blocks: Option<Vec<Value>> = map.next_value()?;
                    reasoning = reasoning.or(blocks.and_then(|blocks| reasoning_of(&blocks)));
                }
                "refusal" => refusal = map.next_value::<Option<String>>()?,
                "is_error" => failed = map.next_value::<Option<bool>>()?,
                "name" => message.name = map.next_value()?,
                "tool_calls" => message.tool_calls = map.next_value()?,
                "tool_call_id" => message.tool_call_id = map.next_value()?,
                "reasoning_content" | "reasoning" => {
                    let text: Option<String> = map.next_value()?;
                    message.reasoning_content = text.or(message.reasoning_content);
                }
                // Fields of earlier answers that clients send back, and hints for caching or storage.
                "annotations"
                | "cache_control"
                | "id"
                | "model"
                | "opts"
                | "phase"
                | "provider_specific_fields"
                | "timestamp"
                | "weight" => {
                    map.next_value::<serde::de::IgnoredAny>()?;
                }
                _ => {
                    map.next_value::<Absent>()?;
                }
            }
        }
        message.role = role.ok_or_else(|| A::Error::custom("the message has no `role`"))?;
        message.reasoning_content = message.reasoning_content.or(reasoning);
        message.content = message.content.or(refusal.map(Content::Text));
        if failed == Some(true) {
            message.content = message.content.map(Content::failed);
        }
        if message.tool_calls.as_ref().is_some_and(Vec::is_empty) {
            message.tool_calls = None;
        }
        if message.content.is_none() && message.tool_calls.is_none() {
            // An answer may be empty, or cut during its reasoning, and a tool may return nothing.
            let is_empty = has_content && matches!(message.role, Role::Assistant | Role::Tool);
            if !is_empty && (message.role != Role::Assistant || message.reasoning_content.is_none())
            {
                return Err(A::Error::custom("the message has no `content`"));
            }
            message.content = Some(Content::Text(String::new()));
        }
        Ok(message)
    }
}

/// Role of a message's author.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Instructions.
    System,
    /// Instructions, newer name.
    Developer,
    /// The user.
    User,
    /// The model.
    Assistant,
    /// A tool's result.
    Tool,
}

#[cfg(test)]
mod tests;
