//! The request of POST /v1/chat/completions.

use std::fmt;

use serde::de::{Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

use crate::error::{FieldError, excerpt};
use crate::fields::{Absent, Fields};
use crate::generation::GenerationFields;

pub(crate) mod tools;

pub use tools::{
    AllowedMode, AllowedTools, FunctionCall, FunctionCallDelta, MAX_TOOLS, PastToolCall, Tool,
    ToolCall, ToolCallDelta, ToolChoice, ToolOptions,
};

/// A conversation that the model is to continue.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
pub struct ChatCompletionRequest {
    /// Name of the model, as GET /v1/models lists it.
    pub model: String,
    /// The conversation so far; never empty.
    #[schema(min_items = 1)]
    pub messages: Vec<ChatMessage>,
    /// How to draw tokens and when to stop.
    #[serde(flatten)]
    pub generation: GenerationFields,
    /// Whether the log-probabilities of the generated tokens are reported.
    #[schema(default = false)]
    pub logprobs: Option<bool>,
    /// So many most likely tokens are reported at each position; needs `logprobs`.
    pub top_logprobs: Option<i64>,
    /// Handed to the chat template as they are.
    pub chat_template_kwargs: Option<Map<String, Value>>,
    /// Whether the prompt ends with the opening of the assistant's turn.
    #[schema(default = true)]
    pub add_generation_prompt: Option<bool>,
    /// Whether the last message is left open for the model to go on with.
    #[schema(default = false)]
    pub continue_final_message: Option<bool>,
    /// Whether the tokenizer adds its own special tokens around what the template wrote.
    #[schema(default = false)]
    pub add_special_tokens: Option<bool>,
    /// Handed to the chat template: how long to think.
    pub reasoning_effort: Option<String>,
    /// What the model may call, and whether it must.
    #[serde(flatten)]
    #[schema(value_type = tools::WireToolOptions)]
    pub tool_options: Option<ToolOptions>,
}

impl ChatCompletionRequest {
    /// Reads a request body.
    pub fn parse(body: &[u8]) -> Result<Self, FieldError> {
        let mut fields = Fields::parse(body)?;
        let request = Self {
            model: fields.require("model")?,
            messages: take_messages(&mut fields)?,
            generation: GenerationFields::take(&mut fields)?,
            logprobs: fields.take("logprobs")?,
            top_logprobs: fields.take_integer("top_logprobs")?,
            chat_template_kwargs: fields.take("chat_template_kwargs")?,
            add_generation_prompt: fields.take("add_generation_prompt")?,
            continue_final_message: fields.take("continue_final_message")?,
            add_special_tokens: fields.take("add_special_tokens")?,
            reasoning_effort: fields.take("reasoning_effort")?,
            tool_options: ToolOptions::take(&mut fields)?,
        };
        refuse_modalities(&mut fields)?;
        fields.finish()?;
        Ok(request)
    }
}

pub(crate) fn take_messages(fields: &mut Fields<'_>) -> Result<Vec<ChatMessage>, FieldError> {
    let messages: Vec<ChatMessage> = fields.require("messages")?;
    if messages.is_empty() {
        return Err(FieldError::new("messages", "`messages` is empty: give at least one message."));
    }
    Ok(messages)
}

/// Other outputs than text are refused for now.
fn refuse_modalities(fields: &mut Fields<'_>) -> Result<(), FieldError> {
    if fields.take::<Vec<String>>("modalities")?.is_some_and(|modalities| modalities != ["text"]) {
        return Err(FieldError::new(
            "modalities",
            "`modalities` other than [\"text\"] are not supported yet.",
        ));
    }
    Ok(())
}

/// One turn of a conversation.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
pub struct ChatMessage {
    /// Who speaks.
    pub role: Role,
    /// What is said. May be absent only where `tool_calls` or `reasoning_content` are present.
    pub content: Option<Content>,
    /// Name of the speaker or of the tool, for templates that use it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The calls that the assistant made in this turn, as it answered them.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Vec<ToolCall>>)]
    pub tool_calls: Option<Vec<PastToolCall>>,
    /// In a tool's turn: the call that it answers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool_call_id: Option<String>,
    /// What the assistant thought before this turn, for templates that use it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reasoning_content: Option<String>,
}

impl<'de> Deserialize<'de> for ChatMessage {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(ChatMessageVisitor)
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
        while let Some(key) = map.next_key::<String>()? {
            match key.as_str() {
                "role" => role = Some(map.next_value()?),
                "content" => message.content = map.next_value()?,
                "name" => message.name = map.next_value()?,
                "tool_calls" => message.tool_calls = map.next_value()?,
                "tool_call_id" => message.tool_call_id = map.next_value()?,
                "reasoning_content" | "reasoning" => {
                    let text: Option<String> = map.next_value()?;
                    message.reasoning_content = text.or(message.reasoning_content);
                }
                // What clients send back of an earlier answer, and what says how to cache or store it.
                "annotations" | "cache_control" | "id" => {
                    map.next_value::<serde::de::IgnoredAny>()?;
                }
                _ => {
                    map.next_value::<Absent>()?;
                }
            }
        }
        message.role = role.ok_or_else(|| A::Error::custom("the message has no `role`"))?;
        if message.tool_calls.as_ref().is_some_and(Vec::is_empty) {
            message.tool_calls = None;
        }
        if message.content.is_none() && message.tool_calls.is_none() {
            // An answer that was cut while the model thought says nothing.
            if message.role != Role::Assistant || message.reasoning_content.is_none() {
                return Err(A::Error::custom("the message has no `content`"));
            }
            message.content = Some(Content::Text(String::new()));
        }
        Ok(message)
    }
}

/// Who speaks in a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// The instructions.
    System,
    /// The instructions, under their newer name.
    Developer,
    /// The person.
    User,
    /// The model.
    Assistant,
    /// The answer of a tool.
    Tool,
}

/// What is said in a turn: one text, or several parts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(untagged)]
pub enum Content {
    /// A text.
    Text(String),
    /// Parts; only texts for now.
    Parts(Vec<ContentPart>),
}

impl Content {
    /// The text; several parts are joined by line ends.
    pub fn to_text(&self) -> String {
        match self {
            Self::Text(text) => text.clone(),
            Self::Parts(parts) => {
                parts.iter().map(|part| part.text.as_str()).collect::<Vec<_>>().join("\n")
            }
        }
    }
}

impl<'de> Deserialize<'de> for Content {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ContentVisitor)
    }
}

struct ContentVisitor;

impl<'de> Visitor<'de> for ContentVisitor {
    type Value = Content;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string or a list of text parts")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Content, E> {
        Ok(Content::Text(text.to_owned()))
    }

    fn visit_string<E: Error>(self, text: String) -> Result<Content, E> {
        Ok(Content::Text(text))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Content, A::Error> {
        let mut parts = Vec::new();
        while let Some(part) = seq.next_element()? {
            parts.push(part);
        }
        Ok(Content::Parts(parts))
    }
}

/// A part of a turn: `{"type": "text", "text": ".."}`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct ContentPart {
    /// `text`.
    #[serde(rename = "type")]
    pub kind: String,
    /// The text.
    pub text: String,
}

impl<'de> Deserialize<'de> for ContentPart {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(ContentPartVisitor)
    }
}

struct ContentPartVisitor;

impl<'de> Visitor<'de> for ContentPartVisitor {
    type Value = ContentPart;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a part: an object with `type` and `text`")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<ContentPart, A::Error> {
        let (mut kind, mut text, mut unknown) = (None, None, None);
        while let Some(key) = map.next_key::<String>()? {
            match key.as_str() {
                "type" => kind = Some(map.next_value::<String>()?),
                "text" => text = Some(map.next_value::<String>()?),
                "cache_control" => {
                    map.next_value::<serde::de::IgnoredAny>()?;
                }
                _ => {
                    if map.next_value::<Option<serde::de::IgnoredAny>>()?.is_some() {
                        unknown = Some(key);
                    }
                }
            }
        }
        let kind = kind.ok_or_else(|| A::Error::custom("the part has no `type`"))?;
        if kind != "text" {
            return Err(A::Error::custom(format_args!(
                "parts of type `{}` are not supported yet, only `text`",
                excerpt(&kind)
            )));
        }
        if let Some(key) = unknown {
            return Err(A::Error::custom(format_args!(
                "`{}` is not a field of a text part",
                excerpt(&key)
            )));
        }
        let text = text.ok_or_else(|| A::Error::custom("the part has no `text`"))?;
        Ok(ContentPart { kind, text })
    }
}

#[cfg(test)]
mod tests;
