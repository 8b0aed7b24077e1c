//! Converts the client's errors to the exceptions of `candlepower.errors`.

use candlepower_client::Error;
use pyo3::prelude::*;
use pyo3::types::PyString;
use serde_json::{Value, json};

/// The exception for an error of the client.
pub(crate) fn exception(error: &Error) -> PyErr {
    from_json(&error.to_json())
}

/// The exception for a parameter that cannot be used.
pub(crate) fn validation(field: &str, value: impl ToString, reason: &str) -> PyErr {
    let value = value.to_string();
    from_json(&json!({
        "code": "VALIDATION_ERROR", "message": format!("{field} `{value}`: {reason}"), "retryable": false,
        "field": field, "value": value,
    }))
}

fn from_json(error: &Value) -> PyErr {
    Python::attach(|py| {
        let make = || py.import("candlepower.errors")?.getattr("from_json");
        let text = PyString::new(py, &error.to_string());
        match make().and_then(|make| make.call1((text,))) {
            Ok(exception) => PyErr::from_value(exception),
            Err(broken) => broken,
        }
    })
}
