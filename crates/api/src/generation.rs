//! The fields that chat and text completion have in common: how to draw tokens and when to stop.

use std::collections::BTreeMap;
use std::fmt;

use serde::de::{Deserializer, Error, SeqAccess, Visitor};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::constraint::{OutputConstraint, ResponseFormat, StructuredOutputs};
use crate::error::FieldError;
use crate::fields::Fields;
use crate::scalar::TokenId;

mod schema;

pub(crate) use schema::{MessagesSampling, ResponsesSampling};

/// Most stop strings of one request.
pub const MAX_STOP_STRINGS: usize = 16;

/// How to draw tokens and when to stop; every field may be absent. Bounds are checked by the server.
#[derive(Clone, Debug, Default, PartialEq, Serialize, ToSchema)]
pub struct GenerationFields {
    /// Sampling temperature, 0 to 2; 0 is greedy.
    #[schema(default = 1.0, minimum = 0.0, maximum = 2.0)]
    pub temperature: Option<f64>,
    /// Nucleus sampling: keep the most likely tokens that sum to this probability, above 0 and at most 1.
    #[schema(default = 1.0, maximum = 1.0)]
    pub top_p: Option<f64>,
    /// Keep only so many most likely tokens; -1 and 0 keep all.
    #[schema(default = -1)]
    pub top_k: Option<i64>,
    /// Keep tokens at least this times as likely as the most likely one, 0 to 1.
    #[schema(default = 0.0, minimum = 0.0, maximum = 1.0)]
    pub min_p: Option<f64>,
    /// Above 1 discourages tokens seen in the prompt or the output, 1 is off.
    #[schema(default = 1.0)]
    pub repetition_penalty: Option<f64>,
    /// Above 0 discourages tokens already generated, -2 to 2.
    #[schema(default = 0.0, minimum = -2.0, maximum = 2.0)]
    pub presence_penalty: Option<f64>,
    /// Above 0 discourages tokens by how often they were generated, -2 to 2.
    #[schema(default = 0.0, minimum = -2.0, maximum = 2.0)]
    pub frequency_penalty: Option<f64>,
    /// The same seed gives the same text; choice `i` is seeded with `seed + i`.
    pub seed: Option<i64>,
    /// Added to the logits of these token ids, -100 to 100 each.
    #[schema(value_type = Option<BTreeMap<String, f64>>)]
    pub logit_bias: Option<BTreeMap<u32, f64>>,
    /// Only these tokens can be sampled; with a constraint, those of them that it allows.
    #[schema(min_items = 1)]
    pub allowed_token_ids: Option<Vec<u32>>,
    /// Words that are not written, as the tokens that they are split into, alone and behind a space: up to 1024 of together
    /// 64 KiB.
    pub bad_words: Option<Vec<String>>,
    /// Most tokens to generate; no more than the prompt leaves of the context. `max_completion_tokens` is another name for it.
    pub max_tokens: Option<i64>,
    /// Under which name it was given.
    #[serde(skip)]
    #[schema(ignore)]
    pub max_tokens_name: MaxTokensName,
    /// Nothing ends the text before so many tokens are out.
    #[schema(default = 0, minimum = 0)]
    pub min_tokens: Option<i64>,
    /// Choices to generate, 1 to 128.
    #[schema(default = 1, minimum = 1, maximum = 128)]
    pub n: Option<i64>,
    /// A string or up to 16 strings that end the text; in a conversation its content, not reasoning or calls.
    #[schema(value_type = Option<StopStrings>)]
    pub stop: Option<StopStrings>,
    /// Tokens that end the text.
    pub stop_token_ids: Option<Vec<u32>>,
    /// Whether the stop string that ended the text is kept in it.
    #[schema(default = false)]
    pub include_stop_str_in_output: Option<bool>,
    /// Whether special tokens are left out of the text.
    #[schema(default = true)]
    pub skip_special_tokens: Option<bool>,
    /// Whether the model's end-of-sequence token does not end the text.
    #[schema(default = false)]
    pub ignore_eos: Option<bool>,
    /// Requests of lower priority run first.
    #[schema(default = 0)]
    pub priority: Option<i64>,
    /// Requests share cached prefixes only with requests of the same salt.
    pub cache_salt: Option<String>,
    /// Whether the answer holds token ids beside the text.
    #[schema(default = false)]
    pub return_token_ids: Option<bool>,
    /// Whether log-probabilities name tokens `token_id:` and their ids instead of by their text.
    #[schema(default = false)]
    pub return_tokens_as_token_ids: Option<bool>,
    /// Report the log-probability of every prompt token, and so many alternatives.
    pub prompt_logprobs: Option<i64>,
    /// The form of the answer.
    pub response_format: Option<ResponseFormat>,
    /// One of several ways to say what the output is to be.
    pub structured_outputs: Option<StructuredOutputs>,
    /// What `response_format`, `structured_outputs` or one of the older `guided_` fields says.
    #[serde(skip)]
    #[schema(ignore)]
    pub constraint: Option<OutputConstraint>,
    /// Whether the answer comes as server-sent events.
    #[schema(default = false)]
    pub stream: Option<bool>,
    /// Only with `stream`.
    pub stream_options: Option<StreamOptions>,
}

impl GenerationFields {
    /// Takes the shared fields out of `fields`.
    pub fn take(fields: &mut Fields<'_>) -> Result<Self, FieldError> {
        let response_format = fields.take("response_format")?;
        let (max_tokens, max_tokens_name) = take_max_tokens(fields)?;
        let structured_outputs = fields.take("structured_outputs")?;
        let generation = Self {
            temperature: fields.take("temperature")?,
            top_p: fields.take("top_p")?,
            top_k: fields.take_integer("top_k")?,
            min_p: fields.take("min_p")?,
            repetition_penalty: fields.take("repetition_penalty")?,
            presence_penalty: fields.take("presence_penalty")?,
            frequency_penalty: fields.take("frequency_penalty")?,
            seed: fields.take_integer("seed")?,
            logit_bias: fields.take("logit_bias")?,
            allowed_token_ids: fields.take("allowed_token_ids")?.map(ids),
            bad_words: fields.take("bad_words")?,
            max_tokens,
            max_tokens_name,
            min_tokens: fields.take_integer("min_tokens")?,
            n: fields.take_integer("n")?,
            stop: fields.take("stop")?,
            stop_token_ids: fields.take("stop_token_ids")?.map(ids),
            include_stop_str_in_output: fields.take("include_stop_str_in_output")?,
            skip_special_tokens: fields.take("skip_special_tokens")?,
            ignore_eos: fields.take("ignore_eos")?,
            priority: fields.take_integer("priority")?,
            cache_salt: fields.take("cache_salt")?,
            return_token_ids: fields.take("return_token_ids")?,
            return_tokens_as_token_ids: fields.take("return_tokens_as_token_ids")?,
            prompt_logprobs: fields.take_integer("prompt_logprobs")?,
            constraint: OutputConstraint::new(
                response_format.as_ref(),
                structured_outputs.as_ref(),
                fields,
            )?,
            response_format,
            structured_outputs,
            stream: fields.take("stream")?,
            stream_options: fields.take("stream_options")?,
        };
        if generation.stream_options.is_some() && generation.stream != Some(true) {
            return Err(FieldError::new(
                "stream_options",
                "`stream_options` needs `stream`: true.",
            ));
        }
        generation.refuse_search(fields)?;
        Ok(generation)
    }

    /// Whether the answer comes as server-sent events.
    pub fn stream(&self) -> bool {
        self.stream == Some(true)
    }

    /// `best_of` and beam search are accepted where they change nothing.
    fn refuse_search(&self, fields: &mut Fields<'_>) -> Result<(), FieldError> {
        if fields.take_integer("best_of")?.is_some_and(|best_of| best_of != self.n.unwrap_or(1)) {
            return Err(FieldError::new(
                "best_of",
                "`best_of` is not supported yet unless it equals `n`.",
            ));
        }
        if fields.take::<bool>("use_beam_search")? == Some(true) {
            return Err(FieldError::new(
                "use_beam_search",
                "`use_beam_search` is not supported yet.",
            ));
        }
        Ok(())
    }
}

/// A name of `max_tokens`, which endpoints call differently.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MaxTokensName(pub &'static str);

impl Default for MaxTokensName {
    fn default() -> Self {
        Self("max_tokens")
    }
}

fn ids(token_ids: Vec<TokenId>) -> Vec<u32> {
    token_ids.into_iter().map(|id| id.0).collect()
}

/// `max_tokens` under either of its names.
fn take_max_tokens(fields: &mut Fields<'_>) -> Result<(Option<i64>, MaxTokensName), FieldError> {
    const NEWER: &str = "max_completion_tokens";
    match (fields.take_integer("max_tokens")?, fields.take_integer(NEWER)?) {
        (Some(a), Some(b)) if a != b => Err(FieldError::new(
            NEWER,
            format!("`{NEWER}` and `max_tokens` mean the same and differ: give one of them."),
        )),
        (a, None) => Ok((a, MaxTokensName::default())),
        (_, b) => Ok((b, MaxTokensName(NEWER))),
    }
}

/// What a stream holds beside the text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct StreamOptions {
    /// One more chunk at the end, with no choices and the usage.
    #[serde(default)]
    pub include_usage: Option<bool>,
    /// Every chunk holds the usage so far.
    #[serde(default)]
    pub continuous_usage_stats: Option<bool>,
    /// Accepted and ignored: it pads chunks against side channels and does not change the text.
    #[serde(default)]
    pub include_obfuscation: Option<bool>,
}

/// Up to [`MAX_STOP_STRINGS`] strings that end a text; one string may stand without its list.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct StopStrings(pub Vec<String>);

impl<'de> Deserialize<'de> for StopStrings {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(StopStringsVisitor).map(StopStrings)
    }
}

struct StopStringsVisitor;

impl<'de> Visitor<'de> for StopStringsVisitor {
    type Value = Vec<String>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string or a list of strings")
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<Self::Value, E> {
        if value.is_empty() {
            return Err(E::custom("a stop string is empty"));
        }
        Ok(vec![value.to_owned()])
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
        let mut strings = Vec::new();
        while let Some(string) = seq.next_element::<String>()? {
            if string.is_empty() {
                return Err(A::Error::custom("a stop string is empty"));
            }
            if strings.len() == MAX_STOP_STRINGS {
                return Err(A::Error::custom(format_args!(
                    "more than {MAX_STOP_STRINGS} stop strings"
                )));
            }
            strings.push(string);
        }
        Ok(strings)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn take(body: &str) -> Result<GenerationFields, FieldError> {
        let mut fields = Fields::parse(body.as_bytes()).unwrap();
        let generation = GenerationFields::take(&mut fields)?;
        fields.finish()?;
        Ok(generation)
    }

    fn refused(body: &str) -> String {
        take(body).unwrap_err().param.unwrap()
    }

    #[test]
    fn typed_fields_are_read() {
        let generation = take(
            r#"{"temperature": 1, "n": 2.0, "stop": "x", "logit_bias": {"7": -1.5}, "stop_token_ids": [3.0],
                "best_of": 2, "stream": true, "stream_options": {"include_usage": true}}"#,
        )
        .unwrap();
        assert_eq!(generation.temperature, Some(1.0));
        assert_eq!(generation.n, Some(2));
        assert_eq!(generation.stop, Some(StopStrings(vec!["x".into()])));
        assert_eq!(generation.logit_bias, Some([(7, -1.5)].into()));
        assert_eq!(generation.stop_token_ids, Some(vec![3]));
        assert!(generation.stream());
    }

    #[test]
    fn wrong_types_name_their_field() {
        assert_eq!(refused(r#"{"temperature": "1"}"#), "temperature");
        assert_eq!(refused(r#"{"n": 1.5}"#), "n");
        assert_eq!(refused(r#"{"stream": 1}"#), "stream");
        assert_eq!(refused(r#"{"stop": ["a", 1]}"#), "stop[1]");
        assert_eq!(refused(r#"{"stop_token_ids": [1, -1]}"#), "stop_token_ids[1]");
        assert_eq!(refused(r#"{"logit_bias": {"x": 1}}"#), "logit_bias");
        assert_eq!(refused(r#"{"logit_bias": {"7": "x"}}"#), "logit_bias.7");
        assert!(
            refused(r#"{"stream": true, "stream_options": {"x": 1}}"#)
                .starts_with("stream_options")
        );
    }

    #[test]
    fn stop_strings_are_bounded_and_not_empty() {
        let many = serde_json::json!({"stop": vec!["x"; MAX_STOP_STRINGS + 1]}).to_string();
        assert_eq!(refused(&many), "stop");
        assert_eq!(refused(r#"{"stop": ""}"#), "stop");
        assert_eq!(refused(r#"{"stop": ["a", ""]}"#), "stop");
        assert_eq!(take(r#"{"stop": []}"#).unwrap().stop, Some(StopStrings(Vec::new())));
    }

    #[test]
    fn stream_options_need_stream() {
        assert_eq!(refused(r#"{"stream_options": {"include_usage": true}}"#), "stream_options");
        take(r#"{"stream_options": null}"#).unwrap();
    }

    #[test]
    fn search_is_refused_where_it_would_change_the_output() {
        assert_eq!(refused(r#"{"best_of": 4}"#), "best_of");
        assert_eq!(refused(r#"{"use_beam_search": true}"#), "use_beam_search");
        take(r#"{"best_of": 1, "use_beam_search": false}"#).unwrap();
    }
}
