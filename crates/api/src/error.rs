//! Errors as they stand on the wire, and how a value of a request is named in them.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The one shape of every error body.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ErrorResponse {
    /// What went wrong.
    pub error: ErrorBody,
}

/// What went wrong. All four keys are always present.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ErrorBody {
    /// What is wrong and what to do, for a person.
    pub message: String,
    /// Its kind: `invalid_request_error`, `authentication_error`, `rate_limit_error` or `server_error`.
    #[serde(rename = "type")]
    pub kind: Cow<'static, str>,
    /// Path of the field that caused it, such as `messages[0].role`.
    pub param: Option<String>,
    /// Its kind, more finely, such as `model_not_found`.
    pub code: Option<Cow<'static, str>>,
}

/// A request that cannot be taken because of one of its fields, or because it is no JSON object at all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FieldError {
    /// Path of the field; `None` if the body as a whole is meant.
    pub param: Option<String>,
    /// What is wrong with it. Holds at most some characters of the input.
    pub message: String,
}

impl FieldError {
    /// An error of the field at `param`.
    pub fn new(param: impl AsRef<str>, message: impl Into<String>) -> Self {
        Self { param: Some(excerpt(param.as_ref())), message: message.into() }
    }

    /// An error of the body as a whole.
    pub fn body(message: impl Into<String>) -> Self {
        Self { param: None, message: message.into() }
    }
}

/// Most characters of the input in one place of an error body; `message` and `param` together stay under 200.
const EXCERPT_CHARS: usize = 80;

/// At most 80 characters of some input, for an error message: bodies are not to be reflected.
pub fn excerpt(input: &str) -> String {
    match input.char_indices().nth(EXCERPT_CHARS) {
        None => input.to_owned(),
        Some((end, _)) => format!("{}...", &input[..end]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn excerpts_cut_between_characters() {
        assert_eq!(excerpt("short"), "short");
        let long = "é".repeat(1000);
        assert_eq!(excerpt(&long), format!("{}...", "é".repeat(80)));
        assert_eq!(excerpt(&"a".repeat(80)), "a".repeat(80));
    }

    #[test]
    fn all_four_keys_are_present() {
        let body = ErrorResponse {
            error: ErrorBody {
                message: "m".into(),
                kind: "server_error".into(),
                param: None,
                code: None,
            },
        };
        assert_eq!(
            serde_json::to_string(&body).unwrap(),
            r#"{"error":{"message":"m","type":"server_error","param":null,"code":null}}"#
        );
    }
}
