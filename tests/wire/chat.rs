//! POST /v1/chat/completions and GET /v1/models.

use serde_json::{Value, json};

use crate::support::{Server, ServerBuilder};

fn content(answer: &Value) -> &str {
    answer["choices"][0]["message"]["content"].as_str().unwrap()
}

fn user(text: &str) -> Value {
    json!([{"role": "user", "content": text}])
}

#[test]
fn a_model_is_listed_and_described() {
    let server = Server::demo();
    let list = server.get("/v1/models").ok();
    assert_eq!(list["object"], "list");
    let model = server.get("/v1/models/demo").ok();
    assert_eq!(list["data"], json!([model]));
    assert_eq!(
        (&model["id"], &model["object"], &model["root"]),
        (&json!("demo"), &json!("model"), &json!("demo"))
    );
    assert_eq!(model["max_model_len"], 2048);
    assert!(model["created"].as_u64().is_some() && model["owned_by"].is_string(), "{model}");
}

#[test]
fn an_answer_has_the_shape_of_the_protocol() {
    let server = Server::demo();
    let answer = server.chat(json!({"messages": user("What is the capital of Italy?"), "temperature": 0, "max_tokens": 40}));
    assert!(answer["id"].as_str().unwrap().starts_with("chatcmpl-"));
    assert_eq!((&answer["object"], &answer["model"]), (&json!("chat.completion"), &json!("demo")));
    let choice = &answer["choices"][0];
    assert_eq!((&choice["index"], &choice["finish_reason"]), (&json!(0), &json!("stop")));
    assert_eq!(choice["message"]["role"], "assistant");
    assert!(content(&answer).contains("Rome"), "{answer}");
    assert!(choice["logprobs"].is_null());
    let usage = &answer["usage"];
    let tokens = |name: &str| usage[name].as_u64().unwrap();
    assert_eq!(tokens("total_tokens"), tokens("prompt_tokens") + tokens("completion_tokens"));
    assert_eq!(usage["prompt_tokens_details"]["cached_tokens"], 0);
}

#[test]
fn the_contracts_default_is_sixteen_tokens_and_a_flag_changes_it() {
    let body = json!({"messages": user("Hello"), "ignore_eos": true});
    let generated =
        |server: Server| server.chat(body.clone())["usage"]["completion_tokens"].as_u64().unwrap();
    assert_eq!(generated(Server::demo()), 16);
    assert_eq!(generated(ServerBuilder::new("demo").flags("--default-max-tokens 5").start()), 5);
    let server =
        ServerBuilder::new("demo").flags("--default-max-tokens max --max-model-len 100").start();
    let answer = server.chat(body.clone());
    assert_eq!(answer["usage"]["total_tokens"], 100);
    assert_eq!(answer["choices"][0]["finish_reason"], "length");
}

#[test]
fn content_may_be_parts_and_roles_are_the_protocols() {
    let server = Server::demo();
    let greedy =
        |messages: Value| json!({"messages": messages, "temperature": 0, "max_tokens": 24});
    let parts = json!([{"role": "user", "content": [{"type": "text", "text": "What is the capital of Spain?"}]}]);
    let whole = server.chat(greedy(user("What is the capital of Spain?")));
    assert_eq!(content(&server.chat(greedy(parts))), content(&whole));

    let turn = |role: &str| json!({"role": role, "content": "You are Ada, a helpful assistant."});
    let question = json!({"role": "user", "content": "What is your name?"});
    let system = server.chat(greedy(json!([turn("system"), question])));
    let developer = server.chat(greedy(json!([turn("developer"), question])));
    assert_eq!(content(&system), content(&developer));
    assert!(content(&system).contains("Ada"), "{system}");

    let conversation = json!([
        {"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Hello!"}, question,
    ]);
    server.chat(greedy(conversation));
    let tool = json!([
        {"role": "user", "content": "Weather?"},
        {"role": "assistant", "content": null, "tool_calls": [
            {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": "{\"city\": \"Rome\"}"}},
        ]},
        {"role": "tool", "tool_call_id": "call_1", "content": "sunny"},
    ]);
    server.chat(greedy(tool));
}

#[test]
fn a_turn_can_be_continued_and_the_generation_prompt_left_out() {
    let server = Server::demo();
    let messages = json!([
        {"role": "user", "content": "What is the capital of France?"},
        {"role": "assistant", "content": "The capital of France is"},
    ]);
    let count = |options: Value| {
        let mut body = json!({"messages": messages, "temperature": 0, "max_tokens": 8});
        body.as_object_mut().unwrap().extend(options.as_object().unwrap().clone());
        server.chat(body)
    };
    let continued = count(json!({"continue_final_message": true, "add_generation_prompt": false}));
    assert!(content(&continued).contains("Paris"), "{continued}");
    let prompt_tokens = |answer: &Value| answer["usage"]["prompt_tokens"].as_u64().unwrap();
    let with_prompt = prompt_tokens(&count(json!({})));
    let without = prompt_tokens(&count(json!({"add_generation_prompt": false})));
    // A turn that continues has no end mark.
    assert!(
        prompt_tokens(&continued) < without && without < with_prompt,
        "{with_prompt} {without}"
    );
    // The two fields exclude each other.
    let both = json!({"model": "demo", "messages": messages, "continue_final_message": true, "add_generation_prompt": true});
    server.post("/v1/chat/completions", &both).error(400);
}

#[test]
fn max_completion_tokens_is_another_name_of_max_tokens() {
    let server = Server::demo();
    let body = json!({"messages": user("Hello"), "ignore_eos": true, "max_completion_tokens": 3});
    assert_eq!(server.chat(body)["usage"]["completion_tokens"], 3);
}

#[test]
fn fields_that_would_change_the_output_are_refused_by_name_and_others_ignored() {
    let server = Server::demo();
    for (name, value) in [
        ("tool_choice", json!("required")),
        ("bad_words_ids", json!([[1]])),
        ("no_such_field", json!(1)),
        ("best_of", json!(3)),
        ("stream_options", json!({"include_usage": true})),
        ("top_logprobs", json!(2)),
    ] {
        let body = json!({"model": "demo", "messages": user("Hello"), name: value});
        assert_eq!(server.post("/v1/chat/completions", &body).error(400)["param"], name, "{body}");
    }
    let body = json!({
        "messages": user("Hello"), "max_tokens": 2, "user": "u", "metadata": {"a": "b"}, "store": true,
        "response_format": {"type": "text"}, "tool_choice": "none", "parallel_tool_calls": true, "logit_bias": null,
    });
    server.chat(body);
}

#[test]
fn mistakes_in_messages_are_named() {
    let server = Server::demo();
    for (messages, param) in [
        (json!([]), "messages"),
        (json!("hello"), "messages"),
        (json!([{"role": "wizard", "content": "x"}]), "messages[0].role"),
        (json!([{"role": "user", "content": "x"}, {"role": "user"}]), "messages[1]"),
        (json!([{"role": "user", "content": 5}]), "messages[0].content"),
    ] {
        let body = json!({"model": "demo", "messages": messages});
        assert_eq!(server.post("/v1/chat/completions", &body).error(400)["param"], param, "{body}");
    }
    let error =
        server.post("/v1/chat/completions", &json!({"model": 7, "messages": user("a")})).error(400);
    assert_eq!(error["param"], "model");
    let unnamed = json!({"messages": user("a"), "max_tokens": 1});
    assert_eq!(server.post("/v1/chat/completions", &unnamed).ok()["model"], "demo");
    let error = server.post("/v1/chat/completions", &json!({"model": "demo"})).error(400);
    assert_eq!(error["param"], "messages");
    let error = server
        .post("/v1/chat/completions", &json!({"model": "x", "messages": user("a")}))
        .error(404);
    assert_eq!(error["code"], "model_not_found");
}

#[test]
fn log_probabilities_are_given_where_asked_for() {
    let server = Server::demo();
    let answer = server.chat(json!({
        "messages": user("Hello"), "temperature": 0, "max_tokens": 6, "logprobs": true, "top_logprobs": 4,
    }));
    let tokens = answer["choices"][0]["logprobs"]["content"].as_array().unwrap();
    assert_eq!(tokens.len() as u64, answer["usage"]["completion_tokens"].as_u64().unwrap());
    for token in tokens {
        let top = token["top_logprobs"].as_array().unwrap();
        assert_eq!(top.len(), 4);
        assert_eq!(top[0]["logprob"], token["logprob"], "greedy takes the likeliest: {token}");
        assert!(token["bytes"].is_array(), "{token}");
    }
    let bare = server.chat(
        json!({"messages": user("Hello"), "temperature": 0, "max_tokens": 2, "logprobs": true}),
    );
    assert_eq!(bare["choices"][0]["logprobs"]["content"][0]["top_logprobs"], json!([]));
}

#[test]
fn the_last_message_is_echoed_where_the_answer_has_its_role() {
    let server = Server::demo();
    let answers = |options: Value, last: Value| {
        let mut body = json!({
            "model": "demo", "messages": [{"role": "user", "content": "Hello"}, last],
            "max_tokens": 5, "temperature": 0, "ignore_eos": true,
        });
        body.as_object_mut().unwrap().extend(options.as_object().unwrap().clone());
        let whole = content(&server.chat(body.clone())).to_owned();
        body["stream"] = json!(true);
        let chunks = server.open("/v1/chat/completions", &body).chunks();
        let pieces =
            chunks.iter().filter_map(|chunk| chunk["choices"][0]["delta"]["content"].as_str());
        assert_eq!(pieces.collect::<String>(), whole, "{body}");
        whole
    };
    let assistant = json!({"role": "assistant", "content": "The capital is"});
    let parts =
        json!({"role": "assistant", "content": [{"type": "text", "text": "The capital is"}]});
    let goes_on = json!({"continue_final_message": true, "add_generation_prompt": false});
    let echoed =
        json!({"continue_final_message": true, "add_generation_prompt": false, "echo": true});
    let without = answers(goes_on, assistant.clone());
    assert!(!without.starts_with("The capital is"), "{without}");
    for last in [assistant.clone(), parts] {
        assert_eq!(answers(echoed.clone(), last), format!("The capital is{without}"));
    }
    // A user's last message is no beginning of the answer.
    let last = json!({"role": "user", "content": "And now?"});
    let answer = answers(json!({"echo": true}), last.clone());
    assert_eq!(answer, answers(json!({}), last.clone()));
    let same_role = json!({"echo": true, "add_generation_prompt": false});
    assert!(answers(same_role, last).starts_with("And now?"));
    let error = json!({"model": "demo", "messages": user("Hello"), "echo": "yes"});
    assert_eq!(server.post("/v1/chat/completions", &error).error(400)["param"], "echo");
}
