//! The answers of POST /v1/chat/completions, whole and in chunks.

use serde::Serialize;
use utoipa::ToSchema;

use crate::chat::{ToolCall, ToolCallDelta};
use crate::usage::{FinishReason, PromptLogprobs, StopReason, Usage};

/// The whole answer.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
pub struct ChatCompletion {
    /// `chatcmpl-` and a random part.
    pub id: String,
    /// `chat.completion`.
    pub object: &'static str,
    /// Seconds since 1970.
    pub created: u64,
    /// Name of the model.
    pub model: String,
    /// One per choice asked for.
    pub choices: Vec<ChatChoice>,
    /// Tokens that it cost.
    pub usage: Usage,
    /// Always null: the engine's configuration is not encoded.
    pub system_fingerprint: Option<String>,
    /// If `prompt_logprobs` was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Vec<Object>>)]
    pub prompt_logprobs: Option<PromptLogprobs>,
    /// If `return_token_ids` was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt_token_ids: Option<Vec<u32>>,
}

/// One continuation of the conversation.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
pub struct ChatChoice {
    /// Its place among the choices.
    pub index: usize,
    /// What the assistant says.
    pub message: ResponseMessage,
    /// Present if asked for.
    pub logprobs: Option<ChatLogprobs>,
    /// How it ended.
    pub finish_reason: FinishReason,
    /// Which of the request's own stops ended it.
    pub stop_reason: Option<StopReason>,
    /// If `return_token_ids` was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token_ids: Option<Vec<u32>>,
}

/// What the assistant says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct ResponseMessage {
    /// `assistant`.
    pub role: &'static str,
    /// The text; null where there are only calls.
    pub content: Option<String>,
    /// Always null.
    pub refusal: Option<String>,
    /// What the model wrote to itself before, of models that do.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reasoning_content: Option<String>,
    /// The same, under the name that other clients read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reasoning: Option<String>,
    /// The functions to call.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool_calls: Option<Vec<ToolCall>>,
}

/// Log-probabilities of the tokens of a text.
#[derive(Clone, Debug, Default, PartialEq, Serialize, ToSchema)]
pub struct ChatLogprobs {
    /// One per token.
    pub content: Vec<ChatTokenLogprob>,
}

/// The log-probability of a generated token, and of the likeliest ones at its place.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
pub struct ChatTokenLogprob {
    /// Its text; a replacement character stands for a part of a character.
    pub token: String,
    /// Its log-probability, at least -9999.
    pub logprob: f32,
    /// Its bytes, which are exact where the text is not.
    pub bytes: Vec<u8>,
    /// The `top_logprobs` likeliest tokens, likeliest first.
    pub top_logprobs: Vec<ChatTopLogprob>,
}

/// A token that could have stood in a place.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
pub struct ChatTopLogprob {
    /// Its text.
    pub token: String,
    /// Its log-probability, at least -9999.
    pub logprob: f32,
    /// Its bytes.
    pub bytes: Vec<u8>,
}

/// A part of a streamed answer.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
pub struct ChatCompletionChunk<'a> {
    /// The same in all chunks of an answer.
    pub id: &'a str,
    /// `chat.completion.chunk`.
    pub object: &'static str,
    /// Seconds since 1970.
    pub created: u64,
    /// Name of the model.
    pub model: &'a str,
    /// Empty only in the chunk that holds the usage.
    pub choices: Vec<ChatChunkChoice>,
    /// Present in the last chunk if `stream_options.include_usage` asks for it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usage: Option<Usage>,
    /// Always null: the engine's configuration is not encoded.
    pub system_fingerprint: Option<String>,
    /// In the first chunk, if `return_token_ids` was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt_token_ids: Option<Vec<u32>>,
}

/// What a chunk adds to one choice.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
pub struct ChatChunkChoice {
    /// Its place among the choices.
    pub index: usize,
    /// What is added.
    pub delta: ChatDelta,
    /// Log-probabilities of the tokens added.
    pub logprobs: Option<ChatLogprobs>,
    /// Set in the choice's last chunk only.
    pub finish_reason: Option<FinishReason>,
    /// Which of the request's own stops ended it; in its last chunk only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stop_reason: Option<StopReason>,
    /// Tokens added, if `return_token_ids` was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token_ids: Option<Vec<u32>>,
}

/// What is added to a message.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, ToSchema)]
pub struct ChatDelta {
    /// `assistant`, in the choice's first chunk only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub role: Option<&'static str>,
    /// The text to append.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub content: Option<String>,
    /// The reasoning to append.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reasoning_content: Option<String>,
    /// The same, under the name that other clients read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reasoning: Option<String>,
    /// A call that begins, or arguments to append.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool_calls: Option<Vec<ToolCallDelta>>,
}
