//! `candlepower top`, in a terminal and in a pipe.

use std::net::TcpListener;

use rustix::termios::LocalModes;
use serde_json::json;

use super::screen::Screen;
use crate::support::{Request, Server, ServerBuilder, TempFolder, program, wait_for_or};

/// The alternate screen is left, and the cursor is back.
const CLOSED: &str = "\x1b[?25h\x1b[?1049l";

fn has_echo(terminal: &Screen) -> bool {
    terminal.settings().local_modes.contains(LocalModes::ECHO | LocalModes::ICANON)
}

/// Waits for a good end that leaves the terminal as it was.
#[track_caller]
fn assert_closes(terminal: &mut Screen) {
    assert!(terminal.wait_for_exit().success());
    // The output is read by another thread.
    wait_for_or(
        || terminal.raw().ends_with(CLOSED).then_some(()),
        || format!("the terminal to be given back: {:?}", terminal.raw()),
    );
    assert!(has_echo(terminal));
}

#[test]
fn the_load_is_shown_live_until_q_is_pressed() {
    let server = Server::demo();
    let mut terminal = Screen::start(&["top", "--url", &server.url()], 100, 40);
    terminal.wait_for("an idle server", |picture| picture.contains("0 running   0 waiting"));
    assert!(!has_echo(&terminal));
    // A long answer that is read slowly enough to be seen.
    let body = json!({
        "model": "demo", "prompt": "a", "max_tokens": 2000, "ignore_eos": true, "stream": true, "n": 4,
    });
    let mut streams: Vec<_> = (0..3).map(|_| server.open("/v1/completions", &body)).collect();
    let busy = terminal
        .wait_for("tokens", |picture| picture.contains("/s out") && !picture.contains(" 0/s out"));
    for part in ["KV cache", "prefix hits", "first token", "p50", "of memory", "q ends"] {
        assert!(busy.contains(part), "{part} is not in\n{busy}");
    }
    for stream in &mut streams {
        stream.next_event().unwrap();
    }
    drop(streams);
    terminal.wait_for("an idle server", |picture| picture.contains("0 running   0 waiting"));
    terminal.press("x");
    terminal.press("q");
    assert_closes(&mut terminal);
}

#[test]
fn the_picture_fits_whatever_the_terminals_size() {
    let server = Server::demo();
    let mut terminal = Screen::start(&["top", "--url", &server.url()], 120, 40);
    let fits = |columns: usize, rows: usize| {
        move |picture: &str| {
            let lines: Vec<&str> = picture.lines().collect();
            lines.len() <= rows && lines.iter().all(|line| line.chars().count() <= columns)
        }
    };
    terminal.wait_for("a picture", |picture| picture.contains("of memory"));
    for (columns, rows) in [(30, 10), (3, 2), (1, 1), (200, 60)] {
        terminal.resize(columns, rows);
        terminal.wait_for("a picture of the new size", fits(columns.into(), rows.into()));
    }
    terminal.wait_for("the whole picture", |picture| picture.contains("of memory"));
    terminal.resize(1, 1);
    terminal.wait_for("a picture of one character", fits(1, 1));
    // A terminal that does not know its size has the usual one.
    terminal.resize(0, 0);
    terminal.wait_for("the usual picture", |picture| {
        picture.contains("of memory") && fits(80, 24)(picture)
    });
    // Ctrl-C
    terminal.press("\u{3}");
    assert_closes(&mut terminal);
}

#[test]
fn a_dead_server_is_named_and_asked_again() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let url = format!("http://{address}");
    let mut terminal = Screen::start(&["top", "--url", &url], 100, 30);
    terminal.wait_for("the failure", |picture| {
        picture.contains("cannot be reached") && picture.contains("trying again")
    });
    let server = ServerBuilder::new("demo").port(address.port()).start();
    terminal.wait_for("the server", |picture| picture.contains("0 running   0 waiting"));
    drop(server);
    terminal.wait_for("the failure", |picture| picture.contains("cannot be reached"));
    terminal.signal("TERM");
    assert_closes(&mut terminal);
}

#[test]
fn a_pipe_gets_one_plain_text() {
    let folder = TempFolder::new();
    let keys = folder.write(
        "keys.toml",
        "[[key]]\nname = \"ann\"\nkey = \"a\"\n[[key]]\nname = \"bob\"\nkey = \"b\"\n",
    );
    for flags in ["", "--metrics-compat vllm"] {
        let server = ServerBuilder::new("demo").flags(flags).flag("--api-keys-file", &keys).start();
        let body = json!({"model": "demo", "prompt": "a", "max_tokens": 3, "ignore_eos": true});
        let request = Request::post("/v1/completions", &body);
        assert_eq!(server.send(&request.header("Authorization", "Bearer a")).status, 200);
        let output = program().args(["top", "--url", &server.url()]).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        for part in
            ["0 running   0 waiting", "1 since the start", "ann", "] 0 % in use", " blocks of 16"]
        {
            assert!(text.contains(part), "{part} is not in\n{text}");
        }
        assert!(!text.contains('\u{1b}') && !text.contains("q ends"), "{text}");
    }
}

#[test]
fn what_cannot_be_scraped_is_an_error_of_one_line() {
    let server = Server::demo();
    let dead = "http://127.0.0.1:9";
    for (url, part) in [
        (dead.to_owned(), "cannot be reached"),
        (format!("{}/v1/nothing", server.url()), "HTTP 404"),
        ("nonsense".to_owned(), "is no URL"),
        ("ftp://a".to_owned(), "http://"),
    ] {
        let output = program().args(["top", "--once", "--url", &url]).output().unwrap();
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{error}");
        assert!(error.starts_with("error: ") && error.contains(part), "{url}: {error}");
        assert_eq!(error.lines().count(), 1, "{error}");
        assert!(output.stdout.is_empty());
    }
}
