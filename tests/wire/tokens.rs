//! POST /tokenize and /detokenize.

use serde_json::{Value, json};

use crate::support::Server;

fn tokens(server: &Server, body: &Value) -> Value {
    let answer = server.post("/tokenize", body).ok();
    assert_eq!(answer["count"], answer["tokens"].as_array().unwrap().len());
    assert_eq!(answer["max_model_len"], 2048);
    answer["tokens"].clone()
}

#[test]
fn texts_become_tokens_and_back() {
    let server = Server::demo();
    for text in [
        "The capital of France is Paris.",
        "a",
        " leading and  double spaces\n\ttabs",
        "Z\u{fc}rich \u{4f60}\u{597d} \u{1f56f}\u{fe0f}",
        "<|not special|>",
    ] {
        let ids =
            tokens(&server, &json!({"model": "demo", "prompt": text, "add_special_tokens": false}));
        let back = server.post("/detokenize", &json!({"model": "demo", "tokens": ids})).ok();
        assert_eq!(back["prompt"], text);
    }
    // The demo adds no special tokens to a text.
    assert_eq!(tokens(&server, &json!({"prompt": ""})), json!([]));
    assert_eq!(server.post("/detokenize", &json!({"tokens": []})).ok()["prompt"], "");
}

#[test]
fn conversations_are_tokenized_as_chat_does() {
    let server = Server::demo();
    let messages =
        json!([{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"}]);
    let ids = tokens(&server, &json!({"messages": messages}));
    let answer = server.chat(json!({"messages": messages, "max_tokens": 1}));
    assert_eq!(answer["usage"]["prompt_tokens"], ids.as_array().unwrap().len());
    let without = tokens(&server, &json!({"messages": messages, "add_generation_prompt": false}));
    let (ids, without) = (ids.as_array().unwrap(), without.as_array().unwrap());
    // The generation prompt is the end of the prompt.
    assert!(without.len() < ids.len() && ids[..without.len()] == without[..]);

    let tool = json!({"type": "function", "function": {"name": "f", "description": "Does it."}});
    let told = json!({"messages": messages, "tools": [tool], "tool_choice": "auto"});
    let with_tools = tokens(&server, &told).as_array().unwrap().len();
    let answer = server
        .chat(json!({"messages": messages, "tools": [tool], "max_tokens": 1, "model": "demo"}));
    assert_eq!(answer["usage"]["prompt_tokens"], with_tools);
    assert!(with_tools > ids.len());
}

#[test]
fn token_texts_are_given_where_asked_for() {
    let server = Server::demo();
    let answer =
        server.post("/tokenize", &json!({"prompt": "one two", "return_token_strs": true})).ok();
    assert_eq!(
        answer["token_strs"].as_array().unwrap().len(),
        answer["tokens"].as_array().unwrap().len()
    );
}

#[test]
fn mistakes_are_named() {
    let server = Server::demo();
    let param = |path: &str, body: Value| server.post(path, &body).error(400)["param"].clone();
    assert_eq!(param("/tokenize", json!({})), "prompt");
    assert_eq!(param("/tokenize", json!({"prompt": 1})), "prompt");
    assert_eq!(param("/detokenize", json!({})), "tokens");
    assert_eq!(param("/detokenize", json!({"tokens": [1, "x"]})), "tokens[1]");
    assert!(
        param("/detokenize", json!({"tokens": [99_999_999]}))
            .as_str()
            .unwrap()
            .starts_with("tokens")
    );
    server.post("/tokenize", &json!({"model": "x", "prompt": "a"})).error(404);
    server.post("/detokenize", &json!({"model": "x", "tokens": []})).error(404);
}
