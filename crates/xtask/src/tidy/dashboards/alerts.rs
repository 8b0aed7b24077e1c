//! The alerts, as rules of Prometheus, and tests of these rules for `promtool test rules`.

use std::fmt::Write;

use super::names::Names;

/// An alert. It fires once the condition is true for the time `held`.
struct Alert {
    name: &'static str,
    value: &'static str,
    condition: &'static str,
    held: &'static str,
    severity: &'static str,
    summary: &'static str,
    advice: &'static str,
    /// Series with which it fires within half an hour: a metric with its labels, and its values each minute. Before them, and without
    /// them, it does not.
    fires: &'static [(&'static str, &'static str)],
}

const ALERTS: &[Alert] = &[
    Alert {
        name: "CandlepowerDown",
        value: "[[up|job=\"candlepower\"]]",
        condition: "== 0",
        held: "1m",
        severity: "critical",
        summary: "the server cannot be scraped",
        advice: "See whether its process runs, and the end of its log.",
        fires: &[("[[up|job=\"candlepower\",instance=\"a\"]]", "1x5 0x40")],
    },
    Alert {
        name: "CandlepowerStalled",
        value: "sum by (job, instance) (rate([[generation_tokens_total]][5m]) + rate([[iteration_tokens_total_sum]][5m]))",
        condition: "== 0 and sum by (job, instance) (min_over_time([[num_requests_running]][5m])) > 0",
        held: "2m",
        severity: "critical",
        summary: "requests run, and no tokens are computed",
        advice: "GET /health says whether the engine is stuck. A restart ends the running requests.",
        fires: &[
            ("[[generation_tokens_total|job=\"candlepower\",instance=\"a\"]]", "0+60x10 600x40"),
            ("[[iteration_tokens_total_sum|job=\"candlepower\",instance=\"a\"]]", "0+60x10 600x40"),
            ("[[num_requests_running|job=\"candlepower\",instance=\"a\"]]", "1x50"),
        ],
    },
    Alert {
        name: "CandlepowerErrors",
        // Without a failure there is no series of failures.
        value: "(sum by (job, instance) (rate([[http_requests_total|status=~\"5..\",LABEL_PATH!=\"/health\"]][5m])) \
            or 0 * sum by (job, instance) (rate([[http_requests_total|LABEL_PATH!=\"/health\"]][5m]))) \
            / sum by (job, instance) (rate([[http_requests_total|LABEL_PATH!=\"/health\"]][5m]))",
        condition: "> 0.05",
        held: "5m",
        severity: "critical",
        summary: "more than 5 % of requests fail",
        advice: "The log has a line for each kind of failure.",
        fires: &[
            (
                "[[http_requests_total|job=\"candlepower\",instance=\"a\",model_name=\"m\",LABEL_PATH=\"/v1/completions\",status=\"STATUS_500\"]]",
                "0x10 0+6x40",
            ),
            (
                "[[http_requests_total|job=\"candlepower\",instance=\"a\",model_name=\"m\",LABEL_PATH=\"/v1/completions\",status=\"STATUS_200\"]]",
                "0+60x50",
            ),
        ],
    },
    Alert {
        name: "CandlepowerQueueLong",
        value: "sum by (job, instance) (avg_over_time([[num_requests_waiting]][5m]))",
        condition: "> 100",
        held: "5m",
        severity: "warning",
        summary: "more than 100 sequences wait",
        advice: "Add servers, or raise --max-num-seqs if the KV cache has room. A full queue answers 429.",
        fires: &[("[[num_requests_waiting|job=\"candlepower\",instance=\"a\"]]", "0x10 200x40")],
    },
    Alert {
        name: "CandlepowerSlowFirstToken",
        value: "histogram_quantile(0.95, sum by (job, instance, le) (rate([[time_to_first_token_seconds_bucket]][5m])))",
        condition: "> 10",
        held: "10m",
        severity: "warning",
        summary: "5 % of requests wait more than 10 s for their first token",
        advice: "The panels \"Queue time\" and \"Mean time in each phase\" say where the time goes.",
        fires: &[
            (
                "[[time_to_first_token_seconds_bucket|job=\"candlepower\",instance=\"a\",le=\"10\"]]",
                "0x50",
            ),
            (
                "[[time_to_first_token_seconds_bucket|job=\"candlepower\",instance=\"a\",le=\"20\"]]",
                "0x10 0+6x40",
            ),
            (
                "[[time_to_first_token_seconds_bucket|job=\"candlepower\",instance=\"a\",le=\"+Inf\"]]",
                "0x10 0+6x40",
            ),
        ],
    },
    Alert {
        name: "CandlepowerSlowTokens",
        value: "histogram_quantile(0.95, sum by (job, instance, le) (rate([[inter_token_latency_seconds_bucket]][5m])))",
        condition: "> 0.5",
        held: "10m",
        severity: "warning",
        summary: "5 % of tokens come more than 0.5 s after the one before",
        advice: "Long prompts beside running answers, preemptions, or a busy machine. See \"Time of a step\".",
        fires: &[
            (
                "[[inter_token_latency_seconds_bucket|job=\"candlepower\",instance=\"a\",le=\"0.5\"]]",
                "0x50",
            ),
            (
                "[[inter_token_latency_seconds_bucket|job=\"candlepower\",instance=\"a\",le=\"1\"]]",
                "0x10 0+6x40",
            ),
            (
                "[[inter_token_latency_seconds_bucket|job=\"candlepower\",instance=\"a\",le=\"+Inf\"]]",
                "0x10 0+6x40",
            ),
        ],
    },
    Alert {
        name: "CandlepowerCacheFull",
        value: "min_over_time([[kv_cache_usage_ratio]][5m])",
        condition: "> 0.95",
        held: "10m",
        severity: "warning",
        summary: "the KV cache is full",
        advice: "Sequences wait or are preempted. More memory for the cache, shorter contexts or more servers help.",
        fires: &[("[[kv_cache_usage_ratio|job=\"candlepower\",instance=\"a\"]]", "0.2x5 0.99x45")],
    },
    Alert {
        name: "CandlepowerPreempts",
        value: "sum by (job, instance) (rate([[num_preemptions_total]][5m]))",
        condition: "> 1",
        held: "10m",
        severity: "warning",
        summary: "more than one sequence a second is preempted",
        advice: "Each is computed again or swapped. Lower --max-num-seqs, or give the KV cache more memory.",
        fires: &[("[[num_preemptions_total|job=\"candlepower\",instance=\"a\"]]", "0x10 0+120x40")],
    },
    Alert {
        name: "CandlepowerRestarts",
        value: "changes([[process_start_time_seconds|job=\"candlepower\"]][30m])",
        condition: "> 2",
        held: "0m",
        severity: "warning",
        summary: "the server restarts again and again",
        advice: "The end of its log says why.",
        fires: &[(
            "[[process_start_time_seconds|job=\"candlepower\",instance=\"a\"]]",
            "100x5 200 300 400 500x40",
        )],
    },
    Alert {
        name: "CandlepowerFilesRunOut",
        value: "[[process_open_fds|job=\"candlepower\"]] / [[process_max_fds|job=\"candlepower\"]]",
        condition: "> 0.8",
        held: "5m",
        severity: "warning",
        summary: "80 % of file descriptors are in use",
        advice: "Raise the limit (ulimit -n, LimitNOFILE), or lower --max-connections.",
        fires: &[
            ("[[process_open_fds|job=\"candlepower\",instance=\"a\"]]", "100x5 900x45"),
            ("[[process_max_fds|job=\"candlepower\",instance=\"a\"]]", "1000x50"),
        ],
    },
    Alert {
        name: "CandlepowerLogDropped",
        value: "sum by (job, instance) (increase([[log_lines_dropped_total]][15m]))",
        condition: "> 0",
        held: "0m",
        severity: "warning",
        summary: "lines of the log are lost",
        advice: "Nobody reads standard error, or its disk is full.",
        fires: &[(
            "[[log_lines_dropped_total|job=\"candlepower\",instance=\"a\",reason=\"queue_full\"]]",
            "0x10 0+1x40",
        )],
    },
    Alert {
        name: "CandlepowerReloadFailed",
        value: "increase([[reload_failures_total]][15m])",
        condition: "> 0",
        held: "0m",
        severity: "warning",
        summary: "keys or certificates could not be read again",
        advice: "The old ones are still in force. The log names the file.",
        fires: &[(
            "[[reload_failures_total|job=\"candlepower\",instance=\"a\",files=\"keys\"]]",
            "0x25 1x25",
        )],
    },
    Alert {
        name: "CandlepowerTracesDropped",
        value: "sum by (job, instance) (increase([[trace_spans_dropped_total]][15m]))",
        condition: "> 0",
        held: "10m",
        severity: "warning",
        summary: "spans of traces are dropped",
        advice: "The collector of --otlp-endpoint is slow, gone, or refuses them. Requests are not affected.",
        fires: &[(
            "[[trace_spans_dropped_total|job=\"candlepower\",instance=\"a\",reason=\"send_failed\"]]",
            "0x10 0+10x40",
        )],
    },
];

/// The rules.
///
/// # Errors
/// An alert names a metric that the server does not have.
pub(super) fn rules(names: &Names) -> Result<String, String> {
    let mut text = "# Written by `cargo xtask docs`. Load it with `rule_files` of Prometheus.\n\
                    groups:\n  - name: candlepower\n    rules:\n"
        .to_owned();
    for alert in ALERTS {
        let expression = names.fill(&format!("{} {}", alert.value, alert.condition), "")?;
        let Alert { name, held, severity, summary, advice, .. } = alert;
        // A String takes everything.
        let _ = write!(
            text,
            "      - alert: {name}\n        expr: {}\n        for: {held}\n        labels:\n          severity: {severity}\n        \
             annotations:\n          summary: {}\n          description: {}\n",
            quoted(&expression),
            quoted(&format!("{{{{ $labels.instance }}}}: {summary}")),
            quoted(&format!("The value is {{{{ $value | humanize }}}}. {advice}"))
        );
    }
    Ok(text)
}

/// The tests of the rules.
///
/// # Errors
/// Those of [`rules`].
pub(super) fn tests(names: &Names) -> Result<String, String> {
    let stem = names.naming.stem();
    let (ok, failed) = match names.naming {
        super::Naming::Own => ("200", "500"),
        super::Naming::Vllm => ("2xx", "5xx"),
    };
    let mut text = format!(
        "# Written by `cargo xtask docs`: promtool test rules {stem}-rules.test.yml\n\
         rule_files: [{stem}-rules.yml]\nevaluation_interval: 1m\ntests:\n"
    );
    for alert in ALERTS {
        text += "  - interval: 1m\n    input_series:\n";
        for (series, values) in alert.fires {
            let series = names.series(series)?;
            let series = series.replace("STATUS_200", ok).replace("STATUS_500", failed);
            let _ = write!(text, "      - series: {}\n        values: {values}\n", quoted(&series));
        }
        let _ = write!(
            text,
            "    alert_rule_test:\n      - eval_time: 4m\n        alertname: {0}\n        exp_alerts: []\n    \
             promql_expr_test:\n      - expr: count(ALERTS{{alertname=\"{0}\",alertstate=\"firing\"}})\n        eval_time: 35m\n        \
             exp_samples:\n          - labels: '{{}}'\n            value: 1\n",
            alert.name
        );
    }
    Ok(text)
}

/// A text in single quotation marks of YAML.
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}
