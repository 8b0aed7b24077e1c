//! The HTTP API, endpoint by endpoint.

mod agents;
mod chat;
mod completions;
mod constraints;
mod differential;
mod documents;
mod errors;
mod images;
mod model_output;
mod reasoning;
mod sampling;
mod settings;
mod streaming;
mod templates;
mod tokens;
mod tools;
mod vision;
