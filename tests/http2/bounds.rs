//! Clients that exceed limits: streams, resets, header lists, pings, time.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use serde_json::json;

use super::{plain, secure};
use crate::support::{
    END_HEADERS, END_STREAM, Frame, Frames, HeaderList, Kind, Request, Server, Socket, process,
    wait_for,
};

/// Errors of resets and of GOAWAY. Source: RFC 9113, section 7.
const CANCEL: u32 = 8;
const REFUSED_STREAM: u32 = 7;
const ENHANCE_YOUR_CALM: u32 = 11;
/// The setting SETTINGS_MAX_CONCURRENT_STREAMS. Source: RFC 9113, section 6.5.2.
const MAX_CONCURRENT_STREAMS: u16 = 3;

fn connect(server: &Server) -> Frames {
    Frames::new(server.connect().unwrap()).unwrap()
}

/// Headers of a request whose body does not follow yet.
fn unfinished() -> HeaderList {
    HeaderList::request("POST", "/v1/completions").with("content-type", "application/json")
}

/// Opens a stream and leaves it open.
fn hold(frames: &mut Frames, stream: u32) {
    frames.send(Kind::Headers, END_HEADERS, stream, unfinished().bytes()).unwrap();
}

fn still_serves(server: &Server) {
    server.complete(json!({"prompt": "a", "max_tokens": 2}));
    server.wait_until_all_blocks_are_free();
}

/// Peak memory of the server, in bytes.
fn peak(server: &Server) -> usize {
    process::status(server.pid(), "VmHWM")
}

#[test]
fn a_connection_has_a_hundred_streams() {
    let server = plain("");
    let mut frames = connect(&server);
    let settings = frames.next_of(Kind::Settings, 0).payload;
    // An entry of SETTINGS is an identifier of two bytes and a value of four.
    let most = settings.chunks(6).find(|entry| entry[..2] == MAX_CONCURRENT_STREAMS.to_be_bytes());
    assert_eq!(most.unwrap()[2..], 100_u32.to_be_bytes());
    // Clients open streams with odd numbers.
    for stream in (1..=199).step_by(2) {
        hold(&mut frames, stream);
    }
    hold(&mut frames, 201);
    assert_eq!(frames.next_of(Kind::Reset, 201).error_code(), REFUSED_STREAM);
    // A stream that ends makes room for another.
    frames.send(Kind::Reset, 0, 1, &CANCEL.to_be_bytes()).unwrap();
    frames.request(203, &HeaderList::request("GET", "/health"), b"").unwrap();
    assert_eq!(frames.next_of(Kind::Headers, 203).status(), 200);
    still_serves(&server);
}

/// Whether an open stream is answered at once: its answer comes before that of the ping after it.
fn status_of_held(frames: &mut Frames, stream: u32) -> Option<u16> {
    hold(frames, stream);
    frames.send(Kind::Ping, 0, 0, b"12345678").unwrap();
    let is_answer = |frame: &Frame| {
        frame.kind == Kind::Headers && frame.stream == stream
            || frame.kind == Kind::Ping && frame.payload == b"12345678"
    };
    let frame = std::iter::from_fn(|| frames.next()).find(is_answer).unwrap();
    (frame.kind == Kind::Headers).then(|| frame.status())
}

#[test]
fn streams_count_as_connections() {
    let server = plain("--max-connections 4");
    // The first stream uses its connection's slot, and three others use one each. An earlier connection may still
    // hold a slot.
    let mut frames = wait_for("four streams", || {
        let mut frames = connect(&server);
        frames.next().filter(|frame| frame.kind == Kind::Settings)?;
        let are_held =
            [1, 3, 5, 7].iter().all(|stream| status_of_held(&mut frames, *stream).is_none());
        are_held.then_some(frames)
    });
    // Requests are handled in parallel to the connection. So a refusal may come after the ping.
    hold(&mut frames, 9);
    assert_eq!(frames.next_of(Kind::Headers, 9).status(), 503);
    let answer = Request::get("/health").send(server.address).unwrap();
    assert_eq!(answer.status, 503, "{}", answer.text());
    for stream in [1, 3, 5, 7] {
        frames.send(Kind::Reset, 0, stream, &CANCEL.to_be_bytes()).unwrap();
    }
    wait_for("a place", || {
        Request::get("/version").send(server.address).ok().filter(|answer| answer.status == 200)
    });
    still_serves(&server);
}

#[test]
fn a_connection_beyond_the_limit_is_told_so_in_http2() {
    let (server, authority) = secure("--max-connections 2");
    let client = authority.client_of("h2");
    let status = wait_for("a full server", || {
        // These connections count, although they make no handshake.
        let _held: Vec<_> = (0..2).map(|_| TcpStream::connect(server.address).unwrap()).collect();
        let socket = Socket::connect(server.address, Some(&client)).ok()?;
        let mut frames = Frames::new(socket).ok()?;
        frames.request(1, &HeaderList::request("GET", "/health"), b"").ok()?;
        let answer = std::iter::from_fn(|| frames.next()).find(|frame| frame.kind == Kind::Headers);
        answer.map(|frame| frame.status()).filter(|status| *status != 200)
    });
    assert_eq!(status, 503);
}

#[test]
fn rapid_resets_end_the_connection() {
    let server = plain("");
    let mut burst = Vec::new();
    let head = HeaderList::request("GET", "/v1/models");
    // 2,000 resets, a hundred times as many as the server allows.
    for stream in (1..4000).step_by(2) {
        burst.extend(Frames::encode(Kind::Headers, END_HEADERS | END_STREAM, stream, head.bytes()));
        burst.extend(Frames::encode(Kind::Reset, 0, stream, &CANCEL.to_be_bytes()));
    }
    burst.extend(Frames::encode(Kind::Headers, END_HEADERS | END_STREAM, 4001, head.bytes()));
    let mut frames = connect(&server);
    // The server may close the connection before it has read everything.
    let _ = frames.send_bytes(&burst);
    let end = frames.read_to_end();
    if let Some(goodbye) = end.iter().find(|frame| frame.kind == Kind::GoAway) {
        assert_eq!(goodbye.error_code(), ENHANCE_YOUR_CALM);
    }
    assert!(end.iter().all(|frame| frame.stream != 4001), "the last request was answered");
    still_serves(&server);
}

#[test]
fn a_head_is_bounded_however_it_comes() {
    let server = plain("");
    // A header list that is too long gets an answer. This one has about
    // 26 KB: more than the 16 KiB of a head, and more than one frame holds.
    let long = "x".repeat(120);
    let list = (0..200).fold(HeaderList::request("GET", "/v1/models"), |list, i| {
        list.with(&format!("x-{i}"), &long)
    });
    let mut frames = connect(&server);
    let (first, rest) = list.bytes().split_at(16_000);
    frames.send(Kind::Headers, END_STREAM, 1, first).unwrap();
    frames.send(Kind::Continuation, END_HEADERS, 1, rest).unwrap();
    assert_eq!(frames.next_of(Kind::Headers, 1).status(), 431);

    // A header list without an end closes the connection, whatever its frames contain.
    still_serves(&server);
    let before = peak(&server);
    // Empty frames add nothing to the head, so a limit of its bytes alone would not stop them.
    for payload in [list.bytes()[..16_000].to_vec(), Vec::new()] {
        let mut frames = connect(&server);
        frames.send(Kind::Headers, END_STREAM, 1, HeaderList::request("GET", "/").bytes()).unwrap();
        let frame = Frames::encode(Kind::Continuation, 0, 1, &payload);
        let enough = (64 << 20) / frame.len();
        let is_refused = (0..enough).any(|_| frames.send_bytes(&frame).is_err());
        assert!(is_refused, "{enough} frames of {} bytes were taken", payload.len());
    }
    // The limit is far below the 64 MiB that were offered.
    assert!(peak(&server) - before < 16 << 20, "{}", peak(&server) - before);
    still_serves(&server);
}

#[test]
fn pings_and_settings_that_are_not_read_take_no_memory() {
    let server = plain("");
    still_serves(&server);
    let before = peak(&server);
    for (kind, payload) in [(Kind::Ping, &b"12345678"[..]), (Kind::Settings, b"")] {
        let mut frames = connect(&server);
        let many = Frames::encode(kind, 0, 0, payload).repeat(4096);
        // The server stops reading if its answers are not read. Only the kernel's buffers take more bytes.
        let stream = frames.stream();
        stream.set_write_timeout(Some(Duration::from_millis(500))).unwrap();
        let _ = (0..1000).try_for_each(|_| frames.send_bytes(&many));
        still_serves(&server);
    }
    assert!(peak(&server) - before < 32 << 20, "{}", peak(&server) - before);
}

#[test]
fn a_connection_without_a_request_ends() {
    let server = plain("");
    let mut idle = connect(&server);
    // A connection that sends nothing, and one whose request head never ends.
    let mut undecided = server.connect().unwrap();
    // The preface of HTTP/2 begins so, and so could a head of HTTP/1.
    undecided.write_all(b"PRI * HTTP").unwrap();
    let mut endless = connect(&server);
    endless.send(Kind::Headers, END_STREAM, 1, unfinished().bytes()).unwrap();
    let goodbye = idle.read_to_end();
    assert!(goodbye.iter().any(|frame| frame.kind == Kind::GoAway), "{goodbye:?}");
    let mut answer = Vec::new();
    // A reset closes the connection, too.
    if let Err(error) = undecided.read_to_end(&mut answer) {
        assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{error}");
    }
    assert!(answer.is_empty());
    endless.read_to_end_in_silence();
    still_serves(&server);
}
