//! Types that responses share: finish reasons, usage, and log-probabilities of prompts.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Reason for which a text ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum FinishReason {
    /// The model ended the text, or a stop string or stop token was found.
    Stop,
    /// The model ended the text with tool calls.
    ToolCalls,
    /// `max_tokens` or the model's context length is reached.
    Length,
    /// The server aborted the request at shutdown.
    Abort,
}

impl FinishReason {
    /// The value in JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Stop => "stop",
            Self::ToolCalls => "tool_calls",
            Self::Length => "length",
            Self::Abort => "abort",
        }
    }
}

/// Stop token or stop string of the request that ended the text; absent if the model ended it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(untagged)]
pub enum StopReason {
    /// One of `stop_token_ids`.
    Token(u32),
    /// One of the strings of `stop`.
    Text(String),
}

/// Numbers of tokens of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Usage {
    /// Prompt tokens, of all prompts.
    pub prompt_tokens: usize,
    /// Generated tokens, of all choices.
    pub completion_tokens: usize,
    /// Sum of prompt and generated tokens.
    pub total_tokens: usize,
    /// Details of the prompt tokens.
    pub prompt_tokens_details: PromptTokensDetails,
    /// Details of the generated tokens, for models with reasoning.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub completion_tokens_details: Option<CompletionTokensDetails>,
}

/// Details of the generated tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CompletionTokensDetails {
    /// Reasoning tokens, counted by tokenizing the reasoning text again, which may differ by a few.
    pub reasoning_tokens: usize,
}

impl Usage {
    /// The usage of `prompt_tokens`, `cached_tokens` of them from the prefix cache, and `completion_tokens`.
    pub fn new(prompt_tokens: usize, cached_tokens: usize, completion_tokens: usize) -> Self {
        Self {
            prompt_tokens,
            completion_tokens,
            total_tokens: prompt_tokens + completion_tokens,
            prompt_tokens_details: PromptTokensDetails { cached_tokens },
            completion_tokens_details: None,
        }
    }
}

/// Details of the prompt tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PromptTokensDetails {
    /// Prompt tokens found in the prefix cache.
    pub cached_tokens: usize,
}

/// One entry for each prompt token: candidates by token id. The first token has none.
pub type PromptLogprobs = Vec<Option<BTreeMap<String, PromptLogprob>>>;

/// Log-probability of one candidate at a position of the prompt.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct PromptLogprob {
    /// Log-probability of the token.
    pub logprob: f32,
    /// Rank of the token; 1 is the most likely.
    pub rank: usize,
    /// Text of the token.
    pub decoded_token: String,
}
