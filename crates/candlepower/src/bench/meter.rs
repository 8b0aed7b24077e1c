//! Records the engine's metrics of each step.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use candlepower_engine::EngineMetrics;
use metrics::{Histogram, HistogramFn};

/// One step of the engine.
#[derive(Clone, Copy, Debug)]
pub(super) struct StepSample {
    /// Time at which it had been committed and its tokens sent.
    pub(super) ended: Instant,
    /// Tokens computed.
    pub(super) tokens: usize,
    /// Seconds of the whole step: schedule, forward, sample, commit, send.
    pub(super) step_s: f64,
    /// Seconds of the forward pass, logits included.
    pub(super) forward_s: f64,
}

/// All steps since the last [`take`](Self::take). Cheap to clone.
#[derive(Clone, Default)]
pub(super) struct StepMeter(Arc<Mutex<Log>>);

#[derive(Default)]
struct Log {
    steps: Vec<StepSample>,
    /// Seconds of the current step's forward pass.
    forward_s: f64,
    tokens: f64,
}

/// The order in which the engine records a step: its forward pass, its tokens, and the whole step at its end.
#[derive(Clone, Copy)]
enum Part {
    Forward,
    Tokens,
    Step,
}

struct Recorder {
    meter: StepMeter,
    part: Part,
}

impl HistogramFn for Recorder {
    fn record(&self, value: f64) {
        let mut log = self.meter.log();
        match self.part {
            Part::Forward => log.forward_s = value,
            Part::Tokens => log.tokens = value,
            Part::Step => {
                let step = StepSample {
                    ended: Instant::now(),
                    tokens: log.tokens as usize,
                    step_s: value,
                    forward_s: log.forward_s,
                };
                log.steps.push(step);
            }
        }
    }
}

impl StepMeter {
    /// Metrics of an engine that write here.
    pub(super) fn metrics(&self) -> EngineMetrics {
        let part = |part| Histogram::from_arc(Arc::new(Recorder { meter: self.clone(), part }));
        EngineMetrics {
            iteration_tokens: part(Part::Tokens),
            step_duration_seconds: part(Part::Step),
            forward_duration_seconds: part(Part::Forward),
            ..EngineMetrics::noop()
        }
    }

    /// The steps since the last call.
    pub(super) fn take(&self) -> Vec<StepSample> {
        std::mem::take(&mut self.log().steps)
    }

    fn log(&self) -> MutexGuard<'_, Log> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_is_what_was_recorded_before_its_end() {
        let meter = StepMeter::default();
        let metrics = meter.metrics();
        for tokens in [8.0, 2.0] {
            metrics.forward_duration_seconds.record(tokens / 100.0);
            metrics.iteration_tokens.record(tokens);
            metrics.step_duration_seconds.record(tokens / 10.0);
        }
        let steps = meter.take();
        assert_eq!((steps[0].tokens, steps[1].tokens), (8, 2));
        assert_eq!((steps[0].forward_s, steps[1].step_s), (0.08, 0.2));
        assert!(steps[0].ended <= steps[1].ended && meter.take().is_empty());
    }
}
