//! Counts requests that were refused because of a limit or failed, and logs a line at intervals.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Minimum time between two lines.
const PAUSE: Duration = Duration::from_secs(10);

/// The counts since the last line.
#[derive(Debug, Default)]
pub(crate) struct Refusals(Mutex<Untold>);

#[derive(Debug, Default)]
struct Untold {
    /// Number of requests by status.
    counts: BTreeMap<u16, u64>,
    /// Method and path of the newest request.
    newest: String,
    reported: Option<Instant>,
}

impl Refusals {
    /// Counts a request with this status, if it is 429 or an error of the server. The first is logged immediately.
    pub(crate) fn count(&self, status: u16, method: &str, path: &str) {
        if status != 429 && status < 500 {
            return;
        }
        // The lock is released before the line is written, and `tell` takes it again.
        {
            let mut untold = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            *untold.counts.entry(status).or_default() += 1;
            untold.newest = format!("{method} {path}");
        }
        self.report(Instant::now());
    }

    /// Logs a line if there are new counts and the last line is old enough.
    pub(crate) fn report(&self, now: Instant) {
        let line = self.0.lock().unwrap_or_else(PoisonError::into_inner).take_line(now);
        if let Some(line) = line {
            tracing::warn!("{line}");
        }
    }
}

impl Untold {
    fn take_line(&mut self, now: Instant) -> Option<String> {
        let is_early =
            self.reported.is_some_and(|reported| now.saturating_duration_since(reported) < PAUSE);
        if self.counts.is_empty() || is_early {
            return None;
        }
        self.reported = Some(now);
        let counts = std::mem::take(&mut self.counts);
        let parts: Vec<String> =
            counts.iter().map(|(status, count)| part(*status, *count)).collect();
        Some(format!(
            "requests were refused or failed: {} (newest: {})",
            parts.join("; "),
            self.newest
        ))
    }
}

fn part(status: u16, count: u64) -> String {
    let reason = match status {
        429 => "too many requests: the queue is full or a key's limit is reached",
        501 => "not supported",
        503 => "the server is starting, stopping or too busy",
        _ => "server error",
    };
    format!("{count} with {status} ({reason})")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_is_two_lines() {
        let start = Instant::now();
        let mut untold = Untold::default();
        // Seconds after the start, so that no test waits.
        let mut count = |after: u64, statuses: &[u16]| {
            for status in statuses {
                *untold.counts.entry(*status).or_default() += 1;
                untold.newest = "POST /v1/completions".into();
            }
            untold.take_line(start + Duration::from_secs(after))
        };
        assert_eq!(count(0, &[]), None);
        let first = count(0, &[429]).unwrap();
        assert!(first.contains("1 with 429 (too many") && first.contains("POST /v1/completions"));
        assert_eq!(count(1, &[429, 429, 500]), None);
        let second = count(11, &[]).unwrap();
        assert!(second.contains("2 with 429") && second.contains("1 with 500"), "{second}");
        assert_eq!(count(30, &[]), None);
    }

    #[test]
    fn faults_of_clients_are_not_told() {
        let refusals = Refusals::default();
        for status in [200, 400, 404, 499] {
            refusals.count(status, "GET", "/");
        }
        assert!(refusals.0.lock().unwrap().counts.is_empty());
    }
}
