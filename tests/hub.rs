//! The local model hub itself: that it speaks as the hub does, so that what downloads from it downloads from the hub.

mod faults;
mod official_client;
mod protocol;

use std::net::SocketAddr;

use crate::support::{Files, Hub, Request, Response};

/// The repository of these tests.
const ID: &str = "acme/tiny";

/// A file of each kind: small, in a folder, large by its name, large by its size.
fn files() -> Files {
    Files::new()
        .with("README.md", "hello\n")
        .with("onnx/config.json", "{}")
        .with("model.safetensors", pattern(300_000))
        .with("vocab.bin", pattern((1 << 20) + 1))
}

/// So many bytes that differ from their neighbours.
fn pattern(count: usize) -> Vec<u8> {
    (0..count).map(|at| (at % 251) as u8).collect()
}

/// A hub that holds [`files`], and their commit.
fn hub() -> (Hub, String) {
    let hub = Hub::start();
    let commit = hub.publish(ID, &files());
    (hub, commit)
}

fn get(hub: &Hub, path: &str) -> Response {
    Request::get(path).send(hub.address()).unwrap()
}

/// Where a file of [`ID`] is: the address and the path that `resolve` redirects to.
fn located(hub: &Hub, path: &str) -> (SocketAddr, String) {
    let response = get(hub, &format!("/{ID}/resolve/main/{path}"));
    let location = response.header("location").unwrap_or_else(|| panic!("{response:?}"));
    match location.strip_prefix("http://").and_then(|rest| rest.split_once('/')) {
        Some((address, path)) => (address.parse().unwrap(), format!("/{path}")),
        None => (hub.address(), location.to_owned()),
    }
}

/// A GET of a file where it is, following the redirect.
fn content_of(hub: &Hub, path: &str) -> (SocketAddr, Request) {
    let (address, path) = located(hub, path);
    (address, Request::get(&path))
}
