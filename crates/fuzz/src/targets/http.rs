//! Mutates HTTP/1.1 requests and HTTP/2 frames, and sends them to a server in this process.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::mpsc::channel;
use std::time::Duration;

use candlepower_server::{ServeConfig, Terminal, serve, try_in_children};
use clap::{Args, Command};
use fastrand::Rng;
use tokio::runtime::Builder;

use crate::{Round, Verdict, change};

const PIECES: [&str; 24] = [
    "\r\n",
    "\n",
    "\r",
    " ",
    "\t",
    ":",
    "0",
    "\0",
    "é",
    "HTTP/1.0",
    "HTTP/2.0",
    "GET",
    "Host: localhost\r\n",
    "Host: a\r\n",
    "Content-Length: 5\r\n",
    "Content-Length: 18446744073709551616\r\n",
    "Transfer-Encoding: chunked\r\n",
    "Transfer-Encoding: gzip, chunked\r\n",
    "Expect: 100-continue\r\n",
    "Connection: close\r\n",
    "Upgrade: h2c\r\n",
    "ffffffffffffffff\r\n",
    "0\r\n\r\n",
    "/../",
];
const REQUESTS: [&str; 6] = [
    "GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "GET /v1/models HTTP/1.1\r\nHost: localhost\r\nAccept: */*\r\n\r\nGET /health HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 47\r\n\r\n\
     {\"model\":\"demo\",\"prompt\":\"a\",\"max_tokens\": 2  }",
    "POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n\
     10\r\n{\"model\":\"demo\",\r\n8;a=b\r\n\"prompt\"\r\n5\r\n:\"a\"}\r\n0\r\nTrailer: a\r\n\r\n",
    "OPTIONS * HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "GET http://localhost/metrics HTTP/1.1\r\nHost: localhost\r\nConnection: keep-alive\r\n\r\n",
];
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// GET /health in HPACK: method, scheme, `:path` and `:authority` as literals.
const HEADERS: &[u8] = b"\x82\x86\x04\x07/health\x01\x09localhost";
/// Time limit of the server for a complete request.
const PATIENCE: Duration = Duration::from_secs(20);
/// Silence after which the server counts as waiting for the rest of a request.
const SILENCE: Duration = Duration::from_millis(60);

pub(super) fn open() -> Round {
    let address = start();
    let mut round = 0;
    Box::new(move |random| {
        round += 1;
        // A server that no longer answers would otherwise look like one that waits for the rest of each request.
        if round % 32 == 0 {
            assert!(is_healthy(address), "/health is not answered");
        }
        match random.usize(..3) {
            0 => frames(address, random),
            _ => request(address, random),
        }
    })
}

/// Starts a server with the demo model, and waits until it is ready.
fn start() -> SocketAddr {
    try_in_children();
    let arguments = "serve demo --port 0 --http2 --kv-cache-memory 16Mi --max-num-seqs 4";
    let command = ServeConfig::augment_args(Command::new("serve"));
    let flags = command.try_get_matches_from(arguments.split(' ')).unwrap();
    let effective = ServeConfig::resolve(&flags, []).unwrap();
    let (found, address) = channel();
    std::thread::spawn(move || {
        let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let on_listening = move |address| found.send(address).unwrap();
        runtime.block_on(serve(effective, Terminal::default(), on_listening)).unwrap();
    });
    let address = address.recv().unwrap();
    while !is_healthy(address) {
        std::thread::sleep(Duration::from_millis(20));
    }
    address
}

fn is_healthy(address: SocketAddr) -> bool {
    let answer = send(address, REQUESTS[0].as_bytes(), PATIENCE);
    answer.starts_with(b"HTTP/1.1 200")
}

fn request(address: SocketAddr, random: &mut Rng) -> Verdict {
    let mut text = (*random.choice(&REQUESTS).unwrap()).to_owned();
    if random.usize(..4) != 0 {
        text = change::text(&text, &PIECES, random);
    }
    if random.usize(..16) == 0 {
        let fields = format!("X-A: {}\r\n", "b".repeat(random.usize(..3_000)));
        // Up to 3 MB of header fields, far above what the server reads.
        text = text.replacen("\r\n", &format!("\r\n{}", fields.repeat(1 << random.u32(0..11))), 1);
    }
    let answer = send(address, text.as_bytes(), SILENCE);
    let line = answer.split(|byte| *byte == b'\r').next().unwrap_or_default();
    let line = String::from_utf8_lossy(line).into_owned();
    let status = line.strip_prefix("HTTP/1.1 ").or(line.strip_prefix("HTTP/1.0 "));
    match status.and_then(|rest| rest.get(..3)?.parse::<u16>().ok()) {
        // The server waits for the rest, or has received HTTP/2's preface.
        None if answer.is_empty() || !answer.starts_with(b"HTTP") => Verdict::Accepted,
        None => panic!("{line:?} is no line of a status, after {text:.300?}"),
        Some(100..400) => Verdict::Accepted,
        // Any other 5xx is a fault of the server, not of the request.
        Some(400..=499 | 501 | 503 | 505) => Verdict::Refused(line),
        Some(status) => panic!("status {status} after {text:.300?}"),
    }
}

/// Frames of an HTTP/2 connection with prior knowledge.
fn frames(address: SocketAddr, random: &mut Rng) -> Verdict {
    let mut bytes = PREFACE.to_vec();
    push_frame(&mut bytes, 4, 0, 0, &[]);
    let before = bytes.len();
    let mut stream = 1;
    for _ in 0..random.usize(1..6) {
        match random.usize(..7) {
            // A ping with its eight bytes.
            0 => push_frame(&mut bytes, 6, 0, 0, &[0; 8]),
            // `SETTINGS_INITIAL_WINDOW_SIZE` (4) with a value above its limit of 2^31 - 1.
            1 => push_frame(&mut bytes, 4, 0, 0, &[0, 4, 0xff, 0xff, 0xff, 0xff]),
            // The largest window update: a second one for the same stream overflows the window.
            2 => push_frame(&mut bytes, 8, 0, stream, &[0x7f, 0xff, 0xff, 0xff]),
            // `RST_STREAM` with `CANCEL`, perhaps for a stream that was never opened.
            3 => push_frame(&mut bytes, 3, 0, stream, &[0, 0, 0, 8]),
            4 => push_frame(&mut bytes, random.u8(..), random.u8(..), random.u32(..4), &[0; 5]),
            // Headers without their end. A continuation frame must follow.
            5 => {
                push_frame(&mut bytes, 1, 1, stream, &HEADERS[..9]);
                push_frame(&mut bytes, 9, 4, stream, &HEADERS[9..]);
                stream += 2;
            }
            _ => {
                // The flags are `END_STREAM` and `END_HEADERS`. Streams that a client opens have odd numbers.
                push_frame(&mut bytes, 1, 5, stream, HEADERS);
                stream += 2;
            }
        }
    }
    if random.bool() {
        let len = bytes.len();
        change::file(&mut bytes, before..len, random);
    }
    let answer = send(address, &bytes, SILENCE);
    // A mutated preface is an HTTP/1.1 request to the server.
    let mut rest = if answer.starts_with(b"HTTP/1") { &[] } else { answer.as_slice() };
    let mut has_ended = false;
    while let [a, b, c, kind, _, _, _, _, _, more @ ..] = rest {
        // RFC 9113 defines the types 0 to 9. A larger one means that the frames were cut in the wrong place.
        assert!(*kind < 10, "a frame of type {kind}");
        has_ended |= *kind == 7;
        let len = usize::from(*a) << 16 | usize::from(*b) << 8 | usize::from(*c);
        rest = more.get(len..).unwrap_or_default();
    }
    if has_ended { Verdict::Refused("GOAWAY".to_owned()) } else { Verdict::Accepted }
}

fn push_frame(bytes: &mut Vec<u8>, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
    bytes.extend(&(payload.len() as u32).to_be_bytes()[1..]);
    bytes.extend([kind, flags]);
    bytes.extend(stream.to_be_bytes());
    bytes.extend(payload);
}

/// The answer, until nothing comes for `silence`, or the connection ends.
fn send(address: SocketAddr, bytes: &[u8], silence: Duration) -> Vec<u8> {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_nodelay(true).unwrap();
    stream.set_read_timeout(Some(silence)).unwrap();
    stream.set_write_timeout(Some(PATIENCE)).unwrap();
    // The server may have refused the input before its end.
    let _ = stream.write_all(bytes);
    let (mut answer, mut buffer) = (Vec::new(), [0; 4096]);
    loop {
        match stream.read(&mut buffer) {
            Ok(0) => return answer,
            Ok(len) => answer.extend(&buffer[..len]),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(_) => return answer,
        }
        // The status line is all that the checks need, and an open stream would last until the silence.
        if answer.starts_with(b"HTTP") && answer.contains(&b'\n') {
            return answer;
        }
    }
}
