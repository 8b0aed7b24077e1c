//! Every JSON key of live answers and streams, and the values that name the kind of an object.

use serde_json::{Value, json};

use super::Names;
use super::live::{Servers, with_key};
use crate::support::{Request, Server};

/// Keys whose values are names of the protocol.
const WORDS: [&str; 8] =
    ["object", "type", "role", "status", "finish_reason", "stop_reason", "reason", "owned_by"];

/// Objects whose keys are tokens, or chosen by users.
const MAPS: [&str; 4] = ["logprobs.top_logprobs[]", "prompt_logprobs[]", "metadata", "env"];

pub(super) fn collect(servers: &Servers, names: &mut Names) {
    for (path, body) in requests() {
        answer(&servers.blaze, path, &body, names);
        stream(&servers.blaze, path, &body, names);
    }
    for (path, body) in reasoning() {
        answer(&servers.prism, path, &body, names);
        stream(&servers.prism, path, &body, names);
    }
    for path in ["/v1/models", "/v1/models/demo", "/health", "/version", "/"] {
        let response = servers.blaze.get(path).ok();
        keys(&format!("GET {path}"), "", &response, names);
    }
    let others = [
        ("/tokenize", json!({"model": "demo", "prompt": "a", "return_token_strs": true})),
        ("/detokenize", json!({"model": "demo", "tokens": [1]})),
        ("/v1/messages/count_tokens", json!({"model": "demo", "messages": question()})),
    ];
    for (path, body) in others {
        answer(&servers.blaze, path, &body, names);
    }
    kept(&servers.blaze, names);
    // Some events depend on timing, so the sources are read too.
    for text in servers.literals.iter().flat_map(|literals| &literals.all) {
        if text.starts_with("response.") && !text.contains(' ') {
            names.add(format!("event {text}"));
        }
    }
}

fn question() -> Value {
    json!([{"role": "user", "content": "What is the weather in Paris?"}])
}

fn weather() -> Value {
    let city =
        json!({"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]});
    json!({"name": "get_weather", "description": "Get the weather of a city.", "parameters": city})
}

fn with(mut body: Value, more: Value) -> Value {
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

/// Requests that ask for every optional part of an answer, with and without tool calls.
fn requests() -> Vec<(&'static str, Value)> {
    let greedy = json!({"model": "demo", "temperature": 0});
    let chat = with(
        greedy.clone(),
        json!({"messages": question(), "max_tokens": 60, "return_token_ids": true, "logprobs": true, "top_logprobs": 2}),
    );
    let completion = with(
        greedy.clone(),
        json!({"prompt": "The capital", "max_tokens": 3, "ignore_eos": true, "logprobs": 2, "echo": true, "return_token_ids": true}),
    );
    let response = with(
        greedy.clone(),
        json!({"input": "What is the weather in Paris?", "max_output_tokens": 60}),
    );
    let message = with(greedy, json!({"messages": question(), "max_tokens": 60}));
    let described = weather();
    let function = json!({"tools": [{"type": "function", "function": described}]});
    let flat = json!({"tools": [with(json!({"type": "function"}), described.clone())]});
    let tool = json!({"tools": [{
        "name": described["name"], "description": described["description"], "input_schema": described["parameters"],
    }]});
    vec![
        ("/v1/chat/completions", with(chat.clone(), function)),
        ("/v1/chat/completions", with(chat, json!({"prompt_logprobs": 1}))),
        ("/v1/completions", with(completion.clone(), json!({"prompt_logprobs": 1, "echo": false}))),
        ("/v1/completions", completion),
        ("/v1/responses", with(response.clone(), flat)),
        ("/v1/responses", with(response.clone(), json!({"max_output_tokens": 2}))),
        ("/v1/responses", response),
        ("/v1/messages", with(message.clone(), tool)),
        ("/v1/messages", with(message.clone(), json!({"stop_sequences": ["e"]}))),
        ("/v1/messages", message),
    ]
}

/// Requests to the server that reasons.
fn reasoning() -> Vec<(&'static str, Value)> {
    let greedy = json!({"model": "demo", "temperature": 0, "ignore_eos": true});
    let thinking = json!({"type": "adaptive"});
    vec![
        (
            "/v1/chat/completions",
            with(greedy.clone(), json!({"messages": question(), "max_tokens": 8})),
        ),
        ("/v1/responses", with(greedy.clone(), json!({"input": "a", "max_output_tokens": 8}))),
        // The end of the turn, from the fourth token on.
        (
            "/v1/responses",
            json!({"model": "demo", "input": "a", "max_output_tokens": 8, "min_tokens": 3, "logit_bias": {"1275": 100}}),
        ),
        (
            "/v1/messages",
            json!({"model": "demo", "messages": question(), "max_tokens": 8, "thinking": thinking}),
        ),
        (
            "/generate",
            json!({"text": "The capital", "max_tokens": 3, "ignore_eos": true, "logprobs": 1, "session": {"open": true}}),
        ),
    ]
}

fn answer(server: &Server, path: &str, body: &Value, names: &mut Names) {
    let response = server.send(&with_key(Request::post(path, body))).ok();
    keys(&format!("POST {path}"), "", &response, names);
}

/// Lists the keys of the same answer as a stream, by the event's type where it has one.
fn stream(server: &Server, path: &str, body: &Value, names: &mut Names) {
    let mut body = with(body.clone(), json!({"stream": true}));
    // A stream cannot return log-probabilities of the prompt.
    body.as_object_mut().unwrap().remove("prompt_logprobs");
    if path.ends_with("completions") {
        body["stream_options"] = json!({"include_usage": true});
    }
    let mut stream = with_key(Request::post(path, &body)).open(server.address).unwrap();
    if stream.status != 200 {
        let refused = stream.finish().unwrap();
        assert!(refused.text().contains("`stream`"), "{path}: {}", refused.text());
        return;
    }
    while let Some(event) = stream.next_event().unwrap() {
        if event == "[DONE]" {
            names.add(format!("POST {path} stream [DONE]"));
            continue;
        }
        let event: Value = serde_json::from_str(&event).unwrap();
        let kind = event["type"].as_str().unwrap_or_default();
        keys(format!("POST {path} stream {kind}").trim_end(), "", &event, names);
    }
}

/// Retrieves a stored response and deletes it.
fn kept(server: &Server, names: &mut Names) {
    let body = json!({"model": "demo", "input": "a", "max_output_tokens": 2});
    let kept = server.post("/v1/responses", &body).ok();
    let path = format!("/v1/responses/{}", kept["id"].as_str().unwrap());
    for method in ["GET", "DELETE"] {
        let response = server.send(&Request::new(method, &path)).ok();
        keys(&format!("{method} /v1/responses/{{id}}"), "", &response, names);
    }
}

/// Lists the keys of `value`, which stands at `path` in an answer of `source`.
pub(super) fn keys(source: &str, path: &str, value: &Value, names: &mut Names) {
    match value {
        Value::Object(object) => {
            let is_map = MAPS.iter().any(|map| path.ends_with(map));
            for (key, value) in object {
                // Schemas and arguments of functions hold the user's names.
                let is_users = ["parameters", "input_schema", "input"].contains(&key.as_str());
                let key = if is_map { "*" } else { key };
                let path = if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") };
                names.add(format!("{source}: {path}"));
                if let Some(word) = value.as_str().filter(|_| WORDS.contains(&key)) {
                    names.add(format!("{source}: {path} = {word}"));
                }
                if !is_users {
                    keys(source, &path, value, names);
                }
            }
        }
        Value::Array(values) => {
            values.iter().for_each(|value| keys(source, &format!("{path}[]"), value, names));
        }
        _ => {}
    }
}
