//! Tools: the prompt, forced calls, calls whole and in chunks, and refusals.

use serde_json::{Value, json};

use crate::support::{Server, ServerBuilder, TempFolder};

fn weather() -> Value {
    json!({"type": "function", "function": {
        "name": "get_weather", "description": "Get the weather of a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    }})
}

/// A tool whose arguments any constrained model writes in a few tokens.
fn lamp() -> Value {
    json!({"type": "function", "function": {
        "name": "set_lamp", "strict": true,
        "parameters": {
            "type": "object",
            "properties": {"color": {"enum": ["red", "green"]}, "level": {"type": "integer", "minimum": 0, "maximum": 9}},
            "required": ["color", "level"],
            "additionalProperties": false,
        },
    }})
}

fn asked(question: &str, tools: Value) -> Value {
    json!({
        "model": "demo", "messages": [{"role": "user", "content": question}], "tools": tools,
        "temperature": 0, "max_tokens": 120,
    })
}

fn with(mut body: Value, more: Value) -> Value {
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

/// Names and arguments of an answer's calls.
fn calls(choice: &Value) -> Vec<(String, Value)> {
    let calls = choice["message"]["tool_calls"].as_array().cloned().unwrap_or_default();
    let read = |call: &Value| {
        assert_eq!(call["type"], "function", "{call}");
        let arguments = call["function"]["arguments"].as_str().unwrap();
        let name = call["function"]["name"].as_str().unwrap().to_owned();
        (name, serde_json::from_str(arguments).unwrap_or_else(|error| panic!("{error}: {choice}")))
    };
    calls.iter().map(read).collect()
}

fn check_lamp((name, arguments): &(String, Value)) {
    assert_eq!(name, "set_lamp");
    assert!(matches!(arguments["color"].as_str(), Some("red" | "green")), "{arguments}");
    assert!(
        arguments["level"].as_i64().is_some_and(|level| (0..10).contains(&level)),
        "{arguments}"
    );
}

#[test]
fn the_model_calls_what_it_was_told_of_and_answers_with_the_result() {
    let server = Server::demo();
    let body = asked("What is the weather in Paris?", json!([weather()]));
    let answer = server.chat(body.clone());
    let choice = &answer["choices"][0];
    assert_eq!(choice["finish_reason"], "tool_calls", "{answer}");
    assert_eq!(calls(choice), [("get_weather".to_owned(), json!({"city": "Paris"}))]);
    assert!(choice["message"]["content"].is_null(), "{answer}");
    let call = &choice["message"]["tool_calls"][0];
    assert!(call["id"].as_str().unwrap().starts_with("call_"), "{call}");

    let mut messages = body["messages"].as_array().unwrap().clone();
    messages.push(choice["message"].clone());
    messages.push(json!({
        "role": "tool", "tool_call_id": call["id"], "content": "{\"temperature\": 21, \"condition\": \"sunny\"}",
    }));
    let answer = server.chat(with(body, json!({"messages": messages})));
    let choice = &answer["choices"][0];
    assert_eq!(choice["finish_reason"], "stop");
    let content = choice["message"]["content"].as_str().unwrap();
    assert!(content.contains("21") && content.contains("sunny"), "{content}");
    assert!(choice["message"].get("tool_calls").is_none(), "{answer}");
}

#[test]
fn chunks_of_calls_add_up_to_the_whole_answer() {
    let server = Server::demo();
    let body = asked("What is the weather in Paris?", json!([weather()]));
    let whole = server.chat(body.clone());
    let tokens = json!({"stream": true, "return_token_ids": true, "logprobs": true, "stream_options": {"include_usage": true}});
    let body = with(body, tokens);
    // The server merges pieces that are ready before they can be sent. So on a busy machine a short answer may arrive
    // in one piece.
    let chunks = (0..50)
        .map(|_| server.open("/v1/chat/completions", &body).chunks())
        .find(|chunks| chunks.len() > 6)
        .expect("the arguments came in one piece each time");
    assert_eq!(chunks[0]["choices"][0]["delta"], json!({"role": "assistant", "content": ""}));
    let (usage, chunks) = chunks[1..].split_last().unwrap();
    let (last, parts) = chunks.split_last().unwrap();
    assert_eq!(last["choices"][0]["delta"], json!({}));
    assert_eq!(last["choices"][0]["finish_reason"], "tool_calls");
    let parts = parts
        .iter()
        .map(|chunk| &chunk["choices"][0]["delta"]["tool_calls"][0])
        .collect::<Vec<_>>();
    let (first, more) = parts.split_first().unwrap();
    assert_eq!((&first["index"], &first["type"]), (&json!(0), &json!("function")));
    assert!(first["id"].as_str().unwrap().starts_with("call_"));
    assert_eq!(first["function"], json!({"name": "get_weather", "arguments": ""}));
    let mut arguments = String::new();
    for part in more {
        // The id and the name come once, in the first part.
        assert_eq!(
            part.as_object().unwrap().keys().collect::<Vec<_>>(),
            ["index", "function"],
            "{part}"
        );
        arguments.push_str(part["function"]["arguments"].as_str().unwrap());
    }
    let call = &whole["choices"][0]["message"]["tool_calls"][0];
    assert_eq!(call["function"]["arguments"], arguments);
    // Every token is reported, whatever became of its text.
    let count = |name: &str| {
        let lists = chunks.iter().filter_map(|chunk| chunk["choices"][0].pointer(name)?.as_array());
        lists.map(Vec::len).sum::<usize>()
    };
    assert_eq!(usage["usage"]["completion_tokens"], count("/token_ids"));
    assert_eq!(usage["usage"]["completion_tokens"], count("/logprobs/content"));
}

#[test]
fn required_and_named_calls_come_whatever_was_asked() {
    let server = Server::demo();
    let body = asked("What is the capital of France?", json!([weather(), lamp()]));
    let named = json!({"tool_choice": {"type": "function", "function": {"name": "set_lamp"}}});
    for seed in 0..3 {
        let sampled = json!({"temperature": 1.5, "seed": seed, "n": 2});
        let answer = server.chat(with(with(body.clone(), named.clone()), sampled));
        for choice in answer["choices"].as_array().unwrap() {
            assert_eq!(choice["finish_reason"], "tool_calls", "{answer}");
            let found = calls(choice);
            assert_eq!(found.len(), 1, "{answer}");
            check_lamp(&found[0]);
        }
    }
    let required = json!({"tool_choice": "required", "parallel_tool_calls": false});
    let answer = server.chat(with(body.clone(), required));
    assert_eq!(calls(&answer["choices"][0]).len(), 1, "{answer}");
    // An answer that is cut off within a call says so.
    // Twelve tokens end within the call.
    let cut = server.chat(with(body, with(named, json!({"max_tokens": 12}))));
    assert_eq!(cut["choices"][0]["finish_reason"], "length", "{cut}");
}

#[test]
fn the_model_decides_and_is_held_to_strict_schemas() {
    let server = Server::demo();
    let mut strict = weather();
    strict["function"]["strict"] = json!(true);
    strict["function"]["parameters"]["properties"]["city"] = json!({"enum": ["Bern", "Basel"]});
    let answer = server.chat(asked("What is the weather in Paris?", json!([strict])));
    let city = &calls(&answer["choices"][0])[0].1["city"];
    assert!(matches!(city.as_str(), Some("Bern" | "Basel")), "{answer}");
    let plain = server.chat(asked("What is the capital of France?", json!([strict])));
    let choice = &plain["choices"][0];
    assert!(choice["message"]["content"].as_str().unwrap().contains("Paris"), "{plain}");
    assert_eq!(choice["finish_reason"], "stop");
}

#[test]
fn only_those_that_are_allowed_are_called_though_the_model_hears_of_all() {
    let server = Server::demo();
    let body = asked("What is the weather in Paris?", json!([weather(), lamp()]));
    let allowed = |mode: &str| {
        let lamp = json!({"type": "function", "function": {"name": "set_lamp"}});
        let allowed = json!({"mode": mode, "tools": [lamp]});
        json!({"tool_choice": {"type": "allowed_tools", "allowed_tools": allowed}})
    };
    let free = server.chat(body.clone());
    assert_eq!(calls(&free["choices"][0])[0].0, "get_weather", "{free}");
    let required = json!({"parallel_tool_calls": false});
    let answer = server.chat(with(with(body.clone(), allowed("required")), required));
    let found = calls(&answer["choices"][0]);
    assert_eq!(found.len(), 1, "{answer}");
    check_lamp(&found[0]);
    let tokens = |answer: &Value| answer["usage"]["prompt_tokens"].as_u64().unwrap();
    // The model hears of both tools, so the prompt is the same.
    assert_eq!(tokens(&answer), tokens(&free));
    let answer = server.chat(with(body, allowed("auto")));
    let choice = &answer["choices"][0];
    let length = choice["finish_reason"] == "length";
    assert!(length || calls(choice).iter().all(|(name, _)| name == "set_lamp"), "{answer}");
}

#[test]
fn none_means_that_the_model_does_not_hear_of_functions() {
    let server = Server::demo();
    let body = asked("What is the weather in Paris?", json!([weather()]));
    let told = server.chat(body.clone());
    let untold = server.chat(with(body.clone(), json!({"tool_choice": "none"})));
    let without = server.chat(with(body, json!({"tools": null})));
    let tokens = |answer: &Value| answer["usage"]["prompt_tokens"].as_u64().unwrap();
    // A tool that may not be called is not in the prompt.
    assert_eq!(untold["choices"], without["choices"]);
    assert!(tokens(&untold) == tokens(&without) && tokens(&told) > tokens(&untold));
}

/// A chat template that writes calls in the form of `call`, with `f` for the tool.
fn template(call: &str) -> String {
    format!(
        "{{% if tools %}}{{{{ tools | tojson }}}}{{% endif %}}{{% for m in messages %}}<|im_start|>{{{{ m.role }}}}\n{{{{ m.content }}}}\
         {{% for c in m.tool_calls %}}{{% set f = c.function %}}{call}{{% endfor %}}<|im_end|>\n{{% endfor %}}\
         {{% if add_generation_prompt %}}<|im_start|>assistant\n{{% endif %}}"
    )
}

#[test]
fn each_format_is_found_in_the_template_and_held() {
    let folder = TempFolder::new();
    for (name, call) in [
        ("llama3_json", r#"{"name": "{{ f.name }}", "parameters": {{ f.arguments | tojson }}}"#),
        ("mistral", "[TOOL_CALLS]{{ f.name }}[ARGS]{{ f.arguments | tojson }}"),
        (
            "mistral_list",
            r#"[TOOL_CALLS][{"name": "{{ f.name }}", "arguments": {{ f.arguments | tojson }}}]"#,
        ),
        (
            "pythonic",
            "[{{ f.name }}({% for k, v in f.arguments.items() %}{{ k }}='{{ v }}'{% endfor %})]",
        ),
        (
            "deepseek_v3",
            "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>{{ f.name }}",
        ),
        ("deepseek_v31", "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>{{ f.name }}<｜tool▁sep｜>"),
        (
            "qwen3_coder",
            "<tool_call>\n<function={{ f.name }}>\n{% for k, v in f.arguments.items() %}<parameter={{ k }}>\n{{ v }}\n</parameter>\n\
             {% endfor %}</function>\n</tool_call>",
        ),
        (
            "glm45",
            "<tool_call>{{ f.name }}\n{% for k, v in f.arguments.items() %}<arg_key>{{ k }}</arg_key>\n\
             <arg_value>{{ v }}</arg_value>\n{% endfor %}</tool_call>",
        ),
        (
            "minimax_m2",
            "<minimax:tool_call>\n<invoke name=\"{{ f.name }}\">\n{% for k, v in f.arguments.items() %}\
             <parameter name=\"{{ k }}\">{{ v }}</parameter>\n{% endfor %}</invoke>\n</minimax:tool_call>",
        ),
        (
            "gemma4",
            "<|tool_call>call:{{ f.name }}{{ '{' }}{% for k, v in f.arguments | dictsort %}{{ k }}:\
             {% if v is string %}<|\"|>{{ v }}<|\"|>{% else %}{{ v }}{% endif %}{{ ',' if not loop.last }}{% endfor %}}<tool_call|>",
        ),
        ("gpt_oss", "<|channel|>commentary to=functions.{{ f.name }}<|message|>"),
    ] {
        let file = folder.write(&format!("{name}.jinja"), template(call));
        let server = ServerBuilder::new("demo").flag("--chat-template", file).start();
        let body = asked("Light, please.", json!([lamp()]));
        let choose = json!({
            "tool_choice": "required", "parallel_tool_calls": false, "temperature": 1.0, "seed": 1, "max_tokens": 400,
        });
        let answer = server.chat(with(body.clone(), choose));
        let choice = &answer["choices"][0];
        assert_eq!(choice["finish_reason"], "tool_calls", "{name}: {answer}");
        let found = calls(choice);
        assert_eq!(found.len(), 1, "{name}: {answer}");
        check_lamp(&found[0]);
        assert!(choice["message"]["content"].is_null(), "{name}: {answer}");
        // The template accepts the call in the form of the answer.
        let message = choice["message"].clone();
        // Its arguments are a text, and templates get them as an object.
        let messages = json!([body["messages"][0], message, {"role": "tool", "content": "ok"}]);
        server.chat(with(body, json!({"messages": messages, "max_tokens": 2})));
    }
}

#[test]
fn marks_that_are_special_tokens_are_seen_and_written() {
    let folder = TempFolder::of_demo(|name, bytes| {
        if name != "tokenizer.json" {
            return bytes;
        }
        let mut tokenizer: Value = serde_json::from_slice(&bytes).unwrap();
        for token in tokenizer["added_tokens"].as_array_mut().unwrap() {
            if token["content"].as_str().unwrap().contains("tool_call") {
                token["special"] = json!(true);
            }
        }
        tokenizer.to_string().into()
    });
    let server = ServerBuilder::new(folder.path()).flags("--served-model-name demo").start();
    let body = asked("What is the weather in Paris?", json!([weather()]));
    for choice in ["auto", "required"] {
        let more = json!({"tool_choice": choice, "parallel_tool_calls": false});
        let answer = server.chat(with(body.clone(), more));
        assert_eq!(calls(&answer["choices"][0])[0].0, "get_weather", "{answer}");
        assert!(answer["choices"][0]["message"]["content"].is_null(), "{answer}");
    }
    // Without tools the markers are not parsed. They are left out like all special tokens.
    let plain = server.chat(with(body, json!({"tool_choice": "none"})));
    assert!(
        !plain["choices"][0]["message"]["content"].as_str().unwrap().contains("tool_call"),
        "{plain}"
    );
}

#[test]
fn mistakes_in_functions_are_named() {
    let server = Server::demo();
    let refused = |tools: Value, more: Value| {
        let body = with(asked("Hello", tools), more);
        let error = server.post("/v1/chat/completions", &body).error(400);
        (error["param"].as_str().unwrap().to_owned(), error["message"].as_str().unwrap().to_owned())
    };
    let function = |function: Value| json!([{"type": "function", "function": function}]);
    assert_eq!(refused(json!({}), json!({})).0, "tools");
    let typo = json!([{"type": "functoin", "function": {"name": "f"}}]);
    assert_eq!(refused(typo, json!({})).0, "tools[0]");
    assert_eq!(refused(function(json!({"name": "a b"})), json!({})).0, "tools[0]");
    assert_eq!(refused(json!([lamp(), lamp()]), json!({})).0, "tools[1].function.name");
    assert_eq!(refused(json!([lamp()]), json!({"tool_choice": "sometimes"})).0, "tool_choice");
    let other = json!({"tool_choice": {"type": "function", "function": {"name": "other"}}});
    assert_eq!(refused(json!([lamp()]), other).0, "tool_choice.function.name");
    assert_eq!(refused(json!(null), json!({"tool_choice": "required"})).0, "tool_choice");
    assert_eq!(refused(json!([lamp()]), json!({"functions": []})).0, "functions");

    let unsupported = json!({"name": "f", "parameters": {
        "type": "object", "properties": {"names": {"type": "array", "uniqueItems": true}},
    }});
    let (param, message) =
        refused(function(unsupported.clone()), json!({"tool_choice": "required"}));
    assert_eq!(param, "tools[0].function.parameters");
    assert!(message.contains("uniqueItems"), "{message}");
    let strict = with(unsupported.clone(), json!({"strict": true}));
    assert_eq!(refused(function(strict), json!({})).0, "tools[0].function.parameters");
    // No constraint is needed here.
    server.chat(asked("Hello", function(unsupported)));
    let wrong = json!({"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "integer", "minimum": 2, "maximum": 1}}}});
    assert_eq!(refused(json!([lamp()]), wrong).0, "response_format.json_schema.schema");
}

#[test]
fn functions_that_the_model_cannot_call_are_refused() {
    let folder = TempFolder::new();
    // One template does not render tools, and the other writes calls in a form that the server does not know.
    let deaf = folder.write("deaf.jinja", "{% for m in messages %}{{ m.content }}{% endfor %}");
    let foreign = folder.write("foreign.jinja", template("<call>{{ f.name }}</call>"));
    let refused = |server: &Server| {
        let body = asked("Hello", json!([lamp()]));
        let error = server.post("/v1/chat/completions", &body).error(400);
        assert_eq!(error["param"], "tools");
        // Without a call the same template serves.
        server.chat(with(body, json!({"tool_choice": "none", "max_tokens": 2})));
        error["message"].as_str().unwrap().to_owned()
    };
    let server = ServerBuilder::new("demo").flag("--chat-template", deaf).start();
    assert!(refused(&server).contains("chat template"));
    let server = ServerBuilder::new("demo").flag("--chat-template", &foreign).start();
    assert!(refused(&server).contains("--tool-call-parser"));
    let server = ServerBuilder::new("demo").flags("--tool-call-parser none").start();
    refused(&server);
    let server = ServerBuilder::new("demo")
        .flag("--chat-template", &foreign)
        .flags("--tool-call-parser llama3_json")
        .start();
    let answer =
        server.chat(with(asked("Hello", json!([lamp()])), json!({"tool_choice": "required"})));
    check_lamp(&calls(&answer["choices"][0])[0]);
    // Harmony writes its calls and its reasoning in one form, which excludes another parser.
    let mixed = ServerBuilder::new("demo")
        .flags("--tool-call-parser hermes --reasoning-parser gpt_oss")
        .refused();
    assert!(mixed.message.contains("gpt_oss"), "{}", mixed.message);
}

#[test]
fn an_answer_may_be_a_call_or_a_text_of_the_form_asked_for() {
    let server = Server::demo();
    let schema = json!({"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"], "additionalProperties": false});
    let format = json!({"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}});
    let weather = server
        .chat(with(asked("What is the weather in Paris?", json!([weather()])), format.clone()));
    assert_eq!(calls(&weather["choices"][0]).len(), 1, "{weather}");
    let answer = server.chat(with(asked("What is 2 + 3?", json!([lamp()])), format));
    let choice = &answer["choices"][0];
    // The model may decide for either.
    match calls(choice).first() {
        Some(call) => check_lamp(call),
        None => {
            let text = choice["message"]["content"].as_str().unwrap();
            let found: Value =
                serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"));
            assert!(found["n"].is_i64(), "{text}");
        }
    }
}

/// The arguments of finished required calls of `f`, in each tool format.
fn arguments_in_all_formats(parameters: &Value, more: &Value) -> Vec<(String, Value)> {
    const FORMATS: [&str; 7] =
        ["hermes", "pythonic", "lfm2", "qwen3_coder", "glm45", "minimax_m2", "gemma4"];
    let mut found = Vec::new();
    for format in FORMATS {
        let server =
            ServerBuilder::new("demo").flags(&format!("--tool-call-parser {format}")).start();
        let tools =
            json!([{"type": "function", "function": {"name": "f", "parameters": parameters}}]);
        for seed in 0..6 {
            let asked = with(
                asked("q", tools.clone()),
                json!({"tool_choice": "required", "parallel_tool_calls": false, "temperature": 1, "seed": seed, "max_tokens": 200}),
            );
            let answer = server.chat(with(asked, more.clone()));
            let choice = &answer["choices"][0];
            if choice["finish_reason"] == "tool_calls" {
                let mut calls = calls(choice);
                found.push((format.to_owned(), calls.remove(0).1));
            }
        }
        let finished = found.iter().filter(|(of, _)| of == format).count();
        // At this temperature some calls are longer than the limit.
        assert!(finished >= 2, "{finished} calls in the format {format} have come to their end");
    }
    found
}

#[test]
fn references_of_arguments_lead_to_the_whole_schema_in_every_format() {
    let tree = json!({
        "$id": "https://example.com/tree", "type": "object", "properties": {
            "v": {"type": "integer", "minimum": 0, "maximum": 9},
            "w": {"$ref": "#/properties/v"},
            "next": {"anyOf": [{"$ref": "#"}, {"type": "null"}]},
        },
        "required": ["v", "w", "next"], "additionalProperties": false,
    });
    fn check(tree: &Value) {
        let digit = |value: &Value| value.as_u64().is_some_and(|digit| digit < 10);
        assert!(digit(&tree["v"]) && digit(&tree["w"]), "{tree}");
        assert_eq!(tree.as_object().unwrap().len(), 3, "{tree}");
        if !tree["next"].is_null() {
            check(&tree["next"]);
        }
    }
    // A model that prefers to begin a `null` still ends its trees.
    let demo = Server::demo();
    let letter = demo
        .post("/tokenize", &json!({"model": "demo", "prompt": "n", "add_special_tokens": false}));
    let bias = json!({"logit_bias": {letter.json()["tokens"][0].to_string(): 8}});
    for (format, arguments) in arguments_in_all_formats(&tree, &bias) {
        assert!(arguments.is_object(), "{format}");
        check(&arguments);
    }
}

#[test]
fn calls_have_declared_keys_only() {
    let nothing = json!({"type": "object", "properties": {}, "additionalProperties": false});
    for (format, arguments) in arguments_in_all_formats(&nothing, &json!({})) {
        assert_eq!(arguments, json!({}), "{format}");
    }
    let nested = json!({
        "type": "object", "properties": {"a": {"type": "object", "properties": {"b": {"type": "boolean"}}}}, "required": ["a"],
    });
    for (format, arguments) in arguments_in_all_formats(&nested, &json!({})) {
        let inner = arguments["a"].as_object().unwrap();
        let is_declared = inner.iter().all(|(key, value)| key == "b" && value.is_boolean());
        assert!(is_declared && arguments.as_object().unwrap().len() == 1, "{format}: {arguments}");
    }
}
