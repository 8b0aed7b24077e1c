//! The log at its default level reports the server's state and work.

use std::net::TcpListener;

use serde_json::json;

use crate::support::{Request, Server, ServerBuilder, wait_for};

#[test]
fn the_start_says_when_answers_end() {
    let log = Server::demo().log_when_ready();
    assert!(log.contains("answers end after 16 tokens unless a request sets max_tokens"), "{log}");
    let all = ServerBuilder::new("demo").flags("--default-max-tokens max").start().log_when_ready();
    assert!(!all.contains("answers end after"), "{all}");
}

#[test]
fn a_port_that_is_taken_is_told_with_what_helps() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    let refused = ServerBuilder::new("demo").flags(&format!("--port {port}")).refused_on_its_port();
    assert!(refused.message.contains("another server listens on this port"), "{}", refused.message);
    assert!(refused.message.contains("--port N"), "{}", refused.message);
}

#[test]
fn each_request_has_a_line_if_that_is_wanted() {
    let server = ServerBuilder::new("demo").flags("--access-log --api-key canary").start();
    let request = |key: &str| {
        let body = json!({"model": "demo", "prompt": "a b c", "max_tokens": 5, "ignore_eos": true});
        let request = Request::post("/v1/completions", &body).header("x-request-id", "mine-1");
        server.send(&request.header("authorization", &format!("Bearer {key}")))
    };
    let usage = request("canary").ok()["usage"].clone();
    let log = server.log_with("mine-1");
    let line = log.lines().find(|line| line.contains("mine-1")).unwrap();
    for part in [
        "INFO",
        "method=\"POST\"",
        "path=\"/v1/completions\"",
        "status=200",
        "ms=",
        "generated_tokens=5",
        &format!("prompt_tokens={}", usage["prompt_tokens"]),
        "caller=\"key key-1\"",
    ] {
        assert!(line.contains(part), "{part}: {line}");
    }
    request("other").error(401);
    let log = server.log_with("status=401");
    assert!(!log.contains("canary") && log.contains("caller=\"address 127.0.0.1\""), "{log}");
    // A stream is logged at its end.
    let body = json!({"model": "demo", "prompt": "a", "max_tokens": 7, "ignore_eos": true, "stream": true});
    let stream = Request::post("/v1/completions", &body).header("x-api-key", "canary");
    assert_eq!(server.send(&stream).status, 200);
    server.log_with("generated_tokens=7");
    // Without the flag, requests have no lines.
    let silent = Server::demo();
    silent.complete(json!({"prompt": "a", "max_tokens": 1}));
    assert!(!silent.log_when_ready().contains("/v1/completions"));
}

#[test]
fn refused_requests_and_the_load_are_told() {
    let flags = "--max-num-seqs 1 --max-queued-requests 1 --stats-interval 1";
    let server = ServerBuilder::new("demo").flags(flags).start();
    let long = json!({
        "model": "demo", "prompt": "a", "max_tokens": 1900, "ignore_eos": true, "stream": true,
    });
    // One runs, and one waits.
    let streams: Vec<_> = (0..2).map(|_| server.open("/v1/completions", &long)).collect();
    let refused = wait_for("a full queue", || {
        let answer = server
            .post("/v1/completions", &json!({"model": "demo", "prompt": "a", "max_tokens": 1}));
        (answer.status == 429).then_some(answer)
    });
    refused.error(429);
    let log = server.log_with("requests were refused or failed");
    assert!(
        log.contains("1 with 429 (too many requests") && log.contains("POST /v1/completions"),
        "{log}"
    );
    drop(streams);
    let log = server.log_with("generated tokens/s");
    let line = log.lines().find(|line| line.contains("load: ")).unwrap();
    assert!(
        line.contains("running") && line.contains("waiting") && line.contains("KV cache"),
        "{line}"
    );
}
