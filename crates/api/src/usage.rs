//! What responses have in common: how a text ended, what it cost, and log-probabilities of prompts.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// How a text ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum FinishReason {
    /// The model ended it, or a stop string or stop token was met.
    Stop,
    /// The model ended it with calls of functions.
    ToolCalls,
    /// `max_tokens` or the model's context length is reached.
    Length,
    /// The server cancelled it while shutting down.
    Abort,
}

impl FinishReason {
    /// As it stands on the wire.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Stop => "stop",
            Self::ToolCalls => "tool_calls",
            Self::Length => "length",
            Self::Abort => "abort",
        }
    }
}

/// Which of the request's own stops ended a text; absent if the model ended it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(untagged)]
pub enum StopReason {
    /// One of `stop_token_ids`.
    Token(u32),
    /// One of the strings of `stop`.
    Text(String),
}

/// Tokens that a request cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Usage {
    /// Tokens of the prompt, or of all prompts.
    pub prompt_tokens: usize,
    /// Tokens generated, over all choices.
    pub completion_tokens: usize,
    /// The sum of both.
    pub total_tokens: usize,
    /// More about the prompt's tokens.
    pub prompt_tokens_details: PromptTokensDetails,
    /// More about the tokens generated, where the model reasons.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub completion_tokens_details: Option<CompletionTokensDetails>,
}

/// More about the tokens generated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CompletionTokensDetails {
    /// Tokens of the reasoning, counted in its text, which may differ by a few.
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

/// More about the prompt's tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PromptTokensDetails {
    /// Tokens whose keys and values came from the prefix cache.
    pub cached_tokens: usize,
}

/// One entry per prompt token: candidates by token id; the first token has none.
pub type PromptLogprobs = Vec<Option<BTreeMap<String, PromptLogprob>>>;

/// The log-probability of one candidate at a position of the prompt.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct PromptLogprob {
    /// Its log-probability.
    pub logprob: f32,
    /// One more than there are likelier tokens.
    pub rank: usize,
    /// Its text.
    pub decoded_token: String,
}
