//! POST /generate: text or token ids, branches, scored choices and sessions.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::chat_response::ChatTokenLogprob;
use crate::error::FieldError;
use crate::fields::Fields;
use crate::generation::GenerationFields;
use crate::scalar::TokenId;
use crate::usage::{FinishReason, StopReason, Usage};

/// Maximum number of `choices`.
pub const MAX_SCORED_CHOICES: usize = 64;

/// A prompt that is continued in one or several branches, by the most likely of given texts, or as the next part of a session.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
pub struct GenerateRequest {
    /// Model name; default: the served model.
    pub model: Option<String>,
    /// The prompt, or the next part of a session. Give either this or `input_ids`; in a session both are optional.
    pub text: Option<String>,
    /// Same as `text`, as token ids.
    pub input_ids: Option<Vec<u32>>,
    /// Sampling parameters, stops, constraints and streaming. `n` is the number of branches, which share the prompt's KV blocks.
    #[serde(flatten)]
    pub generation: GenerationFields,
    /// Return log-probabilities of the generated tokens, and of this number of most likely tokens at each position.
    pub logprobs: Option<i64>,
    /// Select the most likely of these texts instead of generating, by the mean log-probability of their tokens.
    #[schema(min_items = 1, max_items = 64)]
    pub choices: Option<Vec<String>>,
    /// Session to open, continue, fork or close.
    pub session: Option<SessionRequest>,
    /// Add the tokenizer's special tokens to a `text` at the start of a prompt.
    #[schema(default = true)]
    pub add_special_tokens: Option<bool>,
}

/// Operation on a session. Exactly one of `open`, `id` and `fork` is set.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SessionRequest {
    /// Open a session with this prompt.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub open: Option<bool>,
    /// Continue the session with this id.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// Open a session with the tokens of the session with this id, which stays unchanged.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fork: Option<String>,
    /// With `id`: close the session after this request. Without `text`, `input_ids` and `choices` nothing is generated.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub close: Option<bool>,
    /// Seconds without a request after which the session expires.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ttl: Option<u64>,
}

impl GenerateRequest {
    /// Parses a request body.
    pub fn parse(body: &[u8]) -> Result<Self, FieldError> {
        let mut fields = Fields::parse(body)?;
        let request = Self {
            model: fields.take("model")?,
            text: fields.take("text")?,
            input_ids: fields
                .take::<Vec<TokenId>>("input_ids")?
                .map(|ids| ids.into_iter().map(|id| id.0).collect()),
            generation: GenerationFields::take(&mut fields)?,
            logprobs: fields.take_integer("logprobs")?,
            choices: fields.take("choices")?,
            session: fields.take("session")?,
            add_special_tokens: fields.take("add_special_tokens")?,
        };
        fields.finish()?;
        request.check()?;
        Ok(request)
    }

    /// Whether the request only closes a session.
    pub fn only_closes(&self) -> bool {
        let closes = self.session.as_ref().is_some_and(|session| session.close == Some(true));
        closes && self.text.is_none() && self.input_ids.is_none() && self.choices.is_none()
    }

    fn check(&self) -> Result<(), FieldError> {
        if self.text.is_some() && self.input_ids.is_some() {
            return Err(FieldError::new(
                "input_ids",
                "`text` and `input_ids` are both prompts: give one of them.",
            ));
        }
        match &self.session {
            Some(session) => session.check()?,
            None if self.text.is_none() && self.input_ids.is_none() => {
                return Err(FieldError::new(
                    "text",
                    "The prompt is missing: give `text` or `input_ids`.",
                ));
            }
            None => {}
        }
        self.check_choices()
    }

    fn check_choices(&self) -> Result<(), FieldError> {
        let Some(choices) = &self.choices else { return Ok(()) };
        let refuse = |message: &str| Err(FieldError::new("choices", message));
        if choices.is_empty() || choices.iter().any(String::is_empty) {
            return refuse("`choices` must have at least one text, and no empty ones.");
        }
        if choices.len() > MAX_SCORED_CHOICES {
            return refuse("`choices` has more than 64 texts: give fewer.");
        }
        if self.generation.constraint.is_some() {
            return refuse(
                "`choices` cannot be combined with another constraint: leave one of them out.",
            );
        }
        if self.generation.stream() {
            return refuse("`choices` cannot be combined with `stream`: leave one of them out.");
        }
        if self.generation.n.is_some_and(|n| n != 1) {
            return refuse("`choices` cannot be combined with `n`: leave `n` out.");
        }
        match self.without_effect() {
            None => Ok(()),
            Some(name) => Err(FieldError::new(
                name,
                format!("`{name}` has no effect on the scores of `choices`: leave it out."),
            )),
        }
    }
}

impl GenerateRequest {
    /// A field about generation, which has no effect with `choices`.
    fn without_effect(&self) -> Option<&'static str> {
        let GenerationFields {
            temperature,
            top_p,
            top_k,
            min_p,
            repetition_penalty,
            presence_penalty,
            frequency_penalty,
            seed,
            logit_bias,
            allowed_token_ids,
            bad_words,
            max_tokens,
            max_tokens_name,
            min_tokens,
            stop,
            stop_token_ids,
            include_stop_str_in_output,
            skip_special_tokens,
            ignore_eos,
            prompt_logprobs,
            ..
        } = &self.generation;
        let said = [
            ("temperature", temperature.is_some()),
            ("top_p", top_p.is_some()),
            ("top_k", top_k.is_some()),
            ("min_p", min_p.is_some()),
            ("repetition_penalty", repetition_penalty.is_some()),
            ("presence_penalty", presence_penalty.is_some()),
            ("frequency_penalty", frequency_penalty.is_some()),
            ("seed", seed.is_some()),
            ("logit_bias", logit_bias.is_some()),
            ("allowed_token_ids", allowed_token_ids.is_some()),
            ("bad_words", bad_words.as_ref().is_some_and(|words| !words.is_empty())),
            (max_tokens_name.0, max_tokens.is_some()),
            ("min_tokens", min_tokens.is_some()),
            ("stop", stop.is_some()),
            ("stop_token_ids", stop_token_ids.is_some()),
            ("include_stop_str_in_output", include_stop_str_in_output.is_some()),
            ("skip_special_tokens", skip_special_tokens.is_some()),
            ("ignore_eos", ignore_eos.is_some()),
            ("prompt_logprobs", prompt_logprobs.is_some()),
        ];
        said.into_iter().find_map(|(name, is_said)| is_said.then_some(name))
    }
}

impl SessionRequest {
    fn check(&self) -> Result<(), FieldError> {
        let num_said = usize::from(self.open == Some(true))
            + usize::from(self.id.is_some())
            + usize::from(self.fork.is_some());
        if num_said != 1 {
            return Err(FieldError::new(
                "session",
                "`session` needs exactly one of `open: true`, `id` and `fork`.",
            ));
        }
        if self.close == Some(true) && self.id.is_none() {
            return Err(FieldError::new("session.close", "`close` needs the `id` of a session."));
        }
        Ok(())
    }
}

/// A whole answer, or a chunk of a streamed one.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
pub struct GenerateResponse<'a> {
    /// `gen-` and a random part; equal in all chunks of an answer.
    pub id: &'a str,
    /// `generation`, or `generation.chunk` in a stream.
    pub object: &'static str,
    /// Seconds since 1970.
    pub created: u64,
    /// Name of the model.
    pub model: &'a str,
    /// One choice for each branch, or for each text of `choices`. Empty if a session was only closed, and in a stream's last chunk.
    pub choices: Vec<GenerateChoice>,
    /// With `choices`: index of the most likely one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub selected: Option<usize>,
    /// With `choices`: the session, which continues after the selected text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session: Option<SessionState>,
    /// Present in a whole answer, and with `include_usage` in a stream's last chunk.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usage: Option<Usage>,
}

/// One branch, or a chunk's addition to it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, ToSchema)]
pub struct GenerateChoice {
    /// Index of the choice.
    pub index: usize,
    /// The text, or the text to append.
    pub text: String,
    /// Token ids, or token ids to append. Their text may follow later.
    pub token_ids: Vec<u32>,
    /// One entry for each of `token_ids`, with `logprobs`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub logprobs: Option<Vec<ChatTokenLogprob>>,
    /// With `choices`: mean log-probability of the text's tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub score: Option<f32>,
    /// Finish reason; in a stream, only in the choice's last chunk. Null with `choices`.
    pub finish_reason: Option<FinishReason>,
    /// Stop token or stop string of the request that ended the text.
    pub stop_reason: Option<StopReason>,
    /// Session that continues after this branch: the request's session for the first branch, a fork of it for each other one. In a
    /// stream, only in the choice's last chunk.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session: Option<SessionState>,
}

/// State of a session.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct SessionState {
    /// Id of the session.
    pub id: String,
    /// Number of tokens, of prompts and outputs together.
    pub num_tokens: usize,
    /// Seconds without a request after which the session expires; 0 if it is closed.
    pub ttl: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(body: &str) -> String {
        GenerateRequest::parse(body.as_bytes()).unwrap_err().param.unwrap()
    }

    #[test]
    fn prompts_are_texts_or_ids_and_may_be_absent_in_sessions() {
        let parse = |body: &str| GenerateRequest::parse(body.as_bytes()).unwrap();
        assert_eq!(parse(r#"{"text": "a"}"#).text.as_deref(), Some("a"));
        assert_eq!(parse(r#"{"input_ids": [1, 2.0]}"#).input_ids, Some(vec![1, 2]));
        assert!(!parse(r#"{"session": {"id": "s"}}"#).only_closes());
        assert!(parse(r#"{"session": {"id": "s", "close": true}}"#).only_closes());
        assert!(!parse(r#"{"text": "a", "session": {"id": "s", "close": true}}"#).only_closes());
        assert_eq!(refused("{}"), "text");
        assert_eq!(refused(r#"{"text": "a", "input_ids": [1]}"#), "input_ids");
        assert_eq!(refused(r#"{"input_ids": [1, -1]}"#), "input_ids[1]");
        assert_eq!(refused(r#"{"text": "a", "prompt": "b"}"#), "prompt");
    }

    #[test]
    fn sessions_are_opened_continued_or_forked() {
        for session in [
            r#"{}"#,
            r#"{"open": false}"#,
            r#"{"open": true, "id": "s"}"#,
            r#"{"id": "s", "fork": "s"}"#,
        ] {
            assert_eq!(refused(&format!(r#"{{"text": "a", "session": {session}}}"#)), "session");
        }
        let close = r#"{"text": "a", "session": {"fork": "s", "close": true}}"#;
        assert_eq!(refused(close), "session.close");
        let unknown = r#"{"text": "a", "session": {"name": "s"}}"#;
        assert!(refused(unknown).starts_with("session"));
    }

    #[test]
    fn choices_exclude_what_they_would_ignore() {
        for more in [
            r#""choices": []"#,
            r#""choices": ["a", ""]"#,
            r#""choices": ["a"], "stream": true"#,
            r#""choices": ["a"], "n": 2"#,
            r#""choices": ["a"], "structured_outputs": {"regex": "a"}"#,
        ] {
            assert_eq!(refused(&format!(r#"{{"text": "t", {more}}}"#)), "choices", "{more}");
        }
        for (name, value) in [
            ("temperature", "0"),
            ("logit_bias", r#"{"7": 1}"#),
            ("stop", r#""a""#),
            ("min_tokens", "1"),
            ("max_completion_tokens", "1"),
            ("repetition_penalty", "1.5"),
            ("stop_token_ids", "[1]"),
            ("prompt_logprobs", "1"),
        ] {
            let body = format!(r#"{{"text": "t", "choices": ["a"], "{name}": {value}}}"#);
            assert_eq!(refused(&body), name);
        }
        let body =
            r#"{"text": "t", "choices": ["a"], "logprobs": 1, "cache_salt": "s", "priority": 1}"#;
        GenerateRequest::parse(body.as_bytes()).unwrap();
    }
}
