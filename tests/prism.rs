//! prism's additions to the API: /generate with branches, choices and sessions, and prefixes kept for the next turn.

mod generate;
mod reuse;
mod sessions;

use serde_json::{Value, json};

use crate::support::{Server, ServerBuilder};

/// The demo model with the framework prism.
#[track_caller]
fn prism() -> Server {
    ServerBuilder::new("demo").flags("--framework prism").start()
}

#[track_caller]
fn generate(server: &Server, body: Value) -> Value {
    server.post("/generate", &body).ok()
}

/// The error of a refused request.
#[track_caller]
fn refused(server: &Server, status: u16, body: Value) -> Value {
    server.post("/generate", &body).error(status)
}

fn text(response: &Value) -> &str {
    response["choices"][0]["text"].as_str().unwrap()
}

fn cached(response: &Value) -> u64 {
    response["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap()
}

/// The tokens that fit into whole blocks.
fn whole_blocks(num_tokens: u64) -> u64 {
    num_tokens / 16 * 16
}

fn num_tokens(response: &Value) -> u64 {
    response["usage"]["prompt_tokens"].as_u64().unwrap()
}

/// Greedy decoding up to `max_tokens`.
fn greedy(text: &str, max_tokens: u32) -> Value {
    json!({"text": text, "temperature": 0, "max_tokens": max_tokens, "ignore_eos": true})
}

/// `body` with more fields.
fn with(mut body: Value, more: Value) -> Value {
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}
