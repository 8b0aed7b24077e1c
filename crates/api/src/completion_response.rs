//! The answers of POST /v1/completions; whole answers and chunks have one shape.

use std::collections::BTreeMap;

use serde::Serialize;
use utoipa::ToSchema;

use crate::usage::{FinishReason, PromptLogprobs, StopReason, Usage};

/// A whole answer, or a part of a streamed one.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
pub struct Completion<'a> {
    /// `cmpl-` and a random part; the same in all chunks of an answer.
    pub id: &'a str,
    /// `text_completion`.
    pub object: &'static str,
    /// Seconds since 1970.
    pub created: u64,
    /// Name of the model.
    pub model: &'a str,
    /// Choice `i` of prompt `p` has the index `p * n + i`. Empty only in the chunk that holds the usage.
    pub choices: Vec<CompletionChoice>,
    /// Present in a whole answer, and in a stream's last chunk if asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usage: Option<Usage>,
    /// Always null: the engine's configuration is not encoded.
    pub system_fingerprint: Option<String>,
}

/// One continuation of one prompt, or what a chunk adds to it.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
pub struct CompletionChoice {
    /// Its place among the choices.
    pub index: usize,
    /// The text, or the text to append.
    pub text: String,
    /// Present if asked for.
    pub logprobs: Option<CompletionLogprobs>,
    /// How it ended; in a stream, set in the choice's last chunk only.
    pub finish_reason: Option<FinishReason>,
    /// Which of the request's own stops ended it.
    pub stop_reason: Option<StopReason>,
    /// If `prompt_logprobs` was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Vec<Object>>)]
    pub prompt_logprobs: Option<PromptLogprobs>,
    /// If `return_token_ids` was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token_ids: Option<Vec<u32>>,
    /// If `return_token_ids` was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt_token_ids: Option<Vec<u32>>,
}

/// Log-probabilities of the tokens of a text, in lists of equal length.
#[derive(Clone, Debug, Default, PartialEq, Serialize, ToSchema)]
pub struct CompletionLogprobs {
    /// Where each token begins in the text, in characters.
    pub text_offset: Vec<usize>,
    /// Log-probability of each token; null for a prompt's first token.
    pub token_logprobs: Vec<Option<f32>>,
    /// The tokens' texts.
    pub tokens: Vec<String>,
    /// The likeliest tokens at each place, and the one that stands there.
    pub top_logprobs: Vec<Option<BTreeMap<String, f32>>>,
}

impl CompletionLogprobs {
    /// Whether no token is in it.
    pub fn is_empty(&self) -> bool {
        self.tokens.is_empty()
    }
}
