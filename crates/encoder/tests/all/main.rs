//! The encoder crate seen from outside: golden values, and errors while loading.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod golden;
mod load_errors;
