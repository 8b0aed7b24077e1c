//! The request fields of each path. The server itself tells them: its error names a field that it does not know.
//!
//! The OpenAPI document leaves out fields that exist for clients of other servers.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::live::{Servers, bodies};
use super::{Names, listed};
use crate::support::{Request, Response};

/// The path that only prism serves.
const PRISM: &str = "/generate";

pub(super) fn collect(servers: &Servers, names: &mut Names) {
    let candidates = candidates(servers);
    assert!(candidates.contains("temperature"), "{candidates:?}");
    let of_paths = bodies();
    check_bodies(servers, &of_paths);
    for (path, body) in of_paths {
        let ask = |body: &Value| asked(servers, path, body);
        if is_known("x_unheard_of", &ask(&with(&body, "x_unheard_of"))) != Some(false) {
            // The demo model refuses embeddings and scores before it looks at fields.
            continue;
        }
        for field in &candidates {
            let is_there = body.get(field).is_some();
            if is_there || is_known(field, &ask(&with(&body, field))) == Some(true) {
                names.add(format!("{path} {field}"));
            }
        }
    }
    let [literals, _] = &servers.literals;
    for function in ["take", "take_integer", "require"] {
        literals.arguments_of(function).for_each(|field| names.add(format!("taken {field}")));
    }
}

/// Checks that every path with a body gets a request.
fn check_bodies(servers: &Servers, bodies: &[(&str, Value)]) {
    let document = servers.document();
    for (path, methods) in document["paths"].as_object().unwrap() {
        let is_known = bodies.iter().any(|(known, _)| known == path);
        assert!(
            methods["post"].is_null() || is_known,
            "give tests/public_names/live.rs a body that {path} takes"
        );
    }
}

fn asked(servers: &Servers, path: &str, body: &Value) -> Response {
    let request = Request::post(path, body);
    if path == PRISM { servers.ask_prism(request) } else { servers.blaze.send(&request) }
}

/// Adds the field with a value that only a map accepts.
fn with(body: &Value, field: &str) -> Value {
    let mut body = body.clone();
    body[field] = json!({"": 0});
    body
}

/// Whether the path has the field. `None`: the server knows the name and does not support it.
fn is_known(field: &str, response: &Response) -> Option<bool> {
    if response.status != 400 {
        return Some(true);
    }
    let error = &response.json()["error"];
    let message = error["message"].as_str().unwrap();
    // The error is about another field, for example one that this field excludes, so this one is known.
    if error["param"] != field {
        return Some(true);
    }
    let is_refused = message.ends_with("is not supported yet: leave it out.");
    (!is_refused).then(|| !message.contains("is not a field of this endpoint"))
}

/// Possible fields: string literals of the crate `api`, properties of schemas, and listed fields.
fn candidates(servers: &Servers) -> BTreeSet<String> {
    let [literals, _] = &servers.literals;
    let mut candidates = literals.all.clone();
    // A listed field is looked for even if no literal in the sources is its name any more.
    candidates.extend(
        listed("fields").iter().filter_map(|line| Some(line.split_once(' ')?.1.to_owned())),
    );
    properties(&servers.document()["components"], &mut candidates);
    candidates.retain(|text| {
        let is_word = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
        !text.is_empty() && text.chars().all(is_word)
    });
    candidates
}

fn properties(schema: &Value, found: &mut BTreeSet<String>) {
    if let Some(properties) = schema["properties"].as_object() {
        found.extend(properties.keys().cloned());
    }
    let parts = schema.as_object().into_iter().flatten().map(|(_, part)| part);
    for part in parts.chain(schema.as_array().into_iter().flatten()) {
        properties(part, found);
    }
}
