//! Sampling parameters, as far as they are visible in outputs.

use serde_json::{Value, json};

use crate::support::{Server, ServerBuilder};

fn texts(answer: &Value) -> Vec<String> {
    answer["choices"]
        .as_array()
        .unwrap()
        .iter()
        .map(|choice| choice["text"].as_str().unwrap().to_owned())
        .collect()
}

/// A request with sampling: the body, with `changes` applied.
fn drawn(changes: Value) -> Value {
    let mut body =
        json!({"prompt": "Once", "temperature": 1.3, "max_tokens": 20, "ignore_eos": true});
    body.as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
    body
}

#[test]
fn a_seed_gives_the_same_text_alone_and_among_others() {
    let server = Server::demo();
    let alone: Vec<Vec<String>> =
        (0..12).map(|seed| texts(&server.complete(drawn(json!({"seed": seed}))))).collect();
    assert!(alone.windows(2).any(|pair| pair[0] != pair[1]), "every seed gives the same text");
    let among: Vec<Vec<String>> = std::thread::scope(|scope| {
        let server = &server;
        let threads: Vec<_> = (0..12)
            .map(|seed| {
                // Other sequences of the batch sample with other parameters.
                scope.spawn(move || {
                    server.complete(drawn(
                        json!({"temperature": 0, "prompt": format!("Number {seed}")}),
                    ))
                });
                scope.spawn(move || texts(&server.complete(drawn(json!({"seed": seed})))))
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert_eq!(among, alone);
}

#[test]
fn choice_i_is_drawn_with_seed_plus_i() {
    let server = Server::demo();
    let together = texts(&server.complete(drawn(json!({"seed": 40, "n": 5}))));
    for (i, text) in together.iter().enumerate() {
        assert_eq!(*text, texts(&server.complete(drawn(json!({"seed": 40 + i}))))[0]);
        assert!(!together[..i].contains(text), "choices are the same: {together:?}");
    }
}

#[test]
fn requests_without_a_seed_differ() {
    let server = Server::demo();
    let answers: Vec<Vec<String>> =
        (0..4).map(|_| texts(&server.complete(drawn(json!({}))))).collect();
    assert!(answers.iter().any(|answer| *answer != answers[0]), "{answers:?}");
}

#[test]
fn narrow_draws_are_greedy() {
    let server = Server::demo();
    let greedy = texts(&server.complete(drawn(json!({"temperature": 0}))));
    for narrow in [
        json!({"top_k": 1}),
        json!({"top_p": 1e-6}),
        // `min_p` is relative to the likeliest token, so 1 leaves that one alone.
        json!({"min_p": 1}),
        json!({"temperature": 1e-6}),
    ] {
        assert_eq!(texts(&server.complete(drawn(narrow.clone()))), greedy, "{narrow}");
    }
}

#[test]
fn logit_bias_forces_and_forbids() {
    let server = Server::demo();
    let ids = |changes: Value| {
        let mut body = drawn(json!({"return_token_ids": true, "max_tokens": 6}));
        body.as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
        server.complete(body)["choices"][0]["token_ids"].as_array().unwrap().clone()
    };
    // The bias outweighs any logit of the demo.
    assert_eq!(ids(json!({"logit_bias": {"300": 100}})), vec![json!(300); 6]);
    let greedy = ids(json!({"temperature": 0}));
    let first = greedy[0].as_u64().unwrap().to_string();
    let without = ids(json!({"temperature": 0, "logit_bias": {first.as_str(): -100}}));
    assert!(!without.contains(&greedy[0]), "{without:?} holds {first}");
}

#[test]
fn min_tokens_holds_back_the_end() {
    let server = Server::demo();
    let messages = json!([{"role": "user", "content": "What is the capital of France?"}]);
    let body = |min: usize| json!({"messages": messages, "temperature": 0, "max_tokens": 60, "min_tokens": min});
    let tokens = |answer: &Value| answer["usage"]["completion_tokens"].as_u64().unwrap();
    let short = server.chat(body(0));
    assert_eq!(short["choices"][0]["finish_reason"], "stop");
    let least = tokens(&short) + 5;
    let longer = server.chat(body(least as usize));
    assert!(tokens(&longer) >= least, "{longer}");

    let mut unending = body(0);
    unending["ignore_eos"] = json!(true);
    let unending = server.chat(unending);
    assert_eq!(
        (tokens(&unending), &unending["choices"][0]["finish_reason"]),
        (60, &json!("length"))
    );
}

/// The first token is sampled twice if it leads by 1, but not if a penalty takes more than 1 away.
#[test]
fn penalties_discourage_repetition() {
    let server = Server::demo();
    let two = |changes: Value| {
        let mut body = drawn(json!({"temperature": 0, "max_tokens": 2, "return_token_ids": true}));
        body.as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
        let choice = server.complete(body)["choices"][0].clone();
        let ids: Vec<u64> =
            choice["token_ids"].as_array().unwrap().iter().map(|id| id.as_u64().unwrap()).collect();
        (ids, choice["logprobs"].clone())
    };
    let id = two(json!({})).0[0].to_string();
    // Log-probabilities are the model's own, without the bias: they show by how much the token is behind.
    let (ids, logprobs) = two(json!({"logit_bias": {id.as_str(): 100}, "logprobs": 2}));
    assert_eq!(ids[0], ids[1]);
    let own = logprobs["token_logprobs"][1].as_f64().unwrap();
    let others = logprobs["top_logprobs"][1].as_object().unwrap();
    let text = logprobs["tokens"][1].as_str().unwrap();
    let best =
        others.iter().filter(|(other, _)| *other != text).map(|(_, value)| value.as_f64().unwrap());
    // With this bias the token leads the best other one by 1.
    let leading = best.fold(f64::NEG_INFINITY, f64::max) - own + 1.0;
    assert!(leading > 0.0, "the prompt is a bad one for this model: {logprobs}");

    let repeats = |name: &str, penalty: f64| {
        let (ids, _) = two(json!({"logit_bias": {id.as_str(): leading}, name: penalty}));
        assert_eq!(ids[0].to_string(), id, "{name}");
        ids[1] == ids[0]
    };
    for name in ["presence_penalty", "frequency_penalty"] {
        // 0.9 leaves the lead above zero, and 1.1 does not.
        assert!(repeats(name, 0.0) && repeats(name, 0.9), "{name}");
        assert!(!repeats(name, 1.1) && !repeats(name, 2.0), "{name}");
    }
    assert!(repeats("repetition_penalty", 1.0));
    assert!(!repeats("repetition_penalty", 100.0));
}

#[test]
fn values_out_of_bounds_are_refused_by_name() {
    let server = Server::demo();
    for (name, values) in [
        ("temperature", vec![json!(-0.1), json!(2.1), json!("1")]),
        ("top_p", vec![json!(0), json!(1.1)]),
        ("top_k", vec![json!(-2), json!(1.5)]),
        ("min_p", vec![json!(-0.1), json!(1.1)]),
        ("max_tokens", vec![json!(-1), json!(1.5)]),
        ("n", vec![json!(0), json!(129)]),
        ("presence_penalty", vec![json!(-2.1), json!(2.1)]),
        ("frequency_penalty", vec![json!(-2.1), json!(2.1)]),
        ("repetition_penalty", vec![json!(0), json!(-1)]),
        // 17 is more than the default of max_tokens.
        ("min_tokens", vec![json!(-1), json!(17)]),
        ("seed", vec![json!(1.5), json!("1")]),
        ("stop", vec![json!(""), json!(vec!["x"; 17]), json!(1)]),
        ("logprobs", vec![json!(21), json!(-1), json!("x")]),
        ("stream", vec![json!("yes"), json!(1)]),
    ] {
        for value in values {
            let error = server.complete_refused(json!({"prompt": "a", name: value}));
            assert_eq!(error["param"], name, "{value}: {error}");
        }
    }
    // The vocabulary has 1280 tokens, so this is the first id outside.
    let error = server.complete_refused(json!({"prompt": "a", "logit_bias": {"1280": 1}}));
    assert!(error["param"].as_str().unwrap().starts_with("logit_bias"), "{error}");
    let error = server.complete_refused(json!({"prompt": "a", "stop_token_ids": [1280]}));
    assert!(error["param"].as_str().unwrap().starts_with("stop_token_ids"), "{error}");
}

#[test]
fn the_server_limits_log_probabilities() {
    let server = ServerBuilder::new("demo").flags("--max-logprobs 2").start();
    server.complete(json!({"prompt": "a", "max_tokens": 1, "logprobs": 2}));
    assert_eq!(server.complete_refused(json!({"prompt": "a", "logprobs": 3}))["param"], "logprobs");
}

/// The ids of the texts' tokens.
fn ids(server: &Server, text: &str) -> Vec<u64> {
    let tokens =
        server.post("/tokenize", &json!({"prompt": text, "add_special_tokens": false})).ok();
    tokens["tokens"].as_array().unwrap().iter().map(|id| id.as_u64().unwrap()).collect()
}

#[test]
fn only_allowed_tokens_are_drawn() {
    let server = Server::demo();
    let allowed = ids(&server, "abc de");
    let fields = json!({"allowed_token_ids": allowed, "return_token_ids": true, "n": 3, "seed": 1});
    let mut messages = drawn(fields.clone());
    messages["messages"] = json!([{"role": "user", "content": "Hi"}]);
    messages.as_object_mut().unwrap().remove("prompt");
    for answer in [server.complete(drawn(fields.clone())), server.chat(messages)] {
        for choice in answer["choices"].as_array().unwrap() {
            let drawn = choice["token_ids"].as_array().unwrap();
            assert_eq!(drawn.len(), 20);
            assert!(drawn.iter().all(|id| allowed.contains(&id.as_u64().unwrap())), "{answer}");
        }
    }
    // A bias cannot make any of the others possible.
    let mut biased = drawn(fields);
    biased["logit_bias"] = json!({ids(&server, "z")[0].to_string(): 100});
    let texts = texts(&server.complete(biased));
    assert!(texts.iter().all(|text| !text.contains('z')), "{texts:?}");
    for (value, param) in [
        (json!([]), "allowed_token_ids"),
        (json!([1, 1_000_000]), "allowed_token_ids[1]"),
        (json!([-1]), "allowed_token_ids[0]"),
        (json!("a"), "allowed_token_ids"),
    ] {
        let error = server.complete_refused(drawn(json!({"allowed_token_ids": value})));
        assert_eq!(error["param"], param, "{error}");
    }
    // Neither choice can begin with the allowed token.
    let constrained = json!({"allowed_token_ids": ids(&server, "q"), "structured_outputs": {"choice": ["yes", "no"]}});
    let error = server.complete_refused(drawn(constrained));
    assert!(error["message"].as_str().unwrap().contains("among the allowed ones"), "{error}");
}

#[test]
fn an_answer_ends_with_an_error_where_neither_tokens_nor_the_constraint_leave_a_way_on() {
    let server = Server::demo();
    // The first tokens are allowed, and none that may follow them.
    let constraint = json!({"regex": "q{4}[xyz]+"});
    let fields = json!({"allowed_token_ids": ids(&server, "q"), "structured_outputs": constraint, "max_tokens": 9});
    let is_clear = |text: &str| {
        text.contains("none of the tokens that may follow here is among the allowed ones")
            && !text.contains("too complex")
    };
    let error = server.complete_refused(drawn(fields.clone()));
    assert!(is_clear(error["message"].as_str().unwrap()), "{error}");
    let mut streamed = drawn(fields);
    streamed["stream"] = true.into();
    let events = server.post("/v1/completions", &streamed).text();
    assert!(is_clear(&events) && events.trim_end().ends_with("[DONE]"), "{events}");
    // Behind it, the server has no trace of the request.
    server.wait_until_all_blocks_are_free();
}

#[test]
fn features_of_others_that_are_missing_are_named() {
    let server = Server::demo();
    let error = server.complete_refused(drawn(json!({"logprob_token_ids": [1, 2]})));
    assert_eq!(error["param"], "logprob_token_ids", "{error}");
    server.complete(drawn(json!({"logprob_token_ids": [], "max_tokens": 1})));
    let error = server.post("/pooling", &json!({"model": "demo", "input": "Hi"})).error(404);
    assert!(error["message"].as_str().unwrap().contains("/v1/embeddings"), "{error}");
}

#[test]
fn bad_words_are_not_written() {
    let server = Server::demo();
    let greedy = |bad_words: &[&str]| {
        let fields = json!({"temperature": 0, "max_tokens": 40, "bad_words": bad_words});
        texts(&server.complete(drawn(fields))).remove(0)
    };
    let free = greedy(&[]);
    let words: Vec<&str> = free.split_whitespace().filter(|word| word.len() > 2).collect();
    assert!(words.len() > 3, "{free}");
    for word in &words {
        let word = word.trim_matches(|letter: char| !letter.is_alphanumeric());
        let got = greedy(&[word]);
        let has_it =
            |text: &str| text.split(|c: char| !c.is_alphanumeric()).any(|found| found == word);
        assert!(has_it(&free) && !has_it(&got), "{word}: {got}");
        let streamed = server.open("/v1/completions", &json!({
            "model": "demo", "prompt": "Once", "temperature": 0, "max_tokens": 40, "ignore_eos": true,
            "stream": true, "bad_words": [word],
        }));
        let pieces = streamed.chunks();
        let pieces = pieces.iter().filter_map(|chunk| chunk["choices"][0]["text"].as_str());
        assert_eq!(pieces.collect::<String>(), got);
    }
    for (value, param) in [
        (json!([""]), "bad_words[0]"),
        (json!(["a", 1]), "bad_words[1]"),
        (json!("a"), "bad_words"),
        (json!(vec!["a"; 1025]), "bad_words"),
        (json!(["a".repeat(70_000)]), "bad_words"),
    ] {
        let error = server.complete_refused(drawn(json!({"bad_words": value})));
        assert_eq!(error["param"], param, "{error}");
    }
}

#[test]
fn tokens_are_named_by_their_ids_where_that_is_asked_for() {
    let server = Server::demo();
    let mut body = drawn(
        json!({"logprobs": 2, "echo": true, "return_token_ids": true, "return_tokens_as_token_ids": true}),
    );
    let answer = server.complete(body.clone());
    let choice = &answer["choices"][0];
    let all = [&choice["prompt_token_ids"], &choice["token_ids"]];
    let all = all.iter().flat_map(|ids| ids.as_array().unwrap());
    let names: Vec<Value> = all.map(|id| json!(format!("token_id:{id}"))).collect();
    assert_eq!(choice["logprobs"]["tokens"], json!(names));
    let top = choice["logprobs"]["top_logprobs"].as_array().unwrap();
    let keys = top.iter().skip(1).flat_map(|top| top.as_object().unwrap().keys());
    // Each of the 20 tokens has two or three entries.
    assert!(keys.clone().count() >= 2 * 20 && keys.clone().all(|key| key.starts_with("token_id:")));
    body.as_object_mut().unwrap().retain(|name, _| name != "prompt" && name != "echo");
    body["messages"] = json!([{"role": "user", "content": "Hi"}]);
    (body["logprobs"], body["top_logprobs"]) = (json!(true), json!(2));
    let choice = &server.chat(body)["choices"][0];
    for (entry, id) in choice["logprobs"]["content"]
        .as_array()
        .unwrap()
        .iter()
        .zip(choice["token_ids"].as_array().unwrap())
    {
        assert_eq!(entry["token"], format!("token_id:{id}"));
        let top = entry["top_logprobs"].as_array().unwrap();
        assert!(
            top.len() == 2
                && top.iter().all(|top| top["token"].as_str().unwrap().starts_with("token_id:"))
        );
    }
}

#[test]
fn minus_one_asks_for_the_log_probabilities_of_all_tokens() {
    let body = json!({"prompt": "Once", "max_tokens": 1, "logprobs": -1});
    let refused = Server::demo().complete_refused(body.clone());
    assert_eq!(refused["param"], "logprobs");
    assert!(refused["message"].as_str().unwrap().contains("--max-logprobs"), "{refused}");
    let server = ServerBuilder::new("demo").flags("--max-logprobs 1000000").start();
    let all = server.complete(body)["choices"][0]["logprobs"]["top_logprobs"][0].clone();
    // Several tokens share the text of one that is not valid text.
    assert!(all.as_object().unwrap().len() > 300, "{}", all.as_object().unwrap().len());
    let chat = json!({"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1, "logprobs": true, "top_logprobs": -1});
    let top = server.chat(chat)["choices"][0]["logprobs"]["content"][0]["top_logprobs"].clone();
    assert!(top.as_array().unwrap().len() > 300);
}
