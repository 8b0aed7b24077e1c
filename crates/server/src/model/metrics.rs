//! Prometheus metrics of one server. The recorder belongs to the server, not to the process.

use std::sync::Arc;
use std::time::Duration;

use candlepower_engine::EngineMetrics;
use metrics::{Counter, Gauge, Histogram, Key, KeyName, Label, Metadata, Recorder};
use metrics_exporter_prometheus::{
    Matcher, PrometheusBuilder, PrometheusHandle, PrometheusRecorder,
};

use crate::config::MetricsCompat;
use crate::model::engine_load::EngineLoad;

/// Handles to all metrics; cheap to clone.
#[derive(Clone)]
pub(crate) struct Metrics {
    recorder: Arc<PrometheusRecorder>,
    handle: PrometheusHandle,
    naming: Naming,
    pub(crate) engine: EngineMetrics,
    load: EngineLoad,
    pub(crate) time_to_first_token: Histogram,
    pub(crate) inter_token_latency: Histogram,
    pub(crate) e2e_latency: Histogram,
    pub(crate) prompt_tokens: Histogram,
    pub(crate) generation_tokens: Histogram,
    pub(crate) prefill_time: Histogram,
    pub(crate) decode_time: Histogram,
    pub(crate) inference_time: Histogram,
    pub(crate) time_per_output_token: Histogram,
    pub(crate) params_n: Histogram,
    pub(crate) params_max_tokens: Histogram,
    pub(crate) max_generation_tokens: Histogram,
    pub(crate) not_held: Counter,
    pub(crate) images: ImageMetrics,
}

/// Metrics of images in requests; cheap to clone.
#[derive(Clone)]
pub(crate) struct ImageMetrics {
    pub(crate) processed: Counter,
    pub(crate) processing_time: Histogram,
    pub(crate) waiting_bytes: Gauge,
}

/// Counters of an API key.
#[derive(Debug)]
pub(crate) struct KeyCounters {
    pub(crate) prompt_tokens: Counter,
    pub(crate) generation_tokens: Counter,
}

/// The naming scheme of the metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Naming {
    Own,
    Vllm,
}

enum Kind {
    Counter,
    Gauge,
    Histogram(&'static [f64]),
}

/// A metric: its name after `candlepower_`, vLLM's name if it has the metric, its kind, and its help text.
struct Description {
    name: &'static str,
    vllm: Option<&'static str>,
    kind: Kind,
    help: &'static str,
}

const fn describe(
    name: &'static str,
    vllm: Option<&'static str>,
    kind: Kind,
    help: &'static str,
) -> Description {
    Description { name, vllm, kind, help }
}

// Buckets in seconds and in tokens. They are vLLM's, so that dashboards can be compared.
const FIRST_TOKEN_S: &[f64] = &[
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
    20.0, 40.0, 80.0, 160.0,
];
const TOKEN_S: &[f64] = &[
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5,
    5.0, 10.0, 20.0,
];
const REQUEST_S: &[f64] = &[
    0.005, 0.01, 0.025, 0.05, 0.1, 0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0,
    40.0, 60.0, 120.0, 240.0, 480.0, 960.0,
];
const STEP_S: &[f64] = &[
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5,
    5.0, 10.0,
];
const TOKENS: &[f64] = &[
    1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0, 2000.0, 5000.0, 10000.0, 20000.0,
    50000.0, 100000.0,
];

const DESCRIPTIONS: &[Description] = &[
    describe(
        "num_requests_running",
        Some("vllm:num_requests_running"),
        Kind::Gauge,
        "Running sequences.",
    ),
    describe(
        "num_requests_waiting",
        Some("vllm:num_requests_waiting"),
        Kind::Gauge,
        "Sequences that wait for KV blocks or for a slot in the batch.",
    ),
    describe(
        "kv_cache_usage_ratio",
        Some("vllm:kv_cache_usage_perc"),
        Kind::Gauge,
        "Share of KV blocks in use, 0 to 1; cached blocks without a reference count as free.",
    ),
    describe("kv_blocks_total", None, Kind::Gauge, "Number of KV blocks."),
    describe(
        "kv_blocks_free",
        None,
        Kind::Gauge,
        "KV blocks without a reference from a sequence or a session, cached ones included.",
    ),
    describe(
        "kv_blocks_pinned",
        None,
        Kind::Gauge,
        "KV blocks that idle sessions keep; a request that needs them evicts them.",
    ),
    describe(
        "prefix_cache_queries_total",
        Some("vllm:prefix_cache_queries_total"),
        Kind::Counter,
        "Prompt tokens looked up in the prefix cache.",
    ),
    describe(
        "prefix_cache_hits_total",
        Some("vllm:prefix_cache_hits_total"),
        Kind::Counter,
        "Prompt tokens found in the prefix cache.",
    ),
    describe(
        "prompt_tokens_total",
        Some("vllm:prompt_tokens_total"),
        Kind::Counter,
        "Prompt tokens of admitted requests.",
    ),
    describe(
        "generation_tokens_total",
        Some("vllm:generation_tokens_total"),
        Kind::Counter,
        "Generated tokens.",
    ),
    describe(
        "jump_forward_tokens_total",
        None,
        Kind::Counter,
        "Generated tokens that were not sampled, because a constraint allowed no other (jump-forward).",
    ),
    describe(
        "request_success_total",
        Some("vllm:request_success_total"),
        Kind::Counter,
        "Finished choices, by finish reason.",
    ),
    describe(
        "num_preemptions_total",
        Some("vllm:num_preemptions_total"),
        Kind::Counter,
        "Preemptions of sequences, because KV blocks ran out or for another caller.",
    ),
    describe(
        "kv_blocks_swapped",
        None,
        Kind::Gauge,
        "KV blocks of preempted sequences in host memory.",
    ),
    describe(
        "swapped_out_blocks_total",
        None,
        Kind::Counter,
        "KV blocks swapped out to host memory.",
    ),
    describe(
        "swapped_in_blocks_total",
        None,
        Kind::Counter,
        "KV blocks swapped in from host memory.",
    ),
    describe(
        "images_encoded_total",
        None,
        Kind::Counter,
        "Images that the vision tower has encoded.",
    ),
    describe(
        "encoder_cache_hits_total",
        None,
        Kind::Counter,
        "Images of prompts that were found encoded, so that the vision tower did not run.",
    ),
    describe(
        "encoder_cache_usage_ratio",
        None,
        Kind::Gauge,
        "Share of --encoder-cache-memory that holds embeddings of images, 0 to 1.",
    ),
    describe(
        "time_to_first_token_seconds",
        Some("vllm:time_to_first_token_seconds"),
        Kind::Histogram(FIRST_TOKEN_S),
        "Seconds from a request's arrival to its first token.",
    ),
    describe(
        "inter_token_latency_seconds",
        Some("vllm:inter_token_latency_seconds"),
        Kind::Histogram(TOKEN_S),
        "Seconds between two tokens of a choice.",
    ),
    describe(
        "e2e_request_latency_seconds",
        Some("vllm:e2e_request_latency_seconds"),
        Kind::Histogram(REQUEST_S),
        "Seconds from a request's arrival to the end of a choice (end-to-end latency).",
    ),
    describe(
        "request_queue_time_seconds",
        Some("vllm:request_queue_time_seconds"),
        Kind::Histogram(REQUEST_S),
        "Seconds from submission to the first step of a request (queue time).",
    ),
    describe(
        "request_prompt_tokens",
        Some("vllm:request_prompt_tokens"),
        Kind::Histogram(TOKENS),
        "Prompt tokens of a request.",
    ),
    describe(
        "request_generation_tokens",
        Some("vllm:request_generation_tokens"),
        Kind::Histogram(TOKENS),
        "Generated tokens of a choice.",
    ),
    describe(
        "request_prefill_time_seconds",
        Some("vllm:request_prefill_time_seconds"),
        Kind::Histogram(REQUEST_S),
        "Seconds from the first to the last step of a prompt's prefill.",
    ),
    describe(
        "request_decode_time_seconds",
        Some("vllm:request_decode_time_seconds"),
        Kind::Histogram(REQUEST_S),
        "Seconds from the first to the last token of a choice (decode).",
    ),
    describe(
        "request_inference_time_seconds",
        Some("vllm:request_inference_time_seconds"),
        Kind::Histogram(REQUEST_S),
        "Seconds of prefill and decode of a choice together.",
    ),
    describe(
        "request_time_per_output_token_seconds",
        Some("vllm:request_time_per_output_token_seconds"),
        Kind::Histogram(TOKEN_S),
        "Mean seconds per output token of a finished choice, after its first.",
    ),
    describe(
        "request_params_n",
        Some("vllm:request_params_n"),
        Kind::Histogram(TOKENS),
        "Value of n in requests.",
    ),
    describe(
        "request_params_max_tokens",
        Some("vllm:request_params_max_tokens"),
        Kind::Histogram(TOKENS),
        "Value of max_tokens in requests, with defaults applied.",
    ),
    describe(
        "request_max_num_generation_tokens",
        Some("vllm:request_max_num_generation_tokens"),
        Kind::Histogram(TOKENS),
        "Generated tokens of the longest choice of a prompt, when all its choices have finished.",
    ),
    describe(
        "cache_config_info",
        Some("vllm:cache_config_info"),
        Kind::Gauge,
        "Always 1; the labels are the tokens in a KV block and the number of blocks.",
    ),
    describe(
        "iteration_tokens_total",
        Some("vllm:iteration_tokens_total"),
        Kind::Histogram(TOKENS),
        "Batch tokens of a step.",
    ),
    describe(
        "step_duration_seconds",
        None,
        Kind::Histogram(STEP_S),
        "Seconds of a whole step: schedule, forward pass, sampling, commit, send.",
    ),
    describe(
        "forward_duration_seconds",
        None,
        Kind::Histogram(STEP_S),
        "Seconds of the forward pass of a step, logits included.",
    ),
    describe(
        "grammar_duration_seconds",
        None,
        Kind::Histogram(STEP_S),
        "Seconds of a step in which grammars computed masks and consumed the sampled tokens.",
    ),
    describe(
        "http_requests_total",
        Some("http_requests_total"),
        Kind::Counter,
        "HTTP requests, by method, path and status.",
    ),
    describe(
        "http_request_duration_seconds",
        Some("http_request_duration_seconds"),
        Kind::Histogram(REQUEST_S),
        "Seconds from an HTTP request's arrival to the end of its response, by method and path.",
    ),
    describe(
        "key_requests_total",
        None,
        Kind::Counter,
        "HTTP requests with an API key, by the key's name and the status.",
    ),
    describe(
        "key_prompt_tokens_total",
        None,
        Kind::Counter,
        "Prompt tokens of requests with an API key, by the key's name.",
    ),
    describe(
        "key_generation_tokens_total",
        None,
        Kind::Counter,
        "Generated tokens of requests with an API key, by the key's name.",
    ),
    describe(
        "requests_not_held_total",
        None,
        Kind::Counter,
        "Requests with an unsupported part that was ignored (response header x-candlepower-not-held).",
    ),
    describe(
        "images_processed_total",
        None,
        Kind::Counter,
        "Images of requests that were decoded and resized.",
    ),
    describe(
        "image_processing_seconds",
        None,
        Kind::Histogram(TOKEN_S),
        "Seconds in which an image was decoded and resized, without its fetch.",
    ),
    describe(
        "image_waiting_bytes",
        None,
        Kind::Gauge,
        "Bytes of resized images that requests hold (--image-memory).",
    ),
    describe(
        "log_lines_dropped_total",
        None,
        Kind::Counter,
        "Dropped lines of the log, because a write to standard error failed (write_failed) or nobody read it (queue_full).",
    ),
    describe(
        "reload_failures_total",
        None,
        Kind::Counter,
        "Failed reloads of files on SIGHUP, by files.",
    ),
];

const METADATA: Metadata<'static> = Metadata::new("candlepower", metrics::Level::INFO, None);

impl Metrics {
    /// Metrics with candlepower's names or another server's. The latter have the model's name as a label.
    pub(crate) fn new(compat: Option<MetricsCompat>, model_name: &str) -> Self {
        let naming = match compat {
            None => Naming::Own,
            Some(MetricsCompat::Vllm) => Naming::Vllm,
        };
        let mut builder = PrometheusBuilder::new();
        if naming == Naming::Vllm {
            // vLLM numbers its engines; here there is one.
            builder = builder.add_global_label("model_name", model_name);
            builder = builder.add_global_label("engine", "0");
        }
        // Buckets must be known before a histogram is registered.
        for description in DESCRIPTIONS {
            if let Kind::Histogram(buckets) = description.kind {
                builder = builder
                    .set_buckets_for_metric(Matcher::Full(naming.name_of(description)), buckets)
                    .expect("no list of buckets is empty");
            }
        }
        let recorder = builder.build_recorder();
        for description in DESCRIPTIONS {
            let name = KeyName::from(naming.name_of(description));
            match description.kind {
                Kind::Counter => recorder.describe_counter(name, None, description.help.into()),
                Kind::Gauge => recorder.describe_gauge(name, None, description.help.into()),
                Kind::Histogram(_) => {
                    recorder.describe_histogram(name, None, description.help.into())
                }
            }
        }
        Self::register(recorder, naming)
    }

    fn register(recorder: PrometheusRecorder, naming: Naming) -> Self {
        let key = |name| Key::from_name(naming.name(name));
        let counter = |name| recorder.register_counter(&key(name), &METADATA);
        let gauge = |name| recorder.register_gauge(&key(name), &METADATA);
        let histogram = |name| recorder.register_histogram(&key(name), &METADATA);
        let mut engine = EngineMetrics {
            num_requests_running: gauge("num_requests_running"),
            num_requests_waiting: gauge("num_requests_waiting"),
            kv_cache_usage_ratio: gauge("kv_cache_usage_ratio"),
            kv_blocks_total: gauge("kv_blocks_total"),
            kv_blocks_free: gauge("kv_blocks_free"),
            kv_blocks_pinned: gauge("kv_blocks_pinned"),
            prefix_cache_queries: counter("prefix_cache_queries_total"),
            prefix_cache_hits: counter("prefix_cache_hits_total"),
            prompt_tokens: counter("prompt_tokens_total"),
            generation_tokens: counter("generation_tokens_total"),
            jump_forward_tokens: counter("jump_forward_tokens_total"),
            num_preemptions: counter("num_preemptions_total"),
            kv_blocks_swapped: gauge("kv_blocks_swapped"),
            swapped_out_blocks: counter("swapped_out_blocks_total"),
            swapped_in_blocks: counter("swapped_in_blocks_total"),
            images_encoded: counter("images_encoded_total"),
            encoder_cache_hits: counter("encoder_cache_hits_total"),
            encoder_cache_usage_ratio: gauge("encoder_cache_usage_ratio"),
            iteration_tokens: histogram("iteration_tokens_total"),
            request_queue_time_seconds: histogram("request_queue_time_seconds"),
            step_duration_seconds: histogram("step_duration_seconds"),
            forward_duration_seconds: histogram("forward_duration_seconds"),
            grammar_duration_seconds: histogram("grammar_duration_seconds"),
        };
        let load = EngineLoad::default();
        load.read_along(&mut engine);
        Self {
            engine,
            load,
            time_to_first_token: histogram("time_to_first_token_seconds"),
            inter_token_latency: histogram("inter_token_latency_seconds"),
            e2e_latency: histogram("e2e_request_latency_seconds"),
            prompt_tokens: histogram("request_prompt_tokens"),
            generation_tokens: histogram("request_generation_tokens"),
            prefill_time: histogram("request_prefill_time_seconds"),
            decode_time: histogram("request_decode_time_seconds"),
            inference_time: histogram("request_inference_time_seconds"),
            time_per_output_token: histogram("request_time_per_output_token_seconds"),
            params_n: histogram("request_params_n"),
            params_max_tokens: histogram("request_params_max_tokens"),
            max_generation_tokens: histogram("request_max_num_generation_tokens"),
            not_held: counter("requests_not_held_total"),
            images: ImageMetrics {
                processed: counter("images_processed_total"),
                processing_time: histogram("image_processing_seconds"),
                waiting_bytes: gauge("image_waiting_bytes"),
            },
            handle: recorder.handle(),
            recorder: Arc::new(recorder),
            naming,
        }
    }

    /// The engine's load, for the log.
    pub(crate) fn load(&self) -> &EngineLoad {
        &self.load
    }

    /// Counts a finished choice.
    pub(crate) fn count_success(&self, finish_reason: &'static str) {
        let label = match self.naming {
            Naming::Own => "finish_reason",
            Naming::Vllm => "finished_reason",
        };
        let labels = vec![Label::from_static_parts(label, finish_reason)];
        self.counter("request_success_total", labels).increment(1);
    }

    /// Sets the size of the KV cache.
    pub(crate) fn set_cache_config(&self, block_size: usize, num_blocks: usize) {
        let labels = vec![
            Label::new("block_size", block_size.to_string()),
            Label::new("num_gpu_blocks", num_blocks.to_string()),
        ];
        let key = Key::from_parts(self.naming.name("cache_config_info"), labels);
        self.recorder.register_gauge(&key, &METADATA).set(1.0);
    }

    /// Counter of lines of the log that were dropped for this reason.
    pub(crate) fn dropped_log_lines(&self, reason: &'static str) -> Counter {
        let labels = vec![Label::from_static_parts("reason", reason)];
        self.counter("log_lines_dropped_total", labels)
    }

    /// Counters of the tokens of a key.
    pub(crate) fn key_counters(&self, name: &str) -> KeyCounters {
        let counter = |metric| self.counter(metric, vec![Label::new("key", name.to_owned())]);
        KeyCounters {
            prompt_tokens: counter("key_prompt_tokens_total"),
            generation_tokens: counter("key_generation_tokens_total"),
        }
    }

    /// Counts an answered HTTP request with a key.
    pub(crate) fn count_key_request(&self, name: &str, status: u16) {
        let labels =
            vec![Label::new("key", name.to_owned()), Label::new("status", status.to_string())];
        self.counter("key_requests_total", labels).increment(1);
    }

    /// Counter of failed reloads of files of a kind.
    pub(crate) fn reload_failures(&self, files: &'static str) -> Counter {
        let labels = vec![Label::from_static_parts("files", files)];
        self.counter("reload_failures_total", labels)
    }

    /// Counts an answered HTTP request.
    pub(crate) fn count_http(
        &self,
        method: &'static str,
        path: String,
        status: u16,
        duration: Duration,
    ) {
        let mut labels = vec![Label::from_static_parts("method", method), Label::new("path", path)];
        let key =
            // The status is no label of the histogram, which has a time series for each bucket.
            Key::from_parts(self.naming.name("http_request_duration_seconds"), labels.clone());
        self.recorder.register_histogram(&key, &METADATA).record(duration.as_secs_f64());
        labels.push(Label::new("status", status.to_string()));
        self.counter("http_requests_total", labels).increment(1);
    }

    fn counter(&self, name: &'static str, labels: Vec<Label>) -> Counter {
        self.recorder.register_counter(&Key::from_parts(self.naming.name(name), labels), &METADATA)
    }

    /// In Prometheus' text format.
    pub(crate) fn render(&self) -> String {
        self.handle.render()
    }

    /// Folds what histograms have collected; to be called now and then if nobody renders.
    pub(crate) fn run_upkeep(&self) {
        self.handle.run_upkeep();
    }
}

impl Naming {
    fn name(self, name: &str) -> String {
        let description = DESCRIPTIONS.iter().find(|description| description.name == name);
        self.name_of(description.expect("every metric that is registered is described"))
    }

    fn name_of(self, description: &Description) -> String {
        // Other metrics keep our prefix: under vLLM's prefix, dashboards must not find metrics that vLLM does not have.
        match description.vllm.filter(|_| self == Self::Vllm) {
            Some(name) => name.to_owned(),
            None => format!("candlepower_{}", description.name),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_is_described_and_counted() {
        let metrics = Metrics::new(None, "m");
        metrics.engine.kv_blocks_total.set(7.0);
        metrics.time_to_first_token.record(0.03);
        metrics.count_success("stop");
        metrics.count_http("GET", "/health".into(), 200, Duration::from_millis(3));
        let text = metrics.render();
        for line in [
            "candlepower_kv_blocks_total 7",
            "candlepower_time_to_first_token_seconds_bucket{le=\"0.04\"} 1",
            "candlepower_request_success_total{finish_reason=\"stop\"} 1",
            "candlepower_http_requests_total{method=\"GET\",path=\"/health\",status=\"200\"} 1",
            "# TYPE candlepower_iteration_tokens_total histogram",
        ] {
            assert!(text.lines().any(|l| l == line), "{line} is not in\n{text}");
        }
        assert!(text.contains("# HELP candlepower_kv_cache_usage_ratio Share of"));
    }

    #[test]
    fn other_names_bring_their_labels() {
        let metrics = Metrics::new(Some(MetricsCompat::Vllm), "m");
        metrics.engine.kv_cache_usage_ratio.set(0.5);
        metrics.count_success("length");
        let text = metrics.render();
        assert!(
            text.contains("vllm:kv_cache_usage_perc{model_name=\"m\",engine=\"0\"} 0.5"),
            "{text}"
        );
        assert!(
            text.contains(
                "vllm:request_success_total{model_name=\"m\",engine=\"0\",finished_reason=\"length\"} 1"
            ),
            "{text}"
        );
        metrics.set_cache_config(16, 300);
        let config = "vllm:cache_config_info{model_name=\"m\",engine=\"0\",block_size=\"16\",num_gpu_blocks=\"300\"} 1";
        assert!(metrics.render().contains(config), "{}", metrics.render());
        // Metrics that vLLM does not have keep their own names.
        assert!(
            text.contains("candlepower_kv_blocks_total{model_name=\"m\",engine=\"0\"}"),
            "{text}"
        );
        for invented in [
            "kv_blocks",
            "jump_forward",
            "swapped",
            "step_duration",
            "forward_duration",
            "grammar",
            "image",
            "encoder",
            "key_",
            "log_lines",
            "reload",
        ] {
            assert!(!text.contains(&format!("vllm:{invented}")), "{invented}");
        }
        assert!(
            !text.contains("candlepower_num_requests") && !text.contains("candlepower_time_to")
        );
    }
}
