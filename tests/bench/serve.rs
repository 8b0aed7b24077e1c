//! Load on a server over HTTP: candlepower's own, and one that behaves like other servers.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::body::Bytes;
use axum::extract::State;
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use axum::{Json, Router};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::runtime::Runtime;

use super::{assert_summary, bench, json, refused, text};
use crate::support::{Server, ServerBuilder, program};

const LATENCIES: [&str; 4] =
    ["time_to_first_token_s", "inter_chunk_s", "time_per_output_token_s", "request_s"];

#[test]
fn tokens_and_requests_are_counted_right() {
    let server = Server::demo();
    let before = server.metrics();
    let url = server.url();
    let args = ["serve", "--url", &url, "--concurrency", "1,3", "--requests", "2,5"];
    let shape = ["--input-tokens", "32", "--output-tokens", "24", "--warmup", "1", "--seed", "7"];
    let report = json(&[&args[..], &shape[..]].concat(), 0);
    assert_eq!((&report["kind"], &report["server"]["model"]), (&"serve".into(), &"demo".into()));
    let settings = &report["settings"];
    assert_eq!((&settings["prompts"], &settings["seed"]), (&"token_ids".into(), &7.into()));
    let levels = report["levels"].as_array().unwrap();
    for (level, (concurrency, requests)) in levels.iter().zip([(1, 2), (3, 5)]) {
        assert_eq!(
            (&level["concurrency"], &level["rate_per_s"]),
            (&concurrency.into(), &Value::Null)
        );
        assert_eq!((&level["requests"], &level["succeeded"]), (&requests.into(), &requests.into()));
        assert_eq!((&level["failed"], &level["errors"]), (&0.into(), &json!([])));
        assert_eq!(level["input_tokens"], requests * 32);
        assert_eq!(level["output_tokens"], requests * 24);
        assert_eq!(level["short_answers"], 0);
        // Random prompts may begin with the same token.
        assert!(level["cached_tokens"].as_u64().unwrap() <= requests, "{level}");
        assert!(level["output_tokens_per_s"].as_f64().unwrap() > 0.0);
        LATENCIES.iter().for_each(|name| assert_summary(&level[name]));
    }
    assert_eq!(levels.len(), 2);
    // One token for the request that tests whether ids are accepted, and the warm-up.
    let after = server.metrics();
    let generated = |metrics: &crate::support::Metrics| metrics.value("generation_tokens_total");
    assert_eq!(generated(&after) - generated(&before), f64::from(1 + 24 + 7 * 24));
}

#[test]
fn chat_rates_and_shared_prefixes_are_measured() {
    let server = Server::demo();
    let url = server.url();
    let args = ["serve", "--url", &url, "--rate", "200", "--requests", "4", "--workload", "chat"];
    let shape = ["--input-tokens", "40", "--output-tokens", "5", "--shared-prefix-tokens", "200"];
    let report = json(&[&args[..], &shape[..]].concat(), 0);
    assert_eq!(report["settings"]["prompts"], "text");
    let level = &report["levels"][0];
    assert_eq!((&level["rate_per_s"], &level["concurrency"]), (&200.0.into(), &Value::Null));
    assert_eq!((&level["succeeded"], &level["output_tokens"]), (&4.into(), &20.into()));
    // Text has about as many tokens as asked for. Most of the prefix comes from the cache.
    let count = |key: &str| level[key].as_u64().unwrap() / 4;
    assert!((180..300).contains(&count("input_tokens")), "{level}");
    assert!((120..240).contains(&count("cached_tokens")), "{level}");
    let output = bench(&[&args[..], &shape[..]].concat());
    for part in ["200/s", "4 of 4", "time to first token", "per output token", "p99"] {
        assert!(text(&output.stdout).contains(part), "{}", text(&output.stdout));
    }
}

#[test]
fn a_server_that_cannot_be_used_is_told_in_a_line() {
    // A port that was free a moment ago, and on which nothing listens.
    let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let wrong = refused(&["serve", "--url", &format!("http://{closed}")], 1);
    assert!(wrong.contains("cannot be reached"), "{wrong}");
    let server = ServerBuilder::new("demo").flags("--api-key secret").start();
    let url = server.url();
    let keyless = refused(&["serve", "--url", &url], 1);
    assert!(keyless.contains("401"), "{keyless}");
    let unknown = ["serve", "--url", &url, "--model", "no-such", "--api-key", "secret"];
    let unknown = refused(&unknown, 1);
    assert!(unknown.contains("404") && unknown.contains("no-such"), "{unknown}");
    assert_eq!(unknown.trim().lines().count(), 1, "{unknown}");
    let few = ["--requests", "1", "--concurrency", "1", "--input-tokens", "4"];
    let mut command = program();
    command.args(["bench", "serve", "--url", &url]).args(few).args(["--output-tokens", "2"]);
    assert!(command.env("OPENAI_API_KEY", "secret").output().unwrap().status.success());
    let unwritable = ["serve", "--url", &url, "--json", "/no/such/folder/out.json"];
    assert!(refused(&unwritable, 1).contains("cannot write"));
}

#[test]
fn flags_that_cannot_be_are_refused() {
    for flags in [
        &["--concurrency", "0"][..],
        &["--concurrency", "1,2", "--requests", "1,2,3"],
        &["--concurrency", "1", "--rate", "1"],
        &["--rate", "-1"],
        // The pause between two requests would overflow a duration.
        &["--rate", "1e-300"],
        &["--input-tokens", "18446744073709551615"],
        &["--shared-prefix-tokens", "18446744073709551615"],
        &["--requests", "18446744073709551615"],
        &["--workload", "chat", "--prompts", "ids"],
        &["--image-size", "32x32"],
        &["--workload", "chat", "--image-size", "32x"],
    ] {
        refused(&[&["serve"], flags].concat(), 2);
    }
    let no_url = refused(&["serve", "--url", "127.0.0.1:8000"], 1);
    assert!(no_url.contains("URL"), "{no_url}");
}

/// A server that accepts only text, counts two tokens a word, sends three tokens a chunk, and refuses every third
/// stream.
async fn other_server(State(count): State<Arc<AtomicUsize>>, body: Bytes) -> Response {
    let body: Value = serde_json::from_slice(&body).unwrap();
    let Some(prompt) = body["prompt"].as_str() else {
        return (StatusCode::UNPROCESSABLE_ENTITY, "text only").into_response();
    };
    // The count differs from that of the words, so the client must find the factor.
    let prompt_tokens = 3 + 2 * prompt.split_whitespace().count();
    let asked = body["max_tokens"].as_u64().unwrap();
    let usage = json!({"prompt_tokens": prompt_tokens, "completion_tokens": asked});
    if body["stream"] != true {
        return Json(json!({"choices": [{"text": "a"}], "usage": usage})).into_response();
    }
    if count.fetch_add(1, Ordering::Relaxed) % 3 == 2 {
        let error = json!({"error": {"message": "too busy"}});
        return (StatusCode::TOO_MANY_REQUESTS, Json(error)).into_response();
    }
    let text = json!({"choices": [{"text": "a b c"}]});
    // Three tokens come in each chunk, so chunks must not be counted as tokens.
    let chunks = format!("data: {text}\n\n").repeat((asked / 3) as usize);
    let end = json!({"choices": [], "usage": usage});
    let events = format!("{chunks}data: {end}\n\ndata: [DONE]\n\n");
    ([(CONTENT_TYPE, "text/event-stream")], events).into_response()
}

fn start_other_server(runtime: &Runtime) -> SocketAddr {
    let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
    let address = listener.local_addr().unwrap();
    let app = Router::new().route("/v1/completions", post(other_server));
    let app = app.with_state(Arc::default());
    runtime.spawn(async move { axum::serve(listener, app).await });
    address
}

#[test]
fn other_servers_are_measured_and_failed_requests_told() {
    let runtime = Runtime::new().unwrap();
    let url = format!("http://{}/v1", start_other_server(&runtime));
    let args = ["serve", "--url", &url, "--model", "m", "--concurrency", "1", "--requests", "9"];
    let shape = ["--input-tokens", "63", "--output-tokens", "12", "--warmup", "1"];
    let report = json(&[&args[..], &shape[..]].concat(), 1);
    assert_eq!(report["settings"]["prompts"], "text");
    let level = &report["levels"][0];
    assert_eq!((&level["succeeded"], &level["failed"]), (&6.into(), &3.into()));
    let error = &level["errors"][0];
    assert_eq!((&error["count"], level["errors"].as_array().unwrap().len()), (&3.into(), 1));
    let message = error["message"].as_str().unwrap();
    assert!(message.contains("429") && message.contains("too busy"), "{message}");
    // Thirty words are 63 tokens. Each chunk of the output has three tokens.
    assert_eq!(
        (&level["input_tokens"], &level["output_tokens"]),
        (&(6 * 63).into(), &(6 * 12).into())
    );
    // The server refuses token ids with 422, so this form of prompts cannot be used.
    let output = bench(&[&args[..], &["--warmup", "1", "--prompts", "ids"]].concat());
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("does not take token ids"), "{}", text(&output.stderr));
}

#[test]
fn a_server_that_miscounts_tokens_is_refused() {
    let runtime = Runtime::new().unwrap();
    let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let count = || async { Json(json!({"choices": [], "usage": {"prompt_tokens": 5}})) };
    let app = Router::new().route("/v1/completions", post(count));
    runtime.spawn(async move { axum::serve(listener, app).await });
    let args = ["serve", "--url", &url, "--model", "m", "--prompts"];
    let ids = refused(&[&args[..], &["ids"]].concat(), 1);
    let miscounted = "the server counts 5 tokens for a prompt of 12 token ids";
    assert_eq!(ids, format!("error: the server does not take token ids: {miscounted}\n"));
    let text = refused(&[&args[..], &["text"]].concat(), 1);
    assert!(text.starts_with("error: the server does not count prompt tokens: "), "{text}");
}
