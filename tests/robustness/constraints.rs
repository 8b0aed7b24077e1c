//! Constraints that are too large are refused, and do not delay other requests.

use std::io::Write;
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use fastrand::Rng;
use serde_json::{Map, Value, json};

use crate::support::process::{children, ticks};
use crate::support::{Request, Server, ServerBuilder, hostile, wait_for};

/// Number of constraints that are tried.
const NUM_CASES: usize = 40;
/// A server that compiles constraints on its event loop answers later than this.
const LONGEST_PROBE: Duration = Duration::from_secs(3);

#[test]
fn large_constraints_are_answered_and_nobody_waits_for_them() {
    let server = Server::demo();
    let is_done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let probes = scope.spawn(|| {
            let mut longest = Duration::ZERO;
            while !is_done.load(Ordering::Relaxed) {
                let began = Instant::now();
                server.get("/health").ok();
                longest = longest.max(began.elapsed());
                std::thread::sleep(Duration::from_millis(20));
            }
            longest
        });
        let mut random = Rng::with_seed(7);
        let mut refused = 0;
        for case in 0..NUM_CASES {
            let schema = hostile::schema(&mut random);
            let (path, body) = hostile::request(schema, &mut random);
            let body = if random.bool() { hostile::escaped(&body) } else { body.to_string() };
            let request = Request::new("POST", path).header("Content-Type", "application/json");
            let response = server.send(&request.body(body.clone()));
            let said = response.text();
            let start: String = body.chars().take(200).collect();
            assert!([200, 400].contains(&response.status), "case {case}: {said}\n{path} {start}");
            assert!(!said.contains("panic") && !said.contains("assertion"), "{said}");
            refused += usize::from(response.status == 400);
        }
        is_done.store(true, Ordering::Relaxed);
        let longest = probes.join().unwrap();
        assert!(longest < LONGEST_PROBE, "/health was answered after {longest:?}");
        // Both answers must occur, or the test shows little.
        assert!((5..NUM_CASES).contains(&refused), "{refused} of {NUM_CASES} were refused");
    });
    server.complete(json!({"prompt": "a", "max_tokens": 2}));
    server.wait_until_all_blocks_are_free();
}

#[test]
fn the_constraint_of_a_client_that_is_gone_is_given_up() {
    let patterns = |num: usize| {
        let patterns = (0..num).map(|index| (format!("^p{index}$"), json!({"type": "string"})));
        let schema =
            json!({"type": "object", "patternProperties": patterns.collect::<Map<_, _>>()});
        json!({"prompt": "a", "max_tokens": 1, "structured_outputs": {"json": schema}})
    };
    // Only the end of the client can stop the compilation this early.
    let server = ServerBuilder::new("demo").flags("--max-constraint-time 600000").start();
    let ask = |body: Value| {
        let mut body = body;
        body["model"] = "demo".into();
        let body = body.to_string();
        let head = format!(
            "POST /v1/completions HTTP/1.1\r\nHost: {}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
            server.address,
            body.len()
        );
        let mut socket = TcpStream::connect(server.address).unwrap();
        socket.write_all((head + &body).as_bytes()).unwrap();
        socket
    };
    let streams: Vec<TcpStream> = (0..2).map(|index| ask(patterns(2000 + index))).collect();
    let busy = wait_for("the constraints to be compiled", || {
        let busy: Vec<u32> = children(server.pid())
            .into_iter()
            // More than ten ticks of processor time are those of a compiler that works, not of one that waits.
            .filter(|pid| ticks(*pid).is_some_and(|ticks| ticks > 10))
            .collect();
        (busy.len() == streams.len()).then_some(busy)
    });
    drop(streams);
    wait_for("the processes to be killed", || {
        busy.iter().all(|pid| ticks(*pid).is_none()).then_some(())
    });
    // Other constraints are compiled again.
    let refused = server.complete_refused(patterns(100_000));
    assert_eq!(refused["param"], "structured_outputs.json");
    server.complete(patterns(40));
}
