//! One scrape of a server's metrics, by candlepower's names or by vLLM's.

use std::collections::BTreeMap;
use std::time::Instant;

/// Prefixes of names. Metrics of the process and of HTTP may have none.
const PREFIXES: [&str; 3] = ["candlepower_", "vllm:", ""];
/// vLLM's names that differ from candlepower's by more than the prefix.
const RENAMED: [(&str, &str); 1] = [("kv_cache_usage_perc", "kv_cache_usage_ratio")];

/// Values at one time.
pub(crate) struct Sample {
    pub(crate) at: Instant,
    /// Series of each metric, by candlepower's name without a prefix.
    metrics: BTreeMap<String, Vec<Series>>,
}

struct Series {
    labels: Vec<(String, String)>,
    value: f64,
}

impl Series {
    fn label(&self, name: &str) -> Option<&str> {
        let found = self.labels.iter().find(|(label, _)| label == name);
        found.map(|(_, value)| value.as_str())
    }
}

impl Sample {
    /// Reads Prometheus' text format. Lines that are none of it are left out.
    pub(crate) fn parse(text: &str, at: Instant) -> Self {
        let mut metrics = BTreeMap::<String, Vec<Series>>::new();
        for (name, series) in text.lines().filter_map(series) {
            let name = PREFIXES.iter().find_map(|prefix| name.strip_prefix(prefix)).unwrap_or(name);
            let renamed = RENAMED.iter().find(|(vllm, _)| *vllm == name);
            let name = renamed.map_or(name, |(_, own)| own);
            metrics.entry(name.to_owned()).or_default().push(series);
        }
        Self { at, metrics }
    }

    fn series(&self, name: &str) -> &[Series] {
        self.metrics.get(name).map_or(&[], Vec::as_slice)
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        self.metrics.contains_key(name)
    }

    /// Sum of the series whose labels begin with these values.
    pub(crate) fn sum(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        let fits = |series: &&Series| {
            let fits = |(name, start): &(&str, &str)| {
                series.label(name).is_some_and(|value| value.starts_with(start))
            };
            labels.iter().all(fits)
        };
        self.series(name).iter().filter(fits).map(|series| series.value).sum()
    }

    /// Sum of the series whose label has this value.
    pub(crate) fn sum_of(&self, name: &str, label: &str, value: &str) -> f64 {
        let fits = |series: &&Series| series.label(label) == Some(value);
        self.series(name).iter().filter(fits).map(|series| series.value).sum()
    }

    /// The value of a label of a metric's first series.
    pub(crate) fn label(&self, name: &str, label: &str) -> Option<&str> {
        self.series(name).first()?.label(label)
    }

    /// All values of a label.
    pub(crate) fn labels<'a>(&'a self, name: &str, label: &'a str) -> Vec<&'a str> {
        let mut values: Vec<&str> =
            self.series(name).iter().filter_map(|series| series.label(label)).collect();
        values.sort_unstable();
        values.dedup();
        values
    }

    /// Increase of a counter since another sample.
    pub(crate) fn increase(&self, since: &Self, name: &str, labels: &[(&str, &str)]) -> f64 {
        (self.sum(name, labels) - since.sum(name, labels)).max(0.0)
    }

    /// Increase of a counter per second.
    pub(crate) fn rate_since(&self, since: &Self, name: &str, labels: &[(&str, &str)]) -> f64 {
        let seconds = (self.at - since.at).as_secs_f64();
        // Two scrapes at once would divide by zero.
        self.increase(since, name, labels) / seconds.max(0.001)
    }

    /// Whether the server was started anew between the samples.
    pub(crate) fn is_of_another_process(&self, later: &Self) -> bool {
        const START: &str = "process_start_time_seconds";
        let restarted = self.has(START) && self.sum(START, &[]) != later.sum(START, &[]);
        let counts = ["generation_tokens_total", "prompt_tokens_total"];
        restarted || counts.iter().any(|name| later.sum(name, &[]) < self.sum(name, &[]))
    }

    /// A quantile of a histogram's values since another sample, within the bucket by a straight line as Prometheus does. `None` if there
    /// are no values.
    pub(crate) fn quantile(&self, since: Option<&Self>, name: &str, quantile: f64) -> Option<f64> {
        let name = format!("{name}_bucket");
        let mut buckets = BTreeMap::<u64, (f64, f64)>::new();
        let mut add = |sample: &Self, sign: f64| {
            for series in sample.series(&name) {
                let bound = match series.label("le") {
                    Some("+Inf") => f64::INFINITY,
                    Some(bound) => bound.parse().unwrap_or(f64::INFINITY),
                    None => continue,
                };
                // The order of the bits is that of the numbers, as none is negative.
                let bucket = buckets.entry(bound.to_bits()).or_insert((bound, 0.0));
                bucket.1 += sign * series.value;
            }
        };
        add(self, 1.0);
        if let Some(since) = since {
            add(since, -1.0);
        }
        let (_, &(_, all)) = buckets.last_key_value()?;
        if all <= 0.0 {
            return None;
        }
        let rank = quantile * all;
        let (mut below, mut low) = (0.0, 0.0);
        for &(bound, count) in buckets.values() {
            if count >= rank {
                if bound.is_infinite() {
                    return Some(low);
                }
                let part = (rank - below) / (count - below).max(f64::MIN_POSITIVE);
                return Some(low + (bound - low) * part.clamp(0.0, 1.0));
            }
            (below, low) = (count, bound);
        }
        Some(low)
    }
}

/// Name and series of a line.
fn series(line: &str) -> Option<(&str, Series)> {
    if line.starts_with('#') {
        return None;
    }
    let (name, rest) = match line.find('{') {
        Some(brace) => (&line[..brace], &line[brace + 1..]),
        None => {
            let (name, value) = line.split_once(' ')?;
            return Some((name, Series { labels: Vec::new(), value: value_of(value)? }));
        }
    };
    let (labels, rest) = labels(rest)?;
    Some((name, Series { labels, value: value_of(rest)? }))
}

fn value_of(text: &str) -> Option<f64> {
    // A time may follow the value.
    text.split_whitespace().next()?.parse().ok()
}

/// The labels up to the closing brace, and the rest.
fn labels(mut text: &str) -> Option<(Vec<(String, String)>, &str)> {
    let mut labels = Vec::new();
    loop {
        text = text.trim_start_matches([',', ' ']);
        if let Some(rest) = text.strip_prefix('}') {
            return Some((labels, rest));
        }
        let (name, rest) = text.split_once("=\"")?;
        let (mut value, mut characters) = (String::new(), rest.char_indices());
        let end = loop {
            match characters.next()? {
                (at, '"') => break at,
                (_, '\\') => match characters.next()?.1 {
                    'n' => value.push('\n'),
                    other => value.push(other),
                },
                (_, other) => value.push(other),
            }
        };
        labels.push((name.to_owned(), value));
        text = &rest[end + 1..];
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "# HELP candlepower_num_requests_running Running.\n\
        # TYPE candlepower_num_requests_running gauge\n\
        candlepower_num_requests_running 3\n\
        candlepower_key_requests_total{key=\"a \\\"b\\\", }c\",status=\"200\"} 4\n\
        candlepower_key_requests_total{key=\"d\",status=\"500\"} 5 1700000000\n\
        process_start_time_seconds 17\n\
        nonsense\n\
        candlepower_broken{key=\"x\n";

    fn sample(text: &str) -> Sample {
        Sample::parse(text, Instant::now())
    }

    #[test]
    fn series_are_read_with_their_labels() {
        let sample = sample(TEXT);
        assert_eq!(sample.sum("num_requests_running", &[]), 3.0);
        assert_eq!(sample.sum("key_requests_total", &[]), 9.0);
        assert_eq!(sample.sum("key_requests_total", &[("status", "5")]), 5.0);
        assert_eq!(sample.labels("key_requests_total", "key"), ["a \"b\", }c", "d"]);
        assert!(!sample.has("broken") && sample.sum("process_start_time_seconds", &[]) == 17.0);
        let lines = Sample::parse("up{key=\"a\\nb\"} 1", Instant::now());
        assert_eq!(lines.label("up", "key"), Some("a\nb"));
    }

    #[test]
    fn names_of_vllm_are_the_same_metrics() {
        let sample = sample(
            "vllm:kv_cache_usage_perc{model_name=\"m\",engine=\"0\"} 0.5\nvllm:num_requests_running{engine=\"0\"} 2\n",
        );
        assert_eq!(sample.sum("kv_cache_usage_ratio", &[]), 0.5);
        assert_eq!(sample.label("num_requests_running", "engine"), Some("0"));
    }

    #[test]
    fn quantiles_are_those_of_the_time_between_samples() {
        let buckets = |counts: [u32; 3]| {
            let [a, b, c] = counts;
            sample(&format!(
                "candlepower_x_bucket{{le=\"0.1\"}} {a}\ncandlepower_x_bucket{{le=\"1\"}} {b}\ncandlepower_x_bucket{{le=\"+Inf\"}} {c}\n"
            ))
        };
        let (first, then) = (buckets([100, 100, 100]), buckets([100, 104, 104]));
        let median = then.quantile(Some(&first), "x", 0.5).unwrap();
        assert!((median - 0.55).abs() < 1e-9, "{median}");
        let all = then.quantile(None, "x", 0.5).unwrap();
        assert!(all < 0.1, "{all}");
        assert_eq!(first.quantile(Some(&buckets([100, 100, 100])), "x", 0.5), None);
        // A series without a bound is no part of the histogram.
        let other =
            sample("x_bucket{le=\"1\"} 4\nx_bucket{le=\"+Inf\"} 4\nx_bucket{key=\"a\"} 400\n");
        assert_eq!(other.quantile(None, "x", 0.5), Some(0.5));
        // Beyond the last bound there is no better answer than the bound.
        assert_eq!(buckets([0, 0, 5]).quantile(None, "x", 0.5), Some(1.0));
    }
}
