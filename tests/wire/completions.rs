//! POST /v1/completions: every form of prompt, echo, log-probabilities, stops.

use serde_json::{Value, json};

use crate::support::{Server, ServerBuilder};

const PROMPT: &str = "The capital of France is";

fn text(answer: &Value) -> &str {
    answer["choices"][0]["text"].as_str().unwrap()
}

fn token_ids(server: &Server, prompt: &str) -> Value {
    server.post("/tokenize", &json!({"prompt": prompt})).ok()["tokens"].clone()
}

#[test]
fn a_prompt_is_text_or_ids_or_a_list_of_either() {
    let server = Server::demo();
    let texts = |prompt: Value| {
        let answer = server.complete(json!({"prompt": prompt, "temperature": 0, "max_tokens": 6}));
        let choices = answer["choices"].as_array().unwrap().clone();
        assert!(choices.iter().enumerate().all(|(i, choice)| choice["index"] == i), "{answer}");
        choices.iter().map(|choice| choice["text"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    let (first, second) = (texts(json!(PROMPT)), texts(json!("One and two")));
    let both: Vec<String> = [first.clone(), second].concat();
    let ids = [token_ids(&server, PROMPT), token_ids(&server, "One and two")];
    assert_eq!(texts(ids[0].clone()), first);
    assert_eq!(texts(json!([PROMPT, "One and two"])), both);
    assert_eq!(texts(json!(ids)), both);
    for (prompt, param) in [
        (json!([]), "prompt"),
        (json!(""), "prompt"),
        (json!([[]]), "prompt"),
        (json!([1_000_000]), "prompt"),
        (json!([1, "a"]), "prompt"),
        (json!(null), "prompt"),
    ] {
        let error = server.complete_refused(json!({"prompt": prompt}));
        assert!(error["param"].as_str().unwrap().starts_with(param), "{prompt}: {error}");
    }
}

#[test]
fn choices_of_several_prompts_are_numbered_through() {
    let server = Server::demo();
    let answer = server.complete(json!({
        "prompt": ["a", "b"], "n": 2, "seed": 1, "temperature": 1.5, "max_tokens": 8, "ignore_eos": true,
    }));
    let choices = answer["choices"].as_array().unwrap();
    let indexes: Vec<u64> =
        choices.iter().map(|choice| choice["index"].as_u64().unwrap()).collect();
    assert_eq!(indexes, [0, 1, 2, 3]);
    assert_ne!(choices[0]["text"], choices[1]["text"]);
    assert_eq!(answer["usage"]["completion_tokens"], 32);
}

#[test]
fn a_prompt_can_be_scored_without_generating() {
    let server = Server::demo();
    let ids = token_ids(&server, PROMPT);
    for prompt in [json!(PROMPT), ids.clone()] {
        let answer = server
            .complete(json!({"prompt": prompt, "max_tokens": 0, "echo": true, "logprobs": 3}));
        assert_eq!(text(&answer), PROMPT);
        assert_eq!(answer["usage"]["completion_tokens"], 0);
        let logprobs = &answer["choices"][0]["logprobs"];
        let values = logprobs["token_logprobs"].as_array().unwrap();
        assert_eq!(values.len(), ids.as_array().unwrap().len());
        // Nothing precedes the first token, so it has no probability.
        assert!(values[0].is_null() && logprobs["top_logprobs"][0].is_null(), "{logprobs}");
        assert!(values[1..].iter().all(|value| value.as_f64().unwrap() <= 0.0));
        let tokens: Vec<&str> = logprobs["tokens"]
            .as_array()
            .unwrap()
            .iter()
            .map(|token| token.as_str().unwrap())
            .collect();
        assert_eq!(tokens.concat(), PROMPT);
        let mut offset = 0;
        for (i, token) in tokens.iter().enumerate() {
            assert_eq!(logprobs["text_offset"][i], offset);
            // Offsets count characters, not bytes.
            offset += token.chars().count();
        }
    }
    let error = server.complete_refused(json!({"prompt": PROMPT, "max_tokens": 0}));
    assert_eq!(error["param"], "max_tokens");
}

/// The log-probabilities of generation equal those of scoring the text afterwards.
#[test]
fn scores_of_a_generated_text_are_those_of_its_generation() {
    let server = Server::demo();
    let generated =
        server.complete(json!({"prompt": PROMPT, "temperature": 0, "max_tokens": 8, "logprobs": 1, "return_token_ids": true}));
    let choice = &generated["choices"][0];
    let mut ids = token_ids(&server, PROMPT).as_array().unwrap().clone();
    let prompt_len = ids.len();
    ids.extend(choice["token_ids"].as_array().unwrap().clone());
    let scored = server.complete(
        // The salt keeps the request from the blocks of the first one, so all is computed again.
        json!({"prompt": ids, "max_tokens": 0, "echo": true, "logprobs": 1, "cache_salt": "s"}),
    );
    let scores = scored["choices"][0]["logprobs"]["token_logprobs"].as_array().unwrap();
    let expected = choice["logprobs"]["token_logprobs"].as_array().unwrap();
    for (i, expected) in expected.iter().enumerate() {
        let (score, expected) =
            (scores[prompt_len + i].as_f64().unwrap(), expected.as_f64().unwrap());
        assert!((score - expected).abs() < 1e-4, "token {i}: {score} and {expected}");
    }
}

#[test]
fn echo_puts_the_prompt_before_the_text() {
    let server = Server::demo();
    let plain = server.complete(json!({"prompt": PROMPT, "temperature": 0, "max_tokens": 6}));
    let echoed = server.complete(
        json!({"prompt": PROMPT, "temperature": 0, "max_tokens": 6, "echo": true, "logprobs": 0}),
    );
    assert_eq!(text(&echoed), format!("{PROMPT}{}", text(&plain)));
    let logprobs = &echoed["choices"][0]["logprobs"];
    let tokens = logprobs["tokens"].as_array().unwrap().len() as u64;
    let usage = &echoed["usage"];
    assert_eq!(
        tokens,
        usage["prompt_tokens"].as_u64().unwrap() + usage["completion_tokens"].as_u64().unwrap()
    );
}

#[test]
fn stop_strings_end_the_text_wherever_they_begin() {
    let server = Server::demo();
    let greedy = json!({"prompt": PROMPT, "temperature": 0, "max_tokens": 40, "ignore_eos": true});
    let whole = text(&server.complete(greedy.clone())).to_owned();
    let characters: Vec<char> = whole.chars().collect();
    assert!(characters.len() > 24, "{whole}");
    // Every window of five characters crosses a token border somewhere.
    for first in 0..16 {
        let stop: String = characters[first..first + 5].iter().collect();
        let mut body = greedy.clone();
        body["stop"] = json!(["\u{1}never", stop]);
        let answer = server.complete(body.clone());
        let cut = whole.find(&stop).unwrap();
        assert_eq!(text(&answer), &whole[..cut], "stop at {stop:?}");
        assert_eq!(
            (&answer["choices"][0]["finish_reason"], &answer["choices"][0]["stop_reason"]),
            (&json!("stop"), &json!(stop))
        );
        body["include_stop_str_in_output"] = json!(true);
        assert_eq!(text(&server.complete(body)), &whole[..cut + stop.len()]);
    }
}

#[test]
fn stop_tokens_end_the_text_and_are_named() {
    let server = Server::demo();
    let mut body = json!({"prompt": PROMPT, "temperature": 0, "max_tokens": 12, "ignore_eos": true, "return_token_ids": true});
    let whole = server.complete(body.clone());
    let ids = whole["choices"][0]["token_ids"].as_array().unwrap().clone();
    assert_eq!(ids.len(), 12);
    let stop = &ids[4];
    // The same token may occur before.
    let first = ids.iter().position(|id| id == stop).unwrap();
    body["stop_token_ids"] = json!([stop]);
    let answer = server.complete(body);
    let choice = &answer["choices"][0];
    assert_eq!((&choice["finish_reason"], &choice["stop_reason"]), (&json!("stop"), stop));
    // The stop token counts as generated.
    assert_eq!(answer["usage"]["completion_tokens"], first + 1);
}

#[test]
fn prompt_tokens_can_be_scored_beside_the_text() {
    let server = Server::demo();
    let answer = server.complete(json!({"prompt": PROMPT, "max_tokens": 1, "prompt_logprobs": 2}));
    let entries = answer["choices"][0]["prompt_logprobs"].as_array().unwrap();
    assert_eq!(entries.len() as u64, answer["usage"]["prompt_tokens"].as_u64().unwrap());
    assert!(entries[0].is_null());
    assert!(entries[1].as_object().unwrap().len() >= 2, "{answer}");
}

#[test]
fn prompt_tokens_have_their_true_rank() {
    // A prompt is scored in several batches.
    let settings = "--max-logprobs 1000000 --max-num-batched-tokens 16 --max-num-seqs 4";
    let server = ServerBuilder::new("demo").flags(settings).start();
    let texts = ["Once upon a time there was a small dog.", "zq Xw 17 kitten"];
    let ids = texts.map(|text| token_ids(&server, text));
    let asked =
        |num_top: usize| json!({"prompt": ids, "max_tokens": 1, "prompt_logprobs": num_top});
    // The error for too many tokens has their number.
    let refused =
        server.complete_refused(asked(10_000_000))["message"].as_str().unwrap().to_owned();
    let num_tokens = refused.rsplit(' ').next().unwrap().trim_end_matches('.').parse().unwrap();
    let all = server.complete(asked(num_tokens));
    for num_top in [0, 1, 3] {
        let some = server.complete(asked(num_top));
        let chat = json!({
            "messages": [{"role": "user", "content": texts[1]}],
            "max_tokens": 1, "prompt_logprobs": num_top, "return_token_ids": true,
        });
        for (prompt, ids) in ids.iter().enumerate() {
            let scores = |answer: &Value| answer["choices"][prompt]["prompt_logprobs"].clone();
            assert_ranks(ids, &scores(&some), &scores(&all));
        }
        let chat = server.chat(chat);
        let ids = &chat["prompt_token_ids"];
        let asked = json!({"prompt": ids, "max_tokens": 1, "prompt_logprobs": num_tokens});
        let all = server.complete(asked)["choices"][0]["prompt_logprobs"].clone();
        assert_ranks(ids, &chat["prompt_logprobs"], &all);
    }
}

/// Compares the rank of each token of a prompt with the number of more likely tokens among all.
fn assert_ranks(ids: &Value, scores: &Value, all: &Value) {
    let (ids, scores) = (ids.as_array().unwrap(), scores.as_array().unwrap());
    assert_eq!(ids.len(), scores.len());
    let mut beyond_the_first = 0;
    for (index, id) in ids.iter().enumerate().skip(1) {
        let own = &scores[index][id.to_string()];
        let logprob = all[index][id.to_string()]["logprob"].as_f64().unwrap();
        assert!((own["logprob"].as_f64().unwrap() - logprob).abs() < 1e-4);
        let others = all[index].as_object().unwrap().values();
        let likelier = others.filter(|other| other["logprob"].as_f64().unwrap() > logprob).count();
        assert_eq!(own["rank"], 1 + likelier, "token {index}");
        // The request names three top tokens at most.
        beyond_the_first += usize::from(likelier > 3);
    }
    assert!(beyond_the_first > 0, "every token was among the likeliest");
}
