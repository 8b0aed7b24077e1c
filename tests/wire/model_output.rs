//! Outputs of scripted models as clients parse them: whole and streamed, at every endpoint that continues
//! conversations.

use serde_json::{Value, json};

use crate::support::{Answer, Endpoint, Form, Scripted};

/// A template whose prompts end with `opening`.
fn template(opening: &str) -> String {
    format!(
        "{{% if tools %}}{{{{ tools | tojson }}}}{{% endif %}}{{% for m in messages %}}<{{{{ m.role }}}}>{{{{ m.content }}}}{{% endfor %}}\
         {{% if add_generation_prompt %}}<assistant>{opening}{{% endif %}}"
    )
}

/// The tools `w`, with a string, and `noop`, with further fields of a request.
fn with_tools(endpoint: Endpoint, more: Value) -> Value {
    let content = json!({
        "type": "object", "properties": {"content": {"type": "string"}}, "required": ["content"],
    });
    let none = json!({"type": "object", "properties": {}});
    let tools = json!([endpoint.tool("w", content), endpoint.tool("noop", none)]);
    let mut body = json!({"tools": tools});
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

/// Names and arguments of the calls.
fn called(answer: &Answer) -> Vec<(&str, Value)> {
    let arguments = |text: &str| serde_json::from_str(text).unwrap_or_else(|_| text.into());
    answer.calls.iter().map(|(name, text)| (name.as_str(), arguments(text))).collect()
}

/// The finish reasons of an answer with calls, and of one without.
fn ends(endpoint: Endpoint) -> (&'static str, &'static str) {
    match endpoint {
        Endpoint::Chat => ("tool_calls", "stop"),
        Endpoint::Responses => ("completed", "completed"),
        Endpoint::Messages => ("tool_use", "end_turn"),
    }
}

/// The finish reason of an answer with an incomplete call.
fn broken(endpoint: Endpoint) -> &'static str {
    match endpoint {
        Endpoint::Chat => "stop",
        Endpoint::Responses => "incomplete: max_output_tokens",
        Endpoint::Messages => "max_tokens",
    }
}

#[test]
fn marks_inside_arguments_are_text() {
    for (parser, call, value) in [
        (
            "qwen3_coder",
            "<tool_call>\n<function=w>\n<parameter=content>\n{}\n</parameter>\n</function>\n</tool_call>",
            "</parameter>",
        ),
        (
            "glm45",
            "<tool_call>w\n<arg_key>content</arg_key>\n<arg_value>{}</arg_value>\n</tool_call>",
            "</arg_value>",
        ),
        (
            "minimax_m2",
            "<minimax:tool_call>\n<invoke name=\"w\">\n<parameter name=\"content\">{}</parameter>\n</invoke>\n</minimax:tool_call>",
            "</parameter>",
        ),
    ] {
        let contents =
            // One has its own end mark in it, and one the end mark of something else.
            [format!("A {value} B"), "x\n</function>\ny".into(), format!("x\n{value}\né")];
        let texts = contents.each_ref().map(|content| call.replace("{}", content));
        // The last text ends within the arguments.
        let broken_call = call.split("{}").next().unwrap();
        let texts = [texts.each_ref().map(String::as_str).to_vec(), vec![broken_call]].concat();
        let flags = format!("--tool-call-parser {parser}");
        let model = Scripted::start(&template(""), &[], &texts, &flags);
        for endpoint in Endpoint::ALL {
            for (index, content) in contents.iter().enumerate() {
                let answer = model.answer(endpoint, index, with_tools(endpoint, json!({})));
                let expected = [("w", json!({"content": content}))];
                assert_eq!(called(&answer), expected, "{parser} {endpoint:?}");
                let read = (answer.content.as_str(), answer.finish.as_str());
                assert_eq!(read, ("", ends(endpoint).0), "{parser} {endpoint:?}");
            }
            let answer = model.answer(endpoint, 3, with_tools(endpoint, json!({})));
            assert_eq!(called(&answer), [("w", json!({}))], "{parser} {endpoint:?}");
            assert_eq!(answer.finish, broken(endpoint), "{parser} {endpoint:?}");
            if endpoint == Endpoint::Responses {
                let whole = model.ask(endpoint, 3, Form::Bytes, with_tools(endpoint, json!({})));
                assert_eq!(whole["output"][0]["status"], "incomplete", "{whole}");
            }
        }
    }
}

/// Marks of quoted strings and of messages, in formats without an element for each argument.
#[test]
fn marks_within_strings_are_text() {
    let gemma = "<|tool_call>call:w{content:<|\"|>{}<|\"|>}<tool_call|>";
    let function_gemma =
        "<start_function_call>call:w{content:<escape>{}<escape>}<end_function_call>";
    let harmony = "<|channel|>commentary to=functions.w <|constrain|>json<|message|>{\"content\": \"{}\"}<|call|>";
    let hermes =
        "<tool_call>\n{\"name\": \"w\", \"arguments\": {\"content\": \"{}\"}}\n</tool_call>";
    let solar = "<|tool_calls|><|tool_call:begin|>a1b2c3d4e5<|tool_call:name|>w<|tool_call:args|>{\"content\": \"{}\"}<|tool_call:end|>";
    for (parser, call, marks) in [
        ("gemma4", gemma, &["<|\"|>", "<|\"|>}", "<tool_call|>"][..]),
        ("functiongemma", function_gemma, &["<escape>", "<escape>}", "<end_function_call>"]),
        ("gpt_oss", harmony, &["<|call|>", "<|end|>", "<|message|>"]),
        ("hermes", hermes, &["</tool_call>", "<tool_call>"]),
        ("solar_open", solar, &["<|tool_call:end|>", "<|end|>", "<|begin|>assistant"]),
    ] {
        let contents =
            marks.iter().flat_map(|mark| [format!("A {mark} B"), format!("{mark}{mark}b")]);
        let contents: Vec<String> = contents.collect();
        // JSON escapes quotes, and Gemma's notation has no escapes.
        let is_json = call.contains("\"{}\"");
        let written = |content: &String| match is_json {
            true => call.replace("{}", &content.replace('"', "\\\"")),
            false => call.replace("{}", content),
        };
        let texts: Vec<String> = contents.iter().map(written).collect();
        let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
        let flags = format!("--tool-call-parser {parser}");
        let model = Scripted::start(&template(""), &[], &texts, &flags);
        for endpoint in Endpoint::ALL {
            for (index, content) in contents.iter().enumerate() {
                let answer = model.answer(endpoint, index, with_tools(endpoint, json!({})));
                assert_eq!(
                    called(&answer),
                    [("w", json!({"content": content}))],
                    "{parser} {endpoint:?}"
                );
                let read = (answer.content.as_str(), answer.finish.as_str());
                assert_eq!(read, ("", ends(endpoint).0), "{parser} {endpoint:?}");
            }
        }
    }
}

#[test]
fn calls_are_found_in_reasoning_that_is_not_closed() {
    let call = "<tool_call>\n<function=w>\n<parameter=content>\nParis\n</parameter>\n</function>\n</tool_call>";
    let texts = [
        // Reasoning that never ends, reasoning that ends after the call, and reasoning that only mentions marks.
        format!("I need it.\n{call}"),
        format!("I need it.\n{call}\n</think>\n\nDone."),
        format!("I could use <tool_call> or <function=x>.\n</think>\n\n{call}"),
        "I could use <tool_call>\n".to_owned(),
    ];
    let texts = texts.each_ref().map(String::as_str);
    let flags = "--tool-call-parser qwen3_coder --reasoning-parser qwen3";
    let model = Scripted::start(&template("<think>\n"), &["<think>", "</think>"], &texts, flags);
    for endpoint in Endpoint::ALL {
        let ask = |index| model.answer(endpoint, index, with_tools(endpoint, json!({})));
        let paris = vec![("w", json!({"content": "Paris"}))];
        let thought = "I could use <tool_call> or <function=x>.";
        for (index, content, reasoning) in
            [(0, "", "I need it."), (1, "Done.", "I need it."), (2, "", thought)]
        {
            let answer = ask(index);
            assert_eq!(called(&answer), paris, "{endpoint:?} {index}");
            let read = (answer.content.as_str(), answer.reasoning.as_str(), answer.finish.as_str());
            assert_eq!(read, (content, reasoning, ends(endpoint).0), "{endpoint:?} {index}");
        }
        let answer = ask(3);
        assert_eq!((answer.reasoning.as_str(), answer.calls.len()), (texts[3].trim(), 0));
        // No tool may be called.
        let answer = model.answer(endpoint, 0, json!({}));
        assert_eq!((answer.reasoning.as_str(), answer.calls.len()), (texts[0], 0));
    }
}

/// Sources: those of the formats, in `crates/dialect/src/format`.
#[test]
fn texts_around_content_are_no_content() {
    let kimi = "<|open|>think<|sep|>Hm.<|close|>think<|sep|><|open|>response<|sep|>I look.<|close|>response<|sep|>";
    let kimi_call = "<|open|>tools<|sep|><|open|>call tool=\"w\" index=\"1\"<|sep|><|open|>argument key=\"content\" type=\"string\"<|sep|>x<|close|>argument<|sep|><|close|>call<|sep|><|close|>tools<|sep|><|close|>message<|sep|>";
    let solar = "<|think|>Hm.<|end|><|begin|>assistant<|content|>I look.<|end|><|begin|>assistant";
    let solar_call = "<|tool_calls|><|tool_call:begin|>a1b2c3d4e5<|tool_call:name|>w<|tool_call:args|>{\"content\": \"x\"}<|tool_call:end|>";
    let gemma_call = "<start_function_call>call:w{content:<escape>x<escape>}<end_function_call>";
    let apertus_call = "<|tools_prefix|>[{\"w\": {\"content\": \"x\"}}]<|tools_suffix|>";
    let apertus = "<|inner_prefix|>Hm.<|inner_suffix|>I look.";
    for (tools, reasoning, marks, said, call) in [
        ("kimi_k3", "kimi_k3", &["<|open|>", "<|close|>", "<|sep|>"][..], kimi, kimi_call),
        (
            "solar_open",
            "solar_open",
            &[
                "<|think|>",
                "<|end|>",
                "<|begin|>",
                "<|content|>",
                "<|tool_calls|>",
                "<|tool_call:begin|>",
                // With these tokens, `<|end|>` ends no turn.
                "<|calls|>",
                "<|flush|>",
            ],
            solar,
            solar_call,
        ),
        ("apertus", "apertus", &["<|inner_prefix|>", "<|inner_suffix|>"], apertus, apertus_call),
        ("functionary_v32", "none", &[], "all\nI look.", ">>>w\n{\"content\": \"x\"}"),
        ("functiongemma", "none", &["<start_function_call>", "<escape>"], "I look.", gemma_call),
    ] {
        let text = [said, call].concat();
        let flags = format!("--tool-call-parser {tools} --reasoning-parser {reasoning}");
        for marks in [&[][..], marks] {
            let model = Scripted::start(&template(""), marks, &[&text, said], &flags);
            for endpoint in Endpoint::ALL {
                let answer = model.answer(endpoint, 0, with_tools(endpoint, json!({})));
                assert_eq!(
                    called(&answer),
                    [("w", json!({"content": "x"}))],
                    "{tools} {endpoint:?}"
                );
                let thought = if reasoning == "none" { "" } else { "Hm." };
                let read =
                    (answer.content.as_str(), answer.reasoning.as_str(), answer.finish.as_str());
                assert_eq!(read, ("I look.", thought, ends(endpoint).0), "{tools} {endpoint:?}");
                // Without tools, the texts around content are no content either.
                let answer = model.answer(endpoint, 1, json!({}));
                assert_eq!(answer.content, "I look.", "{tools} {endpoint:?}");
            }
        }
    }
}

#[test]
fn stop_strings_end_the_answer_and_not_its_reasoning_or_calls() {
    let call =
        "<tool_call>\n{\"name\": \"w\", \"arguments\": {\"content\": \"an END\"}}\n</tool_call>";
    let texts = [
        "I think END now.\n</think>\n\nThe answer is END. And more.".to_owned(),
        format!("Hm END\n</think>\n\nI look.\n{call}"),
        format!("Hm\n</think>\n\n{call}\nThen END it."),
        // The beginning of a stop string is held back, and must come at the end.
        "Hm\n</think>\n\nOne E".to_owned(),
    ];
    let texts = texts.each_ref().map(String::as_str);
    let flags = "--tool-call-parser hermes --reasoning-parser qwen3";
    let model = Scripted::start(&template("<think>\n"), &["<think>", "</think>"], &texts, flags);
    for endpoint in Endpoint::ALL {
        let stop = if endpoint == Endpoint::Messages { "stop_sequences" } else { "stop" };
        let ask = |index, more: Value| {
            let mut more = with_tools(endpoint, more);
            more[stop] = json!(["END"]);
            model.answer(endpoint, index, more)
        };
        let stopped = match endpoint {
            Endpoint::Chat => "stop",
            Endpoint::Responses => "completed",
            Endpoint::Messages => "stop_sequence",
        };
        let answer = ask(0, json!({}));
        let read = (answer.content.as_str(), answer.reasoning.as_str(), answer.finish.as_str());
        assert_eq!(read, ("The answer is ", "I think END now.", stopped), "{endpoint:?}");
        let answer = ask(1, json!({}));
        let read = (answer.content.as_str(), answer.reasoning.as_str(), answer.finish.as_str());
        assert_eq!(read, ("I look.", "Hm END", ends(endpoint).0), "{endpoint:?}");
        assert_eq!(called(&answer), [("w", json!({"content": "an END"}))], "{endpoint:?}");
        let answer = ask(2, json!({}));
        assert_eq!((answer.content.as_str(), answer.calls.len()), ("Then ", 1), "{endpoint:?}");
        assert_eq!(ask(3, json!({})).content, "One E", "{endpoint:?}");
        // The Messages API has no such field.
        if endpoint != Endpoint::Messages {
            let answer = ask(0, json!({"include_stop_str_in_output": true}));
            assert_eq!(answer.content, "The answer is END", "{endpoint:?}");
        }
    }
}

#[test]
fn generation_ends_with_the_stop_string() {
    let text = "I think END now.\n</think>\n\nThe answer is END. And more.";
    let flags = "--reasoning-parser qwen3";
    let model = Scripted::start(&template("<think>\n"), &["</think>"], &[text], flags);
    // The marker is one token, and so is every other letter.
    let upto = text.find("END. ").unwrap() + "END".len() - "</think>".len() + 1;
    let more = json!({"stop": "END", "n": 2, "logprobs": true, "return_token_ids": true});
    let whole = model.ask(Endpoint::Chat, 0, Form::Bytes, more.clone());
    for choice in whole["choices"].as_array().unwrap() {
        assert_eq!(choice["message"]["content"], "The answer is ", "{choice}");
        assert_eq!(choice["stop_reason"], "END", "{choice}");
        assert_eq!(choice["token_ids"].as_array().unwrap().len(), upto, "{choice}");
        assert_eq!(choice["logprobs"]["content"].as_array().unwrap().len(), upto, "{choice}");
    }
    assert_eq!(whole["usage"]["completion_tokens"], 2 * upto, "{whole}");
    let mut body = model.body(Endpoint::Chat, 0, Form::Bytes, more);
    body["stream"] = true.into();
    body["stream_options"] = json!({"include_usage": true});
    let chunks = model.server.open(Endpoint::Chat.path(), &body).chunks();
    let count = |field: &str, list: &dyn Fn(&Value) -> Option<usize>| {
        let counts = chunks.iter().filter_map(|chunk| list(&chunk["choices"][0][field]));
        counts.sum::<usize>()
    };
    assert_eq!(count("token_ids", &|ids| Some(ids.as_array()?.len())), 2 * upto);
    assert_eq!(count("logprobs", &|all| Some(all["content"].as_array()?.len())), 2 * upto);
    assert_eq!(chunks.last().unwrap()["usage"]["completion_tokens"], 2 * upto);
    // Without a reasoning parser all text is the answer.
    let flags = "--reasoning-parser none";
    let plain = Scripted::start(&template("<think>\n"), &[], &[text], flags);
    let answer = plain.answer(Endpoint::Chat, 0, json!({"stop": ["END"]}));
    assert_eq!((answer.content.as_str(), answer.finish.as_str()), ("I think ", "stop"));
}

#[test]
fn what_is_cut_says_nothing_by_halves() {
    let call = "<tool_call>\n{\"name\": \"noop\", \"arguments\": {}}\n</tool_call>";
    let model = Scripted::start(&template(""), &[], &[call, "né"], "--tool-call-parser hermes");
    for endpoint in Endpoint::ALL {
        let limit =
            if endpoint == Endpoint::Responses { "max_output_tokens" } else { "max_tokens" };
        let choice = match endpoint {
            Endpoint::Messages => json!({"type": "any"}),
            _ => json!("required"),
        };
        // The limits fall into the mark, before the name, and before the arguments.
        for num_tokens in [3, 14, 30] {
            let more = with_tools(endpoint, json!({limit: num_tokens, "tool_choice": choice}));
            let mut body = model.body(endpoint, 0, Form::Bytes, more);
            let whole = model.server.post(endpoint.path(), &body).ok();
            let answer = endpoint.whole(&whole);
            assert_eq!((answer.content.as_str(), answer.calls.len()), ("", 0), "{whole}");
            body["stream"] = true.into();
            let events = model.server.post(endpoint.path(), &body).text();
            assert!(!events.contains("tool_call>"), "{events}");
        }
        // The second byte of the character is missing.
        let more = json!({limit: 2});
        let body = model.body(endpoint, 1, Form::Bytes, more);
        let whole = model.server.post(endpoint.path(), &body).ok();
        assert_eq!(endpoint.whole(&whole).content, "n", "{whole}");
    }
    let server = &model.server;
    let body = json!({"model": "demo", "prompt": [97], "max_tokens": 2});
    server.post("/v1/completions", &body).ok();
}

#[test]
fn calls_of_functions_that_there_are_not_are_content_and_logged() {
    let text = "<tool_call>\n{\"name\": \"get_ti\", \"arguments\": {}}\n</tool_call>";
    let model = Scripted::start(&template(""), &[], &[text], "--tool-call-parser hermes");
    for endpoint in Endpoint::ALL {
        let answer = model.answer(endpoint, 0, with_tools(endpoint, json!({})));
        let read = (answer.content.as_str(), answer.calls.len(), answer.finish.as_str());
        assert_eq!(read, (text, 0, ends(endpoint).1), "{endpoint:?}");
    }
    model.server.log_with("get_ti");
}
