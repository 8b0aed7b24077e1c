//! Passes the reasoning options of a request to the chat template.

use candlepower_api::{Said, ThinkingOptions};
use serde_json::{Map, Value};

use crate::model::served_model::LoadedModel;

/// Adds the template's variables for reasoning to `kwargs`. Variables that the request sets take precedence.
pub(crate) fn pass_to_template(
    options: &ThinkingOptions,
    model: &LoadedModel,
    kwargs: &mut Map<String, Value>,
) {
    let mut set = |name: &str, value: Value| {
        kwargs.entry(name).or_insert(value);
    };
    if let Some(effort) = &options.effort {
        set("reasoning_effort", effort.value.as_str().into());
    }
    let switch = model.thinking_switch;
    if let Some(on) = is_on(options, switch.effort) {
        if switch.enable_thinking || !switch.is_there() {
            set("enable_thinking", on.into());
        }
        if switch.thinking {
            set("thinking", on.into());
        }
    }
}

/// Whether the request switches reasoning on or off. An effort other than `none` does so only if the template has no efforts.
fn is_on(options: &ThinkingOptions, knows_effort: bool) -> Option<bool> {
    let by_effort = options.effort.as_ref().and_then(|effort| match effort.value.as_str() {
        "none" => Some(false),
        _ => (!knows_effort).then_some(true),
    });
    let enabled = options.enabled.as_ref().map(|said| said.value);
    enabled.or(by_effort).or(options.adaptive.then_some(true))
}

/// A field that the template ignores although it could change the answer.
pub(crate) enum Unheard {
    /// Reasoning on or off.
    Switch(&'static str),
    /// The effort. Its effect is not visible in an answer, and coding agents send it to every model, so it never refuses a request.
    Effort(&'static str),
}

/// The field that the template ignores, if there is one.
pub(crate) fn unheard(options: &ThinkingOptions, model: &LoadedModel) -> Option<Unheard> {
    let (switch, thinks) = (model.thinking_switch, model.dialect.reasoning.is_some());
    if switch.is_there() {
        return None;
    }
    match (&options.enabled, &options.effort) {
        // The model always reasons, or never.
        (Some(Said { field, value }), _) if *value != thinks => Some(Unheard::Switch(field)),
        (_, Some(Said { field, value })) if !switch.effort && thinks && value == "none" => {
            Some(Unheard::Switch(field))
        }
        (_, Some(Said { field, value })) if !switch.effort && value != "none" => {
            Some(Unheard::Effort(field))
        }
        _ => None,
    }
}
