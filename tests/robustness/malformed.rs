//! The fuzz corpus: 1,300 wrong bodies. Each is answered with its expected status, and none with a 5xx.

use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::{Value, json};

use crate::support::{Request, Server};

const CORPUS: &str = include_str!("../fuzz/corpus.jsonl");

/// Number of connections that send bodies concurrently.
const SENDERS: usize = 8;

/// Most characters of the input in an error.
const MAX_ECHO: usize = 200;

struct Case {
    request: Request,
    status: u16,
    /// Line in the corpus, for failure messages.
    line: usize,
}

fn corpus() -> Vec<Case> {
    CORPUS
        .lines()
        .enumerate()
        .map(|(i, line)| case(i + 1, &serde_json::from_str(line).unwrap()))
        .collect()
}

fn case(line: usize, case: &Value) -> Case {
    let text = |name: &str| case[name].as_str().unwrap();
    let mut request = Request::new("POST", text("path")).body(body(&case["body"]));
    if !text("type").is_empty() {
        request = request.header("Content-Type", text("type"));
    }
    Case { request, status: u16::try_from(case["status"].as_u64().unwrap()).unwrap(), line }
}

/// Pieces of text whose characters are bytes. `[text, times]` is a repetition.
fn body(pieces: &Value) -> Vec<u8> {
    let bytes = |text: &str| text.chars().map(|c| u8::try_from(c).unwrap()).collect::<Vec<u8>>();
    let piece = |piece: &Value| match piece {
        Value::String(text) => bytes(text),
        piece => bytes(piece[0].as_str().unwrap())
            .repeat(usize::try_from(piece[1].as_u64().unwrap()).unwrap()),
    };
    pieces.as_array().unwrap().iter().flat_map(piece).collect()
}

/// The fault in the server's answer to this case, if any.
fn complaint(server: &Server, case: &Case) -> Option<String> {
    let response = match case.request.send(server.address) {
        Ok(response) => response,
        Err(error) => return Some(format!("line {}: no answer: {error}", case.line)),
    };
    if response.status != case.status {
        return Some(format!(
            "line {}: {} instead of {}: {}",
            case.line,
            response.status,
            case.status,
            response.text()
        ));
    }
    // `Response::error` panics where the answer has another form.
    let error = std::panic::catch_unwind(|| response.error(case.status));
    let Ok(error) = error else {
        return Some(format!("line {}: not the shape of errors", case.line));
    };
    // The server's own text is shorter than the rest of the limit.
    let len = error["message"].as_str().unwrap().chars().count()
        + error["param"].as_str().unwrap_or("").chars().count();
    (len > 2 * MAX_ECHO).then(|| format!("line {}: the error echoes its input: {error}", case.line))
}

#[test]
fn malformed_bodies_get_their_status_and_harm_nothing() {
    let server = Server::demo();
    let greedy = json!({"prompt": "The capital of France is", "max_tokens": 16, "temperature": 0});
    let expected = server.complete(greedy.clone())["choices"].clone();
    let cases = corpus();
    assert_eq!(cases.len(), 1300);

    let next = AtomicUsize::new(0);
    let mut complaints: Vec<String> = std::thread::scope(|scope| {
        let send = || {
            let cases = std::iter::from_fn(|| cases.get(next.fetch_add(1, Ordering::Relaxed)));
            cases.filter_map(|case| complaint(&server, case)).collect::<Vec<String>>()
        };
        let senders: Vec<_> = (0..SENDERS).map(|_| scope.spawn(send)).collect();
        senders.into_iter().flat_map(|sender| sender.join().unwrap()).collect()
    });
    complaints.sort();
    assert!(
        complaints.is_empty(),
        "{} of {}:\n{}",
        complaints.len(),
        cases.len(),
        complaints.join("\n")
    );

    assert_eq!(server.complete(greedy)["choices"], expected);
    server.wait_until_all_blocks_are_free();
}
