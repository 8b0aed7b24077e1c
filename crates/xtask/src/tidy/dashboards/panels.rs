//! The panels of the dashboards.

/// The unit of a panel's values, in Grafana's words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unit {
    Number,
    Seconds,
    Ratio,
    Bytes,
    PerSecond,
    TokensPerSecond,
    Tokens,
}

impl Unit {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Number => "short",
            Self::Seconds => "s",
            Self::Ratio => "percentunit",
            Self::Bytes => "bytes",
            Self::PerSecond => "reqps",
            Self::TokensPerSecond => "suffix: tokens/s",
            Self::Tokens => "suffix: tokens",
        }
    }
}

/// A row of the dashboard, with its panels.
pub(super) struct Row {
    pub(super) title: &'static str,
    pub(super) panels: &'static [Panel],
}

/// A panel, with its lines.
pub(super) struct Panel {
    pub(super) title: &'static str,
    pub(super) help: &'static str,
    pub(super) unit: Unit,
    pub(super) lines: &'static [Line],
}

/// A legend and an expression, with metrics in double brackets. `$rate` is the time of a rate.
pub(super) struct Line(pub(super) &'static str, pub(super) &'static str);

const fn panel(
    title: &'static str,
    unit: Unit,
    help: &'static str,
    lines: &'static [Line],
) -> Panel {
    Panel { title, help, unit, lines }
}

pub(super) const ROWS: &[Row] = &[
    Row {
        title: "Load",
        panels: &[
            panel(
                "Requests running and waiting",
                Unit::Number,
                "Sequences in the batch, and sequences that wait for KV blocks or for a slot in the batch.",
                &[
                    Line("running", "sum([[num_requests_running]])"),
                    Line("waiting", "sum([[num_requests_waiting]])"),
                ],
            ),
            panel(
                "Tokens per second",
                Unit::TokensPerSecond,
                "Prompt tokens of admitted requests, cached ones included, and generated tokens.",
                &[
                    Line("prompt", "sum(rate([[prompt_tokens_total]][$rate]))"),
                    Line("generated", "sum(rate([[generation_tokens_total]][$rate]))"),
                ],
            ),
            panel(
                "Answers by status",
                Unit::PerSecond,
                "HTTP requests by status, without probes and scrapes.",
                &[Line(
                    "{{status}}",
                    "sum by (status) (rate([[http_requests_total|LABEL_PATH!~\"/health|/metrics|/version\"]][$rate]))",
                )],
            ),
            panel(
                "Finished choices by reason",
                Unit::PerSecond,
                "stop: the model ended the text. length: max_tokens or the context ended it. abort: the server stopped.",
                &[Line(
                    "{{LABEL_REASON}}",
                    "sum by (LABEL_REASON) (rate([[request_success_total]][$rate]))",
                )],
            ),
        ],
    },
    Row {
        title: "Latency",
        panels: &[
            panel(
                "Time to first token",
                Unit::Seconds,
                "From a request's arrival to its first token: queue, prefill and preparation.",
                &[
                    Line(
                        "p50",
                        "histogram_quantile(0.5, sum by (le) (rate([[time_to_first_token_seconds_bucket]][$rate])))",
                    ),
                    Line(
                        "p90",
                        "histogram_quantile(0.9, sum by (le) (rate([[time_to_first_token_seconds_bucket]][$rate])))",
                    ),
                    Line(
                        "p99",
                        "histogram_quantile(0.99, sum by (le) (rate([[time_to_first_token_seconds_bucket]][$rate])))",
                    ),
                ],
            ),
            panel(
                "Inter-token latency",
                Unit::Seconds,
                "Between two tokens of a choice.",
                &[
                    Line(
                        "p50",
                        "histogram_quantile(0.5, sum by (le) (rate([[inter_token_latency_seconds_bucket]][$rate])))",
                    ),
                    Line(
                        "p90",
                        "histogram_quantile(0.9, sum by (le) (rate([[inter_token_latency_seconds_bucket]][$rate])))",
                    ),
                    Line(
                        "p99",
                        "histogram_quantile(0.99, sum by (le) (rate([[inter_token_latency_seconds_bucket]][$rate])))",
                    ),
                ],
            ),
            panel(
                "End-to-end latency",
                Unit::Seconds,
                "From a request's arrival to the end of a choice.",
                &[
                    Line(
                        "p50",
                        "histogram_quantile(0.5, sum by (le) (rate([[e2e_request_latency_seconds_bucket]][$rate])))",
                    ),
                    Line(
                        "p90",
                        "histogram_quantile(0.9, sum by (le) (rate([[e2e_request_latency_seconds_bucket]][$rate])))",
                    ),
                    Line(
                        "p99",
                        "histogram_quantile(0.99, sum by (le) (rate([[e2e_request_latency_seconds_bucket]][$rate])))",
                    ),
                ],
            ),
            panel(
                "Mean time in each phase",
                Unit::Seconds,
                "Queue: from submission to the first step. Prefill: the steps of the prompt. Decode: from the first to the last token.",
                &[
                    Line(
                        "queue",
                        "sum(rate([[request_queue_time_seconds_sum]][$rate])) / sum(rate([[request_queue_time_seconds_count]][$rate]))",
                    ),
                    Line(
                        "prefill",
                        "sum(rate([[request_prefill_time_seconds_sum]][$rate])) / sum(rate([[request_prefill_time_seconds_count]][$rate]))",
                    ),
                    Line(
                        "decode",
                        "sum(rate([[request_decode_time_seconds_sum]][$rate])) / sum(rate([[request_decode_time_seconds_count]][$rate]))",
                    ),
                ],
            ),
            panel(
                "Time per output token of a choice",
                Unit::Seconds,
                "Mean over the tokens of a choice, after its first.",
                &[
                    Line(
                        "p50",
                        "histogram_quantile(0.5, sum by (le) (rate([[request_time_per_output_token_seconds_bucket]][$rate])))",
                    ),
                    Line(
                        "p99",
                        "histogram_quantile(0.99, sum by (le) (rate([[request_time_per_output_token_seconds_bucket]][$rate])))",
                    ),
                ],
            ),
            panel(
                "Queue time",
                Unit::Seconds,
                "From submission to the first step.",
                &[
                    Line(
                        "p50",
                        "histogram_quantile(0.5, sum by (le) (rate([[request_queue_time_seconds_bucket]][$rate])))",
                    ),
                    Line(
                        "p99",
                        "histogram_quantile(0.99, sum by (le) (rate([[request_queue_time_seconds_bucket]][$rate])))",
                    ),
                ],
            ),
        ],
    },
    Row {
        title: "KV cache and engine",
        panels: &[
            panel(
                "KV cache in use",
                Unit::Ratio,
                "Share of blocks that sequences and sessions hold. Cached blocks without a reference count as free.",
                &[
                    Line("{{instance}}", "[[kv_cache_usage_ratio]]"),
                    Line("sessions, {{instance}}", "[[kv_blocks_pinned]] / [[kv_blocks_total]]"),
                ],
            ),
            panel(
                "Prefix cache hits",
                Unit::Ratio,
                "Share of prompt tokens that were found in the prefix cache.",
                &[Line(
                    "hits",
                    "sum(rate([[prefix_cache_hits_total]][$rate])) / sum(rate([[prefix_cache_queries_total]][$rate]))",
                )],
            ),
            panel(
                "Preemptions per second",
                Unit::Number,
                "Sequences that lost their blocks, because these ran out or for another caller.",
                &[Line(
                    "{{instance}}",
                    "sum by (instance) (rate([[num_preemptions_total]][$rate]))",
                )],
            ),
            panel(
                "Batch tokens of a step",
                Unit::Tokens,
                "Mean, and median of steps.",
                &[
                    Line(
                        "mean",
                        "sum(rate([[iteration_tokens_total_sum]][$rate])) / sum(rate([[iteration_tokens_total_count]][$rate]))",
                    ),
                    Line(
                        "p50",
                        "histogram_quantile(0.5, sum by (le) (rate([[iteration_tokens_total_bucket]][$rate])))",
                    ),
                ],
            ),
            panel(
                "Time of a step",
                Unit::Seconds,
                "Whole steps, and the forward pass in them.",
                &[
                    Line(
                        "step p50",
                        "histogram_quantile(0.5, sum by (le) (rate([[step_duration_seconds_bucket]][$rate])))",
                    ),
                    Line(
                        "step p99",
                        "histogram_quantile(0.99, sum by (le) (rate([[step_duration_seconds_bucket]][$rate])))",
                    ),
                    Line(
                        "forward mean",
                        "sum(rate([[forward_duration_seconds_sum]][$rate])) / sum(rate([[forward_duration_seconds_count]][$rate]))",
                    ),
                ],
            ),
            panel(
                "Images per second",
                Unit::Number,
                "Images of requests, and the part of them whose embeddings were known.",
                &[
                    Line("read", "sum(rate([[images_processed_total]][$rate]))"),
                    Line("encoded", "sum(rate([[images_encoded_total]][$rate]))"),
                    Line("found encoded", "sum(rate([[encoder_cache_hits_total]][$rate]))"),
                ],
            ),
        ],
    },
    Row {
        title: "Requests and callers",
        panels: &[
            panel(
                "Length of prompts",
                Unit::Tokens,
                "Tokens of a prompt.",
                &[
                    Line(
                        "p50",
                        "histogram_quantile(0.5, sum by (le) (rate([[request_prompt_tokens_bucket]][$rate])))",
                    ),
                    Line(
                        "p99",
                        "histogram_quantile(0.99, sum by (le) (rate([[request_prompt_tokens_bucket]][$rate])))",
                    ),
                ],
            ),
            panel(
                "Length of choices",
                Unit::Tokens,
                "Generated tokens of a choice.",
                &[
                    Line(
                        "p50",
                        "histogram_quantile(0.5, sum by (le) (rate([[request_generation_tokens_bucket]][$rate])))",
                    ),
                    Line(
                        "p99",
                        "histogram_quantile(0.99, sum by (le) (rate([[request_generation_tokens_bucket]][$rate])))",
                    ),
                ],
            ),
            panel(
                "Generated tokens by API key",
                Unit::TokensPerSecond,
                "Only servers with keys have it.",
                &[Line("{{key}}", "sum by (key) (rate([[key_generation_tokens_total]][$rate]))")],
            ),
            panel(
                "Requests by API key and status",
                Unit::PerSecond,
                "Only servers with keys have it.",
                &[Line(
                    "{{key}} {{status}}",
                    "sum by (key, status) (rate([[key_requests_total]][$rate]))",
                )],
            ),
        ],
    },
    Row {
        title: "Process",
        panels: &[
            panel(
                "Memory",
                Unit::Bytes,
                "Resident memory of the server's process. Ranks of tensor parallelism are processes of their own.",
                &[Line("{{instance}}", "[[process_resident_memory_bytes]]")],
            ),
            panel(
                "CPUs in use",
                Unit::Number,
                "CPU seconds per second.",
                &[Line("{{instance}}", "rate([[process_cpu_seconds_total]][$rate])")],
            ),
            panel(
                "Open files and connections",
                Unit::Number,
                "File descriptors of the process.",
                &[Line("{{instance}}", "[[process_open_fds]]")],
            ),
            panel(
                "Dropped lines of the log, and spans of traces",
                Unit::PerSecond,
                "Nobody read the log, or the collector of traces was too slow or gone.",
                &[
                    Line("log lines", "sum(rate([[log_lines_dropped_total]][$rate]))"),
                    Line("spans", "sum(rate([[trace_spans_dropped_total]][$rate]))"),
                ],
            ),
            panel(
                "Versions",
                Unit::Number,
                "Number of servers of each version.",
                &[Line(
                    "{{version}} {{framework}}",
                    "count by (version, framework) ([[build_info]])",
                )],
            ),
            panel(
                "KV blocks",
                Unit::Number,
                "Size of the KV cache, with the tokens of a block.",
                &[Line(
                    "{{instance}}, {{block_size}} tokens each",
                    "[[kv_blocks_total]] * on (instance) group_left (block_size) [[cache_config_info]]",
                )],
            ),
        ],
    },
];
