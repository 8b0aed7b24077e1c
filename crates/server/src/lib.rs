//! The HTTP server: configuration, routes, streaming, metrics.
//!
//! The path of a request: `track` names and measures it, `auth` and the gate in `router` let it through, `incoming` takes
//! it, `chat`, `completions`, `messages`, `responses` or `prism` reads it, `params` checks its bounds, `conversation` and
//! `prompt` turn it into tokens, `generate` submits it to the engine; `stream` turns tokens into text and `answer` text into
//! its parts, which go out whole or through `sse`.

mod answer;
mod api_error;
mod auth;
mod blocks;
mod body;
mod chat;
mod completions;
pub mod config;
mod constraint;
mod conversation;
mod demo;
mod embeddings;
mod error;
mod generate;
mod health;
mod incoming;
mod listen;
mod load;
mod logging;
mod logprobs;
mod messages;
mod metrics;
mod models;
mod offline;
mod openapi;
mod params;
mod preflight;
mod prism;
mod prompt;
mod pull;
mod rerank;
mod responses;
mod router;
mod served;
mod sessions;
mod signals;
mod source;
mod sse;
mod startup;
mod state;
mod stream;
mod text;
mod tokenize;
mod tools;
mod track;

pub use config::ServeConfig;
pub use demo::files as demo_files;
pub use error::{Error, Result};
pub use health::VERSION;
pub use logging::{Terminal, init_logging};
pub use offline::{StartedEngine, start_engine};
pub use source::hub;
pub use startup::serve;
