//! Test data that several crates share: golden checkpoints, and JSON schemas with texts. Only tests and the project's
//! tools depend on it.

pub mod goldens;
pub mod schemas;
