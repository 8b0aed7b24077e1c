//! JSON schemas for tests of constraints.

mod pairs;
mod varied;

pub use pairs::Pairs;
pub use varied::schemas as varied;
