//! The list of all metrics: their names here and in vLLM, their buckets and their help texts.

/// The naming scheme of the metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Naming {
    Own,
    Vllm,
}

pub(super) enum Kind {
    Counter,
    Gauge,
    Histogram(&'static Buckets),
}

/// Bucket boundaries of a histogram. Ours reach further down, since small models answer in milliseconds. vLLM's own come with its
/// names: sums over servers of both kinds need the same boundaries.
pub(super) struct Buckets {
    own: &'static [f64],
    vllm: &'static [f64],
}

const fn buckets(own: &'static [f64], vllm: &'static [f64]) -> Buckets {
    Buckets { own, vllm }
}

/// A metric: its name after `candlepower_`, vLLM's name if it has the metric, its kind, and its help text.
pub(super) struct Description {
    pub(super) name: &'static str,
    vllm: Option<&'static str>,
    pub(super) kind: Kind,
    pub(super) help: &'static str,
}

const fn describe(
    name: &'static str,
    vllm: Option<&'static str>,
    kind: Kind,
    help: &'static str,
) -> Description {
    Description { name, vllm, kind, help }
}

/// Seconds to the first token.
const FIRST_TOKEN_S: &Buckets = &buckets(
    &[
        0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
        20.0, 40.0, 80.0, 160.0,
    ],
    &[
        0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
        20.0, 40.0, 80.0, 160.0, 640.0, 2560.0,
    ],
);
/// Seconds of one output token.
const TOKEN_S: &Buckets = &buckets(
    &[
        0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0,
        2.5, 5.0, 10.0, 20.0,
    ],
    &[
        0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
        20.0, 40.0, 80.0,
    ],
);
/// Seconds of a request or of one of its phases.
const REQUEST_S: &Buckets = &buckets(
    &[
        0.005, 0.01, 0.025, 0.05, 0.1, 0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0,
        30.0, 40.0, 60.0, 120.0, 240.0, 480.0, 960.0,
    ],
    &[
        0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0,
        240.0, 480.0, 960.0, 1920.0, 7680.0,
    ],
);
/// Seconds of work that vLLM does not measure.
const OWN_S: &[f64] = &[
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5,
    5.0, 10.0,
];
const STEP_S: &Buckets = &buckets(OWN_S, OWN_S);
/// Tokens of a request. vLLM's end at the model's context.
const TOKENS: &Buckets = &buckets(ONE_TWO_FIVE, ONE_TWO_FIVE);
const ONE_TWO_FIVE: &[f64] = &[
    1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0, 2000.0, 5000.0, 10000.0, 20000.0,
    50000.0, 100000.0, 200000.0, 500000.0, 1000000.0,
];
/// Choices of a request.
const CHOICES: &Buckets =
    &buckets(&[1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0], &[1.0, 2.0, 5.0, 10.0, 20.0]);
/// Batch tokens of a step.
const STEP_TOKENS: &Buckets = &buckets(
    ONE_TWO_FIVE,
    &[1.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0, 8192.0, 16384.0],
);

pub(super) const DESCRIPTIONS: &[Description] = &[
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
        "time_per_output_token_seconds",
        Some("vllm:time_per_output_token_seconds"),
        Kind::Histogram(TOKEN_S),
        "The same as vllm:inter_token_latency_seconds, by the name of older versions of vLLM.",
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
        Kind::Histogram(CHOICES),
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
        "Always 1; the labels describe the KV cache, such as the tokens in a block and the number of blocks.",
    ),
    describe(
        "iteration_tokens_total",
        Some("vllm:iteration_tokens_total"),
        Kind::Histogram(STEP_TOKENS),
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
        "build_info",
        None,
        Kind::Gauge,
        "Always 1; the labels are the version of the server and its framework.",
    ),
    describe(
        "trace_spans_sent_total",
        None,
        Kind::Counter,
        "Spans of traces that the collector of --otlp-endpoint has accepted.",
    ),
    describe(
        "trace_spans_dropped_total",
        None,
        Kind::Counter,
        "Spans of traces that were dropped, because the queue was full (queue_full) or the collector did not accept them (send_failed).",
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

impl Naming {
    pub(super) fn name(self, name: &str) -> String {
        let description = DESCRIPTIONS.iter().find(|description| description.name == name);
        self.name_of(description.expect("every metric that is registered is described"))
    }

    pub(super) fn name_of(self, description: &Description) -> String {
        // Other metrics keep our prefix: under vLLM's prefix, dashboards must not find metrics that vLLM does not have.
        match description.vllm.filter(|_| self == Self::Vllm) {
            Some(name) => name.to_owned(),
            None => format!("candlepower_{}", description.name),
        }
    }

    /// The buckets of a histogram.
    pub(super) fn buckets(self, buckets: &Buckets) -> &'static [f64] {
        match self {
            Self::Own => buckets.own,
            Self::Vllm => buckets.vllm,
        }
    }
}
