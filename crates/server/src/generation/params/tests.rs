//! Values just inside and outside every limit.

use std::num::NonZeroUsize;

use candlepower_api::Fields;
use serde_json::json;

use super::*;
use crate::lifecycle::demo;

fn generation(
    body: serde_json::Value,
    edit: impl FnOnce(&mut Limits<'_>),
) -> ApiResult<Generation> {
    let text = body.to_string();
    let mut fields = Fields::parse(text.as_bytes())?;
    let fields = GenerationFields::take(&mut fields)?;
    let defaults = SamplingDefaults {
        temperature: Some(0.6),
        top_k: Some(20),
        max_new_tokens: Some(64),
        ..SamplingDefaults::default()
    };
    let none = SamplingDefaults::default();
    let mut limits = Limits {
        vocab_size: 50,
        tokenizer: &demo::tokenizer(),
        max_logprobs: 20,
        default_max_tokens: DefaultMaxTokens::Tokens(NonZeroUsize::new(16).unwrap()),
        sampling_defaults: &none,
        least_max_tokens: 1,
    };
    if body.get("user").is_some() {
        limits.sampling_defaults = &defaults;
    }
    edit(&mut limits);
    Generation::new(&fields, &limits)
}

fn taken(body: serde_json::Value) -> Generation {
    generation(body, |_| {}).unwrap()
}

fn refused(body: serde_json::Value) -> String {
    generation(body, |_| {}).unwrap_err().to_body().error.param.unwrap()
}

#[test]
fn silence_means_the_contracts_defaults() {
    let generation = taken(json!({}));
    assert_eq!(generation.n, 1);
    assert_eq!(generation.sampling_for(10, 100), SamplingParams::default());
    assert!(generation.text.skip_special_tokens && generation.stream.is_none());
}

#[test]
fn what_a_model_is_not_to_sample_has_the_least_bias_unless_it_is_asked_for() {
    let suppressed =
        SamplingDefaults { suppress_tokens: vec![7, 9, 50], ..SamplingDefaults::default() };
    let biases = |body: serde_json::Value| {
        let defaults = suppressed.clone();
        let found = generation(body, |limits| {
            // The limits have a `'static` reference to the defaults.
            limits.sampling_defaults = Box::leak(Box::new(defaults));
        });
        found.unwrap().sampling_for(10, 100).logit_bias
    };
    // The last id is outside the vocabulary.
    assert_eq!(biases(json!({})), [(7, -100.0), (9, -100.0)]);
    assert_eq!(biases(json!({"logit_bias": {"9": 1.5}})), [(9, 1.5), (7, -100.0)]);
}

#[test]
fn silence_means_the_models_defaults_where_it_has_some() {
    let sampling = taken(json!({"user": "x"})).sampling_for(10, 100);
    assert_eq!((sampling.temperature, sampling.top_k, sampling.max_tokens), (0.6, Some(20), 64));
    let sampling = taken(json!({"user": "x", "temperature": 1, "top_k": -1, "max_tokens": 3}))
        .sampling_for(10, 100);
    assert_eq!((sampling.temperature, sampling.top_k, sampling.max_tokens), (1.0, None, 3));
}

#[test]
fn values_at_the_bounds_are_taken() {
    for body in [
        json!({"temperature": 0}),
        json!({"temperature": 2}),
        json!({"top_p": 1}),
        json!({"top_p": 1e-300}),
        json!({"top_k": -1}),
        json!({"top_k": 1}),
        json!({"top_k": 9_000_000_000_u64}),
        json!({"top_k": 0}),
        json!({"min_p": 0}),
        json!({"min_p": 1}),
        json!({"repetition_penalty": 0.01}),
        json!({"presence_penalty": -2, "frequency_penalty": 2}),
        json!({"n": 1}),
        json!({"n": 128}),
        json!({"max_tokens": 1}),
        json!({"max_tokens": 100}),
        json!({"max_tokens": i64::MAX, "min_tokens": 5}),
        json!({"min_tokens": 16}),
        json!({"seed": i64::MIN}),
        json!({"logit_bias": {"49": 100, "0": -100}}),
        json!({"stop_token_ids": [0, 49]}),
        json!({"priority": -5, "cache_salt": "s", "prompt_logprobs": 20}),
    ] {
        generation(body.clone(), |_| {}).unwrap_or_else(|error| panic!("{body}: {error:?}"));
    }
}

#[test]
fn values_beyond_the_bounds_are_refused_by_name() {
    for (name, value) in [
        ("temperature", json!(-0.1)),
        ("temperature", json!(2.1)),
        ("top_p", json!(0)),
        ("top_p", json!(1.1)),
        ("top_k", json!(-2)),
        ("min_p", json!(-0.1)),
        ("min_p", json!(1.1)),
        ("repetition_penalty", json!(0)),
        ("repetition_penalty", json!(1e300)),
        ("presence_penalty", json!(2.1)),
        ("frequency_penalty", json!(-2.1)),
        ("n", json!(0)),
        ("n", json!(129)),
        ("n", json!(1_000_000_000_000_i64)),
        ("max_tokens", json!(0)),
        ("max_tokens", json!(-1)),
        ("min_tokens", json!(-1)),
        ("min_tokens", json!(17)),
        ("priority", json!(5_000_000_000_i64)),
        ("cache_salt", json!("")),
        ("cache_salt", json!("s".repeat(1025))),
        ("prompt_logprobs", json!(21)),
        ("prompt_logprobs", json!(-1)),
    ] {
        assert_eq!(refused(json!({name: value})), name, "{value}");
    }
    assert_eq!(refused(json!({"logit_bias": {"50": 1}})), "logit_bias.50");
    assert_eq!(refused(json!({"logit_bias": {"1": 101}})), "logit_bias.1");
    assert_eq!(refused(json!({"stop_token_ids": [1, 50]})), "stop_token_ids[1]");
    assert_eq!(refused(json!({"stop_token_ids": vec![1; 1025]})), "stop_token_ids");
    assert_eq!(refused(json!({"prompt_logprobs": 1, "stream": true})), "prompt_logprobs");
}

#[test]
fn prompt_and_output_fit_the_context() {
    let sampling = taken(json!({"max_tokens": 100, "min_tokens": 90})).sampling_for(80, 100);
    assert_eq!((sampling.max_tokens, sampling.min_tokens), (20, 20));
    assert_eq!(taken(json!({"max_tokens": 32_000})).sampling_for(80, 100).max_tokens, 20);
    let max =
        generation(json!({}), |limits| limits.default_max_tokens = DefaultMaxTokens::Max).unwrap();
    assert_eq!(max.sampling_for(30, 100).max_tokens, 70);
}

#[test]
fn a_prompt_may_be_scored_only_where_that_is_allowed() {
    let scored =
        generation(json!({"max_tokens": 0}), |limits| limits.least_max_tokens = 0).unwrap();
    assert!(scored.only_scores());
    assert_eq!(scored.sampling_for(30, 100).max_tokens, 0);
}

#[test]
fn tiny_temperatures_are_greedy_and_large_top_k_is_none() {
    assert_eq!(taken(json!({"temperature": 1e-9})).sampling_for(1, 100).temperature, 0.0);
    assert_eq!(taken(json!({"top_k": 50})).sampling_for(1, 100).top_k, None);
    assert_eq!(taken(json!({"top_k": 49})).sampling_for(1, 100).top_k, Some(49));
}

#[test]
fn streams_say_what_they_hold() {
    let stream = taken(json!({"stream": true, "stream_options": {"include_usage": true}})).stream;
    assert_eq!(stream, Some(StreamShape { include_usage: true, continuous_usage: false }));
    assert_eq!(taken(json!({"stream": false})).stream, None);
}
