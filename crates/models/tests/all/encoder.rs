//! Encoders: golden values, and errors while loading.

mod golden;
mod load_errors;
