//! One caller's time to first token while another floods the server, in steps of the loaded server.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::watch::Latencies;
use crate::support::{Request, Server, ServerBuilder, TempFolder, wait_for};

/// Connections of the flood, and choices of each request.
const FLOOD: usize = 40;
const CHOICES: usize = 16;
/// Number of short chats of the other caller, one after the other.
const CHATS: usize = 50;
/// Targets: steps until 95 % of the chats have their first token, and the time until all have.
const STEPS: f64 = 5.0;
const LONGEST: Duration = Duration::from_secs(2);
/// A server that takes longer is not fair. Shorter times are not asserted.
const HARD: Duration = Duration::from_secs(30);

const KEYS: &str =
    "[[key]]\nname = \"flood\"\nkey = \"flood\"\n[[key]]\nname = \"other\"\nkey = \"other\"";

fn post(path: &str, key: &str, body: &Value) -> Request {
    Request::post(path, body).header("Authorization", &format!("Bearer {key}"))
}

/// Measures and prints the times.
pub(super) fn run() {
    let folder = TempFolder::new();
    let keys = folder.write("keys.toml", KEYS);
    let server = ServerBuilder::new("demo").flag("--api-keys-file", keys).start();
    let (is_done, refused) = (AtomicBool::new(false), AtomicUsize::new(0));
    let (mut waits, mut gaps, mut num_refused) = (Latencies::default(), Latencies::default(), 0);
    std::thread::scope(|scope| {
        for _ in 0..FLOOD {
            scope.spawn(|| flood(&server, &is_done, &refused));
        }
        // A panic must not leave the other threads running for ever.
        let measured = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            wait_for("the flood to fill the server", || {
                (server.metrics().value("num_requests_waiting") > 0.0).then_some(())
            });
            for _ in 0..CHATS {
                num_refused += usize::from(!chat(&server, &mut waits, &mut gaps));
            }
        }));
        is_done.store(true, Ordering::Relaxed);
        measured.unwrap();
    });
    let ms = |time: Duration| time.as_secs_f64() * 1e3;
    // Each token of the chats is one step of the loaded server.
    let (step, p95) = (gaps.quantile(0.5), waits.quantile(0.95));
    let steps = ms(p95) / ms(step);
    let longest = waits.quantile(1.0);
    eprintln!(
        "{FLOOD} connections with n {CHOICES}, of which {refused:?} requests were refused; {CHATS} chats of another caller"
    );
    eprintln!(
        "  first token in ms: {:.0} at 50 %, {:.0} at 95 %, {:.0} at most; {num_refused} refused",
        ms(waits.quantile(0.5)),
        ms(p95),
        ms(longest)
    );
    eprintln!(
        "  step of the loaded server: {:.1} ms at 50 %; 95 % have their first token within {steps:.1} steps",
        ms(step)
    );
    if steps > STEPS {
        eprintln!("  missed: {STEPS} steps");
    }
    if longest > LONGEST {
        eprintln!("  missed: {LONGEST:?} at most");
    }
    assert_eq!(num_refused, 0);
    assert!(longest < HARD);
}

/// Requests many long answers repeatedly, and reads them.
fn flood(server: &Server, is_done: &AtomicBool, refused: &AtomicUsize) {
    let body = json!({
        "model": "demo", "prompt": "a", "max_tokens": 900, "n": CHOICES, "ignore_eos": true, "stream": true,
    });
    let request = post("/v1/completions", "flood", &body);
    while !is_done.load(Ordering::Relaxed) {
        let mut stream = request.open(server.address).unwrap();
        if stream.status != 200 {
            refused.fetch_add(1, Ordering::Relaxed);
            std::thread::sleep(Duration::from_millis(100));
        }
        while !is_done.load(Ordering::Relaxed) && matches!(stream.next_event(), Ok(Some(_))) {}
    }
}

/// A short chat: its time to first token, and the times between its tokens. Returns whether it was accepted.
fn chat(server: &Server, waits: &mut Latencies, gaps: &mut Latencies) -> bool {
    let body = json!({
        "model": "demo", "messages": [{"role": "user", "content": "Who are you?"}], "max_tokens": 8, "ignore_eos": true,
        "stream": true,
    });
    let began = Instant::now();
    let mut stream = post("/v1/chat/completions", "other", &body).open(server.address).unwrap();
    if stream.status != 200 {
        return false;
    }
    let mut last = None;
    while let Some(chunk) = stream.next_chunk() {
        // The first chunk has the role, and no text.
        if chunk["choices"][0]["delta"]["content"].as_str().is_none_or(str::is_empty) {
            continue;
        }
        match last {
            None => waits.push(began.elapsed()),
            Some(last) => gaps.push(Instant::elapsed(&last)),
        }
        last = Some(Instant::now());
    }
    true
}
