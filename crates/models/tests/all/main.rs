//! The models crate seen from outside: golden values, and errors while loading.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod converted;
mod device;
mod encoder;
mod golden;
mod hostile;
mod kv_scales;
mod load_errors;
mod quantized;
mod ranks;
mod vision;
