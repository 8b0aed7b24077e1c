//! POST /generate: prompts as text or token ids, branches, scored choices and sessions.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::chat_response::ChatTokenLogprob;
use crate::error::FieldError;
use crate::fields::Fields;
use crate::generation::GenerationFields;
use crate::scalar::TokenId;
use crate::usage::{FinishReason, StopReason, Usage};

/// Most texts of which one can be chosen.
pub const MAX_SCORED_CHOICES: usize = 64;

/// A prompt to be continued, in several branches, by one of some texts, or as the next part of a session.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
pub struct GenerateRequest {
    /// Name of the model; the server's own when absent.
    pub model: Option<String>,
    /// The prompt, or what a session goes on with. Either this or `input_ids`; both may be absent in a session.
    pub text: Option<String>,
    /// The same as token ids.
    pub input_ids: Option<Vec<u32>>,
    /// How to draw tokens and when to stop. `n` is the number of branches, which share the prompt's memory.
    #[serde(flatten)]
    pub generation: GenerationFields,
    /// Report the log-probabilities of the generated tokens, and of so many most likely ones at each place.
    pub logprobs: Option<i64>,
    /// Instead of generating: the text that the model would say most likely, by the mean log-probability of its tokens.
    #[schema(min_items = 1, max_items = 64)]
    pub choices: Option<Vec<String>>,
    /// The conversation that this is a part of.
    pub session: Option<SessionRequest>,
    /// Whether the tokenizer adds its own special tokens to a `text` that nothing precedes.
    #[schema(default = true)]
    pub add_special_tokens: Option<bool>,
}

/// What a request does with a session. Exactly one of `open`, `id` and `fork` is given.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SessionRequest {
    /// Begin a session with this prompt.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub open: Option<bool>,
    /// Go on in the session with this id.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// Begin a session where the one with this id is now, which stays as it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fork: Option<String>,
    /// With `id`: end the session after this request. Without `text`, `input_ids` and `choices` nothing is generated.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub close: Option<bool>,
    /// Seconds without a request after which the session ends by itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ttl: Option<u64>,
}

impl GenerateRequest {
    /// Reads a request body.
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

    /// Whether there is nothing to do but to end a session.
    pub fn only_closes(&self) -> bool {
        let closes = self.session.as_ref().is_some_and(|session| session.close == Some(true));
        closes && self.text.is_none() && self.input_ids.is_none() && self.choices.is_none()
    }

    fn check(&self) -> Result<(), FieldError> {
        if self.text.is_some() && self.input_ids.is_some() {
            return Err(FieldError::new(
                "input_ids",
                "`text` and `input_ids` are both the prompt: give one of them.",
            ));
        }
        match &self.session {
            Some(session) => session.check()?,
            None if self.text.is_none() && self.input_ids.is_none() => {
                return Err(FieldError::new("text", "Give `text` or `input_ids`."));
            }
            None => {}
        }
        self.check_choices()
    }

    fn check_choices(&self) -> Result<(), FieldError> {
        let Some(choices) = &self.choices else { return Ok(()) };
        let refuse = |message: &str| Err(FieldError::new("choices", message));
        if choices.is_empty() || choices.iter().any(String::is_empty) {
            return refuse("`choices` needs at least one text, and none that is empty.");
        }
        if choices.len() > MAX_SCORED_CHOICES {
            return refuse("`choices` has more than 64 texts.");
        }
        if self.generation.constraint.is_some() {
            return refuse(
                "`choices` says what the output is to be: leave the other constraint out.",
            );
        }
        if self.generation.stream() {
            return refuse("`choices` are not available with `stream`.");
        }
        if self.generation.n.is_some_and(|n| n != 1) {
            return refuse("`choices` gives one branch: leave `n` out.");
        }
        match self.without_effect() {
            None => Ok(()),
            Some(name) => Err(FieldError::new(
                name,
                format!(
                    "`choices` are scored as they are: leave `{name}` out, which has no effect on that."
                ),
            )),
        }
    }
}

impl GenerateRequest {
    /// A field that says how to generate, where nothing is generated.
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
                "`session` needs exactly one of `open`: true, `id` and `fork`.",
            ));
        }
        if self.close == Some(true) && self.id.is_none() {
            return Err(FieldError::new("session.close", "`close` needs the `id` of a session."));
        }
        Ok(())
    }
}

/// What was generated, or a part of it.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
pub struct GenerateResponse<'a> {
    /// `gen-` and a random part; the same in all chunks of an answer.
    pub id: &'a str,
    /// `generation`, or `generation.chunk` in a stream.
    pub object: &'static str,
    /// Seconds since 1970.
    pub created: u64,
    /// Name of the model.
    pub model: &'a str,
    /// One per branch, or one per text of `choices`. Empty where a session was only closed, and in a stream's last chunk.
    pub choices: Vec<GenerateChoice>,
    /// With `choices`: the index of the most likely one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub selected: Option<usize>,
    /// With `choices`: the session, which goes on behind the selected text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session: Option<SessionState>,
    /// Present in a whole answer, and in a stream's last chunk if asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usage: Option<Usage>,
}

/// One branch, or what a chunk adds to it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, ToSchema)]
pub struct GenerateChoice {
    /// Its place among the choices.
    pub index: usize,
    /// The text, or the text to append.
    pub text: String,
    /// Its tokens, or those to append. Their text may come later.
    pub token_ids: Vec<u32>,
    /// If asked for, one for each of `token_ids`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub logprobs: Option<Vec<ChatTokenLogprob>>,
    /// With `choices`: the mean log-probability of its tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub score: Option<f32>,
    /// How it ended; in a stream, set in the choice's last chunk only. Never set with `choices`.
    pub finish_reason: Option<FinishReason>,
    /// Which of the request's own stops ended it.
    pub stop_reason: Option<StopReason>,
    /// The session that goes on behind it: the request's own for the first branch, a fork of it for each other one. In a
    /// stream, in the choice's last chunk.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session: Option<SessionState>,
}

/// Where a session is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct SessionState {
    /// Its id.
    pub id: String,
    /// Tokens in it, prompts and outputs together.
    pub num_tokens: usize,
    /// Seconds without a request after which it ends by itself; 0 if it has ended.
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
