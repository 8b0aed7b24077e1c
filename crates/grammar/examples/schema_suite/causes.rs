//! Likely reasons for refusing valid instances.

use serde_json::Value;

/// A property of an instance or its schema that constraints are known not to allow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Cause {
    /// `format` is enforced here, but only an annotation in the suite.
    Format,
    /// An unusual spelling of a number: `1.0` or `1e2` for an integer, or more digits than are exact.
    NumberSpelling,
    /// Properties in another order than the schema's.
    PropertyOrder,
    /// Another cause.
    Other,
}

impl Cause {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Format => "`format` is enforced, but only an annotation in the suite",
            Self::NumberSpelling => {
                "an unusual spelling of a number (`1.0` as an integer, an exponent)"
            }
            Self::PropertyOrder => "the order of properties",
            Self::Other => "other",
        }
    }
}

/// The most likely cause.
pub(crate) fn cause(schema: &Value, data: &Value) -> Cause {
    // The order is that of certainty: an enforced format explains a refusal better than an order that is merely
    // possible.
    if has(schema, &|value| value.get("format").is_some()) {
        Cause::Format
    } else if has(data, &|value| value.is_f64() && is_unusual(value)) {
        Cause::NumberSpelling
    } else if has(data, &|value| value.as_object().is_some_and(|object| object.len() > 1)) {
        Cause::PropertyOrder
    } else {
        Cause::Other
    }
}

/// Whether a schema has keywords that are only annotations in newer drafts and here: for the content of strings, and the
/// format `regex`.
pub(crate) fn is_annotated(schema: &Value) -> bool {
    has(schema, &|value| {
        value.get("contentMediaType").or_else(|| value.get("contentEncoding")).is_some()
            || value.get("format").is_some_and(|format| format == "regex")
    })
}

/// Whether a number has an integer value but is not written as one, or needs an exponent.
fn is_unusual(number: &Value) -> bool {
    let text = number.to_string();
    text.ends_with(".0") || text.contains(['e', 'E'])
}

fn has(value: &Value, is: &dyn Fn(&Value) -> bool) -> bool {
    is(value)
        || match value {
            Value::Array(items) => items.iter().any(|item| has(item, is)),
            Value::Object(object) => object.values().any(|value| has(value, is)),
            _ => false,
        }
}
