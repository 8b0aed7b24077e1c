//! Reasoning: separated from the content, whole and in chunks, switched by the template, and before constrained
//! output.

use serde_json::{Value, json};

use crate::support::{Endpoint, Form, Scripted, Server, ServerBuilder, TempFolder};

/// A template that opens the reasoning of an answer, or closes it if it is switched off.
const TEMPLATE: &str = "{{ reasoning_effort | default('') }}{% for m in messages %}<|im_start|>{{ m.role }}\n\
    {% if m.reasoning_content %}<think>\n{{ m.reasoning_content }}\n</think>\n\n{% endif %}{{ m.content }}\
    {% for c in m.tool_calls %}<tool_call>\n{{ c.function | tojson }}\n</tool_call>{% endfor %}<|im_end|>\n{% endfor %}\
    {% if tools %}{{ tools | tojson }}{% endif %}{% if add_generation_prompt %}<|im_start|>assistant\n<think>\n\
    {% if enable_thinking is defined and not enable_thinking %}\n</think>\n\n{% endif %}{% endif %}";

fn question() -> Value {
    json!({
        "model": "demo", "messages": [{"role": "user", "content": "What is the capital of France?"}],
        "temperature": 0, "max_tokens": 24,
    })
}

fn with(mut body: Value, more: Value) -> Value {
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

/// A server whose model reasons.
fn thinker(flags: &str) -> Server {
    let folder = TempFolder::new();
    let file = folder.write("think.jinja", TEMPLATE);
    ServerBuilder::new("demo").flag("--chat-template", file).flags(flags).start()
}

#[test]
fn reasoning_is_set_apart_where_the_prompt_opens_it() {
    let server = thinker("");
    let answer = server.chat(question());
    let message = &answer["choices"][0]["message"];
    let reasoning = message["reasoning_content"].as_str().unwrap();
    assert!(!reasoning.is_empty() && message["content"].is_null(), "{answer}");
    let chunks =
        server.open("/v1/chat/completions", &with(question(), json!({"stream": true}))).chunks();
    let text = |name: &str| {
        let texts = chunks.iter().filter_map(|chunk| chunk["choices"][0]["delta"][name].as_str());
        texts.collect::<String>()
    };
    assert_eq!((text("reasoning_content").as_str(), text("content").as_str()), (reasoning, ""));

    let closed = json!({"chat_template_kwargs": {"enable_thinking": false}});
    let answer = server.chat(with(question(), closed));
    let message = &answer["choices"][0]["message"];
    assert!(!message["content"].as_str().unwrap().is_empty(), "{answer}");
    assert!(message.get("reasoning_content").is_none(), "{answer}");

    let answer = thinker("--reasoning-parser none").chat(question());
    assert_eq!(answer["choices"][0]["message"]["content"].as_str().unwrap().trim(), reasoning);
}

#[test]
fn the_template_gets_earlier_reasoning_and_the_effort() {
    let server = thinker("");
    let messages = json!([
        {"role": "user", "content": "1+1?"},
        {"role": "assistant", "reasoning_content": "It is two.", "content": "2"},
        {"role": "user", "content": "And 2+2?"},
    ]);
    let more = json!({"messages": messages, "reasoning_effort": "high", "return_token_ids": true, "max_tokens": 1});
    let ids = server.chat(with(question(), more))["prompt_token_ids"].clone();
    let prompt = server.post("/detokenize", &json!({"tokens": ids})).ok();
    let prompt = prompt["prompt"].as_str().unwrap();
    assert!(prompt.starts_with("high<|im_start|>"), "{prompt}");
    assert!(prompt.contains("<think>\nIt is two.\n</think>\n\n2"), "{prompt}");
}

/// The demo model with `<think>` and `</think>` as tokens, and the id of the latter.
fn thinking_folder() -> (TempFolder, u32) {
    let folder = TempFolder::of_demo(|name, bytes| match name {
        "tokenizer.json" => {
            // The tokens of tool results are not needed here, so they get the names of the reasoning's marks.
            String::from_utf8(bytes).unwrap().replace("tool_response>", "think>").into()
        }
        "chat_template.jinja" => TEMPLATE.into(),
        _ => bytes,
    });
    let tokenizer: Value =
        serde_json::from_slice(&std::fs::read(folder.path().join("tokenizer.json")).unwrap())
            .unwrap();
    let tokens = tokenizer["added_tokens"].as_array().unwrap();
    let close = tokens.iter().find(|token| token["content"] == "</think>").unwrap();
    (folder, close["id"].as_u64().unwrap().try_into().unwrap())
}

#[test]
fn constraints_hold_what_comes_behind_the_reasoning() {
    let (folder, close) = thinking_folder();
    let server = ServerBuilder::new(folder.path()).flags("--served-model-name demo").start();
    // The bias closes the reasoning at once. After it, only constrained text is possible.
    let close_at_once = json!({"logit_bias": {close.to_string(): 100}});
    let choice = json!({"structured_outputs": {"choice": ["yes", "no"]}});
    let answer = server.chat(with(question(), with(choice.clone(), close_at_once.clone())));
    let message = &answer["choices"][0]["message"];
    assert!(matches!(message["content"].as_str(), Some("yes" | "no")), "{answer}");
    assert_eq!(answer["choices"][0]["finish_reason"], "stop");
    // The reasoning itself is not constrained.
    let open = server.chat(with(question(), choice));
    let reasoning = open["choices"][0]["message"]["reasoning_content"].as_str().unwrap();
    assert!(reasoning.len() > 3, "{open}");

    let tool = json!({"type": "function", "function": {"name": "noop"}});
    let required = json!({"tools": [tool], "tool_choice": "required", "parallel_tool_calls": false, "max_tokens": 60});
    let answer = server.chat(with(question(), with(required, close_at_once)));
    let call = &answer["choices"][0]["message"]["tool_calls"][0]["function"];
    assert_eq!(call["name"], "noop", "{answer}");
    let arguments: Value = serde_json::from_str(call["arguments"].as_str().unwrap()).unwrap();
    assert_eq!(arguments, json!({}));
}

/// The bodies of the events of an answer.
fn events(server: &Server, path: &str, body: Value) -> Vec<Value> {
    let text = server.post(path, &with(body, json!({"stream": true}))).text();
    let bodies = text.lines().filter_map(|line| line.strip_prefix("data: "));
    bodies.map(|body| serde_json::from_str(body).unwrap()).collect()
}

#[test]
fn responses_and_messages_tell_reasoning_apart() {
    let (folder, close) = thinking_folder();
    let server = ServerBuilder::new(folder.path()).flags("--served-model-name demo").start();
    let bias = json!({close.to_string(): 100});
    let format = json!({"type": "json_schema", "name": "n", "schema": {"enum": ["yes", "no"]}});
    let body = json!({
        "model": "demo", "input": "What is the capital of France?", "temperature": 0,
        "text": {"format": format}, "max_output_tokens": 10,
    });
    // Nothing closes the reasoning here. With the bias it is empty.
    let open = server.post("/v1/responses", &body).ok();
    let (item, rest) = open["output"].as_array().unwrap().split_first().unwrap();
    assert_eq!((item["type"].as_str(), rest.len()), (Some("reasoning"), 0), "{open}");
    let thought = item["content"][0]["text"].as_str().unwrap();
    assert!(thought.len() > 3 && item["status"] == "incomplete", "{open}");
    let details = &open["usage"]["output_tokens_details"];
    assert!(details["reasoning_tokens"].as_u64().is_some_and(|num| num > 1), "{open}");
    let closed = server
        .post(
            "/v1/responses",
            &with(body.clone(), json!({"logit_bias": bias, "max_output_tokens": 24})),
        )
        .ok();
    let text = closed["output"][0]["content"][0]["text"].as_str().unwrap();
    assert!(matches!(text, "\"yes\"" | "\"no\""), "{closed}");

    let events = events(&server, "/v1/responses", body);
    let kind = |event: &Value| event["type"].as_str().unwrap().to_owned();
    let kinds: Vec<String> = events.iter().map(kind).collect();
    // `response.created` and `response.in_progress` come first.
    assert_eq!(kinds[2..4], ["response.output_item.added", "response.content_part.added"]);
    let deltas = events.iter().filter(|event| event["type"] == "response.reasoning_text.delta");
    let streamed: String = deltas.map(|event| event["delta"].as_str().unwrap()).collect();
    assert_eq!(streamed, thought);
    let last = ["reasoning_text.done", "content_part.done", "output_item.done", "incomplete"];
    assert_eq!(kinds[kinds.len() - 4..], last.map(|name| format!("response.{name}")));

    let body = json!({
        "model": "demo", "max_tokens": 10, "temperature": 0,
        "messages": [{"role": "user", "content": "What is the capital of France?"}],
    });
    let open = server.post("/v1/messages", &body).ok();
    let block = &open["content"][0];
    assert_eq!(
        (block["type"].as_str(), &open["stop_reason"]),
        (Some("thinking"), &json!("max_tokens"))
    );
    let closed = with(body.clone(), json!({"thinking": {"type": "disabled"}}));
    let closed = server.post("/v1/messages", &closed).ok();
    assert_eq!(closed["content"][0]["type"], "text", "{closed}");
    let events = self::events(&server, "/v1/messages", body);
    assert_eq!(
        events[1]["content_block"],
        json!({"type": "thinking", "thinking": "", "signature": ""})
    );
    let thought: String =
        events.iter().filter_map(|event| event["delta"]["thinking"].as_str()).collect();
    assert_eq!(Some(thought.as_str()), block["thinking"].as_str());
}

/// Number of reasoning tokens in an answer, including the closing marker.
fn thought_tokens(ids: &[u32], close: u32) -> usize {
    ids.iter().position(|id| *id == close).expect("the thought was closed") + 1
}

#[test]
fn a_thought_ends_with_its_budget() {
    let (folder, close) = thinking_folder();
    let server = ServerBuilder::new(folder.path()).flags("--served-model-name demo").start();
    let ids = |choice: &Value| -> Vec<u32> {
        serde_json::from_value(choice["token_ids"].clone()).unwrap()
    };
    // Without a budget the model reasons until it is cut off.
    // The bias keeps the model from closing its reasoning by itself.
    let free = with(
        question(),
        json!({"return_token_ids": true, "max_tokens": 48, "logit_bias": {close.to_string(): -100}, "ignore_eos": true}),
    );
    let answer = server.chat(free.clone());
    assert!(!ids(&answer["choices"][0]).contains(&close), "{answer}");
    for (budget, field) in [
        (12, json!({"thinking_token_budget": 12})),
        (5, json!({"thinking": {"type": "enabled", "budget_tokens": 5}})),
        (1, json!({"reasoning": {"max_tokens": 1}})),
        (0, json!({"thinking_token_budget": 0})),
    ] {
        let body = with(free.clone(), field);
        let answer = server.chat(body.clone());
        let choice = &answer["choices"][0];
        let tokens = thought_tokens(&ids(choice), close);
        // Eight more tokens leave room for the text that closes the reasoning.
        assert!(tokens >= budget && tokens <= budget + 8, "{budget}: {tokens}: {answer}");
        assert!(!choice["message"]["content"].as_str().unwrap_or_default().is_empty(), "{answer}");
        assert_eq!(answer["usage"]["completion_tokens"], 48, "{answer}");
        assert_eq!(choice["finish_reason"], "length");
        // A stream has the same text.
        let chunks =
            server.open("/v1/chat/completions", &with(body, json!({"stream": true}))).chunks();
        let text = |name: &str| {
            let texts =
                chunks.iter().filter_map(|chunk| chunk["choices"][0]["delta"][name].as_str());
            texts.collect::<String>()
        };
        assert_eq!(choice["message"]["content"], text("content"));
        assert_eq!(
            choice["message"]["reasoning_content"].as_str().unwrap_or_default(),
            text("reasoning_content")
        );
        assert_eq!(choice["message"]["reasoning"].as_str().unwrap_or_default(), text("reasoning"));
    }
    // Each of several choices has the whole budget, also with log-probabilities.
    let body = with(
        free,
        json!({"thinking_token_budget": 6, "n": 2, "temperature": 1, "seed": 3, "logprobs": true, "max_tokens": 20}),
    );
    for choice in server.chat(body)["choices"].as_array().unwrap() {
        // The budget of six, and eight to close it.
        assert!(thought_tokens(&ids(choice), close) <= 14, "{choice}");
        assert_eq!(choice["logprobs"]["content"].as_array().unwrap().len(), 20);
    }
}

/// The complete text of two concurrent streams.
fn beside(server: &Server, bodies: [Value; 2]) -> Vec<String> {
    std::thread::scope(|scope| {
        let streams = bodies.map(|body| {
            scope.spawn(move || {
                let chunks = server.open("/v1/chat/completions", &body).chunks();
                assert!(chunks.iter().all(|chunk| chunk.get("error").is_none()), "{chunks:?}");
                let pieces = chunks.iter().flat_map(|chunk| {
                    let delta = &chunk["choices"][0]["delta"];
                    ["reasoning_content", "content"]
                        .map(|name| delta[name].as_str().unwrap_or_default().to_owned())
                });
                pieces.collect::<String>()
            })
        });
        streams.map(|stream| stream.join().unwrap()).into()
    })
}

#[test]
fn a_thought_that_is_ended_keeps_its_place_and_its_seed() {
    let (folder, close) = thinking_folder();
    let server = ServerBuilder::new(folder.path())
        .flags("--served-model-name demo --max-num-seqs 1 --max-queued-requests 1")
        .start();
    let body = |seed: u64| {
        with(
            question(),
            json!({"model": "demo", "seed": seed, "temperature": 1.2, "max_tokens": 40, "ignore_eos": true, "stream": true,
                "thinking_token_budget": 6, "logit_bias": {close.to_string(): -100}}),
        )
    };
    // The other request fills the queue as below.
    let alone: Vec<String> =
        [3, 4].map(|seed| beside(&server, [body(seed), body(9)])[0].clone()).into();
    assert_ne!(alone[0], alone[1]);
    // Two requests fill the queue, and each gives up a sequence for another one.
    for _ in 0..8 {
        assert_eq!(beside(&server, [body(3), body(4)]), alone);
    }
    server.wait_until_all_blocks_are_free();
}

/// An answer of gpt-oss has several messages, and more than one of them may be reasoning.
#[test]
fn a_budget_is_for_all_messages_of_reasoning() {
    let marks = [
        "<|channel|>",
        "<|message|>",
        "<|end|>",
        "<|start|>",
        "<|constrain|>",
        "<|call|>",
        "<|return|>",
    ];
    let open = "<|channel|>analysis<|message|>";
    let texts = [
        format!("{open}{}", "hm ".repeat(200)),
        format!("{open}hm hm hm<|end|><|start|>assistant").repeat(8),
    ];
    let texts = texts.each_ref().map(String::as_str);
    let template = "{% if tools %}{{ tools | tojson }}{% endif %}{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}<|start|>assistant";
    let flags = "--tool-call-parser gpt_oss --reasoning-parser gpt_oss";
    let model = Scripted::start(template, &marks, &texts, flags);
    let parameters = json!({"type": "object", "properties": {"a": {"type": "string"}}});
    for endpoint in Endpoint::ALL {
        let tools = json!([endpoint.tool("w", parameters.clone())]);
        let (budget, limit, required) = match endpoint {
            Endpoint::Chat => {
                (json!({"thinking_token_budget": 20}), "max_tokens", json!("required"))
            }
            Endpoint::Responses => {
                (json!({"reasoning": {"max_tokens": 20}}), "max_output_tokens", json!("required"))
            }
            Endpoint::Messages => {
                let thinking = json!({"type": "enabled", "budget_tokens": 20});
                (json!({"thinking": thinking}), "max_tokens", json!({"type": "any"}))
            }
        };
        let budget = with(budget, json!({limit: 120}));
        for more in
            [json!({}), json!({"tools": tools}), json!({"tools": tools, "tool_choice": required})]
        {
            for text in 0..texts.len() {
                let mut body =
                    model.body(endpoint, text, Form::Bytes, with(budget.clone(), more.clone()));
                let whole = endpoint.whole(&model.server.post(endpoint.path(), &body).ok());
                body["stream"] = true.into();
                let streamed = endpoint.streamed(&model.server.post(endpoint.path(), &body).text());
                assert_eq!(streamed, whole, "{body}");
                // Two line breaks stand between messages of reasoning.
                let reasoning = whole.reasoning.replace("\n\n", "");
                let least = if text == 0 { 10 } else { 1 };
                assert!((least..=28).contains(&reasoning.len()), "{whole:?} {body}");
            }
        }
    }
}

#[test]
fn budgets_hold_with_constraints_and_calls_on_every_endpoint() {
    let (folder, close) = thinking_folder();
    let server = ServerBuilder::new(folder.path()).flags("--served-model-name demo").start();
    let budget = json!({"thinking_token_budget": 6, "logit_bias": {close.to_string(): -100}, "max_tokens": 100});
    let choice = json!({"structured_outputs": {"choice": ["yes", "no"]}});
    let answer = server.chat(with(question(), with(choice, budget.clone())));
    let message = &answer["choices"][0]["message"];
    assert!(matches!(message["content"].as_str(), Some("yes" | "no")), "{answer}");
    assert_eq!(answer["choices"][0]["finish_reason"], "stop", "{answer}");
    let tool = json!({"type": "function", "function": {"name": "noop"}});
    let required =
        json!({"tools": [tool], "tool_choice": "required", "parallel_tool_calls": false});
    let answer = server.chat(with(question(), with(required, budget)));
    assert_eq!(
        answer["choices"][0]["message"]["tool_calls"][0]["function"]["name"], "noop",
        "{answer}"
    );
    let messages = json!({"max_tokens": 60, "temperature": 0, "messages": question()["messages"],
        "thinking": {"type": "enabled", "budget_tokens": 6}});
    let answer = server.post("/v1/messages", &messages).ok();
    assert_eq!(
        (&answer["content"][0]["type"], &answer["content"][1]["type"]),
        (&json!("thinking"), &json!("text")),
        "{answer}"
    );
    let responses = json!({"max_output_tokens": 60, "temperature": 0, "input": "What is the capital of France?", "reasoning": {"max_tokens": 6}});
    let answer = server.post("/v1/responses", &responses).ok();
    assert_eq!(
        (&answer["output"][0]["type"], &answer["output"][1]["type"]),
        (&json!("reasoning"), &json!("message")),
        "{answer}"
    );
    assert!(
        answer["usage"]["output_tokens_details"]["reasoning_tokens"].as_u64() <= Some(14),
        "{answer}"
    );
}

#[test]
fn efforts_reach_templates_that_can_only_switch() {
    let folder = TempFolder::new();
    // The template knows no efforts, and has only a switch.
    let template = TEMPLATE.replace("{{ reasoning_effort | default('') }}", "");
    let file = folder.write("switch.jinja", &template);
    let server = ServerBuilder::new("demo").flag("--chat-template", file).start();
    let is_closed = |path: &str, body: Value, more: Value| {
        let response = server.post(path, &with(body, more));
        // The switch holds the effort, so nothing is left out.
        assert_eq!(response.header("x-candlepower-not-held"), None);
        response.ok()
    };
    let chat = |more: Value| {
        let answer = is_closed("/v1/chat/completions", question(), more);
        answer["choices"][0]["message"].get("reasoning_content").is_none()
    };
    for more in [
        json!({"reasoning_effort": "none"}),
        json!({"thinking": {"type": "disabled"}}),
        json!({"reasoning": {"enabled": false}}),
        json!({"enable_thinking": false}),
    ] {
        assert!(chat(more.clone()), "{more}");
    }
    for more in
        [json!({}), json!({"reasoning_effort": "high"}), json!({"thinking": {"type": "adaptive"}})]
    {
        assert!(!chat(more.clone()), "{more}");
    }
    let body = json!({"input": "What is the capital of France?", "max_output_tokens": 24, "temperature": 0});
    let more = json!({"reasoning": {"effort": "none"}});
    assert_eq!(is_closed("/v1/responses", body.clone(), more)["output"][0]["type"], "message");
    let more = json!({"chat_template_kwargs": {"enable_thinking": false}});
    assert_eq!(is_closed("/v1/responses", body, more)["output"][0]["type"], "message");
    let body = json!({"messages": question()["messages"], "max_tokens": 24, "temperature": 0});
    let more = json!({"thinking": {"type": "disabled"}});
    assert_eq!(is_closed("/v1/messages", body, more)["content"][0]["type"], "text");
}
