//! A model over ranks that are processes: the same answers as without them, and what happens when one is gone.

use std::process::Command;

use serde_json::{Value, json};

use crate::support::{Request, Server, ServerBuilder, wait_for};

fn over_two_ranks() -> Server {
    ServerBuilder::new("demo").flags("--tensor-parallel-size 2 --framework prism").start()
}

/// The processes that a server has started, by number.
fn ranks(server: &Server) -> Vec<u32> {
    let processes = std::fs::read_dir("/proc")
        .unwrap()
        .filter_map(|entry| entry.unwrap().file_name().to_str()?.parse::<u32>().ok());
    processes.filter(|pid| parent(*pid) == Some(server.pid())).collect()
}

/// The parent of a process that runs.
fn parent(pid: u32) -> Option<u32> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name in parentheses may hold anything; the state and the parent follow it.
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
    let state = fields.next()?;
    fields.next()?.parse().ok().filter(|_| state != "Z")
}

fn kill(pid: u32) {
    assert!(
        Command::new("sh").args(["-c", &format!("kill -KILL {pid}")]).status().unwrap().success()
    );
}

fn wait_until_gone(pid: u32) {
    wait_for("the rank to be gone", || parent(pid).is_none().then_some(()));
}

#[test]
fn answers_are_those_of_one_process_and_the_end_is_orderly() {
    let one = ServerBuilder::new("demo").flags("--framework prism").start();
    let mut two = over_two_ranks();
    let rank = match ranks(&two)[..] {
        [rank] => rank,
        ref others => panic!("{} processes: {others:?}", others.len()),
    };
    let story = json!({"prompt": "Once upon a time", "max_tokens": 64, "temperature": 0, "n": 2, "logprobs": 1});
    let schema = json!({
        "messages": [{"role": "user", "content": "Who are you?"}],
        "temperature": 0,
        "max_tokens": 64,
        "response_format": {"type": "json_schema", "json_schema": {"name": "who", "schema": {
            "type": "object",
            "properties": {"kind": {"enum": ["candle", "lamp"]}, "age": {"type": "integer", "maximum": 9}},
            "required": ["kind", "age"],
            "additionalProperties": false,
        }}},
    });
    for _ in 0..2 {
        let texts = |answer: Value| -> Vec<Value> {
            let choices = answer["choices"].as_array().unwrap().iter();
            choices
                .map(|choice| json!([choice["text"], choice["message"], choice["finish_reason"]]))
                .collect()
        };
        assert_eq!(texts(two.complete(story.clone())), texts(one.complete(story.clone())));
        assert_eq!(texts(two.chat(schema.clone())), texts(one.chat(schema.clone())));
    }
    assert!(two.metrics().value("prefix_cache_hits_total") > 0.0);
    two.terminate();
    assert!(two.wait_for_exit().success(), "{}", two.log());
    wait_until_gone(rank);
    assert!(!two.log().contains("rank 1"), "{}", two.log());
}

#[test]
fn a_rank_that_is_killed_ends_the_server() {
    let mut server = over_two_ranks();
    let body = json!({"model": "demo", "prompt": "Once", "max_tokens": 1900, "ignore_eos": true, "stream": true});
    let mut stream = server.open("/v1/completions", &body);
    assert!(stream.next_event().unwrap().is_some());
    kill(ranks(&server)[0]);
    let failed = wait_for("the server to say why", || {
        let health = server.get("/health");
        (health.status == 503).then(|| health.text())
    });
    assert!(failed.contains("rank 1 was killed (SIGKILL)"), "{failed}");
    let rest: Vec<String> = std::iter::from_fn(|| stream.next_event().ok().flatten()).collect();
    let error = rest.iter().find(|event| event.contains("\"error\""));
    assert!(error.is_some_and(|error| error.contains("rank 1 was killed")), "{rest:?}");
    assert!(!server.wait_for_exit().success());
    assert!(server.log().contains("the engine has stopped: rank 1 was killed (SIGKILL)"));
}

/// Nobody asks anything: it is seen all the same.
#[test]
fn a_rank_of_an_idle_server_is_missed() {
    let mut server = over_two_ranks();
    kill(ranks(&server)[0]);
    assert!(!server.wait_for_exit().success());
    assert!(server.log().contains("rank 1 was killed (SIGKILL)"), "{}", server.log());
}

#[test]
fn ranks_end_with_a_server_that_is_killed() {
    let mut server = over_two_ranks();
    let rank = ranks(&server)[0];
    kill(server.pid());
    assert!(!server.wait_for_exit().success());
    wait_until_gone(rank);
    assert!(Request::get("/health").send(server.address).is_err());
}
