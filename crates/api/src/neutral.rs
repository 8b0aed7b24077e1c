//! Fields of other servers, with the values that have no effect: one table for all endpoints.
//!
//! Routers such as SGLang's parse requests and send them on with all their own fields at default values. Refusing such fields would
//! refuse every request through them.

use serde_json::Value;

/// The accepted values of a field that no endpoint reads.
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

/// Fields and their neutral values, by name. Fields that an endpoint reads are not looked up here.
const TABLE: &[(&str, Neutral)] = &[
    ("bad_words", NONE),
    ("bad_words_ids", NONE),
    ("best_of", ONE),
    ("cache_control", Any),
    ("cache_prompt", Any),
    ("chat_id", Any),
    ("client_metadata", Any),
    ("custom_params", NONE),
    ("detokenize", YES),
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
    ("echo", NO),
    ("encoder_repetition_penalty", ONE),
    ("epsilon_cutoff", OFF),
    ("eta_cutoff", OFF),
    ("extra_body", NONE),
    ("frequency_penalty", OFF),
    ("guidance_scale", ONE),
    ("guided_decoding_backend", These(&["\"auto\""])),
    ("id_slot", These(&["-1"])),
    ("ignore_eos", NO),
    ("include_reasoning", YES),
    ("keep_alive", Any),
    ("length_penalty", ONE),
    ("log_metrics", Any),
    ("logit_bias", NONE),
    ("logits_processors", NONE),
    ("logprob_start_len", These(&["-1"])),
    ("logprob_token_ids", NONE),
    ("lora", NONE),
    ("media_io_kwargs", NONE),
    ("metadata", Any),
    ("min_keep", OFF),
    ("min_p", OFF),
    ("mirostat", OFF),
    ("mirostat_eta", Any),
    ("mirostat_tau", Any),
    ("mm_processor_kwargs", NONE),
    ("n", ONE),
    // Prompts are never shortened, so that there is nothing to keep.
    ("n_keep", Any),
    ("n_probs", OFF),
    ("no_repeat_ngram_size", OFF),
    ("no_stop_trim", NO),
    ("num_beams", ONE),
    // It has an effect only with tools.
    ("parallel_tool_calls", Any),
    ("penalty_alpha", OFF),
    ("post_sampling_probs", NO),
    // A hint for speed only.
    ("prediction", Any),
    ("presence_penalty", OFF),
    ("prompt_cache_key", Any),
    ("prompt_cache_options", Any),
    ("prompt_cache_retention", Any),
    ("raw", NO),
    ("repeat_last_n", These(&["-1"])),
    ("repeat_penalty", ONE),
    ("repetition_penalty", ONE),
    ("request_id", Any),
    ("return_hidden_states", NO),
    ("return_progress", NO),
    ("return_tokens", NO),
    ("return_tokens_as_token_ids", NO),
    ("rid", Any),
    ("safety_identifier", Any),
    ("separate_reasoning", YES),
    ("service_tier", Any),
    ("session_id", Any),
    ("spaces_between_special_tokens", YES),
    ("speed", Any),
    ("store", Any),
    ("stream_reasoning", YES),
    ("suffix", NONE),
    ("tfs_z", ONE),
    ("timings_per_token", NO),
    ("token_ids_logprob", NONE),
    ("top_a", OFF),
    ("top_k", These(&["-1", "0"])),
    ("top_logprobs_num", OFF),
    ("top_n_sigma", These(&["-1", "0"])),
    ("trace_id", Any),
    // It has an effect only with a length to cut to.
    ("truncation_side", Any),
    ("typical", ONE),
    ("typical_p", ONE),
    ("use_beam_search", NO),
    ("user", Any),
    ("user_id", Any),
    ("verbosity", These(&["\"medium\""])),
    ("vllm_xargs", NONE),
    ("xtc_probability", OFF),
    ("xtc_threshold", Any),
];

/// Whether `value`, the JSON of the field `name`, cannot change the answer.
pub(crate) fn is_neutral(name: &str, value: &str) -> bool {
    let Some((_, neutral)) = TABLE.iter().find(|(known, _)| *known == name) else { return false };
    match neutral {
        Any => true,
        These(values) => {
            let parse = |json: &str| serde_json::from_str::<Value>(json).ok();
            let given = parse(value);
            given.is_some_and(|given| {
                values.iter().filter_map(|json| parse(json)).any(|value| same(&value, &given))
            })
        }
    }
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
    }
}
