//! The functions whose calls are parsed.

use serde_json::{Map, Value};

/// A callable function, with the data that the parser needs.
#[derive(Clone, Debug, PartialEq)]
pub struct Callable {
    /// Name of the function.
    pub name: String,
    /// JSON schema of the arguments. In formats without quotes, it distinguishes strings from other values.
    pub parameters: Option<Map<String, Value>>,
}
