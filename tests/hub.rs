//! Tests of the fake hub itself. It must behave like the real one, so that tests of downloads mean something.

mod faults;
mod official_client;
mod protocol;

use std::net::SocketAddr;

use serde_json::json;

use crate::support::{Files, Hub, Request, Response, ServerBuilder, TempFolder, wait_for};

/// The repository of these tests.
const ID: &str = "acme/tiny";

/// One file of each kind: small, in a folder, large by its name, large by its size.
fn files() -> Files {
    Files::new()
        .with("README.md", "hello\n")
        .with("onnx/config.json", "{}")
        .with("model.safetensors", pattern(300_000))
        .with("vocab.bin", pattern((1 << 20) + 1))
}

/// `count` bytes without repetitions of neighbours.
fn pattern(count: usize) -> Vec<u8> {
    // 251 is prime, so pieces that start at multiples of a power of two differ.
    (0..count).map(|at| (at % 251) as u8).collect()
}

/// A hub with [`files`], and their commit.
fn hub() -> (Hub, String) {
    let hub = Hub::start();
    let commit = hub.publish(ID, &files());
    (hub, commit)
}

fn get(hub: &Hub, path: &str) -> Response {
    Request::get(path).send(hub.address()).unwrap()
}

/// The location of a file of [`ID`]: address and path of the redirect by `resolve`.
fn located(hub: &Hub, path: &str) -> (SocketAddr, String) {
    let response = get(hub, &format!("/{ID}/resolve/main/{path}"));
    let location = response.header("location").unwrap_or_else(|| panic!("{response:?}"));
    match location.strip_prefix("http://").and_then(|rest| rest.split_once('/')) {
        Some((address, path)) => (address.parse().unwrap(), format!("/{path}")),
        None => (hub.address(), location.to_owned()),
    }
}

/// A GET of a file at its location, after the redirect.
fn content_of(hub: &Hub, path: &str) -> (SocketAddr, Request) {
    let (address, path) = located(hub, path);
    (address, Request::get(&path))
}

/// A repository of a golden model can be served.
#[test]
fn golden_models_are_whole_models() {
    for name in ["llama-linear", "qwen2"] {
        let folder = TempFolder::new();
        Files::golden(name).write_to(folder.path());
        let server = ServerBuilder::new(folder.path()).flags("--served-model-name demo").start();
        let prompt = "banana, Überraschung 🙂";
        let ids = server.post("/tokenize", &json!({"model": "demo", "prompt": prompt})).ok();
        let tokens = &ids["tokens"];
        let text = server.post("/detokenize", &json!({"model": "demo", "tokens": tokens})).ok();
        assert_eq!(text["prompt"], prompt);
        let message = json!({"role": "user", "content": prompt});
        server.chat(json!({"messages": [message], "max_tokens": 4, "ignore_eos": true}));
        wait_for("the answer to be counted", || {
            (server.metrics().value("generation_tokens_total") == 4.0).then_some(())
        });
    }
}
