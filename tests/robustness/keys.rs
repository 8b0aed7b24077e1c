//! Several API keys. Each is a caller with its own limits, and no output contains a key.

use serde_json::{Value, json};

use crate::support::{Request, Response, Server, ServerBuilder, TempFolder, wait_for};

/// A server with these keys, and the folder of the key file.
fn server(keys: &str, flags: &str) -> (Server, TempFolder) {
    let folder = TempFolder::new();
    let file = folder.write("keys.toml", keys);
    let builder = ServerBuilder::new("demo").flag("--api-keys-file", file).flags(flags);
    (builder.start(), folder)
}

fn post(path: &str, key: &str, body: &Value) -> Request {
    let mut body = body.clone();
    body["model"] = "demo".into();
    Request::post(path, &body).header("Authorization", &format!("Bearer {key}"))
}

fn complete(server: &Server, key: &str, body: &Value) -> Response {
    server.send(&post("/v1/completions", key, body))
}

fn cached(answer: &Value) -> u64 {
    answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap_or(0)
}

#[test]
fn several_keys_are_several_callers() {
    let keys = ["--api-key", "canary-one", "--api-key", "canary-two"];
    let [first, second] = [keys[1], keys[3]];
    let start = |flags: &str| {
        ServerBuilder::new("demo")
            .flag(keys[0], first)
            .flag(keys[2], second)
            .flags("--log-level debug")
            .flags(flags)
            .start()
    };
    let prompt = json!({"prompt": "All keys open the same door, and ".repeat(8), "max_tokens": 1});
    let own = start("");
    complete(&own, "canary-three", &prompt).error(401);
    assert_eq!(cached(&complete(&own, first, &prompt).ok()), 0);
    assert_eq!(cached(&complete(&own, second, &prompt).ok()), 0, "another caller's prefix");
    assert!(cached(&complete(&own, first, &prompt).ok()) > 0, "its own prefix");
    let stored =
        own.send(&post("/v1/responses", first, &json!({"input": "a", "max_output_tokens": 16})));
    let path = format!("/v1/responses/{}", stored.ok()["id"].as_str().unwrap());
    let see = |key: &str| own.send(&Request::get(&path).header("x-api-key", key)).status;
    assert_eq!((see(first), see(second)), (200, 404));
    let metrics = own.send(&Request::get("/metrics")).text();
    // The 404 was for the other key's response.
    assert!(metrics.contains("key_requests_total{key=\"key-2\",status=\"404\"} 1"), "{metrics}");
    let log = own.log_with("key=\"key-1\"");
    assert!(log.contains("(not shown: key-1, key-2)"), "{log}");
    assert!(!log.contains("canary") && !metrics.contains("canary"), "{log}");

    // The scope `server` shares the prefix cache among callers.
    let shared = start("--prefix-cache-scope server");
    complete(&shared, first, &prompt).ok();
    assert!(cached(&complete(&shared, second, &prompt).ok()) > 0);
}

#[test]
fn limits_of_a_key_are_its_own() {
    let keys = r#"
        [[key]]
        name = "ann"
        key = "canary-ann"
        max_concurrent = 1

        [[key]]
        name = "bob"
        # printf canary-bob | sha256sum
        sha256 = "BOB"
        max_tokens_per_minute = 30
    "#;
    let (server, _folder) = server(&keys.replace("BOB", CANARY_BOB), "--log-level debug");
    let long = json!({"prompt": "Once", "max_tokens": 1900, "ignore_eos": true, "stream": true});
    let mut stream = post("/v1/completions", "canary-ann", &long).open(server.address).unwrap();
    stream.next_event().unwrap();
    let short = json!({"prompt": "a", "max_tokens": 20, "ignore_eos": true});
    let refused = complete(&server, "canary-ann", &short);
    let error = refused.error(429);
    assert_eq!(error["code"], "rate_limit_exceeded");
    assert!(error["message"].as_str().unwrap().contains("max_concurrent"), "{error}");
    // A place may become free at any time, so the client tries soon.
    assert_eq!(refused.header("retry-after"), Some("1"));
    let mut several = short.clone();
    several["n"] = 2.into();
    assert_eq!(complete(&server, "canary-ann", &several).error(429)["code"], "rate_limit_exceeded");
    complete(&server, "canary-bob", &short).ok();
    drop(stream);
    wait_for("the place of the stream", || {
        Some(complete(&server, "canary-ann", &short)).filter(|answer| answer.status == 200)
    });
    // The request alone exceeds the limit, so waiting cannot help.
    assert_eq!(complete(&server, "canary-ann", &several).error(400)["code"], "key_limit_exceeded");

    // Twice 20 tokens and the prompts exceed 30.
    complete(&server, "canary-bob", &short).ok();
    for path in
        ["/v1/completions", "/v1/chat/completions", "/v1/responses", "/v1/messages", "/generate"]
    {
        // The limit comes before the body is checked, so no body needs to be right.
        let refused = server.send(&post(path, "canary-bob", &json!({})));
        assert!(refused.error(429)["message"].as_str().unwrap().contains("max_tokens_per_minute"));
        let seconds: u64 = refused.header("retry-after").unwrap().parse().unwrap();
        assert!((2..=60).contains(&seconds), "{seconds}");
    }
    let log = server.log_when_ready();
    assert!(log.contains("ann (max_concurrent 1), bob (max_tokens_per_minute 30)"), "{log}");
    assert!(!log.contains("canary"), "{log}");
}

const CANARY_BOB: &str = "66bd17f6fdef431d78769e375c17d96d5d135806ad8c675b82e245c5f1309a3c";

#[test]
fn a_caller_that_fills_its_queue_leaves_places_to_others() {
    let keys = "[[key]]\nname = \"a\"\nkey = \"a\"\n[[key]]\nname = \"b\"\nkey = \"b\"";
    let (server, _folder) = server(keys, "--max-num-seqs 1 --max-queued-requests 2");
    let long = json!({"prompt": "Once", "max_tokens": 1900, "ignore_eos": true, "stream": true});
    let open = |_| post("/v1/completions", "a", &long).open(server.address).unwrap();
    // One runs, and two wait.
    let _streams: Vec<_> = (0..3).map(open).collect();
    let error = complete(&server, "a", &json!({"prompt": "a"})).error(429);
    assert_eq!(error["code"], "queue_full");
    // The newcomer is answered before the other requests end.
    complete(&server, "b", &json!({"prompt": "a", "max_tokens": 2})).ok();
}

#[test]
fn a_hangup_reads_the_keys_again() {
    let entry = |key: &str| format!("[[key]]\nname = \"ann\"\nkey = \"{key}\"");
    let (server, folder) = server(&entry("first"), "");
    let works = |key: &str| {
        let request = Request::get("/v1/models").header("x-api-key", key);
        (server.send(&request).status == 200).then_some(())
    };
    works("first").unwrap();
    folder.write("keys.toml", entry("second"));
    server.signal("HUP");
    wait_for("the new key", || works("second"));
    assert!(works("first").is_none());
    // A damaged file changes nothing, and is reported.
    folder.write("keys.toml", "[[key]]\nname = \"ann\"\nkey = 7");
    server.signal("HUP");
    let log = server.log_with("the old keys stay in force");
    assert!(log.contains("keys.toml: the key `ann` at line 1: `key` must be a string"), "{log}");
    works("second").unwrap();
    assert_eq!(server.metrics().series("reload_failures_total{files=\"keys\"}"), 1.0);
}

#[test]
fn a_bad_file_of_keys_stops_the_start() {
    let folder = TempFolder::new();
    for (text, problem) in [
        ("[[key]]\nname = \"a\"\nkey = \"canary\"\nlimit = 1", "line 4: unknown field `limit`"),
        ("", "it has no keys"),
    ] {
        let file = folder.write("keys.toml", text);
        let refused = ServerBuilder::new("demo").flag("--api-keys-file", &file).refused();
        assert!(refused.message.contains(problem), "{}", refused.message);
        assert!(refused.message.contains("keys.toml"), "{}", refused.message);
        assert!(!refused.message.contains("canary"), "{}", refused.message);
    }
}
