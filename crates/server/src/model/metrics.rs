//! Prometheus metrics of one server. The recorder belongs to the server, not to the process.

mod descriptions;
mod process;

use std::sync::Arc;
use std::time::Duration;

use candlepower_engine::EngineMetrics;
use metrics::{Counter, Gauge, Histogram, Key, KeyName, Label, Metadata, Recorder};
use metrics_exporter_prometheus::{
    Matcher, PrometheusBuilder, PrometheusHandle, PrometheusRecorder,
};

use crate::config::MetricsCompat;
use crate::model::engine_load::EngineLoad;
use descriptions::{DESCRIPTIONS, Kind, Naming};

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
    /// The same under an older name of vLLM; it counts nothing under our names.
    pub(crate) per_output_token: Histogram,
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
    pub(crate) traces: TraceCounters,
}

/// Metrics of images in requests; cheap to clone.
#[derive(Clone)]
pub(crate) struct ImageMetrics {
    pub(crate) processed: Counter,
    pub(crate) processing_time: Histogram,
    pub(crate) waiting_bytes: Gauge,
}

/// Counters of the spans of traces.
#[derive(Clone)]
pub(crate) struct TraceCounters {
    pub(crate) sent: Counter,
    pub(crate) queue_full: Counter,
    pub(crate) send_failed: Counter,
}

/// The KV cache, as /metrics describes it.
pub(crate) struct CacheConfig {
    /// Tokens in a block.
    pub(crate) block_size: usize,
    pub(crate) num_blocks: usize,
    pub(crate) dtype: &'static str,
    pub(crate) caches_prefixes: bool,
    pub(crate) gpu_memory_utilization: f64,
}

/// Counters of an API key.
#[derive(Debug)]
pub(crate) struct KeyCounters {
    pub(crate) prompt_tokens: Counter,
    pub(crate) generation_tokens: Counter,
}

/// Reasons for which a choice can finish.
const FINISH_REASONS: [&str; 3] = ["stop", "length", "abort"];

/// Starts a thread that measures the processor's clock for the metrics, which would otherwise do so themselves. It takes some
/// milliseconds, in which the start of a server has other work.
pub fn measure_clock() {
    // The library measures it once in a process, for the first recorder. A failure only makes the start slower.
    let measure = || drop(PrometheusBuilder::new().build_recorder());
    let _ = std::thread::Builder::new().name("clock".to_owned()).spawn(measure);
}

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
                let name = Matcher::Full(naming.name_of(description));
                builder = builder
                    .set_buckets_for_metric(name, naming.buckets(buckets))
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
        let metrics = Self {
            engine,
            load,
            time_to_first_token: histogram("time_to_first_token_seconds"),
            inter_token_latency: histogram("inter_token_latency_seconds"),
            per_output_token: match naming {
                Naming::Own => Histogram::noop(),
                Naming::Vllm => histogram("time_per_output_token_seconds"),
            },
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
            traces: {
                let dropped = |reason| {
                    let labels = vec![Label::from_static_parts("reason", reason)];
                    let key = Key::from_parts(naming.name("trace_spans_dropped_total"), labels);
                    recorder.register_counter(&key, &METADATA)
                };
                TraceCounters {
                    sent: counter("trace_spans_sent_total"),
                    queue_full: dropped("queue_full"),
                    send_failed: dropped("send_failed"),
                }
            },
            handle: recorder.handle(),
            recorder: Arc::new(recorder),
            naming,
        };
        // A rate needs a zero before the first choice.
        for finish_reason in FINISH_REASONS {
            metrics.successes(finish_reason).increment(0);
        }
        metrics
    }

    /// The engine's load, for the log.
    pub(crate) fn load(&self) -> &EngineLoad {
        &self.load
    }

    /// Counts a finished choice.
    pub(crate) fn count_success(&self, finish_reason: &'static str) {
        self.successes(finish_reason).increment(1);
    }

    /// Counter of choices that finished for this reason.
    fn successes(&self, finish_reason: &'static str) -> Counter {
        let label = match self.naming {
            Naming::Own => "finish_reason",
            Naming::Vllm => "finished_reason",
        };
        let labels = vec![Label::from_static_parts(label, finish_reason)];
        self.counter("request_success_total", labels)
    }

    /// Sets the version of the server.
    pub(crate) fn set_build(&self, version: &'static str, framework: &'static str) {
        let labels = vec![
            Label::from_static_parts("version", version),
            Label::from_static_parts("framework", framework),
        ];
        self.info("build_info", labels);
    }

    /// Sets the properties of the KV cache.
    pub(crate) fn set_cache_config(&self, cache: &CacheConfig) {
        let caches_prefixes = match (self.naming, cache.caches_prefixes) {
            (Naming::Own, true) => "true",
            (Naming::Own, false) => "false",
            // vLLM shows Python's values.
            (Naming::Vllm, true) => "True",
            (Naming::Vllm, false) => "False",
        };
        let labels = vec![
            Label::new("block_size", cache.block_size.to_string()),
            Label::new("num_gpu_blocks", cache.num_blocks.to_string()),
            Label::from_static_parts("cache_dtype", cache.dtype),
            Label::from_static_parts("enable_prefix_caching", caches_prefixes),
            Label::new("gpu_memory_utilization", cache.gpu_memory_utilization.to_string()),
        ];
        self.info("cache_config_info", labels);
    }

    /// Sets a gauge whose labels are the information.
    fn info(&self, name: &'static str, labels: Vec<Label>) {
        let key = Key::from_parts(self.naming.name(name), labels);
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
        let (path_label, status) = match self.naming {
            Naming::Own => ("path", status.to_string()),
            // vLLM's HTTP metrics name the handler and group the statuses. Source: prometheus-fastapi-instrumentator.
            Naming::Vllm => ("handler", format!("{}xx", status / 100)),
        };
        let mut labels =
            vec![Label::from_static_parts("method", method), Label::new(path_label, path)];
        let key =
            // The status is no label of the histogram, which has a time series for each bucket.
            Key::from_parts(self.naming.name("http_request_duration_seconds"), labels.clone());
        self.recorder.register_histogram(&key, &METADATA).record(duration.as_secs_f64());
        labels.push(Label::new("status", status));
        self.counter("http_requests_total", labels).increment(1);
    }

    fn counter(&self, name: &'static str, labels: Vec<Label>) -> Counter {
        self.recorder.register_counter(&Key::from_parts(self.naming.name(name), labels), &METADATA)
    }

    /// In Prometheus' text format.
    pub(crate) fn render(&self) -> String {
        let mut text = self.handle.render();
        process::render(&mut text);
        text
    }

    /// Folds what histograms have collected; to be called now and then if nobody renders.
    pub(crate) fn run_upkeep(&self) {
        self.handle.run_upkeep();
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
        metrics.set_cache_config(&CacheConfig {
            block_size: 16,
            num_blocks: 300,
            dtype: "float32",
            caches_prefixes: true,
            gpu_memory_utilization: 0.9,
        });
        let config = "vllm:cache_config_info{model_name=\"m\",engine=\"0\",block_size=\"16\",num_gpu_blocks=\"300\",\
            cache_dtype=\"float32\",enable_prefix_caching=\"True\",gpu_memory_utilization=\"0.9\"} 1";
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

    #[test]
    fn buckets_come_with_the_names() {
        let buckets = |compat, name: &str| {
            let metrics = Metrics::new(compat, "m");
            metrics.params_n.record(1.0);
            metrics.per_output_token.record(0.02);
            let prefix = format!("{name}_bucket{{");
            metrics.render().lines().filter(|line| line.starts_with(&prefix)).count()
        };
        let vllm = Some(MetricsCompat::Vllm);
        // With the bucket for all values.
        assert_eq!(buckets(vllm, "vllm:request_params_n"), 6);
        assert_eq!(buckets(None, "candlepower_request_params_n"), 8);
        assert_eq!(buckets(vllm, "vllm:time_per_output_token_seconds"), 20);
        assert_eq!(buckets(None, "candlepower_time_per_output_token_seconds"), 0);
    }

    #[test]
    fn requests_over_http_are_counted_as_vllm_does() {
        let metrics = Metrics::new(Some(MetricsCompat::Vllm), "m");
        metrics.count_http("POST", "/v1/completions".into(), 404, Duration::from_millis(3));
        let line = "http_requests_total{model_name=\"m\",engine=\"0\",method=\"POST\",handler=\"/v1/completions\",status=\"4xx\"} 1";
        assert!(metrics.render().contains(line), "{}", metrics.render());
    }
}
