//! Why a valid instance was refused, as far as it can be seen.

use serde_json::Value;

/// What an instance or its schema has that constraints are known not to allow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Cause {
    /// `format` is held, where the suite only annotates.
    Format,
    /// A number is spelled in a way that is not written: `1.0` or `1e2` for an integer, more digits than are exact.
    NumberSpelling,
    /// Properties come in another order than the schema's.
    PropertyOrder,
    /// None of these.
    Other,
}

impl Cause {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Format => "`format` is held where the suite only annotates",
            Self::NumberSpelling => {
                "a number is spelled in another way (`1.0` as an integer, an exponent)"
            }
            Self::PropertyOrder => "the order of properties",
            Self::Other => "other",
        }
    }
}

/// The likeliest cause.
pub(crate) fn cause(schema: &Value, data: &Value) -> Cause {
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

/// Whether a schema describes strings in a way that newer drafts only annotate, and so do we: their content, and that they are
/// regular expressions.
pub(crate) fn is_annotated(schema: &Value) -> bool {
    has(schema, &|value| {
        value.get("contentMediaType").or_else(|| value.get("contentEncoding")).is_some()
            || value.get("format").is_some_and(|format| format == "regex")
    })
}

/// Whether a number that is no integer in JSON's eyes is one in mathematics, or needs an exponent.
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
