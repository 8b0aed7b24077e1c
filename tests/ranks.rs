//! A model on several ranks, which are processes. The answers equal those of one rank, and a lost rank ends the
//! server.

use std::process::Command;

use serde_json::{Value, json};

use crate::support::{Request, Server, ServerBuilder, TempFolder, wait_for};

fn over_two_ranks() -> Server {
    ServerBuilder::new("demo").flags("--tensor-parallel-size 2 --framework prism").start()
}

/// The pids of the ranks of a server.
fn ranks(server: &Server) -> Vec<u32> {
    let processes = std::fs::read_dir("/proc")
        .unwrap()
        .filter_map(|entry| entry.unwrap().file_name().to_str()?.parse::<u32>().ok());
    processes.filter(|pid| served_by(*pid).as_deref() == Some(&server.pid().to_string())).collect()
}

/// The rank of this process, if it is one and runs.
fn served_by(pid: u32) -> Option<String> {
    let args = std::fs::read_to_string(format!("/proc/{pid}/cmdline")).ok()?;
    // The first argument after the command is the server's pid.
    let mut args = args.split('\0').skip_while(|arg| *arg != "__rank");
    args.nth(1).map(str::to_owned)
}

fn signal(name: &str, pid: u32) {
    let command = format!("kill -{name} {pid}");
    assert!(Command::new("sh").args(["-c", &command]).status().unwrap().success());
}

fn wait_until_gone(pid: u32) {
    wait_for("the rank to be gone", || served_by(pid).is_none().then_some(()));
}

#[test]
fn answers_are_those_of_one_process_and_the_end_is_orderly() {
    let one = ServerBuilder::new("demo").flags("--framework prism").start();
    let mut two = over_two_ranks();
    let rank = match ranks(&two)[..] {
        [rank] => rank,
        // The server itself is the other rank.
        ref others => panic!("{} processes: {others:?}", others.len()),
    };
    let story = json!({"prompt": "Once upon a time there was a candle that was older than the house in which it stood, and it told a story", "max_tokens": 64, "temperature": 0, "n": 2, "logprobs": 1});
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
    // The second time, the prompts are in the prefix cache.
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
    // An orderly end is not reported as a failure of the rank.
    assert!(!two.log().contains("rank 1"), "{}", two.log());
}

/// Sends a signal to a rank during an answer. The server must report why it ends, and leave no process or file.
pub(crate) fn ends_the_server(mut server: Server, name: &str, reason: &str) {
    // The answer is long enough to run until the signal arrives.
    let body = json!({"model": "demo", "prompt": "Once", "max_tokens": 1900, "ignore_eos": true, "stream": true});
    let mut stream = server.open("/v1/completions", &body);
    assert!(stream.next_event().unwrap().is_some());
    let rank = ranks(&server)[0];
    signal(name, rank);
    let failed = wait_for("the server to say why", || {
        let health = server.get("/health");
        (health.status == 503).then(|| health.text())
    });
    assert!(failed.contains(reason), "{failed}");
    let rest: Vec<String> = std::iter::from_fn(|| stream.next_event().ok().flatten()).collect();
    let error = rest.iter().find(|event| event.contains("\"error\""));
    assert!(error.is_some_and(|error| error.contains(reason)), "{rest:?}");
    assert!(!server.wait_for_exit().success());
    server.log_with(&format!("the engine has stopped: {reason}"));
    wait_until_gone(rank);
}

#[test]
fn a_rank_that_is_killed_ends_the_server() {
    ends_the_server(over_two_ranks(), "KILL", "rank 1 was killed (SIGKILL)");
}

/// The rank still exists and is silent, for much less than the time limit of a step.
#[test]
fn a_rank_that_never_answers_ends_the_server() {
    let reason = "rank 1 is stopped or stuck: nothing was heard of it for 6 s";
    ends_the_server(over_two_ranks(), "STOP", reason);
}

/// The weights are behind a link to the server's own standard input, which a rank does not have.
#[test]
fn a_rank_that_cannot_load_its_part_ends_the_start() {
    let (model, apart) = (TempFolder::of_demo(|_, bytes| bytes), TempFolder::new());
    let (weights, moved) = (model.path().join("model.safetensors"), apart.path().join("weights"));
    std::fs::rename(&weights, &moved).unwrap();
    std::os::unix::fs::symlink("/dev/stdin", &weights).unwrap();
    let flags = "--tensor-parallel-size 2";
    let mut server = ServerBuilder::new(model.path()).flags(flags).input(&moved).listen();
    assert!(!server.wait_for_exit().success());
    server.log_with("rank 1 failed: no weights in");
    // The rank itself has logged the reason.
    server.log_with("rank 1: no weights in");
    assert_eq!(ranks(&server), [0; 0]);
}

/// Without any request a lost rank is noticed, too.
#[test]
fn a_rank_of_an_idle_server_is_missed() {
    let mut server = over_two_ranks();
    signal("KILL", ranks(&server)[0]);
    assert!(!server.wait_for_exit().success());
    server.log_with("rank 1 was killed (SIGKILL)");
}

#[test]
fn ranks_end_with_a_server_that_is_killed() {
    let mut server = over_two_ranks();
    let rank = ranks(&server)[0];
    signal("KILL", server.pid());
    assert!(!server.wait_for_exit().success());
    wait_until_gone(rank);
    assert!(Request::get("/health").send(server.address).is_err());
}
