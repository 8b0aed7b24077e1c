//! Server-sent events: the order of chunks, and their sum, which is the whole answer.

use serde_json::{Value, json};

use crate::support::Server;

#[test]
fn chat_chunks_come_in_the_protocols_order_and_add_up() {
    let server = Server::demo();
    let mut body = json!({
        "model": "demo", "messages": [{"role": "user", "content": "What is the capital of France?"}],
        "temperature": 0, "max_tokens": 40,
    });
    let whole = server.post("/v1/chat/completions", &body).ok();
    body["stream"] = json!(true);
    let chunks = server.open("/v1/chat/completions", &body).chunks();
    assert_eq!(chunks[0]["choices"][0]["delta"], json!({"role": "assistant", "content": ""}));
    let (last, others) = chunks.split_last().unwrap();
    assert_eq!(last["choices"][0]["finish_reason"], whole["choices"][0]["finish_reason"]);
    for chunk in &chunks {
        assert_eq!(chunk["object"], "chat.completion.chunk");
        assert_eq!((&chunk["id"], &chunk["model"]), (&chunks[0]["id"], &json!("demo")));
        assert!(chunk.get("usage").is_none_or(Value::is_null), "{chunk}");
    }
    for chunk in others {
        assert!(chunk["choices"][0]["finish_reason"].is_null(), "{chunk}");
    }
    for chunk in &chunks[1..] {
        assert!(chunk["choices"][0]["delta"].get("role").is_none(), "{chunk}");
    }
    let text: String = chunks
        .iter()
        .map(|chunk| chunk["choices"][0]["delta"]["content"].as_str().unwrap_or_default())
        .collect();
    assert_eq!(whole["choices"][0]["message"]["content"], text);
}

#[test]
fn usage_comes_last_and_only_where_asked_for() {
    let server = Server::demo();
    for (path, body) in [
        (
            "/v1/completions",
            json!({"model": "demo", "prompt": "The", "max_tokens": 5, "ignore_eos": true}),
        ),
        (
            "/v1/chat/completions",
            json!({"model": "demo", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 5, "ignore_eos": true}),
        ),
    ] {
        let mut body = body;
        body["stream"] = json!(true);
        body["stream_options"] = json!({"include_usage": true});
        let chunks = server.open(path, &body).chunks();
        let (last, others) = chunks.split_last().unwrap();
        // The chunk with the usage has no choices.
        assert_eq!(last["choices"], json!([]));
        assert_eq!(last["usage"]["completion_tokens"], 5);
        assert!(others.iter().all(|chunk| chunk["usage"].is_null()));
        body["stream"] = json!(false);
        assert_eq!(server.post(path, &body).error(400)["param"], "stream_options");
    }
}

#[test]
fn streamed_completions_add_up_with_choices_and_logprobs() {
    let server = Server::demo();
    let mut body = json!({
        "model": "demo", "prompt": ["The capital of", "One and"], "n": 2, "seed": 3, "temperature": 1.2,
        "max_tokens": 10, "ignore_eos": true, "logprobs": 2, "return_token_ids": true,
    });
    let whole = server.post("/v1/completions", &body).ok();
    body["stream"] = json!(true);
    let chunks = server.open("/v1/completions", &body).chunks();
    for choice in whole["choices"].as_array().unwrap() {
        let own = || {
            chunks
                .iter()
                .flat_map(|chunk| chunk["choices"].as_array().unwrap())
                .filter(|own| own["index"] == choice["index"])
        };
        let text: String = own().map(|own| own["text"].as_str().unwrap()).collect();
        assert_eq!(choice["text"], text);
        let joined = |path: &str| -> Vec<Value> {
            own().filter_map(|own| own.pointer(path)?.as_array().cloned()).flatten().collect()
        };
        for path in
            ["/token_ids", "/logprobs/tokens", "/logprobs/token_logprobs", "/logprobs/text_offset"]
        {
            assert_eq!(choice.pointer(path).unwrap(), &json!(joined(path)), "{path}");
        }
        let finishes: Vec<&Value> =
            own().map(|own| &own["finish_reason"]).filter(|reason| !reason.is_null()).collect();
        assert_eq!(finishes, [&choice["finish_reason"]]);
    }
}

#[test]
fn chunks_are_whole_characters() {
    let server = Server::demo();
    // A character outside the vocabulary is generated as byte tokens, one by one.
    let character = "\u{1f56f}";
    let ids = server
        .post("/tokenize", &json!({"prompt": character, "add_special_tokens": false}))
        .ok()["tokens"]
        .clone();
    let ids = ids.as_array().unwrap();
    assert!(ids.len() > 1, "{ids:?}");
    // The biases make the model write these bytes in any order, so most characters stay incomplete.
    let biases: serde_json::Map<String, Value> =
        ids.iter().map(|id| (id.to_string(), json!(100))).collect();
    for seed in 0..8 {
        let body = json!({
            "model": "demo", "prompt": "a", "max_tokens": 24, "ignore_eos": true, "logit_bias": biases, "seed": seed,
            "stream": true, "temperature": 2,
        });
        let mut whole = body.clone();
        whole["stream"] = json!(false);
        let whole = server.post("/v1/completions", &whole).ok();
        let chunks = server.open("/v1/completions", &body).chunks();
        let text: String =
            chunks.iter().map(|chunk| chunk["choices"][0]["text"].as_str().unwrap()).collect();
        assert_eq!(whole["choices"][0]["text"], text);
    }
    let echoed = json!({
        "model": "demo", "prompt": format!("{character} candle \u{e9}\u{4e2d}"), "echo": true, "max_tokens": 1, "stream": true,
    });
    let chunks = server.open("/v1/completions", &echoed).chunks();
    let text: String =
        chunks.iter().map(|chunk| chunk["choices"][0]["text"].as_str().unwrap()).collect();
    assert!(text.starts_with(&format!("{character} candle \u{e9}\u{4e2d}")), "{text}");
}
