//! Fields of other servers, with the values that have no effect: one table for all endpoints.
//!
//! Routers such as SGLang's parse requests and send them on with all their own fields at default values. Refusing such fields would
//! refuse every request through them.

use serde_json::Value;

/// The accepted values of a field where no endpoint reads it.
enum Neutral {
    /// Any value: the field identifies the caller, or controls storage, routing or accounting.
    Any,
    /// These values, as JSON: they switch the field off, or are the default behaviour.
    These(&'static [&'static str]),
}

use Neutral::{Any, These};

const OFF: Neutral = These(&["0"]);
const ONE: Neutral = These(&["1"]);
const NO: Neutral = These(&["false"]);
const YES: Neutral = These(&["true"]);
const NONE: Neutral = These(&["[]", "{}", "\"\""]);
const EMPTY: Neutral = These(&["\"\""]);
const UNLIMITED: Neutral = These(&["-1", "0"]);

/// Fields and their neutral values, by name. Fields that an endpoint reads are looked up here only if it does not accept their value.
const TABLE: &[(&str, Neutral)] = &[
    ("__verbose", NO),
    ("adapter_id", NONE),
    ("adaptive_decay", Any),
    ("adaptive_target", These(&["-1"])),
    ("add_generation_prompt", YES),
    ("anthropic_version", Any),
    ("backend_sampling", Any),
    ("background", NO),
    ("bad_words", NONE),
    ("bad_words_ids", NONE),
    ("best_of", ONE),
    ("betas", NONE),
    ("cache_control", Any),
    ("cache_prompt", Any),
    ("chat_id", Any),
    ("chat_template", NONE),
    ("chat_template_kwargs", These(&["{}"])),
    ("client_metadata", Any),
    ("context_length_exceeded_behavior", These(&["\"error\""])),
    ("continue_final_message", NO),
    ("custom_params", NONE),
    ("decoder_input_details", NO),
    ("details", NO),
    ("detokenize", YES),
    ("disable_tool_validation", NO),
    ("do_sample", YES),
    ("documents", NONE),
    // The other fields of these samplers have no effect while the sampler is off.
    ("dry_allowed_length", Any),
    ("dry_base", Any),
    ("dry_multiplier", OFF),
    ("dry_penalty_last_n", Any),
    ("dry_sequence_breakers", Any),
    ("dynatemp_exponent", Any),
    ("dynatemp_range", OFF),
    ("early_stopping", NO),
    ("ebnf", EMPTY),
    ("echo", NO),
    ("embed_dtype", These(&["\"float32\""])),
    ("embedding_type", These(&["\"float\""])),
    ("encoder_repetition_penalty", ONE),
    // Vectors are little-endian, as all machines that this server runs on.
    ("endianness", These(&["\"native\"", "\"little\""])),
    ("epsilon_cutoff", OFF),
    ("eta_cutoff", OFF),
    ("extra_body", NONE),
    ("extra_key", NONE),
    ("fallbacks", NONE),
    ("format", EMPTY),
    ("frequency_penalty", OFF),
    ("grammar", EMPTY),
    ("guidance_scale", ONE),
    ("guided_choice", NONE),
    ("guided_decoding_backend", These(&["\"auto\""])),
    ("guided_grammar", NONE),
    ("guided_json", EMPTY),
    ("guided_regex", NONE),
    ("guided_whitespace_pattern", NONE),
    ("id_slot", These(&["-1"])),
    ("ignore_eos", NO),
    ("include", NONE),
    ("include_reasoning", YES),
    ("include_stop_str_in_output", NO),
    ("instructions", EMPTY),
    ("json_schema", EMPTY),
    ("keep_alive", Any),
    ("kv_transfer_params", NONE),
    ("late_chunking", NO),
    ("length_penalty", ONE),
    ("log_metrics", Any),
    ("logit_bias", NONE),
    ("logits_processor_args", NONE),
    ("logits_processors", NONE),
    ("logprob_start_len", These(&["-1"])),
    ("logprob_token_ids", NONE),
    ("logprobs", NO),
    ("lora", NONE),
    ("lora_path", NONE),
    ("max_tokens_per_doc", OFF),
    ("mcp_servers", NONE),
    ("media_io_kwargs", NONE),
    ("metadata", Any),
    ("min_keep", OFF),
    ("min_new_tokens", OFF),
    ("min_p", OFF),
    ("min_tokens", OFF),
    ("mirostat", OFF),
    ("mirostat_eta", Any),
    ("mirostat_tau", Any),
    ("mm_processor_kwargs", NONE),
    ("modalities", These(&["[\"text\"]"])),
    ("models", NONE),
    ("n", ONE),
    ("n_discard", Any),
    ("n_indent", OFF),
    // Prompts are never shortened, so that there is nothing to keep.
    ("n_keep", Any),
    ("n_probs", OFF),
    ("no_logs", NO),
    ("no_repeat_ngram_size", OFF),
    ("no_stop_trim", NO),
    ("num_beams", ONE),
    ("options", These(&["{}"])),
    ("output_config", These(&["{}"])),
    // It has an effect only with tools.
    ("parallel_tool_calls", Any),
    ("parse_tool_calls", YES),
    ("penalty_alpha", OFF),
    ("plugins", NONE),
    ("post_sampling_probs", NO),
    // A hint for speed only.
    ("prediction", Any),
    ("presence_penalty", OFF),
    ("priority", OFF),
    ("prompt_cache_key", Any),
    ("prompt_cache_options", Any),
    ("prompt_cache_retention", Any),
    ("prompt_logprobs", NO),
    ("provider", NONE),
    ("raw", NO),
    ("reasoning", These(&["{}"])),
    ("reasoning_effort", EMPTY),
    // Reasoning is always returned apart from the content.
    ("reasoning_format", These(&["\"auto\"", "\"deepseek\"", "\"parsed\""])),
    ("regex", EMPTY),
    ("repeat_last_n", These(&["-1"])),
    ("repeat_penalty", ONE),
    ("repetition_penalty", ONE),
    ("request_id", Any),
    ("require_reasoning", NO),
    ("response_fields", NONE),
    ("response_format", These(&["{\"type\": \"text\"}"])),
    ("return_bytes", NO),
    ("return_cached_tokens_details", NO),
    ("return_entropy", NO),
    ("return_full_text", NO),
    ("return_hidden_states", NO),
    ("return_logprob", NO),
    ("return_progress", NO),
    ("return_prompt_token_ids", NO),
    ("return_routed_experts", NO),
    ("return_text_in_logprobs", NO),
    ("return_token_ids", NO),
    ("return_tokens", NO),
    ("return_tokens_as_token_ids", NO),
    ("rid", Any),
    ("safe_prompt", NO),
    ("safety_identifier", Any),
    ("safety_model", NONE),
    ("sampling_params", These(&["{}"])),
    ("separate_reasoning", YES),
    ("service_tier", Any),
    ("session_id", Any),
    ("session_params", NONE),
    ("skip_special_tokens", YES),
    ("spaces_between_special_tokens", YES),
    // Speculation changes the speed only.
    ("speculative.n_max", Any),
    ("speculative.n_min", Any),
    ("speculative.p_min", Any),
    ("speed", Any),
    ("stop", These(&["[]"])),
    ("stop_regex", NONE),
    ("stop_sequences", These(&["[]"])),
    ("stop_token_ids", These(&["[]"])),
    ("store", Any),
    ("stream", NO),
    ("stream_options", These(&["{}", "{\"include_usage\": false}"])),
    ("stream_reasoning", YES),
    ("suffix", NONE),
    ("t_max_predict_ms", UNLIMITED),
    ("t_max_prompt_ms", UNLIMITED),
    ("tfs_z", ONE),
    ("thinking_forced_open", NO),
    ("timings_per_token", NO),
    ("token_ids_logprob", NONE),
    ("tool_choice", These(&["\"none\""])),
    ("top_a", OFF),
    ("top_k", These(&["-1", "0"])),
    ("top_logprobs", OFF),
    ("top_logprobs_num", OFF),
    ("top_n_sigma", These(&["-1", "0"])),
    ("top_n_tokens", OFF),
    ("trace_id", Any),
    ("transforms", NONE),
    ("truncation", These(&["\"disabled\""])),
    // It has an effect only with a length to cut to.
    ("truncation_side", Any),
    ("typical", ONE),
    ("typical_p", ONE),
    ("use_activation", YES),
    ("use_audio_in_video", NO),
    ("use_beam_search", NO),
    ("user", Any),
    ("user_id", Any),
    ("verbosity", These(&["\"medium\""])),
    ("vllm_xargs", NONE),
    ("watermark", NO),
    ("xtc_probability", OFF),
    ("xtc_threshold", Any),
];

/// Whether `value`, the JSON of the field `name`, cannot change the answer.
pub(crate) fn is_neutral(name: &str, value: &str) -> bool {
    let Some((_, neutral)) = TABLE.iter().find(|(known, _)| *known == name) else { return false };
    matches!(neutral, Any) || is_off(name, value)
}

/// Whether `value`, the JSON of the field `name`, is one of its neutral values, so that it is not just a field of which any value is
/// accepted.
pub(crate) fn is_off(name: &str, value: &str) -> bool {
    let Some((_, These(values))) = TABLE.iter().find(|(known, _)| *known == name) else {
        return false;
    };
    let parse = |json: &str| serde_json::from_str::<Value>(json).ok();
    let given = parse(value);
    given.is_some_and(|given| {
        values.iter().filter_map(|json| parse(json)).any(|value| same(&value, &given))
    })
}

/// The neutral values of the field `name`, if it has some.
pub(crate) fn neutral_values(name: &str) -> Option<String> {
    let (_, neutral) = TABLE.iter().find(|(known, _)| *known == name)?;
    match neutral {
        Any => None,
        These(values) => Some(values.join(" or ")),
    }
}

/// Whether two values are equal; `1` equals `1.0`.
fn same(one: &Value, other: &Value) -> bool {
    match (one.as_f64(), other.as_f64()) {
        (Some(one), Some(other)) => one == other,
        _ => one == other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_sorted_and_differ() {
        assert!(TABLE.is_sorted_by(|one, other| one.0 < other.0));
    }

    /// Every neutral value on every endpoint, also where the endpoint reads the field, perhaps as another type.
    #[test]
    fn neutral_values_are_taken_everywhere() {
        const MESSAGES: &str = r#""messages": [{"role": "user", "content": "a"}]"#;
        type Parse = fn(&[u8]) -> Result<(), crate::FieldError>;
        let endpoints: [(&str, Parse); 11] = [
            (MESSAGES, |body| {
                crate::ChatCompletionRequest::parse(body).map(|r| assert!(r.not_held.is_empty()))
            }),
            (r#""prompt": "a""#, |body| {
                crate::CompletionRequest::parse(body).map(|r| assert!(r.not_held.is_empty()))
            }),
            (r#""input": "a""#, |body| {
                crate::ResponsesRequest::parse(body, &mut ())
                    .map(|r| assert!(r.not_held.is_empty()))
            }),
            (MESSAGES, |body| {
                crate::MessagesPrompt::parse(body).map(|r| assert!(r.not_held.is_empty()))
            }),
            (r#""max_tokens": 1, "messages": [{"role": "user", "content": "a"}]"#, |body| {
                crate::MessagesRequest::parse(body).map(|r| assert!(r.prompt.not_held.is_empty()))
            }),
            (r#""text": "a""#, |body| crate::GenerateRequest::parse(body).map(drop)),
            (r#""input": "a""#, |body| crate::EmbeddingsRequest::parse(body).map(drop)),
            (r#""query": "a", "documents": ["b"]"#, |body| {
                crate::RerankRequest::parse(body).map(drop)
            }),
            (r#""text_1": "a", "text_2": "b""#, |body| crate::ScoreRequest::parse(body).map(drop)),
            (r#""prompt": "a""#, |body| crate::TokenizeRequest::parse(body).map(drop)),
            (r#""tokens": [1]"#, |body| crate::DetokenizeRequest::parse(body).map(drop)),
        ];
        for (name, neutral) in TABLE {
            let These(values) = neutral else { continue };
            for (value, (required, parse)) in values
                .iter()
                .flat_map(|value| endpoints.iter().map(move |endpoint| (value, endpoint)))
            {
                if required.contains(&format!("\"{name}\":")) {
                    continue;
                }
                let body = format!("{{{required}, \"{name}\": {value}}}");
                parse(body.as_bytes()).unwrap_or_else(|error| panic!("{body}: {}", error.message));
            }
        }
    }

    #[test]
    fn only_values_that_say_nothing_are_neutral() {
        for (name, value) in [
            ("length_penalty", "1"),
            ("length_penalty", "1.0"),
            ("early_stopping", "false"),
            ("bad_words", "[]"),
            ("extra_body", " {} "),
            ("request_id", "\"x\""),
            ("mirostat", "0.0"),
        ] {
            assert!(is_neutral(name, value), "{name} {value}");
        }
        for (name, value) in [
            ("length_penalty", "2"),
            ("length_penalty", "true"),
            ("early_stopping", "true"),
            ("bad_words", "[\"a\"]"),
            ("mirostat", "false"),
            ("temperature_last", "false"),
        ] {
            assert!(!is_neutral(name, value), "{name} {value}");
        }
        assert!(is_neutral("metadata", "5") && !is_off("metadata", "5"));
    }
}
