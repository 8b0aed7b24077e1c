//! Reasoning options of a request, in the forms of all APIs.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::error::{FieldError, excerpt};
use crate::fields::Fields;

/// The reasoning options of a request, each with its field.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct ThinkingOptions {
    /// Whether the model reasons.
    pub enabled: Option<Said<bool>>,
    /// Effort, a word for the chat template; `none` switches reasoning off.
    pub effort: Option<Said<String>>,
    /// Maximum number of reasoning tokens.
    pub budget: Option<Said<i64>>,
    /// Whether the model decides.
    pub adaptive: bool,
}

/// A value and its field.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Said<T> {
    /// Path of the field.
    pub field: &'static str,
    /// Its value.
    pub value: T,
}

/// An effort; an empty one is none.
pub(crate) fn said(effort: Option<String>) -> Option<String> {
    effort.filter(|effort| !effort.is_empty())
}

/// `reasoning` in the form of OpenAI's API and OpenRouter's.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Reasoning {
    effort: Option<String>,
    max_tokens: Option<i64>,
    enabled: Option<bool>,
    exclude: Option<bool>,
    summary: Option<String>,
    generate_summary: Option<String>,
    context: Option<Value>,
}

/// `thinking` in the form of Anthropic's API and compatible ones.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Thinking {
    #[serde(rename = "type")]
    kind: String,
    budget_tokens: Option<i64>,
    display: Option<String>,
    clear_thinking: Option<bool>,
}

impl ThinkingOptions {
    /// Takes all reasoning options out of `fields`.
    ///
    /// # Errors
    /// An option is invalid, or two of them differ.
    pub(crate) fn take(fields: &mut Fields<'_>) -> Result<Self, FieldError> {
        let mut options = Self::default();
        set(&mut options.effort, "reasoning_effort", said(fields.take("reasoning_effort")?))?;
        options.take_reasoning(fields)?;
        options.take_thinking(fields)?;
        set(&mut options.enabled, "enable_thinking", fields.take("enable_thinking")?)?;
        for name in ["thinking_token_budget", "thinking_budget"] {
            // Source: vLLM's protocol, where -1 is no limit.
            let budget = fields.take_integer(name)?.filter(|budget| *budget != -1);
            set(&mut options.budget, name, budget)?;
        }
        match &options.budget {
            Some(Said { field, value }) if *value < 0 => Err(FieldError::new(
                field,
                format!("`{field}` is {value}; it must be a number of tokens, at least 0."),
            )),
            _ => Ok(options),
        }
    }

    /// Takes `reasoning` out of `fields`.
    pub(crate) fn take_reasoning(&mut self, fields: &mut Fields<'_>) -> Result<(), FieldError> {
        let Some(reasoning) = fields.take::<Reasoning>("reasoning")? else { return Ok(()) };
        if reasoning.exclude == Some(true) {
            let message =
                "Reasoning is always returned, separately from the content: leave `exclude` out.";
            return Err(FieldError::new("reasoning.exclude", message));
        }
        for (path, summary) in [
            ("reasoning.summary", reasoning.summary),
            ("reasoning.generate_summary", reasoning.generate_summary),
        ] {
            match summary.as_deref() {
                // A summary is not needed, because the answer contains the reasoning.
                None | Some("auto" | "none") => {}
                Some(kind @ ("concise" | "detailed")) => fields.leave_out(path, Some(kind)),
                Some(other) => {
                    let message = format!(
                        "`{path}` is `{}`; it must be auto, concise or detailed.",
                        excerpt(other)
                    );
                    return Err(FieldError::new(path, message));
                }
            }
        }
        if reasoning.context.is_some_and(|context| context != "auto") {
            fields.leave_out("reasoning.context", None);
        }
        set(&mut self.effort, "reasoning.effort", said(reasoning.effort))?;
        set(&mut self.enabled, "reasoning.enabled", reasoning.enabled)?;
        set(&mut self.budget, "reasoning.max_tokens", reasoning.max_tokens)
    }

    /// Takes `thinking` out of `fields`.
    pub(crate) fn take_thinking(&mut self, fields: &mut Fields<'_>) -> Result<(), FieldError> {
        let Some(thinking) = fields.take::<Thinking>("thinking")? else { return Ok(()) };
        let enabled = match thinking.kind.as_str() {
            "enabled" => Some(true),
            "disabled" => Some(false),
            "adaptive" | "auto" => {
                self.adaptive = true;
                None
            }
            other => {
                let message = format!(
                    "`{}` is not supported; it must be enabled, adaptive or disabled.",
                    excerpt(other)
                );
                return Err(FieldError::new("thinking.type", message));
            }
        };
        if thinking.display.as_deref() == Some("omitted") {
            fields.leave_out("thinking.display", Some("omitted"));
        }
        if thinking.clear_thinking == Some(true) {
            fields.leave_out("thinking.clear_thinking", None);
        }
        set(&mut self.enabled, "thinking", enabled)?;
        set(&mut self.budget, "thinking.budget_tokens", thinking.budget_tokens)?;
        match &self.budget {
            Some(Said { field, value }) if *value < 0 => Err(FieldError::new(
                field,
                format!("`{field}` is {value}; it must be a number of tokens, at least 0."),
            )),
            _ => Ok(()),
        }
    }
}

/// Sets the value of `field`.
///
/// # Errors
/// Another field has a different value.
pub(crate) fn set<T: PartialEq>(
    said: &mut Option<Said<T>>,
    field: &'static str,
    value: Option<T>,
) -> Result<(), FieldError> {
    let Some(value) = value else { return Ok(()) };
    if let Some(other) = said
        && other.value != value
    {
        let message = format!("`{}` and `{field}` differ: give one of them.", other.field);
        return Err(FieldError::new(field, message));
    }
    *said = Some(Said { field, value });
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn take(body: &str) -> Result<(ThinkingOptions, String), FieldError> {
        let mut fields = Fields::parse(body.as_bytes()).unwrap();
        let options = ThinkingOptions::take(&mut fields)?;
        fields.finish().map(|not_held| (options, not_held.line()))
    }

    #[test]
    fn each_way_of_saying_it_is_understood() {
        let said = |body: &str| take(body).unwrap().0;
        let effort = |body: &str| said(body).effort.unwrap().value;
        assert_eq!(effort(r#"{"reasoning_effort": "low"}"#), "low");
        assert_eq!(effort(r#"{"reasoning": {"effort": "low"}, "reasoning_effort": "low"}"#), "low");
        let enabled = |body: &str| said(body).enabled.map(|said| said.value);
        assert_eq!(enabled(r#"{"thinking": {"type": "disabled"}}"#), Some(false));
        assert_eq!(enabled(r#"{"thinking": {"type": "adaptive"}}"#), None);
        assert_eq!(enabled(r#"{"reasoning": {"enabled": true}}"#), Some(true));
        assert_eq!(enabled(r#"{"enable_thinking": false}"#), Some(false));
        for (body, field) in [
            (r#"{"thinking": {"type": "enabled", "budget_tokens": 9}}"#, "thinking.budget_tokens"),
            (r#"{"thinking_token_budget": 9}"#, "thinking_token_budget"),
            (r#"{"thinking_budget": 9}"#, "thinking_budget"),
            (r#"{"reasoning": {"max_tokens": 9}}"#, "reasoning.max_tokens"),
        ] {
            assert_eq!(said(body).budget, Some(Said { field, value: 9 }), "{body}");
        }
        assert_eq!(said(r#"{"thinking_token_budget": -1}"#), ThinkingOptions::default());
    }

    #[test]
    fn what_is_wrong_is_named_and_what_is_left_out_told() {
        for (body, param) in [
            (r#"{"reasoning_effort": "low", "reasoning": {"effort": "high"}}"#, "reasoning.effort"),
            (r#"{"thinking": {"type": "long"}}"#, "thinking.type"),
            (r#"{"thinking": {"type": "enabled", "budget_tokens": -5}}"#, "thinking.budget_tokens"),
            (r#"{"thinking_token_budget": -2}"#, "thinking_token_budget"),
            (r#"{"reasoning": {"exclude": true}}"#, "reasoning.exclude"),
            (r#"{"reasoning": {"summary": "long"}}"#, "reasoning.summary"),
        ] {
            assert_eq!(take(body).unwrap_err().param.as_deref(), Some(param), "{body}");
        }
        let told = |body: &str| take(body).unwrap().1;
        assert_eq!(told(r#"{"reasoning": {"summary": "auto"}}"#), "");
        assert_eq!(
            told(r#"{"reasoning": {"summary": "detailed"}}"#),
            "reasoning.summary (detailed)"
        );
    }
}
