//! Traces of requests (`--otlp-endpoint`).

use std::time::Instant;

use serde_json::{Value, json};

use super::collector::{Collector, Manner};
use crate::support::{DEADLINE, Request, Server, ServerBuilder, wait_for};

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const PARENT: &str = "00f067aa0ba902b7";

fn traced(collector: &Collector) -> Server {
    ServerBuilder::new("demo").flag("--otlp-endpoint", collector.url()).start()
}

fn completion(prompt: &str) -> Request {
    let body = json!({
        "model": "demo", "prompt": prompt, "max_tokens": 4, "ignore_eos": true, "temperature": 0.7, "seed": 7,
    });
    Request::post("/v1/completions", &body)
}

fn named<'a>(spans: &'a [Value], name: &str) -> Vec<&'a Value> {
    spans.iter().filter(|span| span["name"] == name).collect()
}

#[test]
fn a_request_is_a_span_with_queue_prefill_and_decode() {
    let collector = Collector::start(Manner::Accepts);
    let server = ServerBuilder::new("demo")
        .flag("--otlp-endpoint", collector.url())
        .flags("--otlp-service-name answers")
        .start();
    let secret = "The capital of France is";
    let answer = server.send(&completion(secret));
    assert_eq!(answer.status, 200);
    let spans = collector.wait_for_spans(4);
    assert_eq!(spans.len(), 4, "{spans:#?}");
    // The request is the last of its spans, since it ends last.
    let request = &spans[3];
    assert_eq!(request["name"], "text_completion demo");
    assert_eq!((&request["kind"], &request["status"]), (&json!(2), &json!(0)));
    assert_eq!(request["parent"], "");
    assert_eq!(request["resource"]["service.name"], "answers");
    assert_eq!(request["resource"]["service.version"], env!("CARGO_PKG_VERSION"));
    let usage = &answer.json()["usage"];
    for (name, value) in [
        ("gen_ai.operation.name", json!("text_completion")),
        ("gen_ai.provider.name", json!("candlepower")),
        ("gen_ai.request.model", json!("demo")),
        ("gen_ai.response.model", json!("demo")),
        ("gen_ai.request.max_tokens", json!(4)),
        ("gen_ai.request.temperature", json!(0.7)),
        ("gen_ai.request.seed", json!(7)),
        ("gen_ai.usage.input_tokens", usage["prompt_tokens"].clone()),
        ("gen_ai.usage.output_tokens", json!(4)),
        ("gen_ai.usage.cache_read.input_tokens", json!(0)),
        ("gen_ai.response.finish_reasons", json!(["length"])),
        ("http.request.method", json!("POST")),
        ("http.route", json!("/v1/completions")),
        ("http.response.status_code", json!(200)),
    ] {
        assert_eq!(request["attributes"][name], value, "{name}: {request:#}");
    }
    let id = answer.header("x-request-id").unwrap();
    assert_eq!(request["attributes"]["candlepower.request.id"], id);
    // The client learns the span.
    let (trace, span) = (request["trace"].as_str().unwrap(), request["span"].as_str().unwrap());
    assert_eq!(answer.header("traceparent").unwrap(), format!("00-{trace}-{span}-01"));
    // The phases follow each other within the request.
    let mut end = request["start"].as_u64().unwrap();
    for (phase, name) in spans.iter().zip(["queue", "prefill", "decode"]) {
        assert_eq!((&phase["name"], &phase["parent"]), (&json!(name), &request["span"]));
        assert_eq!(phase["trace"], request["trace"]);
        assert!(phase["start"].as_u64().unwrap() >= end, "{spans:#?}");
        end = phase["end"].as_u64().unwrap();
    }
    assert!(request["end"].as_u64().unwrap() >= end);
    assert_eq!(spans[2]["attributes"]["candlepower.choice.output_tokens"], 4);
    assert_eq!(spans[2]["attributes"]["candlepower.choice.finish_reason"], "length");
    // No text is in a trace.
    let all = Value::from(spans).to_string();
    assert!(!all.contains("France"), "{all}");
    let text = answer.json()["choices"][0]["text"].as_str().unwrap().to_owned();
    assert!(!all.contains(&text), "{text}: {all}");
    assert_eq!(server.metrics().value("trace_spans_sent_total"), 4.0);
}

#[test]
fn a_trace_continues_that_of_the_client() {
    let collector = Collector::start(Manner::Accepts);
    let server = traced(&collector);
    let parent = format!("00-{TRACE}-{PARENT}-01");
    let request = completion("a").header("traceparent", &parent).header("tracestate", "a=1,b=2");
    let answer = server.send(&request);
    assert!(answer.header("traceparent").unwrap().starts_with(&format!("00-{TRACE}-")));
    let spans = collector.wait_for_spans(4);
    let request = named(&spans, "text_completion demo")[0];
    assert_eq!(
        (&request["trace"], &request["parent"], &request["state"]),
        (&json!(TRACE), &json!(PARENT), &json!("a=1,b=2"))
    );
    // The client's span is on another machine.
    assert_eq!(request["flags"], 0x301);
    assert_eq!(named(&spans, "queue")[0]["flags"], 0x101);
    // A client that does not sample its trace gets no spans, and its context back.
    let unsampled = format!("00-{TRACE}-{PARENT}-00");
    let answer = server.send(&completion("b").header("traceparent", &unsampled));
    assert!(answer.header("traceparent").unwrap().ends_with("-00"));
    server.send(&completion("c"));
    assert_eq!(collector.wait_for_spans(8).len(), 8);
}

#[test]
fn every_request_has_its_spans_whatever_its_end() {
    let collector = Collector::start(Manner::Accepts);
    let server = traced(&collector);
    let messages = json!([{"role": "user", "content": "Hello!"}]);
    // Two choices.
    server.chat(json!({"messages": messages, "max_tokens": 3, "n": 2}));
    let spans = collector.wait_for_spans(7);
    assert_eq!(named(&spans, "decode").len(), 2);
    let chat = named(&spans, "chat demo")[0];
    assert_eq!(chat["attributes"]["gen_ai.request.choice.count"], 2);
    assert_eq!(chat["attributes"]["gen_ai.response.finish_reasons"].as_array().unwrap().len(), 2);
    // A refusal is no failure of the server.
    server.post("/v1/completions", &json!({"model": "demo", "prompt": "a", "n": 0})).error(400);
    let spans = collector.wait_for_spans(8);
    let refused = &spans[7];
    assert_eq!((&refused["name"], &refused["status"]), (&json!("text_completion demo"), &json!(0)));
    assert_eq!(refused["attributes"]["http.response.status_code"], 400);
    // A client that leaves.
    let body = json!({
        "model": "demo", "prompt": "a", "max_tokens": 1500, "ignore_eos": true, "stream": true,
    });
    let mut stream = server.open("/v1/completions", &body);
    stream.next_event().unwrap();
    drop(stream);
    let spans = collector.wait_for_spans(12);
    let left = &named(&spans[8..], "decode")[0]["attributes"];
    assert!(left["candlepower.choice.output_tokens"].as_u64() > Some(0), "{left}");
    assert_eq!(left["candlepower.choice.finish_reason"], Value::Null, "{left}");
    // Endpoints without a generation are requests too, probes are not.
    server.get("/health").ok();
    server.get("/metrics");
    server.get("/v1/models").ok();
    server.post("/tokenize", &json!({"prompt": "a"})).ok();
    let spans = collector.wait_for_spans(14);
    let names: Vec<&Value> = spans[12..].iter().map(|span| &span["name"]).collect();
    assert_eq!(names, ["GET /v1/models", "POST /tokenize"]);
}

#[test]
fn a_slow_or_lost_collector_delays_nobody_and_its_spans_are_counted() {
    let collector = Collector::start(Manner::Hangs);
    let server = traced(&collector);
    let dropped = |reason: &str| {
        let series = format!("trace_spans_dropped_total{{reason=\"{reason}\"}}");
        server.metrics().series(&series)
    };
    server.send(&completion("a"));
    wait_for("the collector to be asked", || (collector.num_requests() > 0).then_some(()));
    // The queue has 8192 spans, and the trace of a request those of 16 choices at most.
    let body = json!({"model": "demo", "prompt": "a", "max_tokens": 1, "n": 20});
    let begin = Instant::now();
    for _ in 0..8192 / (16 * 3 + 1) + 1 {
        assert_eq!(server.post("/v1/completions", &body).status, 200);
    }
    // The collector would have been waited for many times.
    assert!(begin.elapsed() < DEADLINE, "{:?}", begin.elapsed());
    assert!(dropped("queue_full") > 0.0);
    assert_eq!(dropped("send_failed"), 0.0);
}

#[test]
fn spans_that_a_collector_refuses_are_counted_and_told_once() {
    let collector = Collector::start(Manner::Refuses(400));
    let server = traced(&collector);
    let metrics = |name: &str| server.metrics().value(name);
    for prompt in ["a", "b"] {
        let before = metrics("trace_spans_dropped_total");
        server.send(&completion(prompt));
        wait_for("the spans to be dropped", || {
            (metrics("trace_spans_dropped_total") == before + 4.0).then_some(())
        });
    }
    let log = server.log_with("traces cannot be sent");
    assert_eq!(log.matches("traces cannot be sent").count(), 1, "{log}");
    assert!(log.contains("HTTP 400"), "{log}");
    // A collector that is only busy is asked again.
    collector.set(Manner::Refuses(503));
    server.send(&completion("c"));
    let before = collector.num_requests();
    wait_for("another attempt", || (collector.num_requests() > before + 1).then_some(()));
    collector.set(Manner::Accepts);
    assert_eq!(collector.wait_for_spans(4).len(), 4);
    server.log_with("traces are sent again");
    assert_eq!(metrics("trace_spans_sent_total"), 4.0);
}

#[test]
fn the_last_spans_are_sent_at_the_end_of_the_server() {
    let collector = Collector::start(Manner::Accepts);
    let mut server = traced(&collector);
    server.send(&completion("a"));
    server.terminate();
    assert!(server.wait_for_exit().success());
    assert_eq!(collector.spans().len(), 4);
}

#[test]
fn without_the_setting_there_is_no_trace() {
    let server = Server::demo();
    let parent = format!("00-{TRACE}-{PARENT}-01");
    let answer = server.send(&completion("a").header("traceparent", &parent));
    assert_eq!((answer.status, answer.header("traceparent")), (200, None));
    for url in ["localhost:4318", "http://user:secret@localhost:4318"] {
        let refused = ServerBuilder::new("demo").flag("--otlp-endpoint", url).refused();
        assert!(refused.message.contains("otlp-endpoint"), "{}", refused.message);
        assert!(!refused.message.contains("listening"), "{}", refused.message);
    }
}
