//! The state that handlers share: the loaded model, stored conversations, API keys, metrics, and errors of requests.

pub(crate) mod api_error;
pub(crate) mod body_memory;
pub(crate) mod decode_memory;
pub(crate) mod engine_load;
pub(crate) mod image_input;
pub(crate) mod keys;
pub(crate) mod metrics;
pub(crate) mod own_program;
pub(crate) mod permits;
pub(crate) mod refusals;
pub(crate) mod served_model;
pub(crate) mod sessions;
pub(crate) mod state;
pub(crate) mod stored_responses;
pub(crate) mod tokens;
pub(crate) mod trace;
