//! Limits of prompts, bodies and requests.

use std::io::{BufReader, Write};
use std::net::TcpStream;

use serde_json::json;

use crate::support::{Server, ServerBuilder, process, read_response, wait_for};

#[test]
fn a_prompt_over_the_context_is_refused_with_both_numbers() {
    let server = ServerBuilder::new("demo").flags("--max-model-len 64").start();
    let ids = |count: usize| json!({"prompt": vec![5; count], "max_tokens": 4, "ignore_eos": true});
    let error = server.complete_refused(ids(65));
    assert_eq!(
        (&error["param"], &error["code"]),
        (&json!("prompt"), &json!("context_length_exceeded"))
    );
    let message = error["message"].as_str().unwrap();
    assert!(
        message.starts_with(
            "This model's maximum context length is 64 tokens, but the prompt has 65."
        ),
        "{message}"
    );

    // A prompt that fits gets an answer up to the end of the context: 62 tokens leave two of the 64.
    let answer = server.complete(ids(62));
    assert_eq!(answer["usage"]["completion_tokens"], 2);
    assert_eq!(answer["choices"][0]["finish_reason"], "length");
    // No token is left for the answer.
    server.complete_refused(ids(64));

    // max_tokens above the context is cut to the rest that the prompt leaves.
    let cut = server.complete(json!({"prompt": [5], "max_tokens": 32_000, "ignore_eos": true}));
    assert_eq!(cut["usage"]["completion_tokens"], 63);
    let words = "word ".repeat(100);
    let chat = json!({"model": "demo", "messages": [{"role": "user", "content": words}]});
    assert_eq!(
        server.post("/v1/chat/completions", &chat).error(400)["code"],
        "context_length_exceeded"
    );
    server.wait_until_all_blocks_are_free();
}

#[test]
fn a_megabyte_of_prompt_is_refused_and_the_next_request_is_answered() {
    let server = Server::demo();
    let error = server.complete_refused(json!({"prompt": "word ".repeat(1 << 20)}));
    assert_eq!(error["code"], "context_length_exceeded");
    server.complete(json!({"prompt": "a", "max_tokens": 2}));
}

/// Every endpoint that tokenizes counts all texts of a prompt, and its error has both numbers.
#[test]
fn texts_over_the_limit_of_bytes_are_refused_wherever_they_come_from() {
    let server = ServerBuilder::new("demo")
        .flags("--framework prism --max-model-len 256 --max-prompt-bytes 4000")
        .start();
    let user = |text: &str| json!([{"role": "user", "content": text}]);
    let text = "1".repeat(4001);
    // Each text is below the limit, and together they are above it.
    let half = "word ".repeat(300);
    let turns = json!([
        {"role": "user", "content": half}, {"role": "assistant", "content": half}, {"role": "user", "content": half},
    ]);
    // Tools are rendered into the prompt, so their texts count.
    let tools = json!([{"type": "function", "function": {
        "name": "f", "description": "d".repeat(4000), "parameters": {"type": "object", "properties": {}},
    }}]);
    for (path, body, param) in [
        ("/tokenize", json!({"prompt": text}), "prompt"),
        ("/tokenize", json!({"messages": user(&text)}), "messages"),
        ("/v1/completions", json!({"model": "demo", "prompt": text}), "prompt"),
        ("/v1/completions", json!({"model": "demo", "prompt": ["a", text]}), "prompt[1]"),
        ("/v1/chat/completions", json!({"model": "demo", "messages": user(&text)}), "messages"),
        ("/v1/chat/completions", json!({"model": "demo", "messages": turns}), "messages"),
        (
            "/v1/chat/completions",
            json!({"model": "demo", "messages": user("a"), "tools": tools}),
            "messages",
        ),
        ("/v1/responses", json!({"model": "demo", "input": text}), "messages"),
        ("/v1/messages", json!({"model": "demo", "max_tokens": 1, "messages": turns}), "messages"),
        ("/v1/messages/count_tokens", json!({"model": "demo", "messages": turns}), "messages"),
        ("/generate", json!({"text": text}), "text"),
        ("/generate", json!({"text": "a", "choices": [text, "b"]}), "choices"),
    ] {
        let error = server.post(path, &body).error(400);
        assert_eq!(error["code"], "context_length_exceeded", "{path} {error}");
        let message = error["message"].as_str().unwrap();
        assert!(
            message.contains(" bytes, and this server accepts at most 4000 "),
            "{path} {message}"
        );
        assert!(message.contains("--max-prompt-bytes"), "{path} {message}");
        if path != "/v1/responses" {
            assert_eq!(error["param"], param, "{path}");
        }
    }
    // A text may be longer than the context if it is only counted.
    let counted = server.post("/tokenize", &json!({"prompt": "1".repeat(4000)})).ok();
    assert_eq!(counted["count"], 4000);

    let ids = |count: usize| json!({"tokens": vec![5; count]});
    server.post("/detokenize", &ids(256)).ok();
    let error = server.post("/detokenize", &ids(257)).error(400);
    let message = error["message"].as_str().unwrap();
    assert!(message.contains("257 ids") && message.contains("at most 256:"), "{message}");
    assert_eq!(
        (&error["param"], &error["code"]),
        (&json!("tokens"), &json!("context_length_exceeded"))
    );
}

#[test]
fn a_long_run_of_digits_is_tokenized_in_bounded_memory() {
    let server = ServerBuilder::new("demo").flags("--max-prompt-bytes 8Mi").start();
    let peak = || process::status(server.pid(), "VmHWM");
    server.post("/tokenize", &json!({"prompt": "1"})).ok();
    let before = peak();
    let text = "1".repeat(500_000);
    let counted = server.post("/tokenize", &json!({"prompt": text})).ok();
    assert_eq!(counted["count"], text.len());
    // 64 MiB, 16 bytes per byte of text for the tokens, and as much for body and answer. It was once 350 bytes per
    // byte.
    let grown = peak() - before;
    assert!(grown < (64 << 20) + 32 * text.len(), "{} MiB", grown >> 20);
}

#[test]
fn a_body_over_the_limit_is_refused_before_it_is_read() {
    let server = Server::demo();
    let length = (32 << 20) + 1;
    // Only the head is sent. The announced length suffices for a refusal.
    let head = format!(
        "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n"
    );
    let mut socket = TcpStream::connect(server.address).unwrap();
    socket.write_all(head.as_bytes()).unwrap();
    read_response(&mut BufReader::new(socket)).unwrap().error(413);
    server.complete(json!({"prompt": "a", "max_tokens": 2}));
}

#[test]
fn a_body_of_unknown_length_is_refused_where_it_passes_the_limit() {
    let server = Server::demo();
    let mut socket = TcpStream::connect(server.address).unwrap();
    let head = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n";
    socket.write_all(head.as_bytes()).unwrap();
    let mebibyte = vec![b' '; 1 << 20];
    // The limit is 32 MiB. The last byte exceeds it, and its chunk is the last one.
    for _ in 0..32 {
        socket.write_all(b"100000\r\n").unwrap();
        socket.write_all(&mebibyte).unwrap();
        socket.write_all(b"\r\n").unwrap();
    }
    socket.write_all(b"1\r\n \r\n").unwrap();
    read_response(&mut BufReader::new(socket)).unwrap().error(413);
    server.complete(json!({"prompt": "a", "max_tokens": 2}));
}

#[test]
fn a_full_queue_turns_away_with_retry_after_and_takes_requests_again_later() {
    let server =
        ServerBuilder::new("demo").flags("--max-num-seqs 2 --max-queued-requests 3").start();
    let long = json!({"model": "demo", "prompt": "a", "max_tokens": 2000, "ignore_eos": true, "stream": true});
    let streams: Vec<_> = (0..5).map(|_| server.open("/v1/completions", &long)).collect();
    assert!(streams.iter().all(|stream| stream.status == 200));
    wait_for("three requests to wait", || {
        (server.metrics().value("num_requests_waiting") == 3.0).then_some(())
    });

    let short = json!({"model": "demo", "prompt": "a", "max_tokens": 2});
    let response = server.post("/v1/completions", &short);
    assert_eq!(response.error(429)["code"], "queue_full");
    assert!(
        response.header("retry-after").is_some_and(|after| after.parse::<u64>().is_ok()),
        "{response:?}"
    );
    let chat =
        json!({"model": "demo", "messages": [{"role": "user", "content": "a"}], "stream": true});
    server.post("/v1/chat/completions", &chat).error(429);
    // Requests that do not need the engine are still answered.
    assert_eq!(server.get("/v1/models").status, 200);

    drop(streams);
    server.wait_until_all_blocks_are_free();
    server.complete(short);
}

#[test]
fn choices_that_do_not_fit_the_queue_are_turned_away_together() {
    let server =
        ServerBuilder::new("demo").flags("--max-num-seqs 4 --max-queued-requests 4").start();
    let choices = |n: usize| json!({"model": "demo", "prompt": "a", "max_tokens": 2, "n": n});
    let long = json!({"model": "demo", "prompt": "a", "max_tokens": 2000, "ignore_eos": true, "stream": true});
    let mut stream = server.open("/v1/completions", &long);
    stream.next_chunk().unwrap();
    // One choice runs. Three of eight could run, and four could wait.
    server.post("/v1/completions", &choices(8)).error(429);
    server.post("/v1/completions", &choices(7)).ok();
    drop(stream);
    server.wait_until_all_blocks_are_free();
    // An idle server accepts any number of choices in one request. Otherwise no client could ever get this many.
    let answer = server.post("/v1/completions", &choices(128)).ok();
    assert_eq!(answer["choices"].as_array().unwrap().len(), 128);
    server.post("/v1/completions", &choices(129)).error(400);
    server.wait_until_all_blocks_are_free();
}
