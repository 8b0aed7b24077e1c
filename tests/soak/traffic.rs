//! Mixed traffic of clients that use everything. After they have gone, the server must have no more resources than
//! before.

mod cases;

use std::collections::BTreeMap;
use std::io::{BufReader, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::time::Duration;

use fastrand::Rng;
use serde_json::{Value, json};

use super::watch::{Usage, Watch, ask, is_timeout, warm_up, watch};
use crate::support::{END_STREAM, Frames, HeaderList, Kind, Request, ServerBuilder, read_response};
use cases::{Case, Cases};

const NUM_CLIENTS: u64 = 6;
/// An answer that takes longer counts as missing.
const PATIENCE: Duration = Duration::from_secs(60);
/// Limit for the growth of the server's memory.
pub(super) const MAX_GROWTH: usize = 64 << 20;
/// Sessions of disconnected clients expire by themselves.
const SESSION_TTL: Duration = Duration::from_secs(5);
/// HTTP/2's error code for a client that is no longer interested.
const CANCEL: u32 = 8;

/// Requests by endpoint and outcome.
type Tally = BTreeMap<(String, String), usize>;

/// Runs a server for `length`, and asserts that nothing fails or leaks.
pub(super) fn run(framework: &'static str, length: Duration, seed: u64) {
    eprintln!("{framework}: {} s of mixed traffic, seed {seed}", length.as_secs());
    let mut server = ServerBuilder::new("demo")
        .flag("--framework", framework)
        .flag("--session-ttl", SESSION_TTL.as_secs().to_string())
        .flags("--http2")
        .start();
    let start = Usage::of(&server);
    warm_up(&server);
    let tally = Mutex::new(Tally::new());
    let seen = watch(&server, length, NUM_CLIENTS, |watch, index| {
        let mut client = Client::new(watch, framework, seed.wrapping_mul(1000) + index);
        for turn in 0.. {
            if watch.is_over() {
                break;
            }
            if let Err(panic) = catch_unwind(AssertUnwindSafe(|| client.turn())) {
                let said = panic.downcast_ref::<String>().cloned().unwrap_or_default();
                let last = &client.last;
                watch.fail(format!("seed {seed}, client {index}, turn {turn}: {said}\n{last}"));
            }
        }
        for (key, count) in client.tally {
            *tally.lock().unwrap().entry(key).or_default() += count;
        }
    });
    print(&tally.into_inner().unwrap());
    eprintln!(
        "  ms at 50 %, 99 %, 100 %: probes {}, gaps of a stream {}, chats with a function {}; {} of these refused",
        seen.probes, seen.gaps, seen.calls, seen.refused
    );
    if let Some(failure) = seen.failure {
        panic!("{failure}");
    }

    // Sessions expire after one period, and the second leaves time to notice.
    std::thread::sleep(2 * SESSION_TTL);
    server.wait_until_all_blocks_are_free();
    assert_eq!(server.metrics().value("kv_blocks_pinned"), 0.0);
    // Resources are compared with those under load, since the first requests allocate what stays.
    let (early, end) = (seen.early.unwrap(), Usage::of(&server));
    eprintln!(
        "  start: {start}\n  early: {early}\n  peak:  {} MiB\n  end:   {end}",
        seen.peak >> 20
    );
    assert!(end.memory < early.memory + MAX_GROWTH, "memory grew");
    assert!(end.threads <= early.threads, "threads are left");
    assert!(end.files <= early.files, "files or connections are left");

    let long = json!({"model": "demo", "prompt": "a", "max_tokens": 200, "ignore_eos": true, "stream": true});
    let mut stream = server.open("/v1/completions", &long);
    stream.next_chunk();
    // The last stream runs while the server stops.
    server.terminate();
    while stream.next_chunk().is_some() {}
    assert_eq!(server.wait_for_exit().code(), Some(0), "{}", server.log());
}

fn print(tally: &Tally) {
    let num: usize = tally.values().sum();
    eprintln!("  {num} requests");
    let mut of_path: BTreeMap<&str, String> = BTreeMap::new();
    for ((path, outcome), count) in tally {
        *of_path.entry(path).or_default() += &format!("  {outcome}: {count}");
    }
    for (path, outcomes) in of_path {
        eprintln!("  {path:<26}{outcomes}");
    }
}

/// A client, which does one thing after the other.
struct Client<'a> {
    watch: &'a Watch<'a>,
    cases: Cases,
    random: Rng,
    tally: Tally,
    /// The last request.
    last: String,
}

impl<'a> Client<'a> {
    fn new(watch: &'a Watch<'a>, framework: &'static str, seed: u64) -> Self {
        let cases = Cases::new(framework, seed);
        // The cases and the client's own choices must not follow the same numbers.
        let random = Rng::with_seed(!seed);
        Self { watch, cases, random, tally: Tally::new(), last: String::new() }
    }

    fn turn(&mut self) {
        match self.random.u8(0..16) {
            0..=6 => self.ask(),
            7..=9 => self.hang_up(),
            10..=11 => self.converse(),
            12 => self.over_http2(),
            _ => self.ask_badly(),
        }
    }

    fn next_case(&mut self) -> Case {
        let case = self.cases.next();
        self.last = format!("{} {} {}", case.method, case.path, case.body);
        case
    }

    fn count(&mut self, case: &Case, outcome: impl ToString) {
        let outcome = outcome.to_string();
        *self.tally.entry((case.endpoint().to_owned(), outcome)).or_default() += 1;
    }

    /// Counts and checks an answer, and keeps ids for later requests.
    fn check(&mut self, case: &Case, status: u16, text: &str) {
        self.count(case, status);
        // These are the refusals that valid requests of this kind can get.
        let is_fine = match status {
            200 => !case.streams() || case.is_whole(text),
            400 => ["context_length_exceeded", "Another request is using"]
                .iter()
                .any(|known| text.contains(known)),
            404 => case.follows(),
            429 | 503 => true,
            _ => false,
        };
        assert!(is_fine, "{status} {text}");
        if status == 200 && !case.streams() && text.starts_with('{') {
            let answer: Value = serde_json::from_str(text).unwrap();
            self.cases.learn(&answer);
        }
    }

    fn ask(&mut self) {
        let case = self.next_case();
        let answer = ask(self.watch.server, &case.request(), PATIENCE).unwrap();
        self.check(&case, answer.status, &answer.text());
    }

    /// Disconnects at a random time, or after some events.
    fn hang_up(&mut self) {
        let case = self.next_case();
        let socket = self.watch.server.connect().unwrap();
        let patience = Duration::from_millis(self.random.u64(1..300));
        socket.stream().set_read_timeout(Some(patience)).unwrap();
        match case.request().open_over(socket) {
            Ok(mut stream) => {
                assert!(stream.status < 500 || stream.status == 503, "{}", stream.status);
                for _ in 0..self.random.u8(0..20) {
                    if !matches!(stream.next_event(), Ok(Some(_))) {
                        break;
                    }
                }
            }
            // Nothing arrives in time where the server is busy, and the client leaves.
            Err(error) => assert!(is_timeout(&error), "{error}"),
        }
        self.count(&case, "left");
    }

    /// Several requests over one connection, in sequence or pipelined.
    fn converse(&mut self) {
        let num = self.random.usize(2..8);
        // The reader of this connection knows answers with a length alone.
        let whole = |mut case: Case| {
            case.stays_whole();
            case
        };
        let cases: Vec<Case> = (0..num).map(|_| whole(self.next_case())).collect();
        let socket = std::net::TcpStream::connect(self.watch.server.address).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut reader = BufReader::new(socket);
        let message = |case: &Case| case.request().message(self.watch.server.address, "keep-alive");
        let messages: Vec<Vec<u8>> = cases.iter().map(message).collect();
        let is_pipelined = self.random.bool();
        if is_pipelined {
            reader.get_mut().write_all(&messages.concat()).unwrap();
        }
        // One client in four leaves before it has read everything.
        let num_read = if self.random.u8(0..4) == 0 { self.random.usize(0..num) } else { num };
        for (case, message) in cases.iter().zip(messages).take(num_read) {
            if !is_pipelined {
                reader.get_mut().write_all(&message).unwrap();
            }
            let answer = read_response(&mut reader).unwrap();
            self.check(case, answer.status, &answer.text());
        }
        for case in cases.iter().skip(num_read).filter(|_| is_pipelined) {
            self.count(case, "left");
        }
    }

    /// Several concurrent streams, of which some are reset.
    fn over_http2(&mut self) {
        let socket = self.watch.server.connect().unwrap();
        socket.stream().set_read_timeout(Some(PATIENCE)).unwrap();
        let mut frames = Frames::new(socket).unwrap();
        // No window is widened later, so these must hold the largest answers.
        let wide = (1_u32 << 24).to_be_bytes();
        frames.send(Kind::WindowUpdate, 0, 0, &wide).unwrap();
        let mut open = BTreeMap::new();
        for stream in (1..2 * self.random.u32(1..6)).step_by(2) {
            let case = self.next_case();
            let body = if case.method == "POST" { case.body.to_string() } else { String::new() };
            let head = HeaderList::request(case.method, &case.path);
            let head = head.with("content-type", "application/json");
            frames.request(stream, &head, body.as_bytes()).unwrap();
            frames.send(Kind::WindowUpdate, 0, stream, &wide).unwrap();
            let reset_at = (self.random.u8(0..3) == 0).then(|| self.random.usize(0..2000));
            open.insert(stream, (case, 0, Vec::new(), reset_at));
        }
        while !open.is_empty() {
            let frame = frames.next().expect("the connection stays open");
            assert!(![Kind::GoAway, Kind::Reset].contains(&frame.kind), "{frame:?}");
            let Some((_, status, body, reset_at)) = open.get_mut(&frame.stream) else { continue };
            match frame.kind {
                Kind::Headers => *status = status_of(&frame.payload),
                Kind::Data => body.extend(&frame.payload),
                _ => continue,
            }
            let is_reset = reset_at.is_some_and(|reset_at| body.len() >= reset_at);
            if !is_reset && frame.flags & END_STREAM == 0 {
                continue;
            }
            let (case, status, body, _) = open.remove(&frame.stream).unwrap();
            let text = String::from_utf8_lossy(&body);
            if frame.flags & END_STREAM == 0 {
                frames.send(Kind::Reset, 0, frame.stream, &CANCEL.to_be_bytes()).unwrap();
                self.count(&case, "left");
            } else if status == 0 {
                assert!(
                    text.contains("rate_limit_error") || text.contains("server_error"),
                    "{text}"
                );
                self.count(&case, "429 or 503");
            } else {
                self.check(&case, status, &text);
            }
        }
    }

    /// A body in which some bytes are changed, missing or doubled.
    fn ask_badly(&mut self) {
        let case = self.next_case();
        let mut body = case.body.to_string().into_bytes();
        for _ in 0..self.random.u8(1..4) {
            let from = self.random.usize(0..body.len());
            let to = self.random.usize(from..body.len().min(from + 20) + 1);
            match self.random.u8(0..4) {
                0 => body[from] = self.random.u8(..),
                1 => drop(body.drain(from..to)),
                2 => body.extend_from_within(from..to),
                // 1e999 is JSON, but no finite number.
                _ => drop(body.splice(from..to, *b"1e999")),
            }
            if body.is_empty() {
                body.push(b'{');
            }
        }
        self.last = format!("{} {:?}", case.path, String::from_utf8_lossy(&body));
        let request = Request::new("POST", &case.path).header("Content-Type", "application/json");
        let answer = ask(self.watch.server, &request.body(body), PATIENCE).unwrap();
        let (status, text) = (answer.status, answer.text());
        assert!(status < 500 || status == 503, "{status} {text}");
        self.count(&case, format!("bad {status}"));
    }
}

/// The status at the start of a header list, if it is one with a fixed index. Source: RFC 7541, appendix A.
fn status_of(headers: &[u8]) -> u16 {
    match headers[0] {
        0x88 => 200,
        0x8c => 400,
        0x8d => 404,
        0x8e => 500,
        _ => 0,
    }
}
