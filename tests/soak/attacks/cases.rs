//! Requests of the attacks, with random depth, width, length, keywords and endpoints.

use std::io::{self, BufReader, Write};
use std::time::{Duration, Instant};

use fastrand::Rng;
use serde_json::{Map, Value, json};

use super::super::watch::{ask, is_timeout};
use super::{Attack, LEFT};
use crate::support::hostile::{chain, escaped, named, request};
use crate::support::{Frames, HeaderList, Kind, Request, Response, Server, read_response};

pub(super) const ATTACKS: [Attack; 8] = [
    // Schemas that are deep or wide.
    Attack {
        name: "deep",
        flags: "",
        attempt: |server, random, patience| {
            let (path, body) = door(deep(15, random), random);
            post(server, path, body.to_string(), patience)
        },
    },
    // Constraints with a long compilation.
    Attack {
        name: "patterns",
        flags: "",
        attempt: |server, random, patience| {
            let (path, body) = costly(14, random);
            post(server, path, body.to_string(), patience)
        },
    },
    // Both, in short bodies whose field names are escaped.
    Attack {
        name: "escaped",
        flags: "",
        attempt: |server, random, patience| {
            let (path, body) = short(random);
            post(server, path, body, patience)
        },
    },
    Attack {
        name: "runs",
        flags: "",
        attempt: |server, random, patience| {
            let (path, body) = long_text(random);
            post(server, path, body.to_string(), patience)
        },
    },
    Attack {
        name: "follow",
        flags: "",
        attempt: |server, random, patience| {
            post(server, "/v1/completions", followed(random).to_string(), patience)
        },
    },
    Attack { name: "bodies", flags: "", attempt: unfinished_bodies },
    Attack { name: "slow", flags: "", attempt: slow_body },
    Attack { name: "resets", flags: "--http2", attempt: resets },
];

fn post(server: &Server, path: &str, body: String, patience: Duration) -> io::Result<Response> {
    let request = Request::new("POST", path).header("Content-Type", "application/json");
    ask(server, &request.body(body), patience)
}

/// A number below two to the power of `bits`, with a uniform distribution of its length.
fn size(bits: u32, random: &mut Rng) -> usize {
    let bits = random.u32(3..bits);
    random.usize(1 << bits..2 << bits)
}

/// Puts a schema into one of the fields of a chat, or into `/generate`.
fn door(schema: Value, random: &mut Rng) -> (&'static str, Value) {
    if random.u8(0..9) == 0 {
        let body = json!({"text": "a", "max_tokens": 4, "structured_outputs": {"json": schema}});
        return ("/generate", body);
    }
    request(schema, random)
}

fn deep(bits: u32, random: &mut Rng) -> Value {
    let size = size(bits, random);
    match random.u8(0..6) {
        0..=3 => chain(size, random),
        4 => {
            let properties = named(size, |_| json!({"type": "string"}));
            let required: Vec<String> = properties.keys().cloned().collect();
            json!({"type": "object", "properties": properties, "required": required})
        }
        _ => json!({"enum": [named(size, |index| index.into())]}),
    }
}

fn patterns(size: usize) -> Value {
    let pattern = |index| (format!("^p{index}$"), json!({"type": "string"}));
    json!({"type": "object", "patternProperties": (0..size).map(pattern).collect::<Map<_, _>>()})
}

fn costly(bits: u32, random: &mut Rng) -> (&'static str, Value) {
    let size = size(bits, random);
    let outputs = match random.u8(0..4) {
        0 => return door(patterns(size), random),
        1 => {
            let branches: Vec<Value> =
                (0..size).map(|index| json!({"minLength": index % 9})).collect();
            return door(json!({"allOf": branches}), random);
        }
        2 => json!({"regex": "(a?b?)".repeat(size)}),
        _ => {
            let structure =
                |index| json!({"begin": format!("<f{index}>"), "schema": {}, "end": "</f>"});
            let structures: Vec<Value> = (0..size).map(structure).collect();
            json!({"structural_tag": {"structures": structures, "triggers": ["<f"]}})
        }
    };
    let body =
        json!({"model": "demo", "prompt": "a", "max_tokens": 4, "structured_outputs": outputs});
    ("/v1/completions", body)
}

/// A body that is short enough to look cheap.
fn short(random: &mut Rng) -> (&'static str, String) {
    loop {
        let (path, body) = match random.bool() {
            true => door(deep(10, random), random),
            false => costly(10, random),
        };
        let body = escaped(&body);
        if body.len() <= 8 << 10 {
            return (path, body);
        }
    }
}

/// A repetition of one or a few characters, up to 23 MB, in every field with a text.
fn long_text(random: &mut Rng) -> (&'static str, Value) {
    let unit = match random.u8(0..8) {
        0 => "1".to_owned(),
        1 => "12".to_owned(),
        2 => " ".to_owned(),
        3 => "\u{301}".to_owned(),
        4 => "a\u{301}".to_owned(),
        5 => "🦀".to_owned(),
        6 => "\n\t".to_owned(),
        _ => (0..4096).map(|_| random.lowercase()).collect(),
    };
    // A line break has two bytes in the body.
    let written = unit.replace(['\n', '\t'], "\\n").len();
    // The length has two random parts: up to 8 MB of any magnitude, and up to 15 MB uniformly.
    let length = (1_usize << random.u32(14..24)) + random.usize(0..15_000_000);
    let text = unit.repeat(length.div_ceil(written));
    let user = |text: &str| json!([{"role": "user", "content": text}]);
    match random.u8(0..9) {
        0 | 1 => ("/tokenize", json!({"prompt": text})),
        2 => ("/tokenize", json!({"messages": user(&text)})),
        3 => ("/v1/completions", json!({"model": "demo", "prompt": text, "max_tokens": 1})),
        4 => (
            "/v1/chat/completions",
            json!({"model": "demo", "messages": user(&text), "max_tokens": 1}),
        ),
        5 => ("/v1/messages/count_tokens", json!({"model": "demo", "messages": user(&text)})),
        6 => ("/generate", json!({"text": text, "max_tokens": 1})),
        7 => {
            let messages = vec![user("a")[0].clone(); length / 40];
            ("/v1/chat/completions", json!({"model": "demo", "messages": messages}))
        }
        _ => ("/detokenize", json!({"tokens": vec![5; length / 2]})),
    }
}

/// Constraints with a seemingly short compilation and slow tokens.
fn followed(random: &mut Rng) -> Value {
    let size = size(12, random);
    let outputs = match random.u8(0..8) {
        // Nested repetitions multiply, so a short pattern stands for millions of states.
        0 => json!({"regex": format!("(a{{{size}}}){{{size}}}")}),
        1 => json!({"regex": format!("a{{{}}}", size * size)}),
        2 => json!({"regex": format!(".*a.{{{}}}b", size % 20)}),
        3 => json!({"regex": "(a?b?)".repeat(size)}),
        4 => json!({"json": {"const": "x".repeat(size * 200)}}),
        5 => json!({"choice": ["y".repeat(size * 200), "z"]}),
        6 => {
            json!({"json": {"type": "object", "properties": named(size, |_| json!({"type": "integer"}))}})
        }
        // The grammar can be read in exponentially many ways.
        _ => json!({"grammar": "root ::= root root | \"a\" | \"ab\" | \"\" | [a-z] root"}),
    };
    // Up to 64 choices advance through the constraint together.
    let n = 1 << random.u8(0..7);
    json!({"model": "demo", "prompt": "a", "max_tokens": 64, "n": n, "stream": random.bool(), "structured_outputs": outputs})
}

/// The head of a request that announces a body of this length.
fn head(length: usize) -> String {
    format!(
        "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n"
    )
}

/// Opens connections with these first bytes, then sends a byte on each from time to time, until the time limit.
fn hold(server: &Server, starts: &[Vec<u8>], patience: Duration) -> io::Result<Response> {
    let patience = patience.min(Duration::from_secs(1));
    let began = Instant::now();
    let mut sockets = Vec::new();
    for start in starts {
        let mut socket = server.connect()?;
        socket.stream().set_write_timeout(Some(patience))?;
        // It may be refused before it has arrived in full.
        let _ = socket.write_all(start);
        sockets.push(socket);
    }
    while began.elapsed() < patience {
        std::thread::sleep(Duration::from_millis(20));
        for socket in &mut sockets {
            let _ = socket.write_all(b" ");
        }
    }
    let stream = sockets[0].stream().try_clone()?;
    stream.set_read_timeout(Some(Duration::from_millis(1)))?;
    // The bytes that have arrived by now are the answer; the attack does not wait for it.
    let answer = read_response(&mut BufReader::new(stream));
    answer.map_err(|error| if is_timeout(&error) { LEFT.into() } else { error })
}

fn unfinished_bodies(
    server: &Server,
    random: &mut Rng,
    patience: Duration,
) -> io::Result<Response> {
    const LENGTH: usize = 31 << 20;
    let mut start = head(LENGTH).into_bytes();
    // The announced body never arrives in full.
    start.resize(start.len() + random.usize(LENGTH / 2..LENGTH - 100), b' ');
    hold(server, &vec![start; random.usize(1..20)], patience)
}

fn slow_body(server: &Server, random: &mut Rng, patience: Duration) -> io::Result<Response> {
    let start = |length: usize| head(1 << 20).into_bytes()[..length].to_vec();
    let whole = head(1 << 20).len();
    let starts: Vec<_> = (0..random.usize(1..200))
        .map(|_| start(if random.bool() { whole } else { random.usize(1..whole) }))
        .collect();
    hold(server, &starts, patience)
}

/// HTTP/2 streams that are reset, some before the server has handled them.
fn resets(server: &Server, random: &mut Rng, patience: Duration) -> io::Result<Response> {
    let mut frames = Frames::new(server.connect()?)?;
    let body = json!({"model": "demo", "prompt": "a", "max_tokens": 500, "n": 4, "ignore_eos": true, "stream": true});
    let head =
        HeaderList::request("POST", "/v1/completions").with("content-type", "application/json");
    let pause = Duration::from_millis(random.u64(0..20));
    // The pause lets some streams reach the engine, and others not.
    let began = Instant::now();
    for stream in (1..).step_by(2) {
        frames.request(stream, &head, body.to_string().as_bytes())?;
        std::thread::sleep(pause);
        frames.send(Kind::Reset, 0, stream, &8_u32.to_be_bytes())?;
        if began.elapsed() >= patience.min(Duration::from_secs(1)) {
            break;
        }
    }
    Err(LEFT.into())
}
