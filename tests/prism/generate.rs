//! Branches, constraints, scored choices, streams and refusals.

use serde_json::{Value, json};

use super::{generate, greedy, prism, refused, text, whole_blocks, with};
use crate::support::{Server, ServerBuilder};

const PROMPT: &str = "The capital of France is";

#[test]
fn a_text_and_its_tokens_are_continued_alike() {
    let server = prism();
    let by_text = generate(&server, greedy(PROMPT, 12));
    let completion = server.complete(with(
        json!({"prompt": PROMPT, "return_token_ids": true}),
        json!({"temperature": 0, "max_tokens": 12, "ignore_eos": true}),
    ));
    assert_eq!(by_text["choices"][0]["text"], completion["choices"][0]["text"]);
    assert_eq!(by_text["choices"][0]["token_ids"], completion["choices"][0]["token_ids"]);
    assert_eq!(by_text["choices"][0]["finish_reason"], "length");
    assert_eq!(by_text["model"], "demo");
    let ids = completion["choices"][0]["prompt_token_ids"].clone();
    let by_ids = generate(
        &server,
        json!({"input_ids": ids, "temperature": 0, "max_tokens": 12, "ignore_eos": true, "logprobs": 2}),
    );
    assert_eq!(text(&by_ids), text(&by_text));
    let logprobs = by_ids["choices"][0]["logprobs"].as_array().unwrap();
    assert_eq!(logprobs.len(), 12);
    assert!(logprobs.iter().all(|token| token["top_logprobs"].as_array().unwrap().len() == 2));
    assert_eq!(
        by_ids["usage"]["prompt_tokens_details"]["cached_tokens"],
        // The last token is always computed.
        whole_blocks(ids.as_array().unwrap().len() as u64 - 1)
    );
}

#[test]
fn branches_are_sampled_from_one_prompt() {
    let server = prism();
    // With a low temperature all branches would probably be the same.
    let body = json!({"text": PROMPT, "n": 4, "seed": 9, "temperature": 1.5, "max_tokens": 8, "structured_outputs": {"regex": " [A-Z][a-z]{3,9}"}});
    let response = generate(&server, body);
    let choices = response["choices"].as_array().unwrap();
    assert_eq!(choices.len(), 4);
    for (index, choice) in choices.iter().enumerate() {
        assert_eq!(choice["index"], index);
        assert!(choice["text"].as_str().unwrap().starts_with(' '), "{choice}");
    }
    let texts: std::collections::HashSet<_> =
        choices.iter().map(|choice| choice["text"].to_string()).collect();
    assert!(texts.len() > 1, "{response}");
}

#[test]
fn the_most_likely_choice_is_selected_by_its_mean() {
    let server = prism();
    let choices = [" Paris", " London, I think", " zzz qqq"];
    let response = generate(&server, json!({"text": PROMPT, "choices": choices, "logprobs": 0}));
    assert_eq!(response["selected"], 0, "{response}");
    for (choice, text) in response["choices"].as_array().unwrap().iter().zip(choices) {
        // The scores equal those of an echoed completion.
        let ids = server.post("/tokenize", &json!({"prompt": PROMPT, "model": "demo"})).ok();
        let whole: Vec<Value> = ids["tokens"]
            .as_array()
            .unwrap()
            .iter()
            .chain(choice["token_ids"].as_array().unwrap())
            .cloned()
            .collect();
        let echo =
            server.complete(json!({"prompt": whole, "echo": true, "max_tokens": 0, "logprobs": 0}));
        let scores = echo["choices"][0]["logprobs"]["token_logprobs"].as_array().unwrap();
        let scores: Vec<f64> = scores[ids["tokens"].as_array().unwrap().len()..]
            .iter()
            .map(|s| s.as_f64().unwrap())
            .collect();
        let mean = scores.iter().sum::<f64>() / scores.len() as f64;
        assert_eq!(choice["text"], text);
        assert!((choice["score"].as_f64().unwrap() - mean).abs() < 1e-4, "{choice}: {mean}");
        assert_eq!(choice["logprobs"].as_array().unwrap().len(), scores.len());
        assert_eq!(choice["finish_reason"], Value::Null);
    }
    assert_eq!(
        response["usage"]["prompt_tokens"],
        server.post("/tokenize", &json!({"prompt": PROMPT})).ok()["count"]
    );
}

#[test]
fn a_stream_brings_the_same() {
    let server = prism();
    let body = with(greedy(PROMPT, 20), json!({"n": 2, "session": {"open": true}}));
    let whole = generate(&server, body.clone());
    let streamed = with(body, json!({"stream": true, "stream_options": {"include_usage": true}}));
    let mut stream = server.open("/generate", &streamed);
    let (mut texts, mut ids) = (vec![String::new(); 2], vec![Vec::new(); 2]);
    let (mut sessions, mut usage) = (Vec::new(), Value::Null);
    while let Some(chunk) = stream.next_chunk() {
        assert_eq!(chunk["object"], "generation.chunk");
        for choice in chunk["choices"].as_array().unwrap() {
            let index = choice["index"].as_u64().unwrap() as usize;
            texts[index].push_str(choice["text"].as_str().unwrap());
            ids[index].extend(choice["token_ids"].as_array().unwrap().clone());
            assert_eq!(choice["finish_reason"].is_null(), choice["session"].is_null());
            sessions.extend(choice["session"]["id"].as_str().map(str::to_owned));
        }
        // Only the last chunk has it.
        usage = chunk["usage"].clone();
    }
    for (index, choice) in whole["choices"].as_array().unwrap().iter().enumerate() {
        assert_eq!(choice["text"], texts[index]);
        assert_eq!(choice["token_ids"], json!(ids[index]));
    }
    // Two choices of 20 tokens.
    assert_eq!(usage["completion_tokens"], 40);
    assert!(sessions.len() == 2 && sessions[0] != sessions[1]);
}

#[test]
fn what_cannot_be_done_is_refused_by_name() {
    let server = prism();
    for (body, param) in [
        (json!({}), "text"),
        (json!({"text": "a", "input_ids": [1]}), "input_ids"),
        (json!({"input_ids": [1_000_000]}), "input_ids"),
        (json!({"input_ids": []}), "input_ids"),
        (json!({"text": "a", "choices": []}), "choices"),
        (json!({"text": "a", "choices": ["b"], "stream": true}), "choices"),
        (json!({"text": "a", "max_tokens": 0, "n": 2}), "n"),
        (json!({"text": "a", "prompt_logprobs": 1}), "prompt_logprobs"),
        (json!({"text": "a", "max_new_tokens": 1}), "max_new_tokens"),
        (json!({"text": "a", "structured_outputs": {"regex": "("}}), "structured_outputs.regex"),
        (json!({"text": "a", "session": {}}), "session"),
        (json!({"text": "a", "session": {"open": true, "ttl": 0}}), "session.ttl"),
        (json!({"session": {"open": true}}), "text"),
    ] {
        assert_eq!(refused(&server, 400, body.clone())["param"], param, "{body}");
    }
    // The demo's context has 2,048 tokens.
    let long = "word ".repeat(3000);
    let error = refused(&server, 400, json!({"text": long}));
    assert_eq!(error["code"], "context_length_exceeded");
    assert_eq!(
        refused(&server, 404, json!({"text": "a", "model": "other"}))["code"],
        "model_not_found"
    );
    let unknown = refused(&server, 404, json!({"text": "a", "session": {"id": "s"}}));
    assert_eq!(unknown["code"], "session_not_found");
    let error = refused(&Server::demo(), 404, json!({"text": "a"}));
    assert!(error["message"].as_str().unwrap().contains("--framework prism"), "{error}");
}

#[test]
fn texts_are_the_same_where_tokens_need_not_be_sampled() {
    let (prism, blaze) = (prism(), ServerBuilder::new("demo").start());
    // Keys and punctuation of the schema leave one possible token, which prism takes without the model.
    let schema = json!({
        "type": "object",
        "properties": {"occupation": {"enum": ["baker", "carpenter"]}, "likes_long_walks": {"type": "boolean"}, "age": {"type": "integer", "minimum": 1, "maximum": 99}},
        "required": ["occupation", "likes_long_walks", "age"], "additionalProperties": false,
    });
    for more in [
        json!({"temperature": 0}),
        json!({"temperature": 1.3, "seed": 4, "n": 3, "frequency_penalty": 0.5}),
        // The limit, the stop string and the minimum lie within such runs of tokens.
        json!({"temperature": 0, "max_tokens": 9}),
        json!({"temperature": 0, "stop": ["_long"]}),
        json!({"temperature": 0, "min_tokens": 40}),
        json!({"temperature": 0, "logprobs": 1}),
    ] {
        let body = with(
            json!({"prompt": "A person:", "max_tokens": 100, "structured_outputs": {"json": schema}}),
            more,
        );
        assert_eq!(prism.complete(body.clone())["choices"], blaze.complete(body)["choices"]);
    }
    assert!(prism.metrics().value("jump_forward_tokens_total") > 50.0);
    assert_eq!(blaze.metrics().value("jump_forward_tokens_total"), 0.0);
}
