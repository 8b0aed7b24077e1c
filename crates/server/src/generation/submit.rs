//! Submits prompts to the engine, for all endpoints that generate text.

use std::sync::Arc;

use candlepower_api::Usage;
use candlepower_engine::Request;

use crate::config::ServeConfig;
use crate::generation::detokenize::TextAssembler;
use crate::generation::encoded_prompt::EncodedPrompt;
use crate::generation::params::{Generation, Limits};
use crate::generation::preparation::Preparation;
use crate::generation::reasoning_budget::ReasoningEnd;
use crate::generation::request::Incoming;
use crate::generation::stream::{Choice, LongestChoice, TokenClock};
use crate::model::api_error::{ApiError, ApiResult};
use crate::model::keys::ApiKey;
use crate::model::served_model::LoadedModel;

/// The limits of a request, from the model and the settings.
pub(crate) fn limits<'a>(
    model: &'a LoadedModel,
    config: &ServeConfig,
    least_max_tokens: i64,
) -> Limits<'a> {
    Limits {
        vocab_size: model.vocab_size,
        tokenizer: &model.tokenizer,
        max_logprobs: config.max_logprobs.min(model.vocab_size),
        default_max_tokens: config.default_max_tokens,
        sampling_defaults: &model.sampling_defaults,
        least_max_tokens,
    }
}

/// Refuses a request before the expensive part of the preparation if the queue is full.
///
/// `param` is the field that contains the prompts.
pub(crate) fn check_queue(
    model: &Preparation<'_, LoadedModel>,
    param: &str,
    num_prompts: usize,
    n: usize,
) -> ApiResult<()> {
    let (asked, limit) = (num_prompts.saturating_mul(n), model.engine.in_flight_limit());
    if num_prompts > 1 && asked > limit {
        let message = format!(
            "`{param}` has {num_prompts} prompts and `n` is {n}: more choices than the {limit} that this server accepts at once. Send fewer."
        );
        return Err(ApiError::invalid(param, message));
    }
    Ok(model.engine.check_queue(model.caller, asked)?)
}

/// Submits the prompts; choice `i` of prompt `p` has the index `p * n + i`.
///
/// # Errors
/// The queue is full, or a limit of the key is reached. Prompts that were submitted before are then cancelled.
pub(crate) fn submit(
    request: &Incoming,
    prompts: &[EncodedPrompt],
    generation: &Generation,
) -> ApiResult<Vec<Choice>> {
    let (state, model) = (&request.state, &request.model);
    let num_choices = prompts.len() * generation.n;
    let mut choices = Vec::with_capacity(num_choices);
    let num_tokens = prompts.iter().map(EncodedPrompt::len).sum();
    let admit = |key: &Arc<ApiKey>| key.admit(num_choices, num_tokens, state.metrics());
    let mut key_permits = request.key.as_ref().map(admit).transpose()?.unwrap_or_default();
    let caller_priority =
        request.key.as_ref().map_or(0, |key| key.caller_priority(generation.priority));
    state.metrics().params_n.record(generation.n as f64);
    if let (Some(trace), Some(prompt)) = (request.tokens.trace(), prompts.first()) {
        let sampling = generation.sampling_for(prompt.len(), model.max_model_len);
        trace.set_generation(generation.n, sampling.max_tokens, &sampling);
    }
    for prompt in prompts {
        let sampling = generation.sampling_for(prompt.len(), model.max_model_len);
        state.metrics().params_max_tokens.record(sampling.max_tokens as f64);
        let submitted = Request {
            prompt: prompt.token_ids.clone(),
            images: prompt.images.clone(),
            sampling,
            n: generation.n,
            priority: generation.priority,
            caller: request.caller,
            caller_priority,
            cache_salt: generation.cache_salt.clone(),
            prompt_logprobs: generation.prompt_logprobs,
            prompt_logprobs_from: generation.prompt_logprobs_from,
            grammar: generation.grammar.clone(),
            num_generated: 0,
        };
        let reasoning_end = |index| {
            let limit = generation.reasoning_budget.clone()?;
            Some(ReasoningEnd::new(limit, &submitted, index))
        };
        let reasoning_ends: Vec<_> = (0..generation.n).map(reasoning_end).collect();
        let streams = model.engine.submit(submitted)?;
        state.metrics().prompt_tokens.record(prompt.len() as f64);
        request.tokens.add_prompt(prompt.len());
        let longest = LongestChoice::of(generation.n);
        for (tokens, reasoning_end) in streams.into_iter().zip(reasoning_ends) {
            let tokenizer = model.tokenizer.clone();
            let assembler =
                TextAssembler::new(tokenizer, &prompt.token_ids, generation.text.clone())
                    .map_err(|error| ApiError::internal(error.to_string()))?;
            let clock = TokenClock::new(
                state.metrics().clone(),
                request.arrived,
                Arc::clone(&request.tokens),
                Arc::clone(&longest),
                choices.len().is_multiple_of(generation.n),
            );
            let choice = Choice::new(
                choices.len(),
                tokens,
                assembler,
                clock,
                key_permits.pop(),
                model.engine.clone(),
                state.aborted(),
            );
            choices.push(choice.ending_reasoning(reasoning_end));
        }
    }
    Ok(choices)
}

/// Sums up the usage of a request.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct UsageCounter {
    prompt_tokens: usize,
    cached_tokens: usize,
    completion_tokens: usize,
    n: usize,
}

impl UsageCounter {
    pub(crate) fn new(prompts: &[EncodedPrompt], n: usize) -> Self {
        Self { prompt_tokens: prompts.iter().map(EncodedPrompt::len).sum(), n, ..Self::default() }
    }

    /// Counts the cached tokens of a prompt, which are those of its first choice.
    pub(crate) fn prompt(&mut self, index: usize, num_cached_tokens: usize) {
        if index.is_multiple_of(self.n) {
            self.cached_tokens += num_cached_tokens;
        }
    }

    pub(crate) fn generated(&mut self, num_tokens: usize) {
        self.completion_tokens += num_tokens;
    }

    pub(crate) fn usage(&self) -> Usage {
        Usage::new(self.prompt_tokens, self.cached_tokens, self.completion_tokens)
    }
}
