//! Short requests with fields that coding agents send. The server leaves out what it does not run, and reports it.
//! The agents' own requests are in `agents`.

use serde_json::{Value, json};

use crate::support::{Request, Response, Server, ServerBuilder, TempFolder};

const NOT_HELD: &str = "x-candlepower-not-held";

fn with(mut body: Value, more: Value) -> Value {
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

fn function(name: &str) -> Value {
    json!({
        "type": "function", "name": name, "description": "Filler.", "strict": false,
        "parameters": {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"], "additionalProperties": false},
    })
}

/// Fields of Codex CLI's requests, of several versions.
fn codex() -> Value {
    let message = |role: &str, text: &str| json!({"type": "message", "role": role, "content": [{"type": "input_text", "text": text}]});
    json!({
        "model": "demo", "instructions": "Filler.",
        "input": [message("developer", "Filler."), message("user", "Filler."), message("user", "What is the capital of France?")],
        "tools": [
            function("exec_command"), function("update_plan"),
            {"type": "custom", "name": "apply_patch", "description": "Filler.", "format": {"type": "grammar", "syntax": "lark", "definition": "start: \"a\""}},
            {"type": "namespace", "name": "multi_agent_v1", "description": "Filler.", "tools": [function("spawn"), function("wait")]},
            {"type": "web_search", "external_web_access": true},
        ],
        "tool_choice": "auto", "parallel_tool_calls": false, "store": false, "stream": false,
        "reasoning": {"effort": "medium", "summary": "auto"}, "include": ["reasoning.encrypted_content"],
        "prompt_cache_key": "00000000-0000-0000-0000-000000000000", "text": {"verbosity": "medium"},
        "client_metadata": {"x-codex-installation-id": "0"}, "max_output_tokens": 24, "temperature": 0,
    })
}

/// Fields of Claude Code's requests, of several versions.
fn claude_code() -> Value {
    let ephemeral = json!({"type": "ephemeral"});
    let text = |text: &str| json!({"type": "text", "text": text, "cache_control": ephemeral});
    let tool = |name: &str| {
        json!({
            "name": name, "description": "Filler.", "eager_input_streaming": true,
            "input_schema": {"$schema": "https://json-schema.org/draft/2020-12/schema", "type": "object",
                "properties": {"a": {"type": "string"}}, "required": ["a"], "additionalProperties": false},
        })
    };
    json!({
        "model": "demo", "max_tokens": 32_000, "temperature": 0, "stream": false,
        "system": [text("Filler."), text("Filler.")],
        "messages": [
            {"role": "user", "content": [text("Filler."), text("What is the capital of France?")]},
            {"role": "system", "content": "Be brief."},
        ],
        "tools": [tool("Bash"), tool("Read"), {"type": "web_search_20250305", "name": "web_search", "max_uses": 8}],
        "thinking": {"type": "adaptive"}, "output_config": {"effort": "medium"},
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        "metadata": {"user_id": "0"},
    })
}

fn told(response: &Response) -> &str {
    response.header(NOT_HELD).unwrap_or_default()
}

#[test]
fn codex_completes_a_turn() {
    let server = Server::demo();
    let response = server.post("/v1/responses", &codex());
    // The indices are those of the request's tools.
    assert_eq!(told(&response), "tools[2] (custom), tools[4] (web_search), reasoning.effort");
    let answer = response.ok();
    assert_eq!(answer["output"][0]["type"], "message", "{answer}");
    // Without the custom tool, the namespace is the third.
    let tools = answer["tools"].as_array().unwrap();
    assert_eq!(tools[2]["tools"][1]["name"], "wait", "{answer}");
    // Fields that Open Responses requires.
    for field in [
        "completed_at",
        "presence_penalty",
        "frequency_penalty",
        "top_logprobs",
        "max_tool_calls",
        "background",
        "service_tier",
        "safety_identifier",
        "prompt_cache_key",
    ] {
        assert!(answer.get(field).is_some(), "{field}: {answer}");
    }
    assert_eq!(answer["prompt_cache_key"], codex()["prompt_cache_key"]);
    assert_eq!(server.metrics().value("requests_not_held_total"), 1.0);
    let plain = server
        .post("/v1/responses", &json!({"model": "demo", "input": "Hi", "max_output_tokens": 1}));
    assert_eq!(plain.header(NOT_HELD), None);
}

#[test]
fn functions_of_namespaces_are_called_by_their_own_names() {
    let server = Server::demo();
    let strict = |name: &str| {
        with(
            function(name),
            json!({"strict": true, "parameters": {
                "type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"], "additionalProperties": false,
            }}),
        )
    };
    let body = with(
        codex(),
        json!({
            "tools": [{"type": "namespace", "name": "mcp__lamp", "tools": [strict("switch")]}],
            "tool_choice": {"type": "function", "name": "switch", "namespace": "mcp__lamp"}, "max_output_tokens": 100,
        }),
    );
    let answer = server.post("/v1/responses", &body).ok();
    let call = &answer["output"][0];
    assert_eq!(
        (&call["name"], &call["namespace"]),
        (&json!("switch"), &json!("mcp__lamp")),
        "{answer}"
    );
    assert_eq!(answer["tool_choice"]["namespace"], "mcp__lamp");
    let streamed =
        server.post("/v1/responses", &with(body.clone(), json!({"stream": true}))).text();
    assert!(streamed.contains("\"namespace\":\"mcp__lamp\""), "{streamed}");
    // The model sees one flat list of names, so its name has the namespace; the client's must not.
    assert!(!streamed.contains("\"name\":\"mcp__lamp__switch\""), "{streamed}");
    // The call and its result are accepted again.
    let mut input = body["input"].as_array().unwrap().clone();
    input.push(call.clone());
    input.push(
        json!({"type": "function_call_output", "call_id": call["call_id"], "output": "done"}),
    );
    server
        .post(
            "/v1/responses",
            &with(body, json!({"input": input, "tool_choice": "auto", "max_output_tokens": 5})),
        )
        .ok();
}

#[test]
fn claude_code_completes_a_turn() {
    let server = Server::demo();
    let response = server.post("/v1/messages?beta=true", &claude_code());
    assert_eq!(told(&response), "tools[2] (web_search_20250305), output_config.effort");
    let answer = response.ok();
    assert!(matches!(answer["stop_reason"].as_str(), Some("end_turn" | "tool_use")), "{answer}");
    let streamed =
        server.post("/v1/messages", &with(claude_code(), json!({"stream": true}))).text();
    assert!(streamed.starts_with("event: message_start\n"), "{streamed}");
    assert!(streamed.contains("event: message_stop"), "{streamed}");
    let counted = with(
        claude_code(),
        // Null is as good as absent; the endpoint for counting has none of these fields.
        json!({"max_tokens": null, "temperature": null, "stream": null, "metadata": null}),
    );
    assert!(
        server.post("/v1/messages/count_tokens", &counted).ok()["input_tokens"].as_u64() > Some(20)
    );
}

#[test]
fn a_choice_of_what_is_left_out_is_refused() {
    let server = Server::demo();
    let search = json!([{"type": "web_search"}]);
    let chat = json!({"model": "demo", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 3, "tools": search});
    let responses =
        json!({"model": "demo", "input": "Hi", "max_output_tokens": 3, "tools": search});
    let messages = json!({"model": "demo", "max_tokens": 3, "messages": [{"role": "user", "content": "Hi"}],
        "tools": [{"type": "web_search_20250305", "name": "web_search"}]});
    for (path, body, choices) in [
        (
            "/v1/chat/completions",
            chat,
            vec![
                json!("required"),
                json!({"type": "function", "function": {"name": "web_search"}}),
            ],
        ),
        (
            "/v1/responses",
            responses,
            vec![
                json!("required"),
                json!({"type": "web_search"}),
                json!({"type": "function", "name": "web_search"}),
            ],
        ),
        (
            "/v1/messages",
            messages,
            vec![json!({"type": "any"}), json!({"type": "tool", "name": "web_search"})],
        ),
    ] {
        let response = server.post(path, &body);
        assert_eq!(
            (response.status, told(&response).starts_with("tools[0]")),
            (200, true),
            "{path}"
        );
        for choice in choices {
            let error =
                server.post(path, &with(body.clone(), json!({"tool_choice": choice}))).error(400);
            assert!(
                error["param"].as_str().unwrap().starts_with("tool_choice"),
                "{choice}: {error}"
            );
        }
    }
}

/// Patterns of tools that no constraint can enforce are left out if the request does not choose the tool. This holds
/// in every API and tool format.
#[test]
fn patterns_of_tools_that_cannot_be_held_are_told() {
    let parameters = |pattern: &str| json!({"type": "object", "properties": {"a": {"type": "string", "pattern": pattern, "maxLength": 3}}, "required": ["a"], "additionalProperties": false});
    let question = json!([{"role": "user", "content": "Hi"}]);
    let chat = |pattern: &str, name: &str| json!({"type": "function", "function": {"name": name, "strict": true, "parameters": parameters(pattern)}});
    let response = |pattern: &str, name: &str| json!({"type": "function", "name": name, "parameters": parameters(pattern)});
    for format in ["hermes", "qwen3_coder", "gemma4"] {
        let server = ServerBuilder::new("demo").flag("--tool-call-parser", format).start();
        // No constraint can express the lookahead.
        let (bad, good) = ("^(?!b)a+$", "^a+$");
        let chat_body = |tools: Value, more: Value| {
            with(
                json!({"messages": question, "max_tokens": 200, "temperature": 0, "parallel_tool_calls": false, "tools": tools}),
                more,
            )
        };
        let responses_body = |tools: Value, more: Value| {
            with(
                json!({"input": "Hi", "max_output_tokens": 5, "store": false, "tools": tools}),
                more,
            )
        };
        let path = "tools[0].function.parameters.properties.a.pattern";
        let answer =
            server.post("/v1/chat/completions", &chat_body(json!([chat(bad, "f")]), json!({})));
        assert_eq!((told(&answer), answer.status), (path, 200), "{format}");
        let answer =
            server.post("/v1/responses", &responses_body(json!([response(bad, "f")]), json!({})));
        assert_eq!(
            (told(&answer), answer.status),
            ("tools[0].parameters.properties.a.pattern", 200)
        );
        // One of two must be called.
        let two = json!([chat(bad, "f"), chat(good, "g")]);
        let answer = server.post(
            "/v1/chat/completions",
            &chat_body(two.clone(), json!({"tool_choice": "required"})),
        );
        assert_eq!((told(&answer), answer.status), (path, 200), "{format}");
        let call = &answer.ok()["choices"][0]["message"]["tool_calls"][0]["function"];
        let arguments: Value = serde_json::from_str(call["arguments"].as_str().unwrap()).unwrap();
        // The rest of the schema is still enforced.
        assert!(arguments["a"].as_str().unwrap().chars().count() <= 3, "{call}");
        // One for each request above that was answered.
        assert_eq!(server.metrics().value("requests_not_held_total"), 3.0);
        // A chosen tool is enforced, or the request is refused.
        let named = json!({"tool_choice": {"type": "function", "function": {"name": "f"}}});
        let error = server.post("/v1/chat/completions", &chat_body(two, named)).error(400);
        assert_eq!(error["param"], "tools[0].function.parameters", "{error}");
        // The only tool is a chosen one.
        let only = chat_body(json!([chat(bad, "f")]), json!({"tool_choice": "required"}));
        let error = server.post("/v1/chat/completions", &only).error(400);
        assert_eq!(error["param"], "tools[0].function.parameters", "{error}");
        // An invalid pattern is refused, and so is a pattern in the answer's own schema.
        let error = server
            .post("/v1/chat/completions", &chat_body(json!([chat("(a", "f")]), json!({})))
            .error(400);
        assert_eq!(error["param"], "tools[0].function.parameters", "{error}");
        let schema = json!({"response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": parameters(bad)}}});
        server
            .post(
                "/v1/chat/completions",
                &with(json!({"messages": question, "max_tokens": 5}), schema),
            )
            .error(400);
    }
    let server = ServerBuilder::new("demo").flags("--strict-requests").start();
    let tools = json!([response("a(?=b)", "f")]);
    let error = server
        .post("/v1/responses", &json!({"input": "Hi", "max_output_tokens": 5, "tools": tools}))
        .error(400);
    assert_eq!(error["param"], "tools[0].parameters.properties.a.pattern");
    // Tools of /v1/messages are strict if they say so.
    let server = Server::demo();
    let tool = json!({"name": "f", "strict": true, "input_schema": parameters("a(?=b)")});
    let answer = server
        .post("/v1/messages", &json!({"messages": question, "max_tokens": 5, "tools": [tool]}));
    assert_eq!((told(&answer), answer.status), ("tools[0].input_schema.properties.a.pattern", 200));
}

#[test]
fn strict_servers_refuse_what_others_leave_out() {
    let server = ServerBuilder::new("demo").flags("--strict-requests").start();
    let error = server.post("/v1/responses", &codex()).error(400);
    assert_eq!(error["param"], "tools[2]");
    assert!(error["message"].as_str().unwrap().contains("--strict-requests"), "{error}");
    let error = server.post("/v1/messages", &claude_code()).error(400);
    assert_eq!(error["param"], "tools[2]");
    assert_eq!(server.metrics().value("requests_not_held_total"), 0.0);
}

#[test]
fn strict_servers_take_efforts_on_models_that_do_not_think() {
    let server = ServerBuilder::new("demo").flags("--strict-requests").start();
    let functions_of = |mut body: Value, kind: &str| {
        // Claude Code's own tools have no type.
        body["tools"].as_array_mut().unwrap().retain(|tool| match kind {
            "" => tool.get("type").is_none(),
            kind => tool["type"] == kind,
        });
        body
    };
    let of_codex = functions_of(codex(), "function");
    let response = server.post("/v1/responses", &of_codex);
    assert_eq!((response.status, told(&response)), (200, "reasoning.effort"));
    let response = server.post("/v1/messages", &functions_of(claude_code(), ""));
    assert_eq!((response.status, told(&response)), (200, "output_config.effort"));
    let chat = |field: &str, value: Value| {
        let messages = json!([{"role": "user", "content": "Hi"}]);
        json!({"model": "demo", "messages": messages, "max_tokens": 1, field: value})
    };
    let response = server.post("/v1/chat/completions", &chat("reasoning_effort", json!("xhigh")));
    assert_eq!((response.status, told(&response)), (200, "reasoning_effort"));
    // `enable_thinking` must not be dropped silently.
    let asked = chat("enable_thinking", json!(true));
    let error = server.post("/v1/chat/completions", &asked).error(400);
    assert_eq!(error["param"], "enable_thinking");
}

#[test]
fn errors_of_messages_have_the_shape_of_their_clients() {
    let server = ServerBuilder::new("demo").flags("--api-key k").start();
    let key = |request: Request| request.header("x-api-key", "k");
    let shape = |response: Response, status: u16, kind: &str| {
        assert_eq!(response.status, status);
        let body = response.json();
        assert_eq!(
            (&body["type"], &body["error"]["type"]),
            (&json!("error"), &json!(kind)),
            "{body}"
        );
        body["error"].clone()
    };
    let post = |body: &Value| server.send(&key(Request::post("/v1/messages", body)));
    shape(server.post("/v1/messages", &claude_code()), 401, "authentication_error");
    shape(post(&with(claude_code(), json!({"model": "x"}))), 404, "not_found_error");
    let error =
        shape(post(&with(claude_code(), json!({"temperature": 9}))), 400, "invalid_request_error");
    assert_eq!(error["param"], "temperature");
    let thread = shape(
        post(&with(claude_code(), json!({"thread": {"type": "create"}}))),
        400,
        "invalid_request_error",
    );
    assert_eq!(thread["details"]["error_code"], "thread_unsupported_request");
    shape(server.send(&key(Request::get("/v1/messages"))), 405, "invalid_request_error");
    shape(
        server.send(&key(Request::new("POST", "/v1/messages").body("{}"))),
        415,
        "invalid_request_error",
    );
    // The errors of the other endpoints have OpenAI's shape.
    let other = server.post("/v1/chat/completions", &json!({})).json();
    assert!(other.get("type").is_none(), "{other}");
}

#[test]
fn paths_of_neighbouring_servers_are_the_same_endpoints() {
    let server = ServerBuilder::new("demo").flags("--api-key k").start();
    let chat = json!({"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1});
    for (path, body) in [
        ("/chat/completions", chat.clone()),
        ("/completions", json!({"prompt": "Hi", "max_tokens": 1})),
        ("/embeddings", json!({"input": "a"})),
        ("/rerank", json!({"query": "a", "documents": ["b"]})),
        // Cohere's clients use this path.
        ("/v2/rerank", json!({"query": "a", "documents": ["b"]})),
        ("/score", json!({"text_1": "a", "text_2": "b"})),
    ] {
        server.post(path, &body).error(401);
        let keyed = |path: &str| {
            let request = Request::post(path, &body).header("Authorization", "Bearer k");
            let response = server.send(&request);
            (response.status, response.json()["error"]["message"].clone())
        };
        let original = format!("/v1{}", path.trim_start_matches("/v2"));
        assert_eq!(keyed(path), keyed(&original), "{path}");
    }
    server.get("/models").error(401);
    let models = server.send(&Request::get("/models").header("Authorization", "Bearer k")).ok();
    assert_eq!(models["data"][0]["id"], "demo");
    let compact =
        Request::post("/v1/responses/compact", &json!({})).header("Authorization", "Bearer k");
    server.send(&compact).error(404);
}

#[test]
fn neutral_values_of_neighbouring_servers_are_taken() {
    let server = Server::demo();
    // Fields that sglang-router adds to every request, and default values that other clients send.
    let more = json!({
        "no_stop_trim": false, "separate_reasoning": true, "stream_reasoning": true, "return_hidden_states": false,
        "early_stopping": false, "length_penalty": 1.0, "bad_words": [], "spaces_between_special_tokens": true, "echo": false,
        "include_reasoning": true, "repeat_penalty": 1.0, "typical_p": 1.0, "mirostat": 0, "cache_prompt": true, "request_id": "x",
        "keep_alive": "5m", "top_k": 0, "id_slot": -1, "extra_body": {}, "documents": [], "tools": [],
    });
    let chat = json!({"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1});
    let response = server.post("/v1/chat/completions", &with(chat.clone(), more));
    assert_eq!((response.header(NOT_HELD), response.ok()["model"].clone()), (None, json!("demo")));
    // Fields that both routers add to this form.
    let more = json!({
        "return_text_in_logprobs": false, "stream": false, "log_metrics": true, "return_hidden_states": false, "background": false,
        "no_logs": false, "return_bytes": false, "return_entropy": false,
    });
    let prism = ServerBuilder::new("demo").flags("--framework prism").start();
    prism.post("/generate", &with(json!({"text": "Hi", "max_tokens": 1}), more)).ok();
    for (name, value) in
        [("length_penalty", json!(2)), ("early_stopping", json!(true)), ("mirostat", json!(1))]
    {
        let error = server
            .post("/v1/chat/completions", &with(chat.clone(), json!({name: value})))
            .error(400);
        assert_eq!(error["param"], name);
        assert!(error["message"].as_str().unwrap().contains("other than"), "{error}");
    }
}

#[test]
fn what_a_response_was_made_of_can_be_listed() {
    let server = Server::demo();
    let body = json!({"model": "demo", "input": "What is the capital of France?", "temperature": 0, "max_output_tokens": 24});
    let first = server.post("/v1/responses", &body).ok();
    let id = first["id"].as_str().unwrap();
    let follow = with(body.clone(), json!({"input": "And of Japan?", "previous_response_id": id}));
    let second = server.post("/v1/responses", &follow).ok();
    let path = format!("/v1/responses/{}/input_items", second["id"].as_str().unwrap());
    let items = server.get(&format!("{path}?order=asc")).ok();
    let roles: Vec<&str> = items["data"]
        .as_array()
        .unwrap()
        .iter()
        .map(|item| item["role"].as_str().unwrap())
        .collect();
    assert_eq!(roles, ["user", "assistant", "user"], "{items}");
    // The newest item comes first unless the request says otherwise.
    let newest = server.get(&format!("{path}?limit=1")).ok();
    assert_eq!(newest["data"][0]["content"][0]["text"], "And of Japan?");
    assert_eq!(newest["has_more"], true);
    server.get(&format!("{path}?limit=0")).error(400);
    server.get("/v1/responses/resp_no/input_items").error(404);
    // Only a response that runs in the background could be cancelled.
    server.post(&format!("/v1/responses/{id}/cancel"), &json!({})).error(400);
    server.post("/v1/responses/resp_no/cancel", &json!({})).error(404);
    let counted = server.post("/v1/responses/input_tokens", &body).ok();
    assert_eq!(counted["input_tokens"], first["usage"]["input_tokens"]);
}

/// A template that accepts instructions only at the beginning, iterates over arguments, and refuses ids of another
/// form.
const STRICT: &str = "{% for m in messages %}{% if m.role == 'system' and not loop.first %}\
    {{ raise_exception('System message must be at the beginning.') }}{% endif %}<|im_start|>{{ m.role }}\n{{ m.content }}\
    {% for c in m.tool_calls %}{% if c.id | length != 9 %}{{ raise_exception('Tool call IDs should be alphanumeric strings with length 9!') }}\
    {% endif %}<tool_call>\n{\"name\": \"{{ c.function.name }}\", \"arguments\": {{ '{' }}{% for k, v in c.function.arguments.items() %}\
    \"{{ k }}\": {{ v | tojson }}{% endfor %}{{ '}' }}}\n</tool_call>{% endfor %}<|im_end|>\n{% endfor %}\
    {% if tools %}{{ tools | tojson }}{% endif %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

#[test]
fn histories_of_other_servers_fit_strict_templates() {
    let folder = TempFolder::new();
    let file = folder.write("strict.jinja", STRICT);
    let server = ServerBuilder::new("demo").flag("--chat-template", file).start();
    let prompt = |messages: Value| {
        let body = json!({"messages": messages, "max_tokens": 1, "return_token_ids": true});
        let response = server.post("/v1/chat/completions", &body);
        let told = told(&response).to_owned();
        let ids = response.ok()["prompt_token_ids"].clone();
        let text = server.post("/detokenize", &json!({"tokens": ids})).ok();
        (text["prompt"].as_str().unwrap().to_owned(), told)
    };
    let turn = |id: &str, arguments: Value| {
        json!({"role": "assistant", "content": null, "tool_calls": [
        {"id": id, "type": "function", "function": {"name": "w", "arguments": arguments}}]})
    };
    let result = |id: &str| json!({"role": "tool", "tool_call_id": id, "content": "12"});
    let system = |text: &str| json!({"role": "system", "content": text});
    let user = |text: &str| json!({"role": "user", "content": text});
    // Clients write a call without arguments in each of these ways.
    for arguments in [json!(""), json!(" \n"), json!("null"), Value::Null] {
        let (text, told) =
            prompt(json!([user("a"), turn("toolu_1", arguments), result("toolu_1")]));
        assert!(text.contains("\"arguments\": {}"), "{text}");
        assert_eq!(told, "");
    }
    // The arguments are those of an answer that was cut off.
    let (text, told) =
        prompt(json!([user("a"), turn("toolu_1", json!("{\"city\": \"Par")), result("toolu_1")]));
    assert!(text.contains("\"arguments\": {}"), "{text}");
    assert_eq!(told, "messages[1].tool_calls[0].function.arguments (no JSON object)");
    // Some clients encode arguments twice, and PHP has no empty object.
    let twice = json!("\"{\\\"city\\\": \\\"Par\\\"}\"");
    for (arguments, written) in
        [(twice, "\"arguments\": {\"city\": \"Par\"}"), (json!([]), "\"arguments\": {}")]
    {
        let (text, told) =
            prompt(json!([user("a"), turn("toolu_1", arguments), result("toolu_1")]));
        assert!(text.contains(written) && told.is_empty(), "{text}, {told}");
    }
    // An answer may be empty.
    prompt(json!([user("a"), {"role": "assistant", "content": null}, user("b")]));
    // The template takes instructions at the beginning alone, so
    // the first are joined, and a later one becomes a user's.
    let (text, _) = prompt(
        json!([system("a"), {"role": "developer", "content": "b"}, user("c"), system("d"), user("e")]),
    );
    assert!(text.starts_with("<|im_start|>system\na\n\nb<|im_end|>"), "{text}");
    assert!(text.contains("<|im_start|>user\nd\n\ne<|im_end|>"), "{text}");
    // The instructions of a response precede those of its input.
    let body = json!({"instructions": "a", "input": [{"role": "developer", "content": "b"}, {"role": "user", "content": "c"}], "max_output_tokens": 1});
    server.post("/v1/responses", &body).ok();
    // Template variables that are fields of the request are refused.
    let error = server.post("/v1/chat/completions", &json!({"messages": [user("a")], "max_tokens": 1, "chat_template_kwargs": {"tools": []}})).error(400);
    assert_eq!(error["param"], "chat_template_kwargs.tools");
}

/// Each endpoint names the place of the arguments in its own request.
#[test]
fn broken_arguments_are_told_by_their_place() {
    let folder = TempFolder::new();
    let file = folder.write("strict.jinja", STRICT);
    let server = ServerBuilder::new("demo").flag("--chat-template", file).start();
    let cut = "{\"city\": \"Par";
    let call = json!({"type": "function_call", "call_id": "c", "name": "w", "arguments": cut});
    let output = json!({"type": "function_call_output", "call_id": "c", "output": "12"});
    let input = json!([{"role": "user", "content": "a"}, call, output]);
    let used = json!([{"type": "text", "text": "b"}, {"type": "tool_use", "id": "c", "name": "w", "input": cut}]);
    let results = json!([{"type": "tool_result", "tool_use_id": "c", "content": "12"}]);
    let blocks = json!([
        {"role": "user", "content": "a"}, {"role": "assistant", "content": used}, {"role": "user", "content": results},
    ]);
    let function = json!({"name": "w", "arguments": cut});
    let calls = json!([{"id": "c", "type": "function", "function": function}]);
    let messages = json!([
        {"role": "user", "content": "a"}, {"role": "assistant", "tool_calls": calls},
        {"role": "tool", "tool_call_id": "c", "content": "12"},
    ]);
    for (path, body, place) in [
        ("/v1/responses", json!({"input": input, "max_output_tokens": 1}), "input[1].arguments"),
        ("/v1/responses/input_tokens", json!({"input": input}), "input[1].arguments"),
        (
            "/v1/messages",
            json!({"messages": blocks, "max_tokens": 1}),
            "messages[1].content[1].input",
        ),
        ("/v1/messages/count_tokens", json!({"messages": blocks}), "messages[1].content[1].input"),
        (
            "/tokenize",
            json!({"messages": messages}),
            "messages[1].tool_calls[0].function.arguments",
        ),
    ] {
        let response = server.post(path, &body);
        let expected = format!("{place} (no JSON object)");
        assert_eq!(told(&response), expected, "{path}: {}", response.text());
        response.ok();
    }
    // The call is in the stored response.
    let first = json!({"input": input, "max_output_tokens": 1});
    let first = server.post("/v1/responses", &first).ok();
    let next = json!({"input": "b", "max_output_tokens": 1, "previous_response_id": first["id"]});
    let next = server.post("/v1/responses", &next);
    assert_eq!(told(&next), "previous_response_id (no JSON object)");
}

#[test]
fn responses_report_log_probabilities() {
    let server = Server::demo();
    let body = json!({"input": "What is the capital of France?", "temperature": 0, "max_output_tokens": 24});
    let plain = server.post("/v1/responses", &body).ok();
    assert_eq!(plain["output"][0]["content"][0]["logprobs"], json!([]), "{plain}");
    for (more, num_top) in
        [(json!({"include": ["message.output_text.logprobs"]}), 0), (json!({"top_logprobs": 2}), 2)]
    {
        let answer = server.post("/v1/responses", &with(body.clone(), more.clone())).ok();
        let part = &answer["output"][0]["content"][0];
        let logprobs = part["logprobs"].as_array().unwrap();
        let text: String = logprobs.iter().map(|token| token["token"].as_str().unwrap()).collect();
        assert!(text == part["text"].as_str().unwrap(), "{answer}");
        assert!(
            logprobs.iter().all(|token| token["top_logprobs"].as_array().unwrap().len() == num_top)
        );
        let streamed = server
            .post("/v1/responses", &with(body.clone(), with(more, json!({"stream": true}))))
            .text();
        let events = streamed.lines().filter_map(|line| line.strip_prefix("data: "));
        let events: Vec<Value> = events.map(|event| serde_json::from_str(event).unwrap()).collect();
        let deltas = events.iter().filter(|event| event["type"] == "response.output_text.delta");
        let of_deltas: Vec<Value> =
            deltas.flat_map(|event| event["logprobs"].as_array().unwrap().clone()).collect();
        let tokens = |logprobs: &[Value]| {
            logprobs.iter().map(|token| token["token"].clone()).collect::<Vec<_>>()
        };
        let done =
            events.iter().find(|event| event["type"] == "response.output_text.done").unwrap();
        assert_eq!(tokens(&of_deltas), tokens(done["logprobs"].as_array().unwrap()));
        assert_eq!(tokens(logprobs), tokens(&of_deltas), "{streamed}");
    }
    let error = server.post("/v1/responses", &with(body, json!({"top_logprobs": 21}))).error(400);
    assert_eq!(error["param"], "top_logprobs");
}

#[test]
fn a_suffix_needs_a_model_with_tokens_for_it() {
    let server = Server::demo();
    let error = server
        .post("/v1/completions", &json!({"prompt": "a", "suffix": "b", "max_tokens": 1}))
        .error(400);
    assert_eq!(error["param"], "suffix");
    // The demo's vocabulary has no tokens for the middle of a text, so others get their names.
    let folder = TempFolder::of_demo(|name, bytes| match name {
        "tokenizer.json" | "tokenizer_config.json" => {
            let text = String::from_utf8(bytes).unwrap();
            text.replace("<tool_response>", "<fim_prefix>")
                .replace("</tool_response>", "<fim_suffix>")
                .replace("<tool_call>", "<fim_middle>")
                .into()
        }
        _ => bytes,
    });
    let server = ServerBuilder::new(folder.path()).start();
    let ids = |body: Value| {
        let answer = server
            .post(
                "/v1/completions",
                &with(body, json!({"max_tokens": 1, "return_token_ids": true})),
            )
            .ok();
        answer["choices"][0]["prompt_token_ids"].clone()
    };
    let filled = ids(json!({"prompt": "int x", "suffix": " = 1;"}));
    assert_eq!(filled, ids(json!({"prompt": "<fim_prefix>int x<fim_suffix> = 1;<fim_middle>"})));
    let echoed = server
        .post(
            "/v1/completions",
            &json!({"prompt": "int x", "suffix": ";", "echo": true, "max_tokens": 1}),
        )
        .ok();
    assert!(echoed["choices"][0]["text"].as_str().unwrap().starts_with("int x"), "{echoed}");
}
