//! The results of `bench serve`, as text and as JSON.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::bench::client::Answer;
use crate::bench::load::{Load, Measured};
use crate::bench::stats::{Summary, number};
use crate::failure;
use crate::table::table;

/// Maximum number of different errors in the table of a level.
const SHOWN_ERRORS: usize = 5;

/// The results of one level. The help explains the keys.
#[derive(Debug, Serialize)]
pub(super) struct Level {
    #[serde(skip)]
    load: Load,
    concurrency: Option<usize>,
    rate_per_s: Option<f64>,
    requests: usize,
    succeeded: usize,
    failed: usize,
    errors: Vec<ErrorCount>,
    /// Answers with fewer tokens than requested although `ignore_eos` was sent.
    short_answers: usize,
    duration_s: f64,
    requests_per_s: f64,
    input_tokens: usize,
    cached_tokens: usize,
    output_tokens: usize,
    input_tokens_per_s: f64,
    output_tokens_per_s: f64,
    time_to_first_token_s: Option<Summary>,
    inter_chunk_s: Option<Summary>,
    time_per_output_token_s: Option<Summary>,
    request_s: Option<Summary>,
}

#[derive(Debug, Serialize)]
struct ErrorCount {
    message: String,
    count: usize,
}

impl Level {
    /// Summarizes a level. Each answer should have `asked_tokens` if their number is fixed.
    pub(super) fn new(load: Load, measured: &Measured, asked_tokens: Option<usize>) -> Self {
        let answers: Vec<&Answer> = measured.answers.iter().flatten().collect();
        let mut errors: BTreeMap<String, usize> = BTreeMap::new();
        for error in measured.answers.iter().filter_map(|answer| answer.as_ref().err()) {
            *errors.entry(failure::text(error)).or_default() += 1;
        }
        let sum = |count: fn(&Answer) -> usize| answers.iter().map(|answer| count(answer)).sum();
        let input_tokens: usize = sum(|answer| answer.usage.prompt_tokens);
        let output_tokens: usize = sum(|answer| answer.usage.completion_tokens);
        let duration_s = measured.duration.as_secs_f64();
        let is_short =
            |answer: &&&Answer| asked_tokens.is_some_and(|n| answer.usage.completion_tokens < n);
        Self {
            load,
            concurrency: match load {
                Load::Closed { concurrency } => Some(concurrency),
                Load::Open { .. } => None,
            },
            rate_per_s: match load {
                Load::Closed { .. } => None,
                Load::Open { rate_per_s } => Some(rate_per_s),
            },
            requests: measured.answers.len(),
            succeeded: answers.len(),
            failed: measured.answers.len() - answers.len(),
            errors: errors
                .into_iter()
                .map(|(message, count)| ErrorCount { message, count })
                .collect(),
            short_answers: answers.iter().filter(is_short).count(),
            duration_s,
            // Requests that failed count for no rate.
            requests_per_s: answers.len() as f64 / duration_s,
            input_tokens,
            cached_tokens: sum(|answer| answer.usage.cached_tokens()),
            output_tokens,
            input_tokens_per_s: input_tokens as f64 / duration_s,
            output_tokens_per_s: output_tokens as f64 / duration_s,
            time_to_first_token_s: Summary::of_times(answers.iter().filter_map(|a| a.first_text)),
            inter_chunk_s: Summary::of_times(answers.iter().flat_map(|a| a.gaps.iter().copied())),
            time_per_output_token_s: Summary::of(answers.iter().filter_map(|a| per_token(a))),
            request_s: Summary::of_times(answers.iter().map(|answer| answer.end)),
        }
    }

    pub(super) fn has_failures(&self) -> bool {
        self.failed > 0
    }

    fn throughput_cells(&self) -> Vec<String> {
        let mut cells =
            vec![self.load.to_string(), format!("{} of {}", self.succeeded, self.requests)];
        cells.extend(
            [
                self.duration_s,
                self.requests_per_s,
                self.input_tokens_per_s,
                self.output_tokens_per_s,
            ]
            .map(number),
        );
        cells
    }

    fn latency_lines(&self) -> impl Iterator<Item = Vec<String>> {
        let rows = [
            ("time to first token", self.time_to_first_token_s),
            ("between chunks", self.inter_chunk_s),
            ("per output token", self.time_per_output_token_s),
            ("whole request", self.request_s),
        ];
        rows.into_iter().map(|(name, summary)| {
            let mut cells = vec![self.load.to_string(), name.to_owned()];
            cells.extend(Summary::cells_ms(summary.as_ref()));
            cells
        })
    }

    fn notes(&self) -> impl Iterator<Item = String> {
        let load = self.load;
        let errors =
            self.errors.iter().take(SHOWN_ERRORS).map(move |error| {
                format!("{load}: failed {} times: {}\n", error.count, error.message)
            });
        let short = (self.short_answers > 0).then(|| {
            format!("{load}: {} answers have fewer tokens than requested, although ignore_eos was sent\n", self.short_answers)
        });
        errors.chain(short)
    }
}

/// Seconds per output token after the first.
fn per_token(answer: &Answer) -> Option<f64> {
    // The first token's time is that of the prefill, so it does not count.
    let tokens = answer.usage.completion_tokens.checked_sub(1).filter(|&tokens| tokens > 0)?;
    Some((answer.last_text? - answer.first_text?).as_secs_f64() / tokens as f64)
}

/// The results as tables.
pub(super) fn to_table(title: &str, levels: &[Level]) -> String {
    let head = |cells: &[&str]| cells.iter().map(|&cell| cell.to_owned()).collect::<Vec<_>>();
    let mut throughput = vec![head(&[
        "load",
        "requests",
        "seconds",
        "requests/s",
        "input tokens/s",
        "output tokens/s",
    ])];
    throughput.extend(levels.iter().map(Level::throughput_cells));
    let mut latency = vec![head(&["load", "milliseconds", "mean", "p50", "p90", "p99"])];
    latency.extend(levels.iter().flat_map(Level::latency_lines));
    let mut text = format!("{title}\n\n{}\n{}", table(&throughput), table(&latency));
    let notes: String = levels.iter().flat_map(Level::notes).collect();
    if !notes.is_empty() {
        text += &format!("\n{notes}");
    }
    text
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use anyhow::anyhow;

    use super::*;

    #[test]
    fn failures_and_short_answers_are_told_below_the_tables() {
        let answer = |tokens: usize| {
            let mut answer = Answer { end: Duration::from_secs(1), ..Answer::default() };
            answer.usage.completion_tokens = tokens;
            Ok(answer)
        };
        let answers =
            vec![answer(8), answer(3), Err(anyhow!("too busy")), Err(anyhow!("too busy"))];
        let measured = Measured { duration: Duration::from_secs(2), answers };
        let load = Load::Closed { concurrency: 3 };
        let level = Level::new(load, &measured, Some(8));
        assert!(level.has_failures());
        let shown = to_table("title", &[level]);
        let notes = "\n3 clients: failed 2 times: too busy\n\
            3 clients: 1 answers have fewer tokens than requested, although ignore_eos was sent\n";
        assert!(shown.starts_with("title\n\n") && shown.ends_with(notes), "{shown}");
        // Without ignore_eos an answer may be short.
        assert!(!to_table("title", &[Level::new(load, &measured, None)]).contains("fewer"));
    }
}
