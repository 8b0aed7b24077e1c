//! The functions whose calls are read.

use serde_json::{Map, Value};

/// A function that may be called, as far as reading its calls needs it.
#[derive(Clone, Debug, PartialEq)]
pub struct Callable {
    /// Its name.
    pub name: String,
    /// The JSON schema of its arguments, which tells strings from other values where these are written alike.
    pub parameters: Option<Map<String, Value>>,
}
