//! Responses of POST /v1/chat/completions, whole and in chunks.

use serde::Serialize;
use utoipa::ToSchema;

use crate::chat::{ToolCall, ToolCallDelta};
use crate::usage::{FinishReason, PromptLogprobs, StopReason, Usage};

/// A whole answer.
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
    /// The choices, `n` of them.
    pub choices: Vec<ChatChoice>,
    /// Numbers of tokens.
    pub usage: Usage,
    /// Always null.
    pub system_fingerprint: Option<String>,
    /// Log-probabilities of the prompt, with `prompt_logprobs`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Vec<Object>>)]
    pub prompt_logprobs: Option<PromptLogprobs>,
    /// Prompt token ids, with `return_token_ids`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt_token_ids: Option<Vec<u32>>,
}

/// One continuation of the conversation.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
pub struct ChatChoice {
    /// Index of the choice.
    pub index: usize,
    /// Message of the assistant.
    pub message: ResponseMessage,
    /// Log-probabilities, with `logprobs`.
    pub logprobs: Option<ChatLogprobs>,
    /// Finish reason.
    pub finish_reason: FinishReason,
    /// Stop token or stop string of the request that ended the text.
    pub stop_reason: Option<StopReason>,
    /// Generated token ids, with `return_token_ids`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token_ids: Option<Vec<u32>>,
}

/// Message of the assistant.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct ResponseMessage {
    /// `assistant`.
    pub role: &'static str,
    /// The content; null if there are only tool calls.
    pub content: Option<String>,
    /// Always null.
    pub refusal: Option<String>,
    /// Reasoning before the content, for models with reasoning.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reasoning_content: Option<String>,
    /// Same as `reasoning_content`, for other clients.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reasoning: Option<String>,
    /// Tool calls.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool_calls: Option<Vec<ToolCall>>,
}

/// Log-probabilities of the tokens of a text.
#[derive(Clone, Debug, Default, PartialEq, Serialize, ToSchema)]
pub struct ChatLogprobs {
    /// One entry for each token.
    pub content: Vec<ChatTokenLogprob>,
}

/// Log-probability of a generated token, and of the most likely tokens at its position.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
pub struct ChatTokenLogprob {
    /// Text of the token; a part of a character is written as a replacement character.
    pub token: String,
    /// Log-probability of the token, at least -9999.
    pub logprob: f32,
    /// Bytes of the token, which are exact also if the text is not.
    pub bytes: Vec<u8>,
    /// The `top_logprobs` most likely tokens, most likely first.
    pub top_logprobs: Vec<ChatTopLogprob>,
}

/// A likely token at a position.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
pub struct ChatTopLogprob {
    /// Text of the token.
    pub token: String,
    /// Log-probability of the token, at least -9999.
    pub logprob: f32,
    /// Bytes of the token.
    pub bytes: Vec<u8>,
}

/// A chunk of a streamed answer.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
pub struct ChatCompletionChunk<'a> {
    /// Id, equal in all chunks of an answer.
    pub id: &'a str,
    /// `chat.completion.chunk`.
    pub object: &'static str,
    /// Seconds since 1970.
    pub created: u64,
    /// Name of the model.
    pub model: &'a str,
    /// The choices with additions. Empty only in the chunk with the usage.
    pub choices: Vec<ChatChunkChoice>,
    /// Present in the last chunk with `stream_options.include_usage`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usage: Option<Usage>,
    /// Always null.
    pub system_fingerprint: Option<String>,
    /// Prompt token ids in the first chunk, with `return_token_ids`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt_token_ids: Option<Vec<u32>>,
}

/// A chunk's addition to a choice.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
pub struct ChatChunkChoice {
    /// Index of the choice.
    pub index: usize,
    /// The addition.
    pub delta: ChatDelta,
    /// Log-probabilities of the added tokens.
    pub logprobs: Option<ChatLogprobs>,
    /// Finish reason, only in the choice's last chunk.
    pub finish_reason: Option<FinishReason>,
    /// Stop token or stop string of the request that ended the text, only in the choice's last chunk.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stop_reason: Option<StopReason>,
    /// Added token ids, with `return_token_ids`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token_ids: Option<Vec<u32>>,
}

/// An addition to a message.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, ToSchema)]
pub struct ChatDelta {
    /// `assistant`, in the choice's first chunk only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub role: Option<&'static str>,
    /// Content to append.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub content: Option<String>,
    /// Reasoning to append.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reasoning_content: Option<String>,
    /// Same as `reasoning_content`, for other clients.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reasoning: Option<String>,
    /// The start of a tool call, or arguments to append.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool_calls: Option<Vec<ToolCallDelta>>,
}
