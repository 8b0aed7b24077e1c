//! Callers of one server. None can read another's data, and none delays another.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::support::{Metrics, Request, Response, Server, ServerBuilder, wait_for};

/// Tokens of a KV block.
const BLOCK: u64 = 16;

/// A server that identifies callers by a header.
fn server(flags: &str) -> Server {
    ServerBuilder::new("demo")
        .flags("--caller-header X-Caller --trusted-proxies 127.0.0.0/8,::1 --framework prism")
        .flags(flags)
        .start()
}

fn ask(server: &Server, caller: &str, path: &str, body: &Value) -> Response {
    let mut body = body.clone();
    body["model"] = "demo".into();
    server.send(&Request::post(path, &body).header("X-Caller", caller))
}

fn tokens(server: &Server, text: &str) -> Vec<u64> {
    let tokens = server.post("/tokenize", &json!({"prompt": text})).ok();
    tokens["tokens"].as_array().unwrap().iter().map(|id| id.as_u64().unwrap()).collect()
}

/// The cached tokens that an endpoint's usage reports.
fn cached(answer: &Value) -> u64 {
    let usage = &answer["usage"];
    let found = [
        "/prompt_tokens_details/cached_tokens",
        "/input_tokens_details/cached_tokens",
        "/cache_read_input_tokens",
    ];
    found.iter().find_map(|path| usage.pointer(path)).and_then(Value::as_u64).unwrap_or(0)
}

const SECRET: &str = "The access code of the safe is 7391-kestrel and nobody else may know that.";

/// Cache hits of one request, once the engine has counted it.
fn hits_since(server: &Server, before: &Metrics) -> f64 {
    let since = |name: &str, now: &Metrics| now.value(name) - before.value(name);
    wait_for("the request to be counted", || {
        let now = server.metrics();
        (since("prefix_cache_queries_total", &now) > 0.0).then_some(())
    });
    // Both counters grow by the same request, but not at the same instant.
    std::thread::sleep(Duration::from_millis(20));
    since("prefix_cache_hits_total", &server.metrics())
}

/// The metrics when the requests that were answered are counted. An answer may arrive before its request is counted.
fn counted(server: &Server) -> Metrics {
    let hits = |metrics: &Metrics| metrics.value("prefix_cache_hits_total");
    let mut before = server.metrics();
    wait_for("all requests to be counted", || {
        std::thread::sleep(Duration::from_millis(100));
        let last = std::mem::replace(&mut before, server.metrics());
        (hits(&last) == hits(&before)).then_some(())
    });
    before
}

/// The attacker's observations for each length of the victim's prompt, with the right next token and with a wrong
/// one.
fn oracles(server: &Server) -> Vec<[(u64, f64); 2]> {
    let secret = tokens(server, SECRET);
    ask(server, "victim", "/v1/completions", &json!({"prompt": SECRET, "max_tokens": 8})).ok();
    let guess = |known: usize, guess: u64| {
        let mut prompt = secret[..known].to_vec();
        prompt.push(guess);
        // The last token is always computed, so the guess must not be the last.
        prompt.extend([secret[0]; 4]);
        let before = server.metrics();
        // A salt that is null is none.
        let body = json!({"prompt": prompt, "max_tokens": 1, "cache_salt": null});
        let answer = ask(server, "attacker", "/v1/completions", &body).ok();
        (cached(&answer), hits_since(server, &before))
    };
    (1..secret.len())
        // The attacker's own prompts are cached, too. So each length is tried once with each guess, the wrong one
        // first.
        .map(|known| {
            let wrong = guess(known, (secret[known] + 1) % 300);
            [guess(known, secret[known]), wrong]
        })
        .collect()
}

#[test]
fn no_number_says_more_than_whole_blocks_of_another_callers_prompt() {
    let server = server("");
    let seen = oracles(&server);
    for (known, [right, wrong]) in (1..).zip(seen) {
        for (usage, hits) in [right, wrong] {
            assert_eq!(usage % BLOCK, 0, "{known} tokens known");
            assert_eq!(hits % BLOCK as f64, 0.0, "{known} tokens known");
        }
        // Only a guess that completes a block could reveal anything.
        if (known + 1) % BLOCK != 0 {
            assert_eq!(right, wrong, "{known} tokens known");
        }
    }
}

#[test]
fn callers_share_nothing_where_each_has_a_cache_of_its_own() {
    let server = server("--prefix-cache-scope caller");
    let chat = json!({"messages": [{"role": "system", "content": SECRET.repeat(3)}, {"role": "user", "content": "a"}], "max_tokens": 4});
    let messages = json!({"system": SECRET.repeat(3), "messages": [{"role": "user", "content": "a"}], "max_tokens": 4});
    let responses = json!({"instructions": SECRET.repeat(3), "input": "a", "max_output_tokens": 4, "store": false});
    let prompt = json!({"prompt": SECRET.repeat(3), "max_tokens": 4});
    let generate = json!({"text": SECRET.repeat(3), "max_tokens": 4});
    let requests = [
        ("/v1/chat/completions", &chat),
        ("/v1/messages", &messages),
        ("/v1/responses", &responses),
        ("/v1/completions", &prompt),
        ("/generate", &generate),
    ];
    for (path, body) in requests {
        ask(&server, "victim", path, body).ok();
        let again = ask(&server, "victim", path, body).ok();
        assert!(cached(&again) > 0, "{path}: {again}");
    }
    for (path, body) in requests {
        let before = counted(&server);
        // A caller that is new for each path cannot hit its own cache.
        let caller = format!("attacker {path}");
        assert_eq!(cached(&ask(&server, &caller, path, body).ok()), 0, "{path}");
        assert_eq!(hits_since(&server, &before), 0.0, "{path}");
    }
}

#[test]
fn responses_and_sessions_are_their_callers_own() {
    let server = server("");
    let made = ask(&server, "ann", "/v1/responses", &json!({"input": "a", "max_output_tokens": 4}));
    let id = made.ok()["id"].as_str().unwrap().to_owned();
    let path = format!("/v1/responses/{id}");
    let as_caller = |method: &str, caller: &str| {
        server.send(&Request::new(method, &path).header("X-Caller", caller))
    };
    let follow = json!({"input": "b", "previous_response_id": id, "max_output_tokens": 4});
    // A caller must not learn that the response exists, so no answer is 403.
    as_caller("GET", "bob").error(404);
    ask(&server, "bob", "/v1/responses", &follow).error(404);
    as_caller("DELETE", "bob").error(404);
    as_caller("GET", "ann").ok();
    ask(&server, "ann", "/v1/responses", &follow).ok();
    as_caller("DELETE", "ann").ok();
    as_caller("GET", "ann").error(404);

    let open = json!({"text": "a", "max_tokens": 2, "session": {"open": true}});
    let opened = ask(&server, "ann", "/generate", &open).ok();
    let session = opened["choices"][0]["session"]["id"].as_str().unwrap().to_owned();
    for wrong in [
        json!({"text": "b", "max_tokens": 2, "session": {"id": session}}),
        json!({"text": "b", "max_tokens": 2, "session": {"fork": session}}),
        json!({"session": {"id": session, "close": true}}),
    ] {
        ask(&server, "bob", "/generate", &wrong).error(404);
    }
    ask(&server, "ann", "/generate", &json!({"session": {"id": session, "close": true}})).ok();
}

#[test]
fn a_flood_of_one_caller_keeps_no_other_waiting() {
    let server = server("--max-num-seqs 16");
    // Twenty requests of 16 choices, for 16 places.
    let flood = json!({"prompt": "a", "max_tokens": 900, "n": 16, "temperature": 1, "ignore_eos": true, "stream": true, "model": "demo"});
    let streams: Vec<_> = (0..20)
        .map(|_| {
            let request = Request::post("/v1/completions", &flood).header("X-Caller", "flood");
            request.open(server.address).unwrap()
        })
        .collect();
    let short = json!({"messages": [{"role": "user", "content": "a"}], "max_tokens": 4});
    for caller in 0..10 {
        let began = Instant::now();
        ask(&server, &format!("caller {caller}"), "/v1/chat/completions", &short).ok();
        // The flood alone takes minutes. The limit is far from a measurement.
        assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
    }
    drop(streams);
    server.wait_until_all_blocks_are_free();
}
