//! The whole application with the demo model: status, form and content of every kind of answer.

use std::sync::Arc;

use axum::body::{Body, to_bytes};
use axum::http::{Method, StatusCode};
use candlepower_engine::Device;
use clap::{Args, Command, FromArgMatches};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tower::ServiceExt;

mod edges;
mod images;

use super::*;
use crate::config::ServeConfig;
use crate::endpoints::health::VERSION;
use crate::http::connection::Stop;
use crate::http::listen::Door;
use crate::lifecycle::load::load;
use crate::lifecycle::pull::LocalModel;
use crate::model::keys::ApiKeys;
use crate::model::metrics::Metrics;
use crate::model::served_model::{LoadedModel, Served};

fn starting(argv: &[&str]) -> AppState {
    let command = ServeConfig::augment_args(Command::new("serve").no_binary_name(true));
    // Little memory and few threads, because many of these tests run side by side.
    let argv = ["demo", "--kv-cache-memory=64Mi", "--threads=2"].iter().chain(argv);
    let matches = command.try_get_matches_from(argv).unwrap();
    let config = ServeConfig::from_arg_matches(&matches).unwrap();
    let keys = ApiKeys::load(&config).unwrap();
    AppState::new(config, Metrics::new(None, "demo"), keys)
}

fn ready(argv: &[&str]) -> AppState {
    let state = starting(argv);
    let local = LocalModel::here(state.config());
    state.set_ready(load(local, Device::Cpu, &state).unwrap());
    state
}

/// The model, which generates text.
fn demo(state: &AppState) -> Arc<LoadedModel> {
    match state.ready_model().unwrap() {
        Served::Generating(model) => model,
        Served::Pooling(_) => panic!("the demo generates text"),
    }
}

async fn call(state: &AppState, mut request: Request) -> Response {
    request.headers_mut().entry("host").or_insert(HeaderValue::from_static("localhost"));
    router(state.clone()).oneshot(request).await.unwrap()
}

fn get(path: &str) -> Request {
    Request::get(path).body(Body::empty()).unwrap()
}

fn post(path: &str, body: impl ToString) -> Request {
    Request::post(path)
        .header("content-type", "application/json")
        .body(body.to_string().into())
        .unwrap()
}

async fn text(response: Response) -> String {
    String::from_utf8(to_bytes(response.into_body(), usize::MAX).await.unwrap().to_vec()).unwrap()
}

async fn answer(state: &AppState, path: &str, body: Value) -> Value {
    let response = call(state, post(path, &body)).await;
    let status = response.status();
    let text = text(response).await;
    assert_eq!(status, 200, "{body}: {text}");
    serde_json::from_str(&text).unwrap()
}

/// The chunks of a stream, which must end correctly.
async fn chunks(state: &AppState, path: &str, body: Value) -> Vec<Value> {
    let response = call(state, post(path, body)).await;
    assert_eq!(response.headers()["content-type"], "text/event-stream; charset=utf-8");
    let text = text(response).await;
    let mut events: Vec<_> =
        text.split_terminator("\n\n").map(|event| event.strip_prefix("data: ").unwrap()).collect();
    assert_eq!(events.pop(), Some("[DONE]"));
    events.into_iter().map(|event| serde_json::from_str(event).unwrap()).collect()
}

/// Asserts the common form of errors, and returns `(status, param)`.
async fn error(response: Response) -> (u16, Option<String>) {
    let status = response.status().as_u16();
    assert_eq!(response.headers()["content-type"], "application/json");
    let text = text(response).await;
    let body: Value = serde_json::from_str(&text).unwrap();
    let error = body["error"].as_object().unwrap();
    // Anthropic's clients read `type` at the top level.
    let num_keys = if body["type"] == "error" { 2 } else { 1 };
    assert_eq!(body.as_object().unwrap().len(), num_keys);
    let mut keys: Vec<_> = error.keys().map(String::as_str).collect();
    keys.sort_unstable();
    assert_eq!(keys, ["code", "message", "param", "type"]);
    assert!(error["message"].as_str().is_some_and(|message| !message.is_empty()));
    (status, error["param"].as_str().map(str::to_owned))
}

fn chat(content: &str) -> Value {
    json!({"model": "demo", "messages": [{"role": "user", "content": content}], "temperature": 0, "max_tokens": 24})
}

fn with(mut body: Value, more: Value) -> Value {
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

#[tokio::test]
async fn only_open_paths_answer_while_loading() {
    let state = starting(&[]);
    for path in ["/v1/models", "/v1/models/demo", "/", "/docs", "/openapi.json", "/nope"] {
        assert_eq!(error(call(&state, get(path)).await).await, (503, None), "{path}");
    }
    assert_eq!(error(call(&state, post("/v1/chat/completions", chat("x"))).await).await.0, 503);
    assert_eq!(call(&state, get("/version")).await.status(), 200);
    assert_eq!(call(&state, get("/metrics")).await.status(), 200);
    let health = call(&state, get("/health")).await;
    assert_eq!(health.status(), 503);
    assert_eq!(text(health).await, r#"{"status":"starting","phase":"pending"}"#);
    state.set_failed("the file is damaged".into());
    let health = text(call(&state, get("/health")).await).await;
    assert_eq!(health, r#"{"status":"failed","phase":"failed","message":"the file is damaged"}"#);
}

/// Claude Code and some probes send `HEAD /` first.
#[tokio::test]
async fn the_root_names_the_server_and_its_pages() {
    let state = ready(&[]);
    let whole = call(&state, get("/")).await;
    let head = call(&state, Request::head("/").body(Body::empty()).unwrap()).await;
    assert_eq!((whole.status(), head.status()), (StatusCode::OK, StatusCode::OK));
    for name in ["content-type", "content-length"] {
        assert_eq!(whole.headers()[name], head.headers()[name]);
    }
    assert_eq!(text(head).await, "");
    let body: Value = serde_json::from_str(&text(whole).await).unwrap();
    assert_eq!((&body["name"], &body["version"]), (&json!("candlepower"), &json!(VERSION)));
    for page in ["docs", "health"] {
        let path = body[page].as_str().unwrap();
        assert_eq!(call(&state, get(path)).await.status(), 200, "{path}");
    }
    let wrong = call(&state, post("/", "{}")).await;
    assert_eq!(wrong.headers()["allow"], "GET,HEAD");
    assert_eq!(error(wrong).await.0, 405);
}

/// Browsers ask for HTML first; programs take anything.
#[tokio::test]
async fn browsers_get_the_playground() {
    let asks =
        |accept: &str| Request::get("/").header("accept", accept).body(Body::empty()).unwrap();
    const BROWSER: &str = "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8";
    let (on, off) = (ready(&[]), ready(&["--no-playground"]));
    for (state, accept, kind) in [
        (&on, BROWSER, "text/html; charset=utf-8"),
        (&on, "Text/HTML;q=0.5", "text/html; charset=utf-8"),
        (&on, "*/*", "application/json"),
        (&on, "application/json", "application/json"),
        (&off, BROWSER, "application/json"),
    ] {
        let response = call(state, asks(accept)).await;
        assert_eq!(response.status(), 200, "{accept}");
        let headers = response.headers();
        assert_eq!(
            (&headers["content-type"], &headers["vary"]),
            (&kind.parse().unwrap(), &"accept".parse().unwrap())
        );
        let policy = headers.get("content-security-policy").map(|policy| policy.to_str().unwrap());
        let is_page = kind.starts_with("text/html");
        assert_eq!(policy.is_some_and(|policy| policy.contains("frame-ancestors 'none'")), is_page);
        assert_eq!(headers.get("x-content-type-options").is_some(), is_page);
        assert_eq!(text(response).await.contains("<script"), is_page, "{accept}");
    }
}

#[tokio::test]
async fn a_conversation_is_answered_whole_and_streamed_alike() {
    let state = ready(&[]);
    let path = "/v1/chat/completions";
    // Longer than a block, so that its prefix is cached the second time.
    let question =
        "Please tell me in one short and friendly sentence: what is the capital of France?";
    let whole = answer(&state, path, chat(question)).await;
    let choice = &whole["choices"][0];
    let content = choice["message"]["content"].as_str().unwrap();
    assert!(!content.is_empty() && choice["message"]["role"] == "assistant");
    assert!(whole["id"].as_str().unwrap().starts_with("chatcmpl-"));
    let usage = &whole["usage"];
    assert_eq!(
        usage["prompt_tokens"].as_u64().unwrap() + usage["completion_tokens"].as_u64().unwrap(),
        usage["total_tokens"]
    );
    let stream = json!({"stream": true, "stream_options": {"include_usage": true}});
    let chunks = chunks(&state, path, with(chat(question), stream)).await;
    assert_eq!(chunks[0]["choices"][0]["delta"], json!({"role": "assistant", "content": ""}));
    let (last, middle) = chunks[1..].split_last().unwrap();
    let streamed: String = middle
        .iter()
        .filter_map(|chunk| chunk["choices"][0]["delta"]["content"].as_str())
        .collect();
    assert_eq!(streamed, content);
    let (end, before) = middle.split_last().unwrap();
    assert_eq!(end["choices"][0]["finish_reason"], choice["finish_reason"]);
    assert!(before.iter().all(|chunk| chunk["choices"][0]["finish_reason"].is_null()));
    assert_eq!(last["choices"], json!([]));
    assert_eq!(last["usage"]["completion_tokens"], usage["completion_tokens"]);
    assert!(
        last["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap() > 0,
        "the prefix cache is used"
    );
    assert!(chunks.iter().all(|chunk| chunk["id"] == chunks[0]["id"]));
}

#[tokio::test]
async fn choices_have_their_indices_and_seeds() {
    let state = ready(&[]);
    let body = json!({"model": "demo", "prompt": ["One", "Two"], "n": 2, "seed": 7, "max_tokens": 6, "ignore_eos": true});
    let whole = answer(&state, "/v1/completions", body.clone()).await;
    let choices = whole["choices"].as_array().unwrap();
    let indices: Vec<_> = choices.iter().map(|choice| choice["index"].as_u64().unwrap()).collect();
    assert_eq!(indices, [0, 1, 2, 3]);
    assert_ne!(choices[0]["text"], choices[1]["text"]);
    // Two prompts with two choices each, of six tokens.
    assert_eq!(whole["usage"]["completion_tokens"], 24);
    let second = answer(
        &state,
        "/v1/completions",
        // The second choice of the first prompt had seed 7 + 1.
        with(body.clone(), json!({"n": 1, "seed": 8, "prompt": "One"})),
    )
    .await;
    assert_eq!(
        second["choices"][0]["text"], choices[1]["text"],
        "choice i is seeded with seed + i"
    );
    let mut texts = vec![String::new(); 4];
    for chunk in chunks(&state, "/v1/completions", with(body, json!({"stream": true}))).await {
        let choice = &chunk["choices"][0];
        texts[choice["index"].as_u64().unwrap() as usize]
            .push_str(choice["text"].as_str().unwrap());
    }
    for (choice, text) in choices.iter().zip(&texts) {
        assert_eq!(choice["text"], *text);
    }
}

#[tokio::test]
async fn stops_end_the_text_and_say_so() {
    let state = ready(&[]);
    let body =
        json!({"model": "demo", "prompt": "The capital of", "temperature": 0, "max_tokens": 20});
    let whole = answer(&state, "/v1/completions", body.clone()).await;
    let text = whole["choices"][0]["text"].as_str().unwrap();
    // The demo's text is stable at temperature 0, so a part of it serves as the stop string.
    let stop: String = text.chars().skip(3).take(3).collect();
    let stopped =
        answer(&state, "/v1/completions", with(body.clone(), json!({"stop": [stop]}))).await;
    let choice = &stopped["choices"][0];
    assert_eq!(choice["text"], text[..text.find(&stop).unwrap()]);
    assert_eq!((&choice["finish_reason"], &choice["stop_reason"]), (&json!("stop"), &json!(stop)));
    let more = json!({"stop": stop, "include_stop_str_in_output": true, "return_token_ids": true});
    let kept = answer(&state, "/v1/completions", with(body.clone(), more)).await;
    assert_eq!(kept["choices"][0]["text"], text[..text.find(&stop).unwrap() + stop.len()]);
    let second = kept["choices"][0]["token_ids"][1].clone();
    let by_token =
        answer(&state, "/v1/completions", with(body, json!({"stop_token_ids": [second]}))).await;
    assert_eq!(by_token["choices"][0]["stop_reason"], second);
}

#[tokio::test]
async fn prompts_are_echoed_and_scored() {
    let state = ready(&[]);
    let tokens =
        answer(&state, "/tokenize", json!({"prompt": "The capital of France is"})).await["tokens"]
            .clone();
    let count = tokens.as_array().unwrap().len();
    let body =
        json!({"model": "demo", "prompt": tokens, "echo": true, "logprobs": 2, "max_tokens": 0});
    let scored = answer(&state, "/v1/completions", body.clone()).await;
    let choice = &scored["choices"][0];
    assert_eq!(choice["text"], "The capital of France is");
    let logprobs = &choice["logprobs"];
    assert_eq!(logprobs["tokens"].as_array().unwrap().len(), count);
    assert_eq!(logprobs["token_logprobs"][0], Value::Null);
    assert!((1..count).all(|i| logprobs["token_logprobs"][i].as_f64().unwrap() <= 0.0));
    assert_eq!(scored["usage"]["completion_tokens"], 0);
    let more = with(body, json!({"max_tokens": 4, "temperature": 0, "ignore_eos": true}));
    let whole = answer(&state, "/v1/completions", more.clone()).await;
    let logprobs = &whole["choices"][0]["logprobs"];
    assert_eq!(logprobs["tokens"].as_array().unwrap().len(), count + 4);
    assert_eq!(logprobs["text_offset"][count], "The capital of France is".len());
    let streamed = chunks(&state, "/v1/completions", with(more, json!({"stream": true}))).await;
    let offsets: Vec<Value> = streamed
        .iter()
        .flat_map(|chunk| {
            chunk["choices"][0]["logprobs"]["text_offset"].as_array().cloned().unwrap_or_default()
        })
        .collect();
    assert_eq!(Value::Array(offsets), logprobs["text_offset"]);
}

#[tokio::test]
async fn chat_reports_log_probabilities() {
    let state = ready(&[]);
    let body =
        with(chat("Hello"), json!({"logprobs": true, "top_logprobs": 3, "prompt_logprobs": 1}));
    let whole = answer(&state, "/v1/chat/completions", body).await;
    let content = whole["choices"][0]["logprobs"]["content"].as_array().unwrap();
    assert_eq!(content.len() as u64, whole["usage"]["completion_tokens"].as_u64().unwrap());
    assert!(content.iter().all(|token| token["top_logprobs"].as_array().unwrap().len() == 3));
    assert_eq!(
        content[0]["token"], content[0]["top_logprobs"][0]["token"],
        "greedy takes the likeliest"
    );
    assert_eq!(whole["prompt_logprobs"][0], Value::Null);
    assert_eq!(
        whole["prompt_logprobs"].as_array().unwrap().len() as u64,
        whole["usage"]["prompt_tokens"].as_u64().unwrap()
    );
}

#[tokio::test]
async fn every_mistake_has_its_status_and_field() {
    let state = ready(&[]);
    let chat_with = |more: Value| post("/v1/chat/completions", with(chat("x"), more));
    let completion =
        |more: Value| post("/v1/completions", with(json!({"model": "demo", "prompt": "x"}), more));
    for (request, status, param) in [
        (post("/v1/chat/completions", "{"), 400, None),
        (post("/v1/chat/completions", "[]"), 400, None),
        (chat_with(json!({"model": "other"})), 404, Some("model")),
        (chat_with(json!({"temperature": 3})), 400, Some("temperature")),
        (chat_with(json!({"top_logprobs": 2})), 400, Some("top_logprobs")),
        (chat_with(json!({"logprobs": true, "top_logprobs": 21})), 400, Some("top_logprobs")),
        (chat_with(json!({"max_tokens": 0})), 400, Some("max_tokens")),
        (
            chat_with(json!({"messages": [{"role": "user", "content": "a ".repeat(5000)}]})),
            400,
            Some("messages"),
        ),
        (
            // Ten megabytes of text are refused by their length, before they are tokenized.
            chat_with(json!({"messages": [{"role": "user", "content": "a ".repeat(5_000_000)}]})),
            400,
            Some("messages"),
        ),
        (completion(json!({"prompt": ""})), 400, Some("prompt")),
        // The demo's vocabulary is smaller than 5000.
        (completion(json!({"prompt": [5000]})), 400, Some("prompt")),
        // The prompt fills the whole context of 2048 tokens and leaves none for an answer.
        (completion(json!({"prompt": vec![1; 2048]})), 400, Some("prompt")),
        (completion(json!({"max_tokens": 0})), 400, Some("max_tokens")),
        (completion(json!({"logprobs": 21})), 400, Some("logprobs")),
        // 100 prompts with 128 choices each are more sequences than one request may have.
        (completion(json!({"prompt": vec!["a"; 100], "n": 128})), 400, Some("prompt")),
        (post("/detokenize", json!({"tokens": [5000]})), 400, Some("tokens[0]")),
        (post("/tokenize", json!({"model": "other", "prompt": "x"})), 404, Some("model")),
        (get("/v1/models/other/name"), 404, Some("model")),
        (get("/v1/models/%ff"), 404, Some("model")),
        (get("/nope"), 404, None),
        (get("/nothing"), 404, None),
        (Request::post("/v1/completions").body(Body::empty()).unwrap(), 415, None),
        (
            Request::post("/v1/completions")
                .header("content-type", "text/plain")
                .body("{}".into())
                .unwrap(),
            415,
            None,
        ),
    ] {
        let what = format!("{} {}", request.method(), request.uri());
        assert_eq!(
            error(call(&state, request).await).await,
            (status, param.map(str::to_owned)),
            "{what}"
        );
    }
    let context = call(&state, completion(json!({"prompt": vec![1; 3000]}))).await;
    let message = text(context).await;
    assert!(
        message.contains(
            "This model's maximum context length is 2048 tokens, but the prompt has 3000."
        ),
        "{message}"
    );
}

#[tokio::test]
async fn wrong_methods_and_large_bodies_are_refused() {
    let state = ready(&[]);
    let response = call(&state, get("/v1/completions")).await;
    assert_eq!(response.headers()["allow"], "POST");
    assert_eq!(error(response).await, (405, None));
    // One byte more than the 32 MiB of a body.
    let large = " ".repeat((32 << 20) + 1);
    assert_eq!(error(call(&state, post("/v1/completions", &large)).await).await, (413, None));
    // The announced length suffices for a refusal, without a byte of the body.
    let announced = Request::post("/v1/completions")
        .header("content-type", "application/json")
        .header("content-length", "1000000000000")
        .body(Body::empty())
        .unwrap();
    assert_eq!(error(call(&state, announced).await).await, (413, None));
}

#[tokio::test]
async fn a_key_guards_all_but_the_open_paths() {
    let state = ready(&["--api-key=secret"]);
    for path in ["/health", "/version", "/metrics"] {
        assert_eq!(call(&state, get(path)).await.status(), 200, "{path}");
    }
    for path in ["/v1/models", "/docs/", "/nope"] {
        assert_eq!(error(call(&state, get(path)).await).await, (401, None), "{path}");
    }
    let private = ready(&["--api-key=secret", "--private-docs"]);
    for path in ["/", "/docs", "/openapi.json"] {
        assert_eq!(call(&state, get(path)).await.status(), 200, "{path}");
        assert_eq!(error(call(&private, get(path)).await).await, (401, None), "{path}");
        let keyed = Request::get(path).header("x-api-key", "secret").body(Body::empty()).unwrap();
        assert_eq!(call(&private, keyed).await.status(), 200, "{path}");
    }
    let document = text(call(&state, get("/openapi.json")).await).await;
    let document: Value = serde_json::from_str(&document).unwrap();
    assert_eq!(document["security"], json!([{"bearer": []}, {"header": []}]));
    assert_eq!(document["components"]["securitySchemes"]["header"]["name"], "x-api-key");
    assert_eq!(document["paths"]["/docs"]["get"]["security"], json!([]));
    assert_eq!(document["paths"]["/v1/models"]["get"]["security"], Value::Null);
    let keyed = |key: &str| {
        Request::get("/v1/models").header("authorization", key).body(Body::empty()).unwrap()
    };
    assert_eq!(call(&state, keyed("Bearer secret")).await.status(), 200);
    assert_eq!(error(call(&state, keyed("Bearer wrong")).await).await.0, 401);
    let open = ready(&[]);
    assert_eq!(
        call(&open, keyed("Bearer whatever")).await.status(),
        200,
        "without a key, any is ignored"
    );
}

#[tokio::test]
async fn request_ids_are_echoed_or_made() {
    let state = ready(&[]);
    let id = |value: &str| {
        Request::get("/version").header("x-request-id", value).body(Body::empty()).unwrap()
    };
    assert_eq!(call(&state, id("mine-1")).await.headers()["x-request-id"], "mine-1");
    // An id that is too long is replaced and not cut: half an id would match nothing in the client's log.
    let long = "x".repeat(1000);
    assert_ne!(call(&state, id(&long)).await.headers()["x-request-id"], long);
    assert!(!call(&state, get("/nope")).await.headers()["x-request-id"].is_empty());
}

#[tokio::test]
async fn other_origins_are_let_in_by_name_only() {
    let preflight = || {
        let request = Request::builder().method(Method::OPTIONS).uri("/v1/chat/completions");
        let request = request
            .header("origin", "https://a.example")
            .header("access-control-request-method", "POST")
            .header("access-control-request-headers", "authorization,x-mine");
        request.body(Body::empty()).unwrap()
    };
    let closed = call(&ready(&[]), preflight()).await;
    assert!(!closed.headers().contains_key("access-control-allow-origin"));
    let open = call(
        &ready(&["--allowed-origins=https://a.example,https://b.example", "--api-key=k"]),
        preflight(),
    )
    .await;
    assert_eq!(open.status(), StatusCode::OK);
    assert_eq!(open.headers()["access-control-allow-origin"], "https://a.example");
    // By name, because `*` does not include the former.
    assert_eq!(open.headers()["access-control-allow-headers"], "authorization,x-mine");
    let state = ready(&["--allowed-origins=*"]);
    let asked = Request::get("/version").header("origin", "https://a.example");
    let answered = call(&state, asked.body(Body::empty()).unwrap()).await;
    // Browsers may read only these headers.
    assert_eq!(
        answered.headers()["access-control-expose-headers"],
        "x-request-id,retry-after,x-candlepower-not-held"
    );
}

#[tokio::test]
async fn models_tokens_and_documents_are_described() {
    let state = ready(&["--served-model-name=a/b,demo"]);
    let response = text(call(&state, get("/v1/models")).await).await;
    let list: Value = serde_json::from_str(&response).unwrap();
    assert_eq!(list["data"][0]["id"], "a/b");
    assert_eq!(list["data"][1]["root"], "demo");
    assert_eq!(call(&state, get("/v1/models/a/b")).await.status(), 200);
    // The model's own name serves requests and look-ups, too.
    let state_of_root = ready(&["--served-model-name=a/b"]);
    answer(&state_of_root, "/tokenize", json!({"model": "demo", "prompt": "x"})).await;
    assert_eq!(call(&state_of_root, get("/v1/models/demo")).await.status(), 200);
    assert_eq!(error(call(&state_of_root, get("/v1/models/b")).await).await.0, 404);
    let tokens =
        answer(&state, "/tokenize", json!({"model": "a/b", "prompt": "Hello wörld"})).await;
    assert_eq!(tokens["count"], tokens["tokens"].as_array().unwrap().len());
    let back = answer(&state, "/detokenize", json!({"tokens": tokens["tokens"]})).await;
    assert_eq!(back["prompt"], "Hello wörld");
    let messages =
        answer(&state, "/tokenize", json!({"messages": [{"role": "user", "content": "Hello"}]}))
            .await;
    assert!(messages["count"].as_u64().unwrap() > 1);
    let document: Value =
        serde_json::from_str(&text(call(&state, get("/openapi.json")).await).await).unwrap();
    for path in [
        "/v1/chat/completions",
        "/v1/completions",
        "/v1/models/{id}",
        "/tokenize",
        "/health",
        "/metrics",
    ] {
        assert!(document["paths"][path].is_object(), "{path}");
    }
    assert_eq!(document["servers"], json!([{"url": "."}]));
    assert_eq!(document["security"][0], json!({}), "no key is needed");
    let page = text(call(&state, get("/docs")).await).await;
    assert!(
        !page.contains("src=\"http") && !page.contains("href=\"http"),
        "the page needs nothing from elsewhere"
    );
}

#[tokio::test]
async fn the_queue_has_an_end() {
    let state = ready(&["--max-num-seqs=1", "--max-queued-requests=1"]);
    let long = json!({"model": "demo", "prompt": "x", "max_tokens": 2000, "ignore_eos": true, "stream": true});
    let first = call(&state, post("/v1/completions", &long)).await;
    let second = call(&state, post("/v1/completions", &long)).await;
    assert_eq!((first.status(), second.status()), (StatusCode::OK, StatusCode::OK));
    let third = call(&state, post("/v1/completions", &long)).await;
    assert!(third.headers().contains_key("retry-after"));
    assert_eq!(error(third).await, (429, None));
    drop((first, second));
    wait_until_unused(&state).await;
    assert_eq!(
        call(&state, post("/v1/completions", json!({"model": "demo", "prompt": "x"})))
            .await
            .status(),
        200
    );
}

/// Waits until the engine is idle.
async fn wait_until_unused(state: &AppState) {
    let model = demo(state);
    while model.engine.num_in_flight() > 0 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_goes_cancels_its_request() {
    let state = ready(&[]);
    let (stop, stopped) = watch::channel(Stop::Serving);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let door = Door::new(router(state.clone()), 100, None, false);
    let server = tokio::spawn(door.serve(listener, stopped));
    // An answer as a whole writes nothing before its end, so the closed connection must be noticed otherwise.
    for stream in [false, true] {
        let body = json!({"model": "demo", "prompt": "x", "n": 4, "max_tokens": 2000, "ignore_eos": true, "stream": stream});
        let body = body.to_string();
        let head =
            "POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json";
        let mut client = TcpStream::connect(address).await.unwrap();
        let request = format!("{head}\r\ncontent-length: {}\r\n\r\n{body}", body.len());
        client.write_all(request.as_bytes()).await.unwrap();
        if stream {
            client.read_exact(&mut [0; 512]).await.unwrap();
        }
        let model = demo(&state);
        while model.engine.num_in_flight() < 4 {
            tokio::task::yield_now().await;
        }
        drop(client);
        wait_until_unused(&state).await;
    }
    state.wait_until_idle().await;
    let metrics = state.metrics().render();
    // Both requests ended by the client, so no choice counts as finished.
    let finished = metrics.lines().filter(|line| line.contains("request_success_total{"));
    assert!(finished.clone().count() > 0);
    assert!(finished.clone().all(|line| line.ends_with("} 0")), "no choice came to its own end");
    // The stream had begun and counts with its status; the other one has nginx's status for clients that left.
    for status in [200, 499] {
        let counted = format!("path=\"/v1/completions\",status=\"{status}\"}} 1");
        assert!(metrics.contains(&counted), "{metrics}");
    }
    stop.send(Stop::Closing).unwrap();
    server.await.unwrap();
}

#[tokio::test]
async fn draining_refuses_new_requests_and_finishes_running_ones() {
    let state = ready(&[]);
    let body = json!({"model": "demo", "prompt": "x", "max_tokens": 50, "ignore_eos": true, "stream": true});
    let running = call(&state, post("/v1/completions", &body)).await;
    state.set_draining();
    assert_eq!(error(call(&state, post("/v1/completions", &body)).await).await, (503, None));
    let health = call(&state, get("/health")).await;
    assert_eq!(health.status(), 503);
    assert_eq!(text(health).await, r#"{"status":"draining","phase":"draining"}"#);
    let text = text(running).await;
    assert!(text.contains(r#""finish_reason":"length""#) && text.ends_with("data: [DONE]\n\n"));
    state.wait_until_idle().await;
}

#[tokio::test]
async fn requests_that_are_cut_short_say_so() {
    let state = ready(&[]);
    let body = json!({"model": "demo", "prompt": "x", "max_tokens": 2000, "ignore_eos": true});
    let running =
        call(&state, post("/v1/completions", with(body.clone(), json!({"stream": true})))).await;
    state.abort();
    let text = text(running).await;
    assert!(
        text.contains(r#""finish_reason":"abort""#) && text.ends_with("data: [DONE]\n\n"),
        "{text}"
    );
    assert_eq!(
        answer(&state, "/v1/completions", body).await["choices"][0]["finish_reason"],
        "abort"
    );
    wait_until_unused(&state).await;
}

#[tokio::test]
async fn a_panic_is_an_error_of_the_one_shape() {
    async fn defect() {
        panic!("this is what the test is for");
    }
    let app = Router::new()
        .route("/", axum::routing::get(defect))
        .layer(CatchPanicLayer::custom(panicked));
    assert_eq!(error(app.oneshot(get("/")).await.unwrap()).await, (500, None));
}

#[tokio::test]
async fn a_conversation_that_the_template_refuses_is_a_mistake_of_the_client() {
    let path =
        std::env::temp_dir().join(format!("candlepower-{}-refusing.jinja", std::process::id()));
    std::fs::write(&path, "{{ raise_exception('no ' + messages[0]['content']) }}").unwrap();
    let state = ready(&[&format!("--chat-template={}", path.display())]);
    std::fs::remove_file(&path).unwrap();
    let response = call(&state, post("/v1/chat/completions", chat(&"z".repeat(5000)))).await;
    assert_eq!(response.status(), 400);
    let text = text(response).await;
    // The template's own message is clipped, since it may repeat the client's text.
    assert!(text.contains("refused the conversation") && text.matches('z').count() < 200, "{text}");
}
