//! Fields that chat and text completions share: sampling parameters, stops, constraints and streaming.

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

/// Maximum number of stop strings of a request.
pub const MAX_STOP_STRINGS: usize = 16;

/// Sampling parameters, stops, constraints and streaming. All fields are optional; the server checks their bounds.
#[derive(Clone, Debug, Default, PartialEq, Serialize, ToSchema)]
pub struct GenerationFields {
    /// Sampling temperature, 0 to 2; 0 is greedy.
    #[schema(default = 1.0, minimum = 0.0, maximum = 2.0)]
    pub temperature: Option<f64>,
    /// Nucleus sampling: keep the most likely tokens whose probabilities sum to this value, above 0 and at most 1.
    #[schema(default = 1.0, maximum = 1.0)]
    pub top_p: Option<f64>,
    /// Keep only this number of most likely tokens; -1 and 0 keep all.
    #[schema(default = -1)]
    pub top_k: Option<i64>,
    /// Keep tokens with at least this fraction of the most likely token's probability, 0 to 1.
    #[schema(default = 0.0, minimum = 0.0, maximum = 1.0)]
    pub min_p: Option<f64>,
    /// Values above 1 penalize tokens that occurred in the prompt or the output; 1 is off.
    #[schema(default = 1.0)]
    pub repetition_penalty: Option<f64>,
    /// Values above 0 penalize tokens that were generated before, -2 to 2.
    #[schema(default = 0.0, minimum = -2.0, maximum = 2.0)]
    pub presence_penalty: Option<f64>,
    /// Values above 0 penalize tokens in proportion to the number of times they were generated, -2 to 2.
    #[schema(default = 0.0, minimum = -2.0, maximum = 2.0)]
    pub frequency_penalty: Option<f64>,
    /// Seed of sampling; the same seed gives the same text. Choice `i` uses `seed + i`.
    pub seed: Option<i64>,
    /// Biases to add to the logits of token ids, each -100 to 100.
    #[schema(value_type = Option<BTreeMap<String, f64>>)]
    pub logit_bias: Option<BTreeMap<u32, f64>>,
    /// Sample only these tokens. A constraint excludes further ones.
    #[schema(min_items = 1)]
    pub allowed_token_ids: Option<Vec<u32>>,
    /// Words that are not generated, at the start of a text or after a space: at most 1024 words, 64 KiB in total. They are matched as
    /// token sequences.
    pub bad_words: Option<Vec<String>>,
    /// Maximum number of tokens to generate, limited by the rest of the context. Also accepted as `max_completion_tokens`.
    pub max_tokens: Option<i64>,
    /// Name under which `max_tokens` was given.
    #[serde(skip)]
    #[schema(ignore)]
    pub max_tokens_name: MaxTokensName,
    /// Minimum number of tokens to generate before the text may end.
    #[schema(default = 0, minimum = 0)]
    pub min_tokens: Option<i64>,
    /// Number of choices to generate, 1 to 128.
    #[schema(default = 1, minimum = 1, maximum = 128)]
    pub n: Option<i64>,
    /// A string or up to 16 strings that end the text. In a conversation they are searched in the content, not in reasoning or tool calls.
    #[schema(value_type = Option<StopStrings>)]
    pub stop: Option<StopStrings>,
    /// Token ids that end the text.
    pub stop_token_ids: Option<Vec<u32>>,
    /// Keep the stop string that ended the text.
    #[schema(default = false)]
    pub include_stop_str_in_output: Option<bool>,
    /// Remove special tokens from the text.
    #[schema(default = true)]
    pub skip_special_tokens: Option<bool>,
    /// Continue after the model's end-of-sequence token.
    #[schema(default = false)]
    pub ignore_eos: Option<bool>,
    /// Scheduling priority among the caller's requests; lower values run first.
    #[schema(default = 0)]
    pub priority: Option<i64>,
    /// Share cached prefixes only with requests that have the same salt.
    pub cache_salt: Option<String>,
    /// Also return token ids.
    #[schema(default = false)]
    pub return_token_ids: Option<bool>,
    /// In log-probabilities, name tokens `token_id:ID` instead of by their text.
    #[schema(default = false)]
    pub return_tokens_as_token_ids: Option<bool>,
    /// Return log-probabilities of the prompt tokens, each with this number of alternatives.
    pub prompt_logprobs: Option<i64>,
    /// Format of the answer, such as JSON of a schema.
    pub response_format: Option<ResponseFormat>,
    /// Constraint on the output: JSON schema, regex, choice, grammar, JSON object or structural tag.
    pub structured_outputs: Option<StructuredOutputs>,
    /// The constraint of `response_format`, `structured_outputs` or an older `guided_` field.
    #[serde(skip)]
    #[schema(ignore)]
    pub constraint: Option<OutputConstraint>,
    /// Stream the answer as server-sent events.
    #[schema(default = false)]
    pub stream: Option<bool>,
    /// Options of the stream; needs `stream: true`.
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
        let asks = generation.stream_options.is_some_and(StreamOptions::asks);
        if asks && generation.stream != Some(true) {
            return Err(FieldError::new(
                "stream_options",
                "`stream_options` needs `stream: true`.",
            ));
        }
        generation.refuse_search(fields)?;
        Ok(generation)
    }

    /// Whether the answer is streamed.
    pub fn stream(&self) -> bool {
        self.stream == Some(true)
    }

    /// Refuses `best_of` and beam search, unless they have no effect.
    fn refuse_search(&self, fields: &mut Fields<'_>) -> Result<(), FieldError> {
        if fields.take_integer("best_of")?.is_some_and(|best_of| best_of != self.n.unwrap_or(1)) {
            return Err(FieldError::new(
                "best_of",
                "`best_of` is supported only if it equals `n`: leave it out.",
            ));
        }
        if fields.take::<bool>("use_beam_search")? == Some(true) {
            return Err(FieldError::new(
                "use_beam_search",
                "`use_beam_search` is not supported: leave it out.",
            ));
        }
        Ok(())
    }
}

/// Name of `max_tokens`, which differs between endpoints.
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

/// `max_tokens` or `max_completion_tokens`.
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

/// Usage reports of a stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct StreamOptions {
    /// Send an additional chunk at the end, with the usage and without choices.
    #[serde(default)]
    pub include_usage: Option<bool>,
    /// Send the usage so far in every chunk.
    #[serde(default)]
    pub continuous_usage_stats: Option<bool>,
    /// Accepted and ignored: it would only pad chunks against side channels.
    #[serde(default)]
    pub include_obfuscation: Option<bool>,
}

impl StreamOptions {
    /// Whether an option is on.
    fn asks(self) -> bool {
        [self.include_usage, self.continuous_usage_stats, self.include_obfuscation]
            .contains(&Some(true))
    }
}

/// Up to [`MAX_STOP_STRINGS`] strings that end a text; a single string needs no list.
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
        take(r#"{"stream_options": {"include_usage": false}}"#).unwrap();
    }

    #[test]
    fn search_is_refused_where_it_would_change_the_output() {
        assert_eq!(refused(r#"{"best_of": 4}"#), "best_of");
        assert_eq!(refused(r#"{"use_beam_search": true}"#), "use_beam_search");
        take(r#"{"best_of": 1, "use_beam_search": false}"#).unwrap();
    }
}
