//! Files that SIGHUP reloads while the server runs.

use metrics::Counter;

use crate::model::metrics::Metrics;

/// All such files. If there are any, SIGHUP reloads them instead of stopping the server.
pub(crate) struct Reloads {
    metrics: Metrics,
    kinds: Vec<Reload>,
}

/// Files of one kind.
struct Reload {
    name: &'static str,
    /// Reads the files and puts them in force, or changes nothing and returns the reason in one line.
    read: Box<dyn Fn() -> Result<(), String> + Send + Sync>,
    failures: Counter,
}

impl Reloads {
    pub(crate) fn new(metrics: Metrics) -> Self {
        Self { metrics, kinds: Vec::new() }
    }

    /// Adds files, if the settings name any. `name` is their plural name in the log and the metric.
    pub(crate) fn add(
        &mut self,
        name: &'static str,
        read: Option<impl Fn() -> Result<(), String> + Send + Sync + 'static>,
    ) {
        let failures = self.metrics.reload_failures(name);
        // A metric that exists from the start shows the first failure as a change from zero.
        failures.increment(0);
        if let Some(read) = read {
            self.kinds.push(Reload { name, read: Box::new(read), failures });
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.kinds.is_empty()
    }

    /// Reloads all files. If new files are invalid, the old ones stay in force.
    pub(crate) fn run(&self) {
        for Reload { name, read, failures } in &self.kinds {
            match read() {
                Ok(()) => tracing::info!("reloaded the {name}"),
                Err(error) => {
                    failures.increment(1);
                    tracing::error!("{error}; the old {name} stay in force");
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[test]
    fn a_failure_is_counted_and_hinders_no_other_files() {
        let metrics = Metrics::new(None, "m");
        let mut reloads = Reloads::new(metrics.clone());
        reloads.add("others", None::<fn() -> Result<(), String>>);
        assert!(reloads.is_empty());
        reloads.add("certificates", Some(|| Err("cert.pem cannot be used".into())));
        let read = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&read);
        let read_keys = move || {
            count.fetch_add(1, Ordering::Relaxed);
            Ok(())
        };
        reloads.add("keys", Some(read_keys));
        // All kinds are read each time, although the first one fails.
        reloads.run();
        reloads.run();
        assert_eq!(read.load(Ordering::Relaxed), 2);
        let text = metrics.render();
        for line in [
            "candlepower_reload_failures_total{files=\"certificates\"} 2",
            "candlepower_reload_failures_total{files=\"keys\"} 0",
            "candlepower_reload_failures_total{files=\"others\"} 0",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} is not in\n{text}");
        }
    }
}
