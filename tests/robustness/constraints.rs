//! Constraints that are too large: they are refused, and nobody else waits for them.

use std::fs;
use std::io::Write;
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use fastrand::Rng;
use serde_json::{Map, Value, json};

use crate::support::{Request, Server, ServerBuilder, wait_for};

/// Constraints that are tried.
const NUM_CASES: usize = 40;
/// A server whose event loop compiles something answers later than this.
const LONGEST_PROBE: Duration = Duration::from_secs(3);

/// Definitions, each of which is within a keyword of the one before it.
fn chain(len: usize, random: &mut Rng) -> Value {
    let keyword = random.u8(0..8);
    let wrap = |next: Value| match keyword {
        0 => next,
        1 => json!({"items": next}),
        2 => json!({"type": "object", "properties": {"a": next}}),
        3 => json!({"allOf": [next]}),
        4 => json!({"anyOf": [next, {"type": "null"}]}),
        5 => json!({"additionalProperties": next}),
        6 => json!({"prefixItems": [next]}),
        _ => json!({"not": {"not": next}}),
    };
    let definition = |index: usize| {
        let next = json!({"$ref": format!("#/$defs/a{}", index + 1)});
        (format!("a{index}"), wrap(next))
    };
    let mut definitions: Map<String, Value> = (0..len).map(definition).collect();
    definitions.insert(format!("a{len}"), json!({}));
    json!({"$ref": "#/$defs/a0", "$defs": definitions})
}

fn named(num: usize, value: impl Fn(usize) -> Value) -> Map<String, Value> {
    (0..num).map(|index| (format!("p{index}"), value(index))).collect()
}

/// A schema that is deep, wide, or has many patterns.
fn schema(random: &mut Rng) -> Value {
    let size = 1 << random.u32(4..14);
    match random.u8(0..7) {
        0 | 1 => chain(size, random),
        2 => {
            let properties = named(size, |_| json!({"type": "string"}));
            let required: Vec<String> = properties.keys().cloned().collect();
            json!({"type": "object", "properties": properties, "required": required})
        }
        3 => json!({"enum": [named(size, |index| index.into())]}),
        4 => {
            json!({"type": "object", "patternProperties": (0..size).map(|index| (format!("^p{index}$"), json!({"type": "string"}))).collect::<Map<_, _>>()})
        }
        5 => json!({"type": "string", "pattern": format!("^(a{{{size}}}){{{size}}}$")}),
        _ => json!({"allOf": vec![json!({"minLength": 1}); size]}),
    }
}

/// A request with a schema, by one of the doors for it.
fn request(schema: Value, random: &mut Rng) -> (&'static str, Value) {
    let mut chat =
        json!({"model": "demo", "messages": [{"role": "user", "content": "a"}], "max_tokens": 4});
    let function = json!({"type": "function", "function": {"name": "f", "strict": true, "parameters": schema}});
    let (field, value) = match random.u8(0..8) {
        0 => ("structured_outputs", json!({"json": schema})),
        1 => (
            "response_format",
            json!({"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}),
        ),
        2 => ("structured_outputs", json!({"grammar": format!("start: %json {schema}")})),
        3 => {
            let tag = json!({"structures": [{"begin": "<a>", "schema": schema, "end": "</a>"}], "triggers": ["<a"]});
            ("structured_outputs", json!({"structural_tag": tag.to_string()}))
        }
        4 => ("tools", json!([function])),
        5 => {
            let format = json!({"type": "json_schema", "name": "a", "schema": schema});
            return (
                "/v1/responses",
                json!({"model": "demo", "input": "a", "text": {"format": format}, "max_output_tokens": 4}),
            );
        }
        6 => {
            let body = json!({"model": "demo", "prompt": "a", "max_tokens": 4, "structured_outputs": {"json": schema}});
            return ("/v1/completions", body);
        }
        _ => {
            chat["max_tokens"] = 16.into();
            ("output_config", json!({"format": {"type": "json_schema", "schema": schema}}))
        }
    };
    chat[field] = value;
    let path = if field == "output_config" { "/v1/messages" } else { "/v1/chat/completions" };
    (path, chat)
}

/// The body with a letter of each field's name escaped, which JSON allows.
fn escaped(body: &Value) -> String {
    let names = ["response_format", "structured_outputs", "json_schema", "output_config", "tools"];
    names.iter().fold(body.to_string(), |body, name| {
        let (first, rest) = name.split_at(1);
        let escaped = format!("\"\\u{:04x}{rest}\"", first.as_bytes()[0]);
        body.replace(&format!("\"{name}\""), &escaped)
    })
}

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
            let schema = schema(&mut random);
            let (path, body) = request(schema, &mut random);
            let body = if random.bool() { escaped(&body) } else { body.to_string() };
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
        assert!((5..NUM_CASES).contains(&refused), "{refused} of {NUM_CASES} were refused");
    });
    server.complete(json!({"prompt": "a", "max_tokens": 2}));
    server.wait_until_all_blocks_are_free();
}

/// The processes that a server has started.
fn children(pid: u32) -> Vec<u32> {
    let path = format!("/proc/{pid}/task");
    let tasks = fs::read_dir(path).unwrap().flatten();
    let children = tasks.map(|task| fs::read_to_string(task.path().join("children")));
    let children = children.flatten().collect::<Vec<_>>().join(" ");
    children.split_ascii_whitespace().map(|pid| pid.parse().unwrap()).collect()
}

/// Clock ticks that a process has computed for; `None` once it is gone.
fn ticks(pid: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, fields) = stat.rsplit_once(") ")?;
    let mut fields = fields.split_ascii_whitespace();
    // A process that was killed and not waited for is gone, too.
    fields.next().filter(|state| *state != "Z")?;
    fields.nth(10)?.parse().ok()
}

#[test]
fn the_constraint_of_a_client_that_is_gone_is_given_up() {
    let patterns = |num: usize| {
        let patterns = (0..num).map(|index| (format!("^p{index}$"), json!({"type": "string"})));
        let schema =
            json!({"type": "object", "patternProperties": patterns.collect::<Map<_, _>>()});
        json!({"prompt": "a", "max_tokens": 1, "structured_outputs": {"json": schema}})
    };
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
            .filter(|pid| ticks(*pid).is_some_and(|ticks| ticks > 10))
            .collect();
        (busy.len() == streams.len()).then_some(busy)
    });
    drop(streams);
    wait_for("the processes to be killed", || {
        busy.iter().all(|pid| ticks(*pid).is_none()).then_some(())
    });
    // Others are compiled again.
    let refused = server.complete_refused(patterns(100_000));
    assert_eq!(refused["param"], "structured_outputs.json");
    server.complete(patterns(40));
}
