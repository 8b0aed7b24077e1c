//! `candlepower chat` with servers of other programs, and with servers that take no requests.

use axum::http::StatusCode;
use axum::routing::{get, post};
use axum::{Json, Router};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::runtime::Runtime;

use super::piped::asked;
use super::{Said, User};
use crate::support::Terminal;

/// A whole answer.
const HELLO: &str =
    "data: {\"choices\": [{\"delta\": {\"content\": \"Hello\"}}]}\n\ndata: [DONE]\n\n";

/// A server that runs until it is dropped.
struct Other {
    url: String,
    /// It runs the server.
    _runtime: Runtime,
}

impl Other {
    /// A server with this health and these models. Its answers are `events`.
    fn start(health: (StatusCode, Value), models: Value, events: &'static str) -> Self {
        let runtime = Runtime::new().unwrap();
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let headers = [("content-type", "text/event-stream"), ("x-candlepower-not-held", "seed")];
        let app = Router::new()
            .route("/health", get(move || async move { (health.0, Json(health.1)) }))
            .route("/v1/models", get(move || async move { Json(models) }))
            .route("/v1/chat/completions", post(move || async move { (headers, events) }));
        runtime.spawn(async move { axum::serve(listener, app).await });
        Self { url, _runtime: runtime }
    }

    /// A server of one model that is healthy.
    fn healthy(events: &'static str) -> Self {
        Self::start((StatusCode::OK, Value::Null), json!({"data": [{"id": "other"}]}), events)
    }

    /// Sends a message through a pipe.
    fn asked(&self, message: &str) -> Said {
        asked(User::new().command(&["chat", "--url", &self.url]), message)
    }
}

#[track_caller]
fn assert_refused(said: &Said, out: &str, reason: &str) {
    assert_eq!((said.code, said.out.as_str()), (Some(1), out), "{said:?}");
    assert!(
        said.err.starts_with("error: ") && said.err.ends_with(&format!("{reason}\n")),
        "{said:?}"
    );
    assert_eq!(said.err.lines().count(), 1, "{said:?}");
}

#[test]
fn a_server_that_takes_no_requests_is_told_with_the_reason() {
    for (health, reason) in [
        (json!({"status": "draining"}), " is stopping, and takes no new requests"),
        (json!({"status": "failed", "message": "no memory"}), " has failed: no memory"),
        (json!({"status": "unhealthy"}), " has failed: no reason is known"),
    ] {
        let models = json!({"data": [{"id": "other"}]});
        let server = Other::start((StatusCode::SERVICE_UNAVAILABLE, health), models, HELLO);
        assert_refused(&server.asked("a"), "", reason);
    }
    let empty = Other::start((StatusCode::OK, Value::Null), json!({"data": []}), HELLO);
    assert_refused(&empty.asked("a"), "", " has no model");
    // The health of another program may mean anything.
    let models = json!({"data": [{"id": "other"}]});
    let other = Other::start((StatusCode::SERVICE_UNAVAILABLE, json!({"up": 1})), models, HELLO);
    let said = other.asked("a");
    assert_eq!((said.code, said.out.as_str()), (Some(0), "Hello\n"), "{said:?}");
}

#[test]
fn an_answer_that_ends_early_is_a_failure() {
    let (whole, _) = HELLO.split_once("data: [DONE]").unwrap();
    let said = Other::healthy(whole).asked("a");
    assert_refused(&said, "Hello\n", ": the answer ended before it was complete");
}

#[test]
fn a_message_that_is_too_long_is_not_sent() {
    let long = "a".repeat((16 << 20) + 1);
    assert_refused(&Other::healthy(HELLO).asked(&long), "", "standard input has more than 16 MiB");
}

#[test]
fn a_conversation_shows_what_the_server_leaves_out() {
    let (user, server) = (User::new(), Other::healthy(HELLO));
    let mut terminal = Terminal::start(user.command(&["chat", "--url", &server.url]));
    // This server says no length of contexts.
    terminal.expect(&format!("other at {}. /help lists commands", server.url));
    terminal.enter("Hi");
    terminal.expect("The server leaves out: seed");
    terminal.expect("Hello");
    terminal.enter("/exit");
    terminal.ends_with(0);
}
