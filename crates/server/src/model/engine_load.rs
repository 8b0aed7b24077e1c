//! The engine's load for the log. It copies metrics into counters of its own, because Prometheus' handles cannot be read.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use candlepower_engine::EngineMetrics;
use metrics::{Counter, CounterFn, Gauge, GaugeFn};

/// The values in the line.
#[derive(Clone, Default)]
pub(crate) struct EngineLoad {
    running: Arc<AtomicU64>,
    waiting: Arc<AtomicU64>,
    cache_usage: Arc<AtomicU64>,
    prompt_tokens: Arc<AtomicU64>,
    generated_tokens: Arc<AtomicU64>,
}

/// The counters when the last line was written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counted {
    prompt_tokens: u64,
    generated_tokens: u64,
}

impl EngineLoad {
    /// Makes the engine's metrics write here too.
    pub(crate) fn read_along(&self, metrics: &mut EngineMetrics) {
        let gauge = |gauge: &mut Gauge, value: &Arc<AtomicU64>| {
            let inner = std::mem::replace(gauge, Gauge::noop());
            *gauge = Gauge::from_arc(Arc::new(Read { value: Arc::clone(value), inner }));
        };
        let counter = |counter: &mut Counter, value: &Arc<AtomicU64>| {
            let inner = std::mem::replace(counter, Counter::noop());
            *counter = Counter::from_arc(Arc::new(Read { value: Arc::clone(value), inner }));
        };
        gauge(&mut metrics.num_requests_running, &self.running);
        gauge(&mut metrics.num_requests_waiting, &self.waiting);
        gauge(&mut metrics.kv_cache_usage_ratio, &self.cache_usage);
        counter(&mut metrics.prompt_tokens, &self.prompt_tokens);
        counter(&mut metrics.generation_tokens, &self.generated_tokens);
    }

    /// A line about the time since the last one; `None` if the engine was idle and still is.
    pub(crate) fn line(&self, since: &mut Counted, passed: Duration) -> Option<String> {
        let count = |value: &AtomicU64| value.load(Ordering::Relaxed);
        let gauge = |value: &AtomicU64| f64::from_bits(count(value));
        let (running, waiting) = (gauge(&self.running), gauge(&self.waiting));
        let now = Counted {
            prompt_tokens: count(&self.prompt_tokens),
            generated_tokens: count(&self.generated_tokens),
        };
        // A line of zeros would only fill the log of an idle server.
        if *since == now && running + waiting == 0.0 {
            return None;
        }
        let per_second =
            // The bound keeps a line right after another from dividing by zero.
            |now: u64, then: u64| (now - then) as f64 / passed.as_secs_f64().max(0.001);
        let line = format!(
            "load: {running} running, {waiting} waiting; {:.1} prompt tokens/s, {:.1} generated tokens/s; KV cache {:.1} % used",
            per_second(now.prompt_tokens, since.prompt_tokens),
            per_second(now.generated_tokens, since.generated_tokens),
            gauge(&self.cache_usage) * 100.0
        );
        *since = now;
        Some(line)
    }
}

/// A metric's handle that also writes to a readable value.
struct Read<T> {
    value: Arc<AtomicU64>,
    inner: T,
}

impl CounterFn for Read<Counter> {
    fn increment(&self, value: u64) {
        self.value.fetch_add(value, Ordering::Relaxed);
        self.inner.increment(value);
    }

    fn absolute(&self, value: u64) {
        // Values from several threads may come out of order, and a counter never falls.
        self.value.fetch_max(value, Ordering::Relaxed);
        self.inner.absolute(value);
    }
}

impl Read<Gauge> {
    /// Adds to the value. Only the engine's thread writes, so that no update is lost between load and store.
    fn change(&self, by: f64) {
        let value = f64::from_bits(self.value.load(Ordering::Relaxed)) + by;
        self.value.store(value.to_bits(), Ordering::Relaxed);
    }
}

impl GaugeFn for Read<Gauge> {
    fn increment(&self, value: f64) {
        self.change(value);
        self.inner.increment(value);
    }

    fn decrement(&self, value: f64) {
        self.change(-value);
        self.inner.decrement(value);
    }

    fn set(&self, value: f64) {
        self.value.store(value.to_bits(), Ordering::Relaxed);
        self.inner.set(value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_a_line_while_there_is_work() {
        let mut metrics = EngineMetrics::noop();
        let load = EngineLoad::default();
        load.read_along(&mut metrics);
        let mut since = Counted::default();
        let mut line = || load.line(&mut since, Duration::from_secs(2));
        assert_eq!(line(), None);
        metrics.num_requests_running.set(2.0);
        metrics.num_requests_waiting.set(1.0);
        metrics.kv_cache_usage_ratio.set(0.125);
        metrics.prompt_tokens.increment(100);
        metrics.generation_tokens.increment(31);
        assert_eq!(
            line().unwrap(),
            "load: 2 running, 1 waiting; 50.0 prompt tokens/s, 15.5 generated tokens/s; KV cache 12.5 % used"
        );
        // The requests still run, although no token was generated.
        assert!(line().unwrap().contains("0.0 generated"));
        metrics.num_requests_running.set(0.0);
        metrics.num_requests_waiting.set(0.0);
        assert_eq!(line(), None);
        // A request that began and ended between two lines.
        metrics.generation_tokens.increment(2);
        assert!(line().unwrap().starts_with("load: 0 running"));
        assert_eq!(line(), None);
    }
}
