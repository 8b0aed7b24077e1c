//! Responses of POST /v1/completions. Whole answers and chunks have the same format.

use std::collections::BTreeMap;

use serde::Serialize;
use utoipa::ToSchema;

use crate::usage::{FinishReason, PromptLogprobs, StopReason, Usage};

/// A whole answer, or a chunk of a streamed one.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
pub struct Completion<'a> {
    /// `cmpl-` and a random part; equal in all chunks of an answer.
    pub id: &'a str,
    /// `text_completion`.
    pub object: &'static str,
    /// Seconds since 1970.
    pub created: u64,
    /// Name of the model.
    pub model: &'a str,
    /// Choice `i` of prompt `p` has the index `p * n + i`. Empty only in the chunk with the usage.
    pub choices: Vec<CompletionChoice>,
    /// Present in a whole answer, and with `include_usage` in a stream's last chunk.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usage: Option<Usage>,
    /// Always null.
    pub system_fingerprint: Option<String>,
}

/// A continuation of a prompt, or a chunk's addition to it.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
pub struct CompletionChoice {
    /// Index of the choice.
    pub index: usize,
    /// The text, or the text to append.
    pub text: String,
    /// Log-probabilities, with `logprobs`.
    pub logprobs: Option<CompletionLogprobs>,
    /// Finish reason; in a stream, only in the choice's last chunk.
    pub finish_reason: Option<FinishReason>,
    /// Stop token or stop string of the request that ended the text.
    pub stop_reason: Option<StopReason>,
    /// Log-probabilities of the prompt, with `prompt_logprobs`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Vec<Object>>)]
    pub prompt_logprobs: Option<PromptLogprobs>,
    /// Generated token ids, with `return_token_ids`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token_ids: Option<Vec<u32>>,
    /// Prompt token ids, with `return_token_ids`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt_token_ids: Option<Vec<u32>>,
}

/// Log-probabilities of the tokens of a text, in lists of equal length.
#[derive(Clone, Debug, Default, PartialEq, Serialize, ToSchema)]
pub struct CompletionLogprobs {
    /// Offset of each token in the text, in characters.
    pub text_offset: Vec<usize>,
    /// Log-probability of each token; null for a prompt's first token.
    pub token_logprobs: Vec<Option<f32>>,
    /// Texts of the tokens.
    pub tokens: Vec<String>,
    /// Most likely tokens at each position, and the token itself.
    pub top_logprobs: Vec<Option<BTreeMap<String, f32>>>,
}

impl CompletionLogprobs {
    /// Whether it has no tokens.
    pub fn is_empty(&self) -> bool {
        self.tokens.is_empty()
    }
}
