//! How a request wants the model to think, as passed to its chat template.

use candlepower_api::{Said, ThinkingOptions};
use serde_json::{Map, Value};

use crate::model::served_model::LoadedModel;

/// Adds the variables of the template that say it to `kwargs`; those that the request gives itself win.
pub(crate) fn tell_template(
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

/// Whether the model is to think, where the request says so. A template that knows efforts decides by these, but for `none`.
fn is_on(options: &ThinkingOptions, knows_effort: bool) -> Option<bool> {
    let by_effort = options.effort.as_ref().and_then(|effort| match effort.value.as_str() {
        "none" => Some(false),
        _ => (!knows_effort).then_some(true),
    });
    let enabled = options.enabled.as_ref().map(|said| said.value);
    enabled.or(by_effort).or(options.adaptive.then_some(true))
}

/// A field of which the template takes no notice, where the answer could be another one with it.
pub(crate) enum Unheard {
    /// Whether to think.
    Switch(&'static str),
    /// How hard to think. No answer shows it, and coding agents send it to every model.
    Effort(&'static str),
}

/// The field that the template does not hear of, if there is one.
pub(crate) fn unheard(options: &ThinkingOptions, model: &LoadedModel) -> Option<Unheard> {
    let (switch, thinks) = (model.thinking_switch, model.dialect.reasoning.is_some());
    if switch.is_there() {
        return None;
    }
    match (&options.enabled, &options.effort) {
        // It thinks in any case, or in none.
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
