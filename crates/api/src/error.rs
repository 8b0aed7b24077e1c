//! Error bodies, and excerpts of requests in them.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The body of every error.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ErrorResponse {
    /// The error.
    pub error: ErrorBody,
}

/// The error. All four keys are always present.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ErrorBody {
    /// Description of the problem and what to do, for people.
    pub message: String,
    /// Type of the error: `invalid_request_error`, `authentication_error`, `rate_limit_error` or `server_error`.
    #[serde(rename = "type")]
    pub kind: Cow<'static, str>,
    /// Path of the field that caused the error, such as `messages[0].role`.
    pub param: Option<String>,
    /// More specific type, such as `model_not_found`.
    pub code: Option<Cow<'static, str>>,
}

/// An invalid request, because of one of its fields, or because it is not a JSON object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FieldError {
    /// Path of the field; `None` for an error of the whole body.
    pub param: Option<String>,
    /// The reason. It quotes a limited number of characters of the input.
    pub message: String,
}

impl FieldError {
    /// An error of the field at `param`.
    pub fn new(param: impl AsRef<str>, message: impl Into<String>) -> Self {
        Self { param: Some(excerpt(param.as_ref())), message: message.into() }
    }

    /// An error of the whole body.
    pub fn body(message: impl Into<String>) -> Self {
        Self { param: None, message: message.into() }
    }
}

/// Maximum characters of a quoted name or path.
const EXCERPT_CHARS: usize = 60;
/// Maximum characters of a message that quotes the input.
const CLIPPED_CHARS: usize = 130;

/// At most 60 characters of a name from the input, for an error, so that errors do not reflect request bodies. With a message
/// clipped by [`clip`], an error quotes less than 200 characters of input.
pub fn excerpt(input: &str) -> String {
    match input.char_indices().nth(EXCERPT_CHARS) {
        None => input.to_owned(),
        Some((end, _)) => format!("{}...", &input[..end]),
    }
}

/// At most 130 characters of a message that may quote the input. Its end is kept, because it contains the reason.
pub fn clip(message: &str) -> String {
    let num_chars = message.chars().count();
    if num_chars <= CLIPPED_CHARS {
        return message.to_owned();
    }
    let head: String = message.chars().take(CLIPPED_CHARS / 2).collect();
    let tail: String = message.chars().skip(num_chars - CLIPPED_CHARS / 2).collect();
    format!("{head}...{tail}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn excerpts_cut_between_characters() {
        assert_eq!(excerpt("short"), "short");
        let long = "é".repeat(1000);
        assert_eq!(excerpt(&long), format!("{}...", "é".repeat(60)));
        assert_eq!(excerpt(&"a".repeat(60)), "a".repeat(60));
    }

    #[test]
    fn clipped_messages_keep_their_ends() {
        assert_eq!(clip("short"), "short");
        let clipped = clip(&format!("begin {} end", "é".repeat(1000)));
        assert!(clipped.starts_with("begin") && clipped.ends_with("end"));
        assert_eq!(clipped.chars().count(), 133);
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
