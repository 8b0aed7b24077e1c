//! The text of the load, for a terminal of some size or for a pipe.

use std::time::Duration;

use super::History;
use super::sample::Sample;
use crate::table::table;

/// Characters of a bar.
const BAR: usize = 30;
/// Columns of the names of lines.
const NAMES: usize = 14;
/// Heights of the columns of a chart.
const HEIGHTS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// A way to show the load.
pub(super) struct View<'a> {
    url: &'a str,
    /// Columns and rows of the terminal; `None` for plain text.
    size: Option<(usize, usize)>,
    failure: Option<&'a str>,
}

impl<'a> View<'a> {
    /// Text without colours and without an end of lines.
    pub(super) fn plain(url: &'a str) -> Self {
        Self { url, size: None, failure: None }
    }

    /// A screen, which may say why there is nothing new.
    pub(super) fn live(
        url: &'a str,
        width: usize,
        height: usize,
        failure: Option<&'a str>,
    ) -> Self {
        Self { url, size: Some((width, height)), failure }
    }

    /// The lines, each at most as wide as the terminal.
    pub(super) fn draw(&self, history: &History) -> String {
        let mut lines = Vec::new();
        match (history.samples.back(), self.failure) {
            (_, Some(failure)) => {
                lines.extend([format!("candlepower top  {}", self.url), String::new()]);
                let width = self.size.map_or(usize::MAX, |(width, _)| width);
                lines.extend(wrapped(&format!("{failure}; trying again"), width));
            }
            (Some(newest), None) => self.fill(&mut lines, history, newest),
            (None, None) => lines.push(format!("candlepower top  {}: asking", self.url)),
        }
        let shown = |line: &String| line.chars().map(visible).collect::<String>();
        let mut lines: Vec<String> = lines.iter().map(shown).collect();
        let Some((width, height)) = self.size else { return lines.join("\n") + "\n" };
        let end = "q ends".to_owned();
        lines.truncate(height.saturating_sub(1).max(1));
        if height > lines.len() {
            lines.push(end);
        }
        let last = lines.len() - 1;
        let lines = lines.iter().enumerate().map(|(index, line)| {
            let line: String = line.chars().take(width).collect();
            match index {
                // Bold, and faint.
                0 => format!("\x1b[1m{line}\x1b[0m"),
                _ if index == last => format!("\x1b[2m{line}\x1b[0m"),
                _ => line,
            }
        });
        lines.collect::<Vec<_>>().join("\n")
    }

    fn fill(&self, lines: &mut Vec<String>, history: &History, newest: &Sample) {
        let before = history.samples.len().checked_sub(2).and_then(|at| history.samples.get(at));
        let rate = |name: &str, labels: &[(&str, &str)]| {
            before.map_or(0.0, |before| newest.rate_since(before, name, labels))
        };
        let mut add = |name: &str, text: String| lines.push(format!("{name:<NAMES$}{text}"));
        add("candlepower", self.title(newest));
        let sum = |name: &str| newest.sum(name, &[]);
        add(
            "requests",
            format!(
                "{} running   {} waiting   {}/s finished   {} since the start",
                sum("num_requests_running"),
                sum("num_requests_waiting"),
                short(rate("request_success_total", &[])),
                short(sum("request_success_total"))
            ),
        );
        let answers = |status| rate("http_requests_total", &[("status", status)]);
        add(
            "answers",
            format!(
                "{}/s ok   {}/s refused   {}/s failed",
                short(answers("2")),
                short(answers("4")),
                short(answers("5"))
            ),
        );
        let (tokens_in, tokens_out) = ("prompt_tokens_total", "generation_tokens_total");
        add(
            "tokens",
            format!(
                "{}/s in   {}/s out   {} in and {} out since the start",
                short(rate(tokens_in, &[])),
                short(rate(tokens_out, &[])),
                short(sum(tokens_in)),
                short(sum(tokens_out))
            ),
        );
        if let Some((width, _)) = self.size {
            add("", chart(history, width.saturating_sub(NAMES)));
        }
        let used = sum("kv_cache_usage_ratio");
        let blocks = match newest.label("cache_config_info", "num_gpu_blocks") {
            Some(blocks) => {
                let size = newest.label("cache_config_info", "block_size").unwrap_or("?");
                format!(", {blocks} blocks of {size} tokens")
            }
            None => String::new(),
        };
        add("KV cache", format!("{} {:.0} % in use{blocks}", bar(used), used * 100.0));
        let (queries, hits) = ("prefix_cache_queries_total", "prefix_cache_hits_total");
        let first = history.samples.front().filter(|_| history.samples.len() > 1);
        let now = first.and_then(|first| {
            part(newest.increase(first, hits, &[]), newest.increase(first, queries, &[]))
        });
        let all = part(sum(hits), sum(queries));
        add("prefix hits", format!("{} now   {} since the start", percent(now), percent(all)));
        let evicted = rate("num_preemptions_total", &[]);
        if evicted > 0.0 {
            add("preemptions", format!("{}/s", short(evicted)));
        }
        lines.push(String::new());
        lines.extend(latencies(newest, first));
        lines.push(String::new());
        let steps = rate("step_duration_seconds_count", &[]);
        let mut add = |name: &str, text: String| lines.push(format!("{name:<NAMES$}{text}"));
        if steps > 0.0 {
            let tokens = rate("iteration_tokens_total_sum", &[]) / steps;
            let time = rate("step_duration_seconds_sum", &[]) / steps;
            let forward = rate("forward_duration_seconds_sum", &[]) / steps;
            add(
                "steps",
                format!(
                    "{}/s of {} tokens, {} each, {} of it the forward pass",
                    short(steps),
                    short(tokens),
                    seconds(time),
                    seconds(forward)
                ),
            );
        }
        if newest.has("process_resident_memory_bytes") {
            add(
                "process",
                format!(
                    "{} of memory   {:.1} CPUs   {} files",
                    bytes(sum("process_resident_memory_bytes")),
                    rate("process_cpu_seconds_total", &[]),
                    sum("process_open_fds")
                ),
            );
        }
        let callers = newest.labels("key_requests_total", "key");
        if !callers.is_empty() {
            lines.push(String::new());
            lines.extend(callers_table(newest, before, &callers));
        }
    }

    fn title(&self, newest: &Sample) -> String {
        let mut title = String::new();
        if let Some(version) = newest.label("build_info", "version") {
            title += version;
            title += "  ";
        }
        title += self.url;
        if let Some(model) = newest.label("num_requests_running", "model_name") {
            title += "  ";
            title += model;
        }
        let since = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
        let started = newest.sum("process_start_time_seconds", &[]);
        if started > 0.0 {
            let up = (since.as_secs_f64() - started).max(0.0);
            title += &format!("  up {}", duration(Duration::from_secs_f64(up)));
        }
        title
    }
}

/// Latencies of the last seconds, or of the whole time if there are none.
fn latencies(newest: &Sample, first: Option<&Sample>) -> Vec<String> {
    const NAMES_OF_LATENCIES: [(&str, &str); 5] = [
        ("first token", "time_to_first_token_seconds"),
        ("next token", "inter_token_latency_seconds"),
        ("queue", "request_queue_time_seconds"),
        ("prefill", "request_prefill_time_seconds"),
        ("whole answer", "e2e_request_latency_seconds"),
    ];
    let recent = first.filter(|first| {
        newest.quantile(Some(first), "time_to_first_token_seconds", 0.5).is_some()
            || newest.quantile(Some(first), "inter_token_latency_seconds", 0.5).is_some()
    });
    let period = if recent.is_some() { "last 10 s" } else { "since start" };
    let mut rows = vec![[period, "", "p50", "p90", "p99"].map(str::to_owned).to_vec()];
    for (name, metric) in NAMES_OF_LATENCIES {
        let quantile = |part| newest.quantile(recent, metric, part).map_or("-".to_owned(), seconds);
        rows.push(vec![
            format!("{name:<width$}", width = NAMES - 2),
            String::new(),
            quantile(0.5),
            quantile(0.9),
            quantile(0.99),
        ]);
    }
    table(&rows).lines().map(str::to_owned).collect()
}

/// The callers that have keys, the busiest first.
fn callers_table(newest: &Sample, before: Option<&Sample>, keys: &[&str]) -> Vec<String> {
    let rate = |name: &str, key: &str| {
        let of_key = |sample: &Sample| sample.sum_of(name, "key", key);
        before.map_or(0.0, |before| {
            let passed = (newest.at - before.at).as_secs_f64().max(0.001);
            (of_key(newest) - of_key(before)).max(0.0) / passed
        })
    };
    let mut callers: Vec<(f64, Vec<String>)> = keys
        .iter()
        .map(|key| {
            let tokens = newest.sum_of("key_generation_tokens_total", "key", key);
            let cells = vec![
                (*key).to_owned(),
                String::new(),
                short(rate("key_requests_total", key)),
                short(rate("key_prompt_tokens_total", key)),
                short(rate("key_generation_tokens_total", key)),
                short(tokens),
            ];
            (tokens, cells)
        })
        .collect();
    callers.sort_by(|(a, _), (b, _)| b.total_cmp(a));
    let head = ["key", "", "requests/s", "in/s", "out/s", "out"].map(str::to_owned).to_vec();
    let rows: Vec<Vec<String>> =
        std::iter::once(head).chain(callers.into_iter().map(|(_, cells)| cells)).collect();
    table(&rows).lines().map(str::to_owned).collect()
}

/// A chart of the generated tokens per second, the newest at the right.
fn chart(history: &History, width: usize) -> String {
    let speeds: Vec<f64> = history.speeds.iter().rev().take(width).copied().collect();
    let most = speeds.iter().copied().fold(0.0, f64::max);
    let column = |speed: &f64| match most > 0.0 {
        true => HEIGHTS[((speed / most * 7.0).round() as usize).min(7)],
        false => HEIGHTS[0],
    };
    speeds.iter().rev().map(column).collect()
}

fn bar(share: f64) -> String {
    let full = ((share * BAR as f64).round() as usize).min(BAR);
    format!("[{}{}]", "#".repeat(full), "-".repeat(BAR - full))
}

fn part(some: f64, all: f64) -> Option<f64> {
    (all > 0.0).then(|| some / all)
}

fn percent(share: Option<f64>) -> String {
    share.map_or("-".to_owned(), |share| format!("{:.0} %", share * 100.0))
}

/// A number with three digits at most, as far as they mean something.
fn short(number: f64) -> String {
    match number {
        number if number >= 999_950.0 => format!("{:.1}M", number / 1e6),
        number if number >= 9_999.5 => format!("{:.1}k", number / 1e3),
        number if number >= 99.95 || number.fract() == 0.0 => format!("{number:.0}"),
        number => format!("{number:.1}"),
    }
}

fn seconds(time: f64) -> String {
    match time {
        time if time >= 100.0 => format!("{time:.0} s"),
        time if time >= 1.0 => format!("{time:.1} s"),
        time if time >= 0.01 => format!("{:.0} ms", time * 1e3),
        time => format!("{:.1} ms", time * 1e3),
    }
}

fn bytes(number: f64) -> String {
    const GIB: f64 = (1u64 << 30) as f64;
    if number >= GIB {
        format!("{:.1} GiB", number / GIB)
    } else {
        format!("{:.0} MiB", number / (1u64 << 20) as f64)
    }
}

fn duration(time: Duration) -> String {
    let seconds = time.as_secs();
    match (seconds / 86_400, seconds / 3_600 % 24, seconds / 60 % 60, seconds % 60) {
        (0, 0, 0, seconds) => format!("{seconds} s"),
        (0, 0, minutes, seconds) => format!("{minutes} min {seconds} s"),
        (0, hours, minutes, _) => format!("{hours} h {minutes} min"),
        (days, hours, ..) => format!("{days} d {hours} h"),
    }
}

/// Lines of whole words, none longer than `width` but a word that is.
fn wrapped(text: &str, width: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split(' ') {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 1 + word.chars().count() <= width => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

/// A character that cannot steer the terminal. The server chooses some of the text.
fn visible(character: char) -> char {
    if character.is_control() { '?' } else { character }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    fn history(texts: &[&str]) -> History {
        let begin = Instant::now();
        let mut history = History::default();
        for (second, text) in (0u64..).zip(texts) {
            history.push(Sample::parse(text, begin + Duration::from_secs(second)));
        }
        history
    }

    const FIRST: &str = "candlepower_num_requests_running 2\ncandlepower_num_requests_waiting 1\n\
        candlepower_generation_tokens_total 100\ncandlepower_prompt_tokens_total 10\n\
        candlepower_kv_cache_usage_ratio 0.5\n";
    const THEN: &str = "candlepower_num_requests_running 3\ncandlepower_num_requests_waiting 1\n\
        candlepower_generation_tokens_total 142\ncandlepower_prompt_tokens_total 20\n\
        candlepower_kv_cache_usage_ratio 0.5\n\
        candlepower_key_requests_total{key=\"ann\u{1b}[2J\",status=\"200\"} 1\n\
        candlepower_key_generation_tokens_total{key=\"an\"} 7\n";

    #[test]
    fn the_text_has_rates_between_the_last_samples() {
        let text = View::plain("http://a").draw(&history(&[FIRST, THEN]));
        for part in ["3 running   1 waiting", "10/s in   42/s out", "] 50 %"] {
            assert!(text.contains(part), "{part} is not in\n{text}");
        }
        assert!(!text.contains('\u{1b}'), "{text}");
        // Without a second sample there is no rate.
        assert!(View::plain("http://a").draw(&history(&[FIRST])).contains("0/s in   0/s out"));
    }

    #[test]
    fn what_is_rare_is_shown_when_there_is_some() {
        let view = View::live("http://a", 80, 40, None);
        let asking = view.draw(&History::default());
        assert!(asking.contains("candlepower top  http://a: asking"), "{asking}");
        let evicting = |count: u32| {
            let memory = format!("process_resident_memory_bytes {}\n", 3u64 << 30);
            format!("{FIRST}{memory}candlepower_num_preemptions_total {count}\n")
        };
        let calm = view.draw(&history(&[&evicting(1), &evicting(1)]));
        // No token was generated between the two samples, so the chart has its lowest column.
        let lowest = format!("{:NAMES$}▁\n", "");
        assert!(calm.contains(&lowest) && !calm.contains("preemptions"), "{calm}");
        assert!(calm.contains("3.0 GiB of memory"), "{calm}");
        let busy = view.draw(&history(&[&evicting(1), &evicting(6)]));
        assert!(busy.contains("preemptions   5/s"), "{busy}");
    }

    #[test]
    fn a_screen_is_never_exceeded() {
        let history = history(&[FIRST, THEN]);
        for (width, height) in [(1, 1), (20, 5), (80, 24), (200, 60)] {
            let text = View::live("http://a", width, height, None).draw(&history);
            let lines: Vec<&str> = text.split('\n').collect();
            assert!(lines.len() <= height, "{width} x {height}: {}", lines.len());
            for line in lines {
                let plain =
                    line.replace("\x1b[1m", "").replace("\x1b[2m", "").replace("\x1b[0m", "");
                assert!(plain.chars().count() <= width && !plain.contains('\x1b'), "{plain}");
            }
        }
    }

    #[test]
    fn a_server_that_is_gone_is_named() {
        let view = View::live("http://a", 80, 24, Some("http://a: cannot be reached: refused"));
        let text = view.draw(&History::default());
        assert!(text.contains("cannot be reached: refused; trying again"), "{text}");
        let narrow = View { size: Some((24, 24)), ..view }.draw(&History::default());
        assert!(
            narrow.contains("http://a: cannot be\nreached: refused; trying\nagain"),
            "{narrow}"
        );
    }

    #[test]
    fn numbers_are_short() {
        let shown = [0.0, 0.25, 42.0, 99.96, 9_999.0, 12_345.0, 2_500_000.0].map(short);
        assert_eq!(shown, ["0", "0.2", "42", "100", "9999", "12.3k", "2.5M"]);
        assert_eq!([0.0004, 0.012, 2.5, 120.0].map(seconds), ["0.4 ms", "12 ms", "2.5 s", "120 s"]);
        let times = [5, 65, 3_700, 90_000].map(|time| duration(Duration::from_secs(time)));
        assert_eq!(times, ["5 s", "1 min 5 s", "1 h 1 min", "1 d 1 h"]);
    }

    #[test]
    fn a_server_that_starts_anew_begins_a_new_history() {
        let history = history(&[THEN, FIRST]);
        assert_eq!((history.samples.len(), history.speeds.len()), (1, 0));
    }
}
