//! Edge cases of requests: names of fields, invalid ids, truncated answers, sessions that end.

use super::*;

fn refused(fields: Value) -> Value {
    with(json!({"model": "demo", "max_tokens": 8}), fields)
}

#[tokio::test]
async fn errors_name_the_field_that_was_sent() {
    let state = ready(&["--framework=prism", "--max-num-seqs=4", "--max-queued-requests=1"]);
    let messages = json!([{"role": "user", "content": "x"}]);
    for (path, body, param) in [
        (
            "/v1/chat/completions",
            json!({"model": "demo", "messages": messages, "max_completion_tokens": 0}),
            "max_completion_tokens",
        ),
        (
            "/v1/responses",
            json!({"model": "demo", "input": "x", "max_output_tokens": 0}),
            "max_output_tokens",
        ),
        ("/v1/completions", json!({"model": "demo", "prompt": "x", "max_tokens": 0}), "max_tokens"),
        // Six choices run as sequences of their own, and the engine takes four and one that waits.
        ("/generate", json!({"text": "x", "choices": ["a", "b", "c", "d", "e", "f"]}), "choices"),
        ("/generate", json!({"text": "x", "choices": ["a"], "logit_bias": {"5": 1}}), "logit_bias"),
        ("/v1/completions", refused(json!({"prompt": "x", "logit_bias": {"x": 1}})), "logit_bias"),
        (
            "/v1/completions",
            refused(json!({"prompt": "x", "structured_outputs": {"json": {
                "type": "object", "additionalProperties": true, "minProperties": 2,
            }}})),
            "structured_outputs.json",
        ),
        (
            "/v1/completions",
            refused(json!({"prompt": "x", "structured_outputs": {"grammar":
                // 6000 alternatives of one rule are more than the compiler allows.
                (0..6000).fold("start: \"a\"".to_owned(), |rule, text| format!("{rule} | \"a{text}\""))}})),
            "structured_outputs.grammar",
        ),
    ] {
        let response = call(&state, post(path, &body)).await;
        let (status, named) = error(response).await;
        assert_eq!((status, named.as_deref()), (400, Some(param)), "{path}");
    }
}

#[tokio::test]
async fn bodies_that_are_packed_are_refused() {
    let state = ready(&[]);
    let with_encoding = |encoding: &str| {
        let mut request = post("/tokenize", json!({"prompt": "x"}));
        request.headers_mut().insert("content-encoding", encoding.parse().unwrap());
        request
    };
    assert_eq!(error(call(&state, with_encoding("gzip")).await).await, (415, None));
    // `identity` means that nothing is packed.
    assert_eq!(call(&state, with_encoding("identity")).await.status(), 200);
}

#[tokio::test]
async fn responses_are_found_by_ids_and_given_as_a_whole() {
    let state = ready(&[]);
    let made = answer(
        &state,
        "/v1/responses",
        json!({"model": "demo", "input": "x", "max_output_tokens": 2, "metadata": {"a": "b"}}),
    )
    .await;
    let path = format!("/v1/responses/{}", made["id"].as_str().unwrap());
    for query in ["", "?stream=false", "?"] {
        assert_eq!(call(&state, get(&format!("{path}{query}"))).await.status(), 200, "{query}");
    }
    for (query, param) in [
        ("stream=true", "stream"),
        ("stream", "stream"),
        ("starting_after=3&stream=false", "starting_after"),
        ("include[]=reasoning", "include"),
    ] {
        let found = error(call(&state, get(&format!("{path}?{query}"))).await).await;
        assert_eq!(found, (400, Some(param.to_owned())), "{query}");
    }
    let missing = (404, Some("id".to_owned()));
    // `%ff` is no UTF-8, so it is no id.
    assert_eq!(error(call(&state, get("/v1/responses/%ff")).await).await, missing);
    let delete = Request::delete("/v1/responses/%ff").body(Body::empty()).unwrap();
    assert_eq!(error(call(&state, delete).await).await, missing);
}

#[tokio::test]
async fn a_stop_string_ends_the_text_behind_min_tokens() {
    let state = ready(&[]);
    let body = json!({"model": "demo", "prompt": "The capital of France", "temperature": 0, "max_tokens": 5,
        "return_token_ids": true});
    let whole = answer(&state, "/v1/completions", body.clone()).await;
    let ids = whole["choices"][0]["token_ids"].as_array().unwrap();
    let text = |num: usize| {
        let tokenizer = demo(&state).tokenizer.clone();
        let ids: Vec<u32> = ids[..num].iter().map(|id| id.as_u64().unwrap() as u32).collect();
        tokenizer.decode(&ids, candlepower_tokenizer::SkipSpecialTokens::Yes).unwrap()
    };
    // The stop string begins in the second token and ends in the third.
    let (begin, end) = (text(2).len() - 1, text(2).len() + 1);
    let stop = text(5)[begin..end].to_owned();
    let first = text(5).find(&stop).unwrap();
    assert_eq!(first, begin);
    let stopped =
        answer(&state, "/v1/completions", with(body, json!({"stop": stop, "min_tokens": 2}))).await;
    assert_eq!(stopped["choices"][0]["text"], text(5)[..begin]);
    assert_eq!(stopped["choices"][0]["finish_reason"], "stop");
}

#[tokio::test]
async fn a_stop_string_does_not_cut_a_call() {
    let state = ready(&[]);
    let parameters = json!({
        "type": "object", "properties": {"city": {"const": "Paris"}}, "required": ["city"],
        "additionalProperties": false,
    });
    let function = json!({"name": "f", "parameters": parameters});
    let body = with(
        chat("x"),
        json!({"tools": [{"type": "function", "function": function}], "tool_choice": "required", "stop": "city",
            "max_tokens": 200, "parallel_tool_calls": false}),
    );
    let message = answer(&state, "/v1/chat/completions", body.clone()).await;
    let choice = &message["choices"][0];
    let arguments = &choice["message"]["tool_calls"][0]["function"]["arguments"];
    assert_eq!(arguments, "{\"city\": \"Paris\"}");
    assert_eq!(
        (&choice["finish_reason"], &choice["stop_reason"]),
        (&json!("tool_calls"), &Value::Null)
    );
    let streamed =
        chunks(&state, "/v1/chat/completions", with(body, json!({"stream": true}))).await;
    assert_eq!(streamed.last().unwrap()["choices"][0]["finish_reason"], "tool_calls");
}

#[tokio::test]
async fn a_call_that_max_tokens_cuts_is_not_complete() {
    let state = ready(&[]);
    let parameters = json!({
        "type": "object", "properties": {"city": {"const": "Paris"}}, "required": ["city"],
        "additionalProperties": false,
    });
    let tools = json!([{"type": "function", "name": "f", "parameters": parameters}]);
    let body = json!({"model": "demo", "input": "x", "tool_choice": "required", "tools": tools, "stop": "city"});
    // One of these limits truncates the call after its name. The number of
    // tokens depends on the demo's vocabulary, so the limit is found by trial.
    let mut num_tokens = 4;
    let (body, response) = loop {
        let body = with(body.clone(), json!({"max_output_tokens": num_tokens}));
        let response = answer(&state, "/v1/responses", body.clone()).await;
        if response["output"][0]["type"] == "function_call" {
            break (body, response);
        }
        num_tokens += 1;
        assert!(num_tokens < 100, "{response}");
    };
    assert_eq!(
        (&response["status"], &response["output"][0]["status"]),
        (&json!("incomplete"), &json!("incomplete"))
    );
    assert_eq!(response["incomplete_details"]["reason"], "max_output_tokens");
    let streamed =
        text(call(&state, post("/v1/responses", with(body, json!({"stream": true})))).await).await;
    assert!(
        streamed.contains("event: response.incomplete")
            && !streamed.contains("\"status\":\"completed\""),
        "{streamed}"
    );
}

#[tokio::test]
async fn a_session_that_is_closed_meanwhile_stays_closed() {
    let state = ready(&["--framework=prism"]);
    let opened = answer(
        &state,
        "/generate",
        json!({"text": "x", "max_tokens": 1, "session": {"open": true}}),
    )
    .await;
    let id = opened["choices"][0]["session"]["id"].as_str().unwrap();
    let running = json!({"text": "y", "max_tokens": 50, "ignore_eos": true, "stream": true, "session": {"id": id}});
    let running = call(&state, post("/generate", running)).await;
    let close = json!({"session": {"id": id, "close": true}});
    answer(&state, "/generate", close.clone()).await;
    let events = text(running).await;
    // The answer that was running says that its session is gone.
    assert!(events.contains("\"ttl\":0"), "{events}");
    assert_eq!(
        error(call(&state, post("/generate", close)).await).await,
        (404, Some("session.id".to_owned()))
    );
}

#[tokio::test]
async fn a_grammar_that_can_be_read_in_too_many_ways_fails_its_request_alone() {
    let state = ready(&[]);
    // `e e` with an empty alternative has exponentially many ways to read one text.
    let grammar = "start: e\ne: e e | \"a\" | \"b\" | \"\"";
    let body = json!({"model": "demo", "prompt": "x", "temperature": 1, "seed": 1, "max_tokens": 900,
        "logit_bias": {"64": 50, "65": 50}, "structured_outputs": {"grammar": grammar}});
    let response = call(&state, post("/v1/completions", &body)).await;
    let status = response.status();
    let failed = text(response).await;
    assert_eq!(status, 400, "{failed}");
    assert!(failed.contains("make the grammar unambiguous"), "{failed}");
    // The engine still serves other requests.
    answer(&state, "/v1/completions", json!({"model": "demo", "prompt": "x", "max_tokens": 2}))
        .await;
}
