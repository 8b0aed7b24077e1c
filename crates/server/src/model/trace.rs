//! Traces of requests for an OpenTelemetry collector (`--otlp-endpoint`). Without that setting no request has a trace.
//!
//! A request is one span, with children for the queue, the prefill and the decode of each choice. The attributes have the names of the
//! OpenTelemetry conventions for generative AI. Texts of prompts and answers are no part of a trace.

mod context;
mod encode;
mod exporter;
mod span;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use axum::http::{HeaderMap, HeaderValue};
use candlepower_engine::SamplingParams;

use crate::config::OtlpEndpoint;
use crate::model::metrics::TraceCounters;
use context::TraceContext;
use exporter::Exporter;
pub(crate) use span::Value;
use span::{Kind, Span};

/// Choices of a request that have spans of their own. Beyond them a request counts the others only, which bounds the memory of one.
const MAX_TRACED_CHOICES: usize = 16;
/// Finish reasons that are listed.
const MAX_FINISH_REASONS: usize = 128;

/// Makes traces and sends them; cheap to clone.
#[derive(Clone)]
pub(crate) struct Tracer(Arc<Exporter>);

impl Tracer {
    /// A tracer that sends to this endpoint. It needs a runtime.
    ///
    /// # Errors
    /// The HTTP client cannot start, in words.
    pub(crate) fn start(
        endpoint: &OtlpEndpoint,
        service: &str,
        counters: TraceCounters,
    ) -> Result<Self, String> {
        Ok(Self(Arc::new(Exporter::start(endpoint, service, counters)?)))
    }

    /// Begins the trace of a request, or continues that of its client (header `traceparent`).
    pub(crate) fn begin(
        &self,
        headers: &HeaderMap,
        operation: Option<&'static str>,
    ) -> RequestTrace {
        let record = Record {
            attributes: Vec::new(),
            children: Vec::new(),
            num_choices: 0,
            finish_reasons: Vec::new(),
            num_cached_tokens: None,
        };
        RequestTrace {
            tracer: self.clone(),
            context: TraceContext::of(headers),
            began: SystemTime::now(),
            began_at: Instant::now(),
            operation,
            record: Mutex::new(record),
        }
    }

    /// Sends what is queued, within this time.
    pub(crate) async fn flush(&self, within: Duration) {
        self.0.flush(within).await;
    }
}

/// The trace of one request.
pub(crate) struct RequestTrace {
    tracer: Tracer,
    context: TraceContext,
    began: SystemTime,
    began_at: Instant,
    /// The operation by the conventions for generative AI, such as `chat`.
    operation: Option<&'static str>,
    record: Mutex<Record>,
}

/// The known parts of a request's trace.
struct Record {
    attributes: Vec<(&'static str, Value)>,
    children: Vec<Span>,
    num_choices: usize,
    finish_reasons: Vec<&'static str>,
    num_cached_tokens: Option<usize>,
}

/// The end of a request, as HTTP has it.
pub(crate) struct HttpEnd<'a> {
    pub(crate) method: &'static str,
    pub(crate) route: &'a str,
    pub(crate) status: u16,
    pub(crate) request_id: &'a str,
    pub(crate) prompt_tokens: u64,
    pub(crate) generated_tokens: u64,
}

/// The times of one choice.
pub(crate) struct ChoiceTimes {
    pub(crate) submitted: Instant,
    /// The end of the prefill, and its seconds.
    pub(crate) prompt: Option<(Instant, f64)>,
    pub(crate) last_token: Option<Instant>,
    pub(crate) num_generated: usize,
    /// `None` if the client left or the engine failed.
    pub(crate) finish_reason: Option<&'static str>,
}

impl ChoiceTimes {
    /// A choice that was submitted at this time.
    pub(crate) fn submitted(submitted: Instant) -> Self {
        Self { submitted, prompt: None, last_token: None, num_generated: 0, finish_reason: None }
    }
}

impl RequestTrace {
    /// The context for the client, as a header.
    pub(crate) fn header(&self) -> Option<HeaderValue> {
        HeaderValue::try_from(self.context.traceparent()).ok()
    }

    fn record(&self) -> MutexGuard<'_, Record> {
        self.record.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Names the model.
    pub(crate) fn set_model(&self, name: &str) {
        let mut record = self.record();
        record.attributes.push(("gen_ai.request.model", Value::text(name)));
        record.attributes.push(("gen_ai.response.model", Value::text(name)));
    }

    /// Adds the parameters of a generation.
    pub(crate) fn set_generation(&self, n: usize, max_tokens: usize, sampling: &SamplingParams) {
        let mut record = self.record();
        let mut add = |name: &'static str, value: Value| record.attributes.push((name, value));
        add("gen_ai.request.max_tokens", Value::int(max_tokens));
        add("gen_ai.request.temperature", Value::float(sampling.temperature));
        add("gen_ai.request.top_p", Value::float(sampling.top_p));
        if let Some(top_k) = sampling.top_k {
            add("gen_ai.request.top_k", Value::int(top_k));
        }
        if sampling.presence_penalty != 0.0 {
            add("gen_ai.request.presence_penalty", Value::float(sampling.presence_penalty));
        }
        if sampling.frequency_penalty != 0.0 {
            add("gen_ai.request.frequency_penalty", Value::float(sampling.frequency_penalty));
        }
        if let Some(seed) = sampling.seed {
            add("gen_ai.request.seed", Value::Int(seed.cast_signed()));
        }
        if n != 1 {
            add("gen_ai.request.choice.count", Value::int(n));
        }
    }

    /// Counts the cached tokens of a prompt.
    pub(crate) fn add_cached_tokens(&self, num_tokens: usize) {
        *self.record().num_cached_tokens.get_or_insert(0) += num_tokens;
    }

    /// Adds the spans of a choice that has ended.
    pub(crate) fn end_choice(&self, times: &ChoiceTimes) {
        let mut record = self.record();
        let index = record.num_choices;
        record.num_choices += 1;
        if let Some(reason) = times.finish_reason
            && record.finish_reasons.len() < MAX_FINISH_REASONS
        {
            record.finish_reasons.push(reason);
        }
        // Others than sampled requests are not sent, so their spans are not made.
        if index >= MAX_TRACED_CHOICES || !self.context.is_sampled() {
            return;
        }
        let now = Instant::now();
        let mut add =
            |name: &str, start: Instant, end: Instant, more: Vec<(&'static str, Value)>| {
                let mut attributes = vec![("candlepower.choice.index", Value::int(index))];
                attributes.extend(more);
                record.children.push(Span {
                    id: TraceContext::new_span_id(),
                    parent: Some(self.context.span_id),
                    name: name.to_owned(),
                    kind: Kind::Internal,
                    start_ns: self.nanoseconds(start),
                    end_ns: self.nanoseconds(end.max(start)),
                    attributes,
                    error: None,
                });
            };
        let Some((prompt_end, prefill_s)) = times.prompt else {
            // It ended in the queue, or in its prefill; the server is not told which.
            add("queue", times.submitted, now, Vec::new());
            return;
        };
        let prefill = Duration::try_from_secs_f64(prefill_s).unwrap_or_default();
        let start = prompt_end.checked_sub(prefill).unwrap_or(prompt_end).max(times.submitted);
        add("queue", times.submitted, start, Vec::new());
        add("prefill", start, prompt_end, Vec::new());
        let Some(last) = times.last_token else { return };
        // Under the names of the conventions, tokens would be counted for the request and for its parts.
        let mut more = vec![("candlepower.choice.output_tokens", Value::int(times.num_generated))];
        if let Some(reason) = times.finish_reason {
            more.push(("candlepower.choice.finish_reason", Value::text(reason)));
        }
        add("decode", prompt_end, last, more);
    }

    /// Ends the trace and queues it.
    pub(crate) fn end(&self, http: &HttpEnd<'_>) {
        if !self.context.is_sampled() {
            return;
        }
        let mut record = self.record();
        let mut attributes = std::mem::take(&mut record.attributes);
        let model = attributes.iter().find(|(name, _)| *name == "gen_ai.request.model");
        let name = match (self.operation, model) {
            (Some(operation), Some((_, Value::Text(model)))) => format!("{operation} {model}"),
            _ => format!("{} {}", http.method, http.route),
        };
        let mut add = |name: &'static str, value: Value| attributes.push((name, value));
        if let Some(operation) = self.operation {
            add("gen_ai.operation.name", Value::text(operation));
            add("gen_ai.provider.name", Value::text("candlepower"));
            if http.prompt_tokens > 0 {
                add("gen_ai.usage.input_tokens", Value::Int(http.prompt_tokens.cast_signed()));
                add("gen_ai.usage.output_tokens", Value::Int(http.generated_tokens.cast_signed()));
            }
        }
        if let Some(num_tokens) = record.num_cached_tokens {
            add("gen_ai.usage.cache_read.input_tokens", Value::int(num_tokens));
        }
        if !record.finish_reasons.is_empty() {
            let reasons = std::mem::take(&mut record.finish_reasons);
            add("gen_ai.response.finish_reasons", Value::List(reasons));
        }
        if record.num_choices > MAX_TRACED_CHOICES {
            add("candlepower.choices", Value::int(record.num_choices));
        }
        add("http.request.method", Value::text(http.method));
        add("http.route", Value::text(http.route));
        add("http.response.status_code", Value::Int(http.status.into()));
        add("candlepower.request.id", Value::text(http.request_id));
        // A client that left is no error of the server, but its request has no answer.
        let error = (http.status >= 499).then(|| http.status.to_string());
        if let Some(status) = &error {
            add("error.type", Value::text(status));
        }
        let request = Span {
            id: self.context.span_id,
            parent: self.context.parent,
            name,
            kind: Kind::Server,
            start_ns: self.nanoseconds(self.began_at),
            end_ns: self.nanoseconds(Instant::now()),
            attributes,
            error,
        };
        let mut spans = std::mem::take(&mut record.children);
        spans.push(request);
        self.tracer.0.queue(exporter::Trace {
            id: self.context.trace_id,
            state: self.context.state.clone(),
            spans,
        });
    }

    /// Nanoseconds since 1970 of a time after the trace's beginning.
    fn nanoseconds(&self, at: Instant) -> u64 {
        let time = self.began + at.saturating_duration_since(self.began_at);
        let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
    }
}

/// The operation of an endpoint by the conventions for generative AI; `None` for endpoints that use no model, or in a way that the
/// conventions do not name.
pub(crate) fn operation(route: &str) -> Option<&'static str> {
    match route {
        "/v1/chat/completions" | "/chat/completions" | "/v1/responses" | "/v1/messages" => {
            Some("chat")
        }
        "/v1/completions" | "/completions" => Some("text_completion"),
        "/generate" => Some("generate_content"),
        "/v1/embeddings" | "/embeddings" => Some("embeddings"),
        _ => None,
    }
}
