//! /, /health, /version, /openapi.json, /docs and /metrics. Independent validators read the last two.

use serde_json::json;

use crate::support::{Request, Server, ServerBuilder, python, run_to_end};

#[test]
fn health_and_version_say_what_the_contract_says() {
    let server = Server::demo();
    assert_eq!(server.get("/health").ok(), json!({"status": "healthy"}));
    assert_eq!(server.get("/version").ok(), json!({"version": env!("CARGO_PKG_VERSION")}));
}

#[test]
fn the_root_answers_get_and_head_alike() {
    let server = Server::demo();
    let (whole, head) = (server.get("/"), server.send(&Request::new("HEAD", "/")));
    assert_eq!(whole.ok()["version"], env!("CARGO_PKG_VERSION"));
    assert_eq!((head.status, head.text()), (200, String::new()));
    for name in ["content-type", "content-length"] {
        assert!(whole.header(name).is_some() && whole.header(name) == head.header(name), "{name}");
    }
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
        ("/", "get"),
        ("/health", "get"),
        ("/version", "get"),
        ("/metrics", "get"),
        ("/tokenize", "post"),
        ("/detokenize", "post"),
    ] {
        assert!(paths[path][method].is_object(), "{method} {path} is not documented");
    }
    // The common part of chat and text completion is a schema of its own.
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
    // Five tokens have four gaps.
    assert_eq!(metrics.value("inter_token_latency_seconds_count"), 4.0);
    assert_eq!(metrics.value("request_generation_tokens_sum"), 5.0);
    // The completion, the unknown path, and the validator's own request.
    assert!(metrics.value("http_requests_total") >= 3.0);
    server.wait_until_all_blocks_are_free();
    assert_eq!(server.metrics().value("kv_cache_usage_ratio"), 0.0);
}

#[test]
fn the_metrics_can_have_another_servers_names() {
    let server = ServerBuilder::new("demo").flags("--metrics-compat vllm").start();
    server.complete(json!({"prompt": "a", "max_tokens": 2}));
    let text = server.get("/metrics").text();
    assert!(text.contains("vllm:num_requests_running{model_name=\"demo\",engine=\"0\"}"), "{text}");
    // All metrics of another server's dashboard exist, and no others have its prefix.
    let names = |prefix: &str| -> Vec<String> {
        let types =
            text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.strip_prefix(prefix));
        types.map(|rest| rest.split(' ').next().unwrap().to_owned()).collect()
    };
    let expected = [
        "cache_config_info",
        "e2e_request_latency_seconds",
        "generation_tokens_total",
        "inter_token_latency_seconds",
        "iteration_tokens_total",
        "kv_cache_usage_perc",
        "num_preemptions_total",
        "num_requests_running",
        "num_requests_waiting",
        "prefix_cache_hits_total",
        "prefix_cache_queries_total",
        "prompt_tokens_total",
        "request_decode_time_seconds",
        "request_generation_tokens",
        "request_inference_time_seconds",
        "request_max_num_generation_tokens",
        "request_params_max_tokens",
        "request_params_n",
        "request_prefill_time_seconds",
        "request_prompt_tokens",
        "request_queue_time_seconds",
        "request_success_total",
        "request_time_per_output_token_seconds",
        "time_per_output_token_seconds",
        "time_to_first_token_seconds",
    ];
    let mut found = names("vllm:");
    found.sort();
    assert_eq!(found, expected);
    // vLLM has no such metric, so it keeps its own name.
    assert!(names("candlepower_").contains(&"kv_blocks_total".to_owned()), "{text}");
    for name in [
        "prefill_time_seconds",
        "decode_time_seconds",
        "inference_time_seconds",
        "max_num_generation_tokens",
    ] {
        let line = format!("vllm:request_{name}_count{{model_name=\"demo\",engine=\"0\"}} 1");
        assert!(text.lines().any(|found| found == line), "{line}: {text}");
    }
    assert!(
        text.contains(
            "vllm:cache_config_info{model_name=\"demo\",engine=\"0\",block_size=\"16\",num_gpu_blocks=\""
        ),
        "{text}"
    );
}

/// Sends every example of a server's OpenAPI document, of the operations that `is_asked` names. Returns these with the status of each
/// answer.
fn send_examples(server: &Server, is_asked: impl Fn(&str) -> bool) -> Vec<(String, u16)> {
    let document = server.get("/openapi.json").ok();
    let mut answered = Vec::new();
    for (path, item) in document["paths"].as_object().unwrap() {
        for (method, operation) in item.as_object().unwrap() {
            let name = format!("{} {path}", method.to_uppercase());
            if !is_asked(&name) {
                continue;
            }
            let mut filled = path.clone();
            for parameter in operation["parameters"].as_array().into_iter().flatten() {
                let name = parameter["name"].as_str().unwrap();
                assert!(parameter["description"].is_string(), "{method} {path} {name}");
                if parameter["in"] == "path" {
                    let example = parameter["schema"]["examples"][0].as_str().unwrap();
                    filled = filled.replace(&format!("{{{name}}}"), example);
                }
            }
            // The id in the examples is of no response, so there must be one to ask for.
            if filled.contains("resp_") {
                let body = json!({"input": "Hello!", "max_output_tokens": 1});
                let stored = server.post("/v1/responses", &body).ok();
                let id = stored["id"].as_str().unwrap().to_owned();
                let example = filled.split('/').find(|part| part.starts_with("resp_")).unwrap();
                filled = filled.replace(example, &id);
            }
            let bodies = &operation["requestBody"]["content"]["application/json"]["examples"];
            let bodies = bodies.as_object().into_iter().flatten().map(|(_, example)| {
                assert!(example["summary"].is_string(), "{method} {path}");
                Some(example["value"].clone())
            });
            let bodies: Vec<_> = bodies.collect();
            assert_eq!(bodies.is_empty(), operation["requestBody"].is_null(), "{method} {path}");
            let bodies = if bodies.is_empty() { vec![None] } else { bodies };
            for body in bodies {
                let method = method.to_uppercase();
                let request = match &body {
                    Some(body) => Request::post(&filled, body),
                    None => Request::new(&method, &filled),
                };
                let answer = server.send(&request);
                let known = operation["responses"].as_object().unwrap();
                let status = answer.status;
                assert!(
                    known.contains_key(&status.to_string()),
                    "{method} {filled} {body:?}: {status} is not in the document: {}",
                    answer.text()
                );
                answered.push((name.clone(), status));
            }
        }
    }
    answered
}

#[test]
fn every_example_of_the_reference_is_answered() {
    let server = ServerBuilder::new("demo").flags("--framework prism").start();
    let document = server.get("/openapi.json").ok();
    let about = document["info"]["description"].as_str().unwrap();
    assert!(about.contains("Answers end after 16 tokens"), "{about}");
    let of_encoders = ["POST /v1/embeddings", "POST /v1/rerank", "POST /v1/score"];
    let answered = send_examples(&server, |_| true);
    assert!(answered.len() > 30, "{answered:?}");
    for (operation, status) in &answered {
        let expected = match operation.as_str() {
            // The demo generates text, and no response is generated in the background.
            operation if of_encoders.contains(&operation) => 400,
            "POST /v1/responses/{id}/cancel" => 400,
            _ => 200,
        };
        assert_eq!(*status, expected, "{operation}");
    }
    // A cross-encoder answers those of scores, and an encoder those of embeddings.
    for (golden, operations) in
        [("bert-score", &of_encoders[1..]), ("qwen3-embedding", &of_encoders[..1])]
    {
        let folder = candlepower_testing::goldens::folder(&format!("encoders/{golden}"));
        let server = ServerBuilder::new(folder).start();
        let answered = send_examples(&server, |name| operations.contains(&name));
        assert_eq!(answered.len(), operations.len());
        assert!(answered.iter().all(|(_, status)| *status == 200), "{answered:?}");
    }
}

#[test]
fn every_field_of_the_reference_is_described() {
    let document = Server::demo().get("/openapi.json").ok();
    assert_eq!(document["servers"], json!([{"url": "."}]));
    for (name, schema) in document["components"]["schemas"].as_object().unwrap() {
        let parts = schema["allOf"].as_array().into_iter().flatten().chain([schema]);
        let fields = parts.filter_map(|part| part["properties"].as_object()).flatten();
        for (field, schema) in fields {
            assert!(schema["description"].is_string(), "{name}.{field}: {schema}");
        }
    }
    for (path, item) in document["paths"].as_object().unwrap() {
        for (method, operation) in item.as_object().unwrap() {
            assert!(operation["summary"].is_string(), "{method} {path}");
        }
    }
}
