//! End-to-end tests. They send HTTP requests to the built binary, as its users do.

#![expect(clippy::print_stderr, reason = "a test that fails shows the logs of its servers")]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod agents;
mod bench;
mod clients;
mod cuda;
mod deploy;
mod deterministic;
mod doctor;
mod embeddings;
mod first_run;
mod gguf;
mod health;
mod http2;
mod hub;
mod load;
mod on_load;
mod playground;
mod prism;
mod public_names;
mod published;
mod pull;
mod ranks;
mod real_model;
mod robustness;
mod soak;
mod support;
mod terminal;
mod tls;
mod watching;
mod wire;
