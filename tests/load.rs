//! Many concurrent requests: nothing fails, nothing leaks, and no output depends on other requests.

use std::collections::BTreeMap;

use fastrand::Rng;
use serde_json::{Value, json};

use crate::support::{Server, ServerBuilder};

/// A client of the load test.
struct LoadClient {
    body: Value,
    /// Number of chunks after which the client disconnects; `None` stays to the end.
    leaves_after: Option<usize>,
}

impl LoadClient {
    fn new(random: &mut Rng) -> Self {
        let count = random.usize(1..120);
        let max_tokens = random.usize(1..160);
        let body = json!({
            "model": "demo", "prompt": words(count, random), "max_tokens": max_tokens,
            "temperature": 0, "ignore_eos": true, "stream": true,
        });
        let leaves = random.usize(0..3) == 0;
        Self { body, leaves_after: leaves.then(|| random.usize(0..max_tokens)) }
    }

    /// The whole text, if the client stays.
    fn run(&self, server: &Server) -> Option<String> {
        let mut stream = server.open("/v1/completions", &self.body);
        assert_eq!(stream.status, 200);
        let mut text = String::new();
        let mut finish_reason = Value::Null;
        for _ in 0..self.leaves_after.unwrap_or(usize::MAX) {
            let Some(chunk) = stream.next_chunk() else { break };
            let choice = &chunk["choices"][0];
            text += choice["text"].as_str().unwrap();
            finish_reason = choice["finish_reason"].clone();
        }
        if self.leaves_after.is_some() {
            return None;
        }
        assert_eq!(finish_reason, "length");
        Some(text)
    }

    /// The text for the same request when it runs alone and no prefix is cached.
    fn run_alone(&self, server: &Server, salt: usize) -> String {
        let mut body = self.body.clone();
        body["stream"] = json!(false);
        // A salt of its own keeps the request from the blocks that other clients have cached.
        body["cache_salt"] = json!(format!("alone-{salt}"));
        text_of(&server.complete(body))
    }
}

fn text_of(answer: &Value) -> String {
    answer["choices"][0]["text"].as_str().unwrap().to_owned()
}

/// `count` words that the demo model may know.
fn words(count: usize, random: &mut Rng) -> String {
    const WORDS: [&str; 16] = [
        "the", "capital", "of", "France", "is", "what", "and", "light", "seven", "a", "server",
        "you", "name", "plus", "Rome", "who",
    ];
    let words: Vec<&str> = (0..count).map(|_| *random.choice(&WORDS).unwrap()).collect();
    words.join(" ")
}

/// Runs `work` for each index on a thread of its own and returns the results in order.
fn at_once<T: Send>(count: usize, work: impl Fn(usize) -> T + Sync) -> Vec<T> {
    std::thread::scope(|scope| {
        let work = &work;
        let threads: Vec<_> = (0..count).map(|i| scope.spawn(move || work(i))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

#[test]
fn texts_of_64_streaming_clients_are_those_of_each_alone() {
    let server = Server::demo();
    let mut random = Rng::with_seed(64);
    let clients: Vec<LoadClient> = (0..64).map(|_| LoadClient::new(&mut random)).collect();
    let leaving = clients.iter().filter(|client| client.leaves_after.is_some()).count();
    assert!((15..30).contains(&leaving), "about a third leaves, not {leaving}");

    let texts = at_once(clients.len(), |i| clients[i].run(&server));
    server.wait_until_all_blocks_are_free();
    // Some clients disconnect after their text is ready.
    let ended = server.metrics().value("request_success_total");
    assert!(ended >= (64 - leaving) as f64 && ended <= 64.0, "{ended} ended, {leaving} left");

    for (i, (client, text)) in clients.iter().zip(texts).enumerate() {
        if let Some(text) = text {
            assert_eq!(text, client.run_alone(&server, i), "client {i}: {}", client.body);
        }
    }
    server.wait_until_all_blocks_are_free();
}

#[test]
fn after_200_cancelled_requests_the_next_is_answered() {
    let server = Server::demo();
    let expected = server
        .complete(json!({"prompt": "The capital of France is", "max_tokens": 8, "temperature": 0}));
    // Each of these would run for seconds if it were not cancelled.
    let long = json!({"model": "demo", "prompt": "a", "max_tokens": 2000, "ignore_eos": true, "stream": true});
    let streams = at_once(200, |_| {
        let stream = server.open("/v1/completions", &long);
        assert_eq!(stream.status, 200);
        stream
    });
    drop(streams);

    let next = server
        .complete(json!({"prompt": "The capital of France is", "max_tokens": 8, "temperature": 0}));
    assert_eq!(text_of(&next), text_of(&expected));
    server.wait_until_all_blocks_are_free();
    let generated = server.metrics().value("generation_tokens_total");
    assert!(
        generated < 200. * 2000. / 4.,
        "{generated} tokens were generated for requests that nobody waits for"
    );
}

#[test]
fn whole_answers_are_cancelled_with_their_client_too() {
    let server = Server::demo();
    let long = json!({"model": "demo", "prompt": "a", "max_tokens": 2000, "ignore_eos": true});
    let body = long.to_string();
    let sockets = at_once(16, |_| {
        use std::io::Write;
        let mut socket = std::net::TcpStream::connect(server.address).unwrap();
        let length = body.len();
        let head = format!(
            "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n"
        );
        socket.write_all(format!("{head}{body}").as_bytes()).unwrap();
        socket
    });
    crate::support::wait_for("the requests to run", || {
        (server.metrics().value("num_requests_running") == 16.0).then_some(())
    });
    drop(sockets);
    server.wait_until_all_blocks_are_free();
    assert!(server.metrics().value("generation_tokens_total") < 16. * 2000.);
}

/// Sixteen requests. Each alone would fill most of the smallest cache.
fn large_requests() -> Vec<Value> {
    let mut random = Rng::with_seed(16);
    let body = |_| {
        let count = random.usize(20..80);
        json!({
            "prompt": words(count, &mut random), "max_tokens": random.usize(60..120),
            "temperature": 0, "ignore_eos": true,
        })
    };
    (0..16).map(body).collect()
}

#[test]
fn a_cache_far_too_small_gives_the_texts_of_a_large_one() {
    let bodies = large_requests();
    let texts_with = |cache: &str| {
        let server = ServerBuilder::new("demo")
            .flags("--max-model-len 256")
            .flag("--kv-cache-memory", cache)
            .start();
        let texts = at_once(bodies.len(), |i| text_of(&server.complete(bodies[i].clone())));
        server.wait_until_all_blocks_are_free();
        (texts, server.metrics().value("num_preemptions_total"))
    };
    let (large, preemptions) = texts_with("64Mi");
    assert_eq!(preemptions, 0.0);
    // Keys and values of a token take 2 KiB. So this is less than two sequences of full length.
    let (small, preemptions) = texts_with("800Ki");
    assert!(preemptions > 0.0, "the small cache was large enough");
    assert_eq!(small, large);
}

#[test]
fn the_prefix_cache_is_used_and_changes_no_text() {
    let server = Server::demo();
    let prompt = words(150, &mut Rng::with_seed(3));
    let body = json!({"prompt": prompt, "max_tokens": 24, "temperature": 0, "ignore_eos": true});
    let cold = server.complete(body.clone());
    let warm = server.complete(body.clone());
    assert_eq!(text_of(&warm), text_of(&cold));
    let cached = |answer: &Value| {
        answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap()
    };
    assert_eq!(cached(&cold), 0);
    let prompt_tokens = cold["usage"]["prompt_tokens"].as_u64().unwrap();
    // At least the prompt's last token is computed, since its logits give the next token.
    assert!(cached(&warm) >= prompt_tokens - 16 && cached(&warm) < prompt_tokens, "{warm}");

    let mut salted = body.clone();
    salted["cache_salt"] = json!("other");
    let other = server.complete(salted);
    assert_eq!((cached(&other), text_of(&other)), (0, text_of(&cold)));
    assert!(server.metrics().value("prefix_cache_hits_total") > 0.0);

    let without = ServerBuilder::new("demo").flags("--no-enable-prefix-caching").start();
    without.complete(body.clone());
    let again = without.complete(body);
    assert_eq!((cached(&again), text_of(&again)), (0, text_of(&cold)));
}

#[test]
fn priorities_are_taken_and_every_request_ends() {
    let server =
        // Batches of 16 tokens cut most prompts into pieces, and two places keep the others waiting.
        ServerBuilder::new("demo").flags("--max-num-seqs 2 --max-num-batched-tokens 16").start();
    let mut random = Rng::with_seed(5);
    let bodies: Vec<Value> = (0..24)
        .map(|i| {
            let count = random.usize(1..100);
            json!({
                "prompt": words(count, &mut random), "max_tokens": 10, "temperature": 0, "ignore_eos": true,
                "priority": i % 3 - 1,
            })
        })
        .collect();
    let texts = at_once(bodies.len(), |i| text_of(&server.complete(bodies[i].clone())));
    // Priorities repeat every three requests, so a step of seven compares all three.
    let alone: BTreeMap<usize, String> =
        (0..24).step_by(7).map(|i| (i, text_of(&server.complete(bodies[i].clone())))).collect();
    for (i, text) in alone {
        assert_eq!(texts[i], text, "request {i}");
    }
    server.wait_until_all_blocks_are_free();
}
