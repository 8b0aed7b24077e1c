//! /health, /version, /openapi.json, /docs and /metrics, the last two as their own validators read them.

use serde_json::json;

use crate::support::{Server, ServerBuilder, python, run_to_end};

#[test]
fn health_and_version_say_what_the_contract_says() {
    let server = Server::demo();
    assert_eq!(server.get("/health").ok(), json!({"status": "healthy"}));
    assert_eq!(server.get("/version").ok(), json!({"version": env!("CARGO_PKG_VERSION")}));
}

#[test]
fn the_openapi_document_is_valid_and_complete() {
    let server = Server::demo();
    run_to_end(python("clients/validate.py").args(["openapi", &server.url()]));
    let document = server.get("/openapi.json").ok();
    let paths = document["paths"].as_object().unwrap();
    for (path, method) in [
        ("/v1/chat/completions", "post"),
        ("/v1/completions", "post"),
        ("/v1/responses", "post"),
        ("/v1/responses/{id}", "get"),
        ("/v1/responses/{id}", "delete"),
        ("/v1/messages", "post"),
        ("/v1/messages/count_tokens", "post"),
        ("/generate", "post"),
        ("/v1/models", "get"),
        ("/health", "get"),
        ("/version", "get"),
        ("/metrics", "get"),
        ("/tokenize", "post"),
        ("/detokenize", "post"),
    ] {
        assert!(paths[path][method].is_object(), "{method} {path} is not documented");
    }
    // What chat and text completion have in common is a schema of its own.
    let schemas = &document["components"]["schemas"];
    let request = schemas["ChatCompletionRequest"].to_string();
    assert!(request.contains("\"messages\"") && request.contains("GenerationFields"), "{request}");
    assert!(schemas["GenerationFields"]["properties"]["temperature"].is_object(), "{schemas}");
}

#[test]
fn the_docs_page_needs_nothing_from_elsewhere() {
    let server = Server::demo();
    let page = server.get("/docs");
    assert_eq!(page.status, 200);
    assert!(page.header("content-type").unwrap().starts_with("text/html"));
    for loading in ["src=\"http", "href=\"http", "@import", "fetch(\"http"] {
        assert!(!page.text().contains(loading), "the page loads something: {loading}");
    }
}

#[test]
fn the_metrics_are_prometheus_and_count() {
    let server = Server::demo();
    let body = json!({"prompt": "The capital of France is", "max_tokens": 5, "ignore_eos": true, "temperature": 0});
    let usage = server.complete(body)["usage"].clone();
    server.get("/nothing").error(404);
    run_to_end(python("clients/validate.py").args(["metrics", &server.url()]));
    let metrics = server.metrics();
    assert_eq!(metrics.value("generation_tokens_total"), 5.0);
    assert_eq!(metrics.value("prompt_tokens_total"), usage["prompt_tokens"].as_f64().unwrap());
    assert_eq!(metrics.value("request_success_total"), 1.0);
    assert_eq!(metrics.value("time_to_first_token_seconds_count"), 1.0);
    assert_eq!(metrics.value("inter_token_latency_seconds_count"), 4.0);
    assert_eq!(metrics.value("request_generation_tokens_sum"), 5.0);
    assert!(metrics.value("http_requests_total") >= 3.0);
    server.wait_until_all_blocks_are_free();
    assert_eq!(server.metrics().value("kv_cache_usage_ratio"), 0.0);
}

#[test]
fn the_metrics_can_have_another_servers_names() {
    let server = ServerBuilder::new("demo").flags("--metrics-compat vllm").start();
    server.complete(json!({"prompt": "a", "max_tokens": 2}));
    let text = server.get("/metrics").text();
    assert!(text.contains("vllm:num_requests_running{model_name=\"demo\"}"), "{text}");
    assert!(!text.contains("candlepower_"), "{text}");
}
