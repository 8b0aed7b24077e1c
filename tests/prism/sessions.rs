//! Sessions: opened, continued, forked, closed, expired, and given up when memory runs out.

use serde_json::{Value, json};

use super::{cached, generate, greedy, num_tokens, prism, refused, text, whole_blocks, with};
use crate::support::{Server, ServerBuilder, wait_for};

fn session_id(choice: &Value) -> &str {
    choice["session"]["id"].as_str().unwrap()
}

#[test]
fn a_session_goes_on_where_it_was() {
    let server = prism();
    let first = generate(
        &server,
        with(greedy("Once upon a time", 10), json!({"session": {"open": true, "ttl": 60}})),
    );
    let choice = &first["choices"][0];
    let id = session_id(choice).to_owned();
    assert_eq!(choice["session"]["num_tokens"], num_tokens(&first) + 10);
    assert_eq!(choice["session"]["ttl"], 60);
    let second = generate(&server, with(greedy(" there was", 10), json!({"session": {"id": id}})));
    assert_eq!(session_id(&second["choices"][0]), id);
    // All whole blocks are cached. The last generated token and the new ones are not, since they were never computed.
    let new = server
        .post("/tokenize", &json!({"prompt": " there was", "add_special_tokens": false}))
        .ok();
    assert_eq!(num_tokens(&second), num_tokens(&first) + 10 + new["count"].as_u64().unwrap());
    assert_eq!(cached(&second), whole_blocks(num_tokens(&first) + 9));
    // The result equals that of the whole text in one request.
    let whole = server.post("/tokenize", &json!({"prompt": "Once upon a time"})).ok();
    let ids: Vec<Value> = [&whole["tokens"], &choice["token_ids"], &new["tokens"]]
        .iter()
        .flat_map(|ids| ids.as_array().unwrap().clone())
        .collect();
    let at_once = generate(
        &server,
        json!({"input_ids": ids, "temperature": 0, "max_tokens": 10, "ignore_eos": true}),
    );
    assert_eq!(text(&second), text(&at_once));
    // A session can continue without new text.
    let third =
        generate(&server, json!({"session": {"id": id}, "max_tokens": 3, "ignore_eos": true}));
    assert_eq!(num_tokens(&third), num_tokens(&second) + 10);
    let closed = generate(&server, json!({"session": {"id": id, "close": true}}));
    assert_eq!(
        (closed["session"]["ttl"].as_u64(), closed["choices"].as_array().unwrap().len()),
        (Some(0), 0)
    );
    assert_eq!(refused(&server, 404, json!({"session": {"id": id}}))["param"], "session.id");
    server.wait_until_all_blocks_are_free();
}

#[test]
fn forks_take_memory_for_what_is_new_alone() {
    let server = ServerBuilder::new("demo").flags("--framework prism --max-num-seqs 4").start();
    // Prefill only, without any output. The demo's context has 2,048 tokens,
    // and the ids are ordinary ones, since the special ones are the last.
    let ids: Vec<u32> = (0..2000).map(|i| 300 + i * 7 % 600).collect();
    let opened =
        generate(&server, json!({"input_ids": ids, "max_tokens": 0, "session": {"open": true}}));
    assert_eq!(opened["choices"][0]["token_ids"], json!([]));
    let id = session_id(&opened["choices"][0]).to_owned();
    let pinned = || server.metrics().value("kv_blocks_pinned");
    wait_for("the session to be pinned", || (pinned() > 0.0).then_some(()));
    assert_eq!(pinned(), 125.0, "2,000 tokens in blocks of 16");
    let mut forks = Vec::new();
    for n in 1..=4 {
        let fork =
            generate(&server, with(greedy(&format!(" {n}"), 12), json!({"session": {"fork": id}})));
        // All tokens but the last, whose logits give the next.
        assert!(cached(&fork) >= 1999, "{fork}");
        forks.push(session_id(&fork["choices"][0]).to_owned());
        let new_tokens = num_tokens(&fork) + 12 - 2000;
        let expected = 125.0 + f64::from(n) * (new_tokens as f64 / 16.0).ceil();
        wait_for("the fork to be pinned", || (pinned() > 124.0 + f64::from(n)).then_some(()));
        assert!(pinned() <= expected, "{} blocks of {expected}", pinned());
    }
    for id in forks.iter().chain([&id]) {
        generate(&server, json!({"session": {"id": id, "close": true}}));
    }
    server.wait_until_all_blocks_are_free();
}

#[test]
fn branches_become_sessions_of_their_own() {
    let server = prism();
    let body = json!({"text": "I like", "n": 3, "seed": 1, "max_tokens": 6, "ignore_eos": true, "session": {"open": true}});
    let branches = generate(&server, body);
    for choice in branches["choices"].as_array().unwrap() {
        let more = generate(
            &server,
            json!({"session": {"id": session_id(choice)}, "text": " and", "temperature": 0, "max_tokens": 2}),
        );
        // A branch's last token was not computed, unless another branch sampled the same.
        assert!(cached(&more) >= whole_blocks(num_tokens(&branches) + 5), "{more}");
    }
    let chosen = generate(
        &server,
        json!({"text": "The sky is", "choices": [" blue", " qqq"], "session": {"open": true}}),
    );
    let selected = chosen["selected"].as_u64().unwrap() as usize;
    let len = chosen["choices"][selected]["token_ids"].as_array().unwrap().len() as u64;
    assert_eq!(chosen["session"]["num_tokens"], num_tokens(&chosen) + len);
}

#[test]
fn a_session_ends_by_itself() {
    let server = ServerBuilder::new("demo").flags("--framework prism --session-ttl 1").start();
    let opened =
        generate(&server, with(greedy("A long story", 20), json!({"session": {"open": true}})));
    assert_eq!(opened["choices"][0]["session"]["ttl"], 1);
    let id = session_id(&opened["choices"][0]);
    let error = wait_for("the session to end", || {
        let response = server.post("/generate", &json!({"session": {"fork": id}, "max_tokens": 0}));
        let is_gone = response.status == 404;
        if !is_gone {
            // Each request keeps the session alive. The interval is shorter than its time to live.
            std::thread::sleep(std::time::Duration::from_millis(1200));
        }
        is_gone.then(|| response.error(404))
    });
    assert_eq!(error["code"], "session_not_found");
    server.wait_until_all_blocks_are_free();
}

#[test]
fn only_one_request_at_a_time_goes_on_in_a_session() {
    let server = prism();
    let opened = generate(&server, with(greedy("A", 1), json!({"session": {"open": true}})));
    let id = session_id(&opened["choices"][0]);
    let long = with(greedy("B", 1500), json!({"session": {"id": id}, "stream": true}));
    let mut stream = server.open("/generate", &long);
    stream.next_chunk().unwrap();
    assert_eq!(
        refused(&server, 400, json!({"text": "C", "session": {"id": id}}))["param"],
        "session.id"
    );
    drop(stream);
    // A disconnected client leaves the session unchanged.
    let again = || server.post("/generate", &with(greedy("C", 1), json!({"session": {"id": id}})));
    let response = wait_for("the session to be free", || {
        let response = again();
        (response.status == 200).then_some(response)
    });
    // Nothing of "B" is left in the session.
    assert!(num_tokens(&response.ok()) < 10);
}

#[test]
fn requests_come_before_sessions_and_sessions_lose_only_time() {
    // 96 blocks are 1,536 tokens, and the two prompts take 1,440 with their output.
    let server = memory_for(96);
    let text = "This is the beginning of a story. ".repeat(40);
    let opened = generate(&server, with(greedy(&text, 4), json!({"session": {"open": true}})));
    let id = session_id(&opened["choices"][0]).to_owned();
    // Two prompts that together need nearly the whole cache.
    std::thread::scope(|scope| {
        for first in 0..2_u32 {
            let server = &server;
            let ids: Vec<u32> = (0..700).map(|i| 300 + (first * 31 + i * 11) % 600).collect();
            scope.spawn(move || {
                let body = json!({"input_ids": ids, "max_tokens": 20, "ignore_eos": true});
                assert_eq!(generate(server, body)["usage"]["completion_tokens"], 20);
            });
        }
    });
    let more = generate(&server, with(greedy(" Then", 4), json!({"session": {"id": id}})));
    assert!(num_tokens(&more) > num_tokens(&opened) + 4, "no token of it is lost");
    // Here all requests fit, so no session is given up.
    let fresh = memory_for(300);
    let opened = generate(&fresh, with(greedy(&text, 4), json!({"session": {"open": true}})));
    let id = session_id(&opened["choices"][0]).to_owned();
    let same = generate(&fresh, with(greedy(" Then", 4), json!({"session": {"id": id}})));
    assert_eq!(super::text(&more), super::text(&same));
}

/// A server whose cache has `num_blocks` blocks of 16 tokens of the demo model, 2 KiB a token.
fn memory_for(num_blocks: u32) -> Server {
    let memory = format!("{}Ki", num_blocks * 32);
    ServerBuilder::new("demo")
        .flags("--framework prism --max-model-len 1500")
        .flag("--kv-cache-memory", memory)
        .start()
}
