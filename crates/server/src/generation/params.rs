//! Converts request fields to sampling parameters and checks all bounds. Each error names its field.

use std::{collections::BTreeMap, sync::Arc};

use candlepower_api::GenerationFields;
use candlepower_checkpoint::SamplingDefaults;
use candlepower_engine::SamplingParams;
use candlepower_grammar::Grammar;
use candlepower_tokenizer::Tokenizer;

use crate::config::DefaultMaxTokens;
use crate::generation::chat_output::AnswerFormat;
use crate::generation::logprobs::TokenNames;
use crate::generation::reasoning_budget::ReasoningBudget;
use crate::generation::ruled_out::{allowed_token_ids, bad_words};
use crate::model::api_error::{ApiError, ApiResult};

/// Maximum `n`.
const MAX_N: i64 = 128;
/// Maximum number of entries of `logit_bias`, `stop_token_ids` and `bad_words`.
pub(crate) const MAX_TOKEN_LIST: usize = 1024;
/// Maximum length of `cache_salt`, in bytes.
const MAX_SALT_BYTES: usize = 1024;
/// Temperatures below this are greedy, because dividing logits by them would overflow. Source: `_SAMPLING_EPS` in vLLM.
const GREEDY_BELOW: f64 = 1e-5;
/// The bias that keeps a token from being sampled.
const LEAST_BIAS: f32 = -100.0;

/// The limits of a request, from the model and the settings.
#[derive(Clone, Copy)]
pub(crate) struct Limits<'a> {
    pub(crate) vocab_size: usize,
    pub(crate) tokenizer: &'a Tokenizer,
    pub(crate) max_logprobs: usize,
    pub(crate) default_max_tokens: DefaultMaxTokens,
    /// Default sampling parameters.
    pub(crate) sampling_defaults: &'a SamplingDefaults,
    /// Minimum of `max_tokens`: 1, or 0 if a request may only score its prompt.
    pub(crate) least_max_tokens: i64,
}

/// The validated parameters of a request.
#[derive(Clone, Debug)]
pub(crate) struct Generation {
    pub(crate) n: usize,
    /// Sampling parameters, without `max_tokens`, which depends on the prompt's length, and without `logprobs`.
    sampling: SamplingParams,
    /// `None` means the rest of the context.
    max_tokens: Option<usize>,
    pub(crate) priority: i32,
    pub(crate) cache_salt: Option<Arc<str>>,
    pub(crate) prompt_logprobs: Option<usize>,
    /// The first prompt token whose log-probability is reported.
    pub(crate) prompt_logprobs_from: usize,
    /// The constraint on the output, set when it is compiled.
    pub(crate) grammar: Option<Grammar>,
    /// The limit of reasoning.
    pub(crate) reasoning_budget: Option<ReasoningBudget>,
    pub(crate) text: TextOptions,
    pub(crate) return_token_ids: bool,
    /// Whether log-probabilities name tokens by their ids.
    tokens_by_id: bool,
    /// Set if the answer is streamed.
    pub(crate) stream: Option<StreamShape>,
}

/// Options of detokenization and stop strings.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct TextOptions {
    pub(crate) stop: Vec<String>,
    pub(crate) include_stop_str_in_output: bool,
    pub(crate) skip_special_tokens: bool,
    /// Special tokens that are always in the text, because the parser needs them.
    pub(crate) always_shown: Arc<[u32]>,
    /// Number of tokens before which no stop string ends the text.
    pub(crate) min_tokens: usize,
    /// The format of an answer in a conversation. Stop strings are then searched in its content only.
    pub(crate) answers: Option<AnswerFormat>,
}

/// The usage reports of a stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct StreamShape {
    /// An additional chunk at the end has the usage.
    pub(crate) include_usage: bool,
    /// Every chunk has the usage so far.
    pub(crate) continuous_usage: bool,
}

impl Generation {
    /// Checks the shared fields of a request.
    pub(crate) fn new(fields: &GenerationFields, limits: &Limits<'_>) -> ApiResult<Self> {
        let defaults = limits.sampling_defaults;
        let max_tokens = max_tokens(fields, limits)?;
        let min_tokens = min_tokens(fields, max_tokens)?;
        let temperature = float(
            "temperature",
            fields.temperature.or(defaults.temperature).unwrap_or(1.0),
            0.0..=2.0,
            "0 to 2",
        )?;
        let sampling = SamplingParams {
            max_tokens: 0,
            min_tokens,
            temperature: if f64::from(temperature) < GREEDY_BELOW { 0.0 } else { temperature },
            top_k: top_k(fields.top_k, limits)?,
            top_p: top_p(fields.top_p.or(defaults.top_p).unwrap_or(1.0))?,
            min_p: float(
                "min_p",
                fields.min_p.or(defaults.min_p).unwrap_or(0.0),
                0.0..=1.0,
                "0 to 1",
            )?,
            repetition_penalty: repetition_penalty(
                fields.repetition_penalty.or(defaults.repetition_penalty).unwrap_or(1.0),
            )?,
            presence_penalty: float(
                "presence_penalty",
                fields.presence_penalty.unwrap_or(0.0),
                -2.0..=2.0,
                "-2 to 2",
            )?,
            frequency_penalty: float(
                "frequency_penalty",
                fields.frequency_penalty.unwrap_or(0.0),
                -2.0..=2.0,
                "-2 to 2",
            )?,
            logit_bias: logit_bias(fields, limits)?,
            allowed_token_ids: allowed_token_ids(fields.allowed_token_ids.as_deref(), limits)?,
            bad_words: bad_words(fields.bad_words.as_deref().unwrap_or_default(), limits)?,
            // A negative seed is reinterpreted as unsigned.
            seed: fields.seed.map(|seed| seed as u64),
            stop_token_ids: stop_token_ids(fields, limits)?,
            ignore_eos: fields.ignore_eos.unwrap_or(false),
            logprobs: None,
        };
        Ok(Self {
            n: integer("n", fields.n.unwrap_or(1), 1, MAX_N)? as usize,
            sampling,
            max_tokens,
            priority: priority(fields.priority.unwrap_or(0))?,
            cache_salt: cache_salt(fields.cache_salt.as_deref())?,
            prompt_logprobs: prompt_logprobs(fields, limits)?,
            prompt_logprobs_from: 0,
            grammar: None,
            reasoning_budget: None,
            text: TextOptions {
                stop: fields.stop.as_ref().map_or_else(Vec::new, |stop| stop.0.clone()),
                include_stop_str_in_output: fields.include_stop_str_in_output.unwrap_or(false),
                skip_special_tokens: fields.skip_special_tokens.unwrap_or(true),
                always_shown: Arc::default(),
                min_tokens,
                answers: None,
            },
            return_token_ids: fields.return_token_ids.unwrap_or(false),
            tokens_by_id: fields.return_tokens_as_token_ids.unwrap_or(false),
            stream: fields.stream().then(|| {
                let options = fields.stream_options.unwrap_or_default();
                StreamShape {
                    include_usage: options.include_usage.unwrap_or(false),
                    continuous_usage: options.continuous_usage_stats.unwrap_or(false),
                }
            }),
        })
    }

    /// Sets the number of alternatives whose log-probabilities are reported for each generated token.
    pub(crate) fn set_logprobs(&mut self, logprobs: Option<usize>) {
        self.sampling.logprobs = logprobs;
    }

    pub(crate) fn logprobs(&self) -> Option<usize> {
        self.sampling.logprobs
    }

    /// The names of tokens beside log-probabilities.
    pub(crate) fn token_names(&self, tokenizer: &Tokenizer) -> TokenNames {
        TokenNames { tokenizer: tokenizer.clone(), by_id: self.tokens_by_id }
    }

    /// The sampling parameters for a prompt of this length. `max_tokens` is cut to the rest of the context.
    pub(crate) fn sampling_for(&self, prompt_len: usize, max_model_len: usize) -> SamplingParams {
        let room = max_model_len.saturating_sub(prompt_len);
        let max_tokens = self.max_tokens.map_or(room, |asked| asked.min(room));
        SamplingParams {
            max_tokens,
            min_tokens: self.sampling.min_tokens.min(max_tokens),
            ..self.sampling.clone()
        }
    }

    /// Generates nothing, but reports log-probabilities of the prompt's tokens from index `from` on, with the requested
    /// alternatives.
    pub(crate) fn only_score(&mut self, from: usize) {
        self.max_tokens = Some(0);
        self.prompt_logprobs = Some(self.sampling.logprobs.take().unwrap_or(0));
        self.prompt_logprobs_from = from;
    }

    /// Whether nothing is generated.
    pub(crate) fn only_scores(&self) -> bool {
        self.max_tokens == Some(0)
    }
}

/// The number of alternatives in the field `name`; -1 means all tokens.
pub(crate) fn num_logprobs(name: &str, asked: i64, limits: &Limits<'_>) -> ApiResult<usize> {
    if asked == -1 {
        let (all, most) = (limits.vocab_size, limits.max_logprobs);
        let message = format!(
            "`{name}` is -1, which means all {all} tokens; this server reports at most {most} (`--max-logprobs`)."
        );
        return if most >= all { Ok(all) } else { Err(ApiError::invalid(name, message)) };
    }
    Ok(integer(name, asked, 0, limits.max_logprobs as i64)? as usize)
}

pub(crate) fn out_of_range(name: &str, value: impl std::fmt::Display, bounds: &str) -> ApiError {
    ApiError::invalid(name, format!("`{name}` is {value}; it must be {bounds}."))
}

fn integer(name: &str, value: i64, least: i64, most: i64) -> ApiResult<i64> {
    if (least..=most).contains(&value) {
        return Ok(value);
    }
    Err(out_of_range(name, value, &format!("{least} to {most}")))
}

fn float(
    name: &str,
    value: f64,
    range: std::ops::RangeInclusive<f64>,
    bounds: &str,
) -> ApiResult<f32> {
    if range.contains(&value) { Ok(value as f32) } else { Err(out_of_range(name, value, bounds)) }
}

fn top_p(value: f64) -> ApiResult<f32> {
    // A value that is rounded to 0 in f32 would exclude all tokens.
    if value > 0.0 && value <= 1.0 {
        Ok((value as f32).max(f32::MIN_POSITIVE))
    } else {
        Err(out_of_range("top_p", value, "above 0 and at most 1"))
    }
}

fn repetition_penalty(value: f64) -> ApiResult<f32> {
    let penalty = value as f32;
    if penalty.is_normal() && penalty > 0.0 {
        Ok(penalty)
    } else {
        Err(out_of_range("repetition_penalty", value, "above 0"))
    }
}

fn top_k(asked: Option<i64>, limits: &Limits<'_>) -> ApiResult<Option<usize>> {
    match asked {
        None => Ok(limits.sampling_defaults.top_k),
        Some(-1 | 0) => Ok(None),
        // A value above the vocabulary's size means all tokens.
        Some(k) if k >= 1 => {
            Ok(Some(usize::try_from(k).unwrap_or(usize::MAX)).filter(|k| *k < limits.vocab_size))
        }
        Some(k) => Err(out_of_range("top_k", k, "-1 or 0 (all), or at least 1")),
    }
}

fn max_tokens(fields: &GenerationFields, limits: &Limits<'_>) -> ApiResult<Option<usize>> {
    let Some(asked) = fields.max_tokens else {
        let by_model = limits.sampling_defaults.max_new_tokens;
        return Ok(by_model.or(match limits.default_max_tokens {
            DefaultMaxTokens::Tokens(tokens) => Some(tokens.get()),
            DefaultMaxTokens::Max => None,
        }));
    };
    let name = fields.max_tokens_name.0;
    if asked < limits.least_max_tokens {
        return Err(out_of_range(name, asked, "at least 1"));
    }
    // A larger value is cut later, to the rest of the context.
    Ok(Some(usize::try_from(asked).unwrap_or(usize::MAX)))
}

fn min_tokens(fields: &GenerationFields, max_tokens: Option<usize>) -> ApiResult<usize> {
    let asked = fields.min_tokens.unwrap_or(0);
    let most = max_tokens.map_or(i64::MAX, |most| i64::try_from(most).unwrap_or(i64::MAX));
    if (0..=most).contains(&asked) {
        return Ok(usize::try_from(asked).unwrap_or(usize::MAX));
    }
    Err(out_of_range("min_tokens", asked, "at least 0 and at most `max_tokens`"))
}

/// The requested biases, and the lowest bias for the model's `suppress_tokens`.
fn logit_bias(fields: &GenerationFields, limits: &Limits<'_>) -> ApiResult<Vec<(u32, f32)>> {
    let none = BTreeMap::new();
    let biases = fields.logit_bias.as_ref().unwrap_or(&none);
    let suppressed = limits.sampling_defaults.suppress_tokens.iter();
    let suppressed =
        suppressed.filter(|id| (**id as usize) < limits.vocab_size && !biases.contains_key(id));
    if biases.len() > MAX_TOKEN_LIST {
        return Err(out_of_range(
            "logit_bias",
            format_args!("{} entries long", biases.len()),
            "at most 1024 long",
        ));
    }
    let checked = biases.iter().map(|(&id, &bias)| {
        let name = format!("logit_bias.{id}");
        check_token_id(&name, id, limits)?;
        let range = f64::from(LEAST_BIAS)..=100.0;
        Ok((id, float(&name, bias, range, "-100 to 100")?))
    });
    checked.chain(suppressed.map(|id| Ok((*id, LEAST_BIAS)))).collect()
}

fn stop_token_ids(fields: &GenerationFields, limits: &Limits<'_>) -> ApiResult<Vec<u32>> {
    let ids = fields.stop_token_ids.as_deref().unwrap_or_default();
    if ids.len() > MAX_TOKEN_LIST {
        return Err(out_of_range(
            "stop_token_ids",
            format_args!("{} ids long", ids.len()),
            "at most 1024 long",
        ));
    }
    for (i, &id) in ids.iter().enumerate() {
        check_token_id(&format!("stop_token_ids[{i}]"), id, limits)?;
    }
    Ok(ids.to_vec())
}

pub(crate) fn check_token_id(name: &str, id: u32, limits: &Limits<'_>) -> ApiResult<()> {
    if (id as usize) < limits.vocab_size {
        return Ok(());
    }
    Err(ApiError::invalid(
        name,
        format!("Token id {id} is outside the vocabulary of {}.", limits.vocab_size),
    ))
}

fn priority(asked: i64) -> ApiResult<i32> {
    i32::try_from(asked).map_err(|_| out_of_range("priority", asked, "a 32-bit integer"))
}

fn cache_salt(asked: Option<&str>) -> ApiResult<Option<Arc<str>>> {
    match asked {
        Some(salt) if salt.is_empty() || salt.len() > MAX_SALT_BYTES => Err(ApiError::invalid(
            "cache_salt",
            format!("`cache_salt` must be 1 to {MAX_SALT_BYTES} bytes long."),
        )),
        salt => Ok(salt.map(Arc::from)),
    }
}

fn prompt_logprobs(fields: &GenerationFields, limits: &Limits<'_>) -> ApiResult<Option<usize>> {
    let Some(asked) = fields.prompt_logprobs else { return Ok(None) };
    if fields.stream() {
        return Err(ApiError::invalid(
            "prompt_logprobs",
            "`prompt_logprobs` is not supported with `stream`: leave one of them out.",
        ));
    }
    num_logprobs("prompt_logprobs", asked, limits).map(Some)
}

#[cfg(test)]
mod tests;
