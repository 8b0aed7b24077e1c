//! Constrained outputs conform, on both endpoints and with streaming. No constraint is dropped silently.

use serde_json::{Value, json};

use crate::support::Server;

/// A person, with properties in the schema's order.
fn person() -> Value {
    json!({
        "type": "object",
        "properties": {
            "name": {"type": "string", "minLength": 1, "maxLength": 12},
            "age": {"type": "integer", "minimum": 0, "maximum": 150},
            "tags": {"type": "array", "items": {"enum": ["red", "green"]}, "maxItems": 3},
        },
        "required": ["name", "age", "tags"],
        "additionalProperties": false,
    })
}

/// The texts of all choices.
fn texts(completion: &Value) -> Vec<&str> {
    let choices = completion["choices"].as_array().unwrap();
    choices.iter().map(|choice| choice["text"].as_str().unwrap()).collect()
}

#[test]
fn a_schema_is_held_by_every_choice_at_any_temperature() {
    let server = Server::demo();
    let mut finished = 0;
    for seed in 0..4 {
        let completion = server.complete(json!({
            "prompt": "A person:", "max_tokens": 150, "temperature": 2.0, "n": 3, "seed": seed,
            "presence_penalty": 1.0, "logprobs": 1,
            "response_format": {"type": "json_schema", "json_schema": {"name": "p", "strict": true, "schema": person()}},
        }));
        for choice in completion["choices"].as_array().unwrap() {
            let text = choice["text"].as_str().unwrap();
            if choice["finish_reason"] != "stop" {
                assert_eq!(choice["finish_reason"], "length");
                continue;
            }
            finished += 1;
            let found: Value =
                serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"));
            let keys: Vec<&String> = found.as_object().unwrap().keys().collect();
            assert_eq!(keys, ["name", "age", "tags"], "{text}");
            assert!((1..=12).contains(&found["name"].as_str().unwrap().chars().count()), "{text}");
            assert!((0..=150).contains(&found["age"].as_i64().unwrap()), "{text}");
            assert!(found["tags"].as_array().unwrap().len() <= 3, "{text}");
        }
    }
    // Some texts are longer than the limit at this temperature.
    assert!(finished >= 6, "{finished} of 12 have come to their end");
}

#[test]
fn choices_expressions_and_grammars_are_held() {
    let server = Server::demo();
    let outputs = |outputs: Value| {
        let completion = server.complete(json!({
            "prompt": "x", "max_tokens": 40, "temperature": 1.5, "seed": 7, "n": 4, "structured_outputs": outputs,
        }));
        texts(&completion).into_iter().map(str::to_owned).collect::<Vec<_>>()
    };
    for text in outputs(json!({"choice": ["yes", "no", "per/haps \"so\""]})) {
        assert!(["yes", "no", "per/haps \"so\""].contains(&text.as_str()), "{text}");
    }
    for text in outputs(json!({"regex": "[0-9]{4}/[0-9]{2}"})) {
        assert!(text.len() == 7 && text.as_bytes()[4] == b'/', "{text}");
    }
    // Lark's grammars begin at `start`, and GBNF's at `root`.
    for text in outputs(json!({"grammar": "start: \"a\" b \"c\"\nb: \"(\" b \")\" | \"x\""})) {
        let inner = text.strip_prefix('a').and_then(|text| text.strip_suffix('c')).unwrap();
        let depth = inner.matches('(').count();
        assert_eq!(inner, format!("{}x{}", "(".repeat(depth), ")".repeat(depth)));
    }
    for text in
        outputs(json!({"grammar": "root ::= \"a\" b \"c\"\nb ::= \"(\" b \")\" | [xy] # EBNF"}))
    {
        let inner = text.strip_prefix('a').and_then(|text| text.strip_suffix('c')).unwrap();
        let depth = inner.matches('(').count();
        let letter = inner.trim_matches(['(', ')']);
        assert!(["x", "y"].contains(&letter), "{text}");
        assert_eq!(inner, format!("{}{letter}{}", "(".repeat(depth), ")".repeat(depth)));
    }
    let digit = json!({"type": "integer", "minimum": 0, "maximum": 9});
    let tag = json!({"type": "tag", "begin": "<n>", "content": {"type": "json_schema", "json_schema": digit}, "end": "</n>"});
    for text in outputs(json!({"structural_tag": {"format": tag}})) {
        let digit = text.strip_prefix("<n>").and_then(|text| text.strip_suffix("</n>")).unwrap();
        assert!(digit.len() == 1 && digit.as_bytes()[0].is_ascii_digit(), "{text}");
    }
    for text in outputs(json!({"json_object": true})) {
        assert!(text.starts_with('{'), "{text}");
    }
    // An older name of the field in vLLM.
    let older = server.complete(json!({"prompt": "x", "guided_choice": ["left", "right"]}));
    assert!(["left", "right"].contains(&texts(&older)[0]), "{older}");
    assert_eq!(older["choices"][0]["finish_reason"], "stop");
}

#[test]
fn a_chat_answers_in_json_streaming_or_not_and_the_same() {
    let server = Server::demo();
    let body = json!({
        "model": "demo", "messages": [{"role": "user", "content": "Who are you?"}], "max_tokens": 200, "temperature": 0,
        "response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": {
            "type": "object", "properties": {"ok": {"type": "boolean"}, "n": {"type": "integer", "maximum": 99, "minimum": 0}},
            "required": ["ok", "n"], "additionalProperties": false,
        }}},
    });
    let whole = server.chat(body.clone());
    let text = whole["choices"][0]["message"]["content"].as_str().unwrap();
    assert_eq!(whole["choices"][0]["finish_reason"], "stop", "{whole}");
    let found: Value = serde_json::from_str(text).unwrap();
    assert!(found["ok"].is_boolean() && found["n"].is_u64(), "{text}");
    let mut streamed = body;
    streamed["stream"] = true.into();
    let mut stream = server.open("/v1/chat/completions", &streamed);
    let mut text_of_stream = String::new();
    while let Some(chunk) = stream.next_chunk() {
        text_of_stream
            .push_str(chunk["choices"][0]["delta"]["content"].as_str().unwrap_or_default());
    }
    assert_eq!(text_of_stream, text);
}

#[test]
fn an_output_that_is_cut_off_is_a_beginning() {
    let server = Server::demo();
    let completion = server.complete(json!({
        "prompt": "x", "max_tokens": 3, "temperature": 0, "structured_outputs": {"regex": "abcdefghijklmnopqrstuvwxyz"},
    }));
    assert_eq!(completion["choices"][0]["finish_reason"], "length");
    let text = texts(&completion)[0];
    assert!(!text.is_empty() && "abcdefghijklmnopqrstuvwxyz".starts_with(text), "{text}");
}

#[test]
fn what_cannot_be_held_is_refused_by_name() {
    let server = Server::demo();
    let refused = |field: Value| {
        let mut body = field;
        body["prompt"] = "x".into();
        server.complete_refused(body)
    };
    for (field, param, part) in [
        (json!({"structured_outputs": {"regex": "(a"}}), "structured_outputs.regex", ""),
        (
            json!({"structured_outputs": {"grammar": "start: missing"}}),
            "structured_outputs.grammar",
            "missing",
        ),
        (
            json!({"structured_outputs": {"choice": []}}),
            "structured_outputs.choice",
            "at least one",
        ),
        (
            json!({"structured_outputs": {"json": {"type": "array", "uniqueItems": true}}}),
            "structured_outputs.json",
            "uniqueItems",
        ),
        (
            json!({"structured_outputs": {"json": {"type": "string", "minLength": 3, "maxLength": 2}}}),
            "structured_outputs.json",
            "",
        ),
        (json!({"structured_outputs": {"json": false}}), "structured_outputs.json", ""),
        (json!({"guided_json": {"$ref": "https://example.com/schema"}}), "guided_json", ""),
        (
            json!({"structured_outputs": {"structural_tag": {}}}),
            "structured_outputs.structural_tag",
            "format",
        ),
        (
            json!({"response_format": {"type": "structural_tag"}}),
            "response_format",
            "either `format`",
        ),
        (
            json!({"structured_outputs": {"grammar": "root ::= \"a\"\n  | missing"}}),
            "structured_outputs.grammar",
            "line 2, rule `root`: there is no rule `missing`",
        ),
        (
            json!({"guided_regex": "a", "response_format": {"type": "json_object"}}),
            "guided_regex",
            "both",
        ),
    ] {
        let error = refused(field.clone());
        assert_eq!(error["param"], param, "{field}: {error}");
        assert!(error["message"].as_str().unwrap().contains(part), "{field}: {error}");
    }
    // A hostile schema meets a limit, and the server goes on.
    // Two hundred levels with a pattern of hundreds of states each.
    let deep = (0..200).fold(json!({"type": "integer"}), |inner, _| {
        json!({"anyOf": [inner, {"type": "array", "items": {"type": "string", "pattern": "(a|b){1,200}c"}}]})
    });
    let response = server
        .post("/v1/completions", &json!({"model": "demo", "prompt": "x", "guided_json": deep}));
    assert!([200, 400].contains(&response.status), "{}", response.text());
    assert_eq!(texts(&server.complete(json!({"prompt": "a"}))).len(), 1);
}

#[test]
fn a_constrained_request_leaves_the_others_as_they_are() {
    let server = Server::demo();
    let plain = json!({"prompt": "The capital of France is", "temperature": 1.0, "seed": 3, "max_tokens": 24});
    let alone = server.complete(plain.clone());
    let together = std::thread::scope(|scope| {
        let constrained: Vec<_> = (0..4)
            .map(|seed| {
                let server = &server;
                scope.spawn(move || {
                    server.complete(json!({
                        "prompt": "x", "seed": seed, "max_tokens": 60, "structured_outputs": {"json": person()},
                    }))
                })
            })
            .collect();
        let plain = server.complete(plain);
        for thread in constrained {
            thread.join().unwrap();
        }
        plain
    });
    assert_eq!(alone["choices"], together["choices"]);
}

/// Finished texts of a schema, for some seeds.
fn finished(server: &Server, schema: &Value, max_tokens: usize) -> Vec<String> {
    let of_seed = |seed: usize| {
        let answer = server.complete(json!({
            "prompt": "x", "max_tokens": max_tokens, "temperature": 2, "seed": seed, "structured_outputs": {"json": schema},
        }));
        let choice = &answer["choices"][0];
        (choice["finish_reason"] == "stop").then(|| choice["text"].as_str().unwrap().to_owned())
    };
    (0..12).filter_map(of_seed).collect()
}

#[test]
fn bounds_names_and_digits_are_those_of_the_schema() {
    let server = Server::demo();
    let rate = json!({"type": "number", "exclusiveMinimum": 0, "maximum": 0.5});
    let rates = finished(&server, &rate, 40);
    assert!(!rates.is_empty());
    for text in rates {
        let rate: f64 = text.parse().unwrap();
        assert!(rate > 0.0 && rate <= 0.5, "{text}");
    }
    let score = json!({
        "type": "object", "properties": {"score": {"type": "integer"}}, "required": ["score"], "additionalProperties": false,
        "patternProperties": {"^score$": {"type": "integer"}},
    });
    let scores = finished(&server, &score, 60);
    assert!(!scores.is_empty());
    for text in scores {
        let found: Value = serde_json::from_str(&text).unwrap();
        assert!(found["score"].is_number() && found.as_object().unwrap().len() == 1, "{text}");
    }
    // A model that prefers to write nines still ends its number.
    let nine = server
        .post("/tokenize", &json!({"model": "demo", "prompt": "9", "add_special_tokens": false}));
    let nine = nine.json()["tokens"][0].to_string();
    let nines = server.complete(json!({
        "prompt": "x", "max_tokens": 60, "structured_outputs": {"json": {"type": "integer"}}, "logit_bias": {nine: 100},
    }));
    // Numbers have at most 20 digits unless the schema says otherwise.
    assert_eq!(nines["choices"][0]["text"], "9".repeat(20), "{nines}");
    assert_eq!(nines["choices"][0]["finish_reason"], "stop");
}

#[test]
fn objects_are_open_by_a_flag() {
    let schema = json!({"type": "object", "properties": {"a": {"type": "boolean"}}});
    let has_other = |server: &Server| {
        (0..12).any(|seed| {
            let answer = server.complete(json!({
                "prompt": "x", "max_tokens": 20, "temperature": 2, "seed": seed, "structured_outputs": {"json": schema},
            }));
            let text = answer["choices"][0]["text"].as_str().unwrap();
            text.matches(':').count() > 1 || text.split_once('"').is_some_and(|(_, key)| !key.starts_with('a'))
        })
    };
    assert!(!has_other(&Server::demo()));
    let open = crate::support::ServerBuilder::new("demo").flags("--additional-properties").start();
    assert!(has_other(&open), "no key besides `a` was written");
}

#[test]
fn schemas_that_no_text_satisfies_are_refused_before_anything_is_generated() {
    let server = Server::demo();
    for (schema, part) in [
        (json!({"$ref": "#"}), "no finite value"),
        (json!({"$ref": "#/"}), "points to nothing"),
        (
            json!({"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]}),
            "no finite value",
        ),
    ] {
        let answer = server.post(
            "/v1/completions",
            &json!({
                "model": "demo", "prompt": "x", "structured_outputs": {"json": schema},
            }),
        );
        assert_eq!(answer.status, 400, "{schema}: {}", answer.text());
        assert!(answer.text().contains(part), "{schema}: {}", answer.text());
    }
}

#[test]
fn what_a_constraint_says_and_has_no_effect_is_refused_by_name() {
    let server = Server::demo();
    let schema = |pattern: &str| json!({"json": {"type": "object", "properties": {"a": {"type": "string", "pattern": pattern}}}});
    for (constraint, named) in [
        // The validators' dialect, ECMAScript's, has no such classes,
        // anchors and flags: it would take them for plain letters.
        (schema(r"^[[:alpha:]]+$"), "[:"),
        (schema(r"^a\z"), r"\z"),
        (schema(r"\Aa"), r"\A"),
        (schema("(?i)yes"), "(?i"),
        (json!({"json": {"type": "object", "patternProperties": {r"^\h$": {}}}}), r"\h"),
        (json!({"grammar": "start: a\na[temperature=0.5]: /x+/"}), "`temperature`"),
        (json!({"grammar": "start: a\na[capture]: /x+/"}), "`capture`"),
        (json!({"grammar": "root ::= <[5]> \"a\""}), "<[1]>"),
        (json!({"grammar": "root ::= \"a\" !<think>"}), "<name>"),
    ] {
        let body = json!({"prompt": "x", "max_tokens": 8, "structured_outputs": constraint});
        let error = server.complete_refused(body);
        let message = error["message"].as_str().unwrap();
        assert!(message.contains(named), "{constraint}: {message}");
    }
}
