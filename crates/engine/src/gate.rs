//! The state that an engine's handles and its thread share, whatever the engine computes: queue slots, health, death.

use std::{
    any::Any,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use crate::{Result, error::SubmitError, queue::Queue};

/// The reason why an engine, or one of its ranks, has ended. The first one that is set is the cause.
pub(crate) type Death = Arc<OnceLock<String>>;

/// The health of an engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EngineHealth {
    /// It runs.
    Healthy,
    /// A step has been running for too long.
    Stuck {
        /// Seconds since the step began.
        seconds: u64,
    },
    /// The engine thread has ended, with the reason in words.
    Dead(String),
}

/// The entrance to an engine: its queue slots, and whether it runs.
#[derive(Debug)]
pub(crate) struct EngineGate {
    pub(crate) queue: Arc<Queue>,
    pub(crate) clock: StepClock,
    stuck_after: Duration,
    death: Death,
}

impl EngineGate {
    /// A gate with `limit` queue slots for each caller. A step longer than `stuck_after` makes the engine unhealthy.
    pub(crate) fn new(limit: usize, stuck_after: Duration, death: Death) -> Self {
        Self { queue: Queue::new(limit), clock: StepClock::new(), stuck_after, death }
    }

    /// The health of the engine.
    pub(crate) fn health(&self) -> EngineHealth {
        if let Some(reason) = self.death.get() {
            return EngineHealth::Dead(reason.clone());
        }
        match self.clock.step_seconds() {
            Some(time) if time > self.stuck_after => {
                EngineHealth::Stuck { seconds: time.as_secs() }
            }
            _ => EngineHealth::Healthy,
        }
    }

    /// The error for a request to an engine whose thread has ended.
    pub(crate) fn dead(&self) -> SubmitError {
        let reason = self.death.get().cloned();
        SubmitError::Dead(reason.unwrap_or_else(|| "it is stopping".into()))
    }

    /// Runs the loop of the engine's thread, and records why it failed, if it did. The reason is there before the loop's
    /// streams close, so a reader of a closed stream finds it.
    pub(crate) fn run(&self, body: impl FnOnce() -> Result<()>) {
        let reason = match catch_unwind(AssertUnwindSafe(body)) {
            Ok(Ok(())) => return,
            Ok(Err(error)) => error.to_string(),
            Err(panic) => panic_message(&*panic),
        };
        tracing::error!(%reason, "the engine has stopped");
        let _ = self.death.set(reason); // the end of a rank may have set the cause before
    }
}

/// The message of a panic, in words.
pub(crate) fn panic_message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    format!("the engine thread panicked: {}", text.unwrap_or("without a message"))
}

/// The beginning of the running step.
#[derive(Debug)]
pub(crate) struct StepClock {
    epoch: Instant,
    /// Milliseconds after `epoch`, at least 1; 0 while idle.
    began_ms: AtomicU64,
}

impl StepClock {
    fn new() -> Self {
        Self { epoch: Instant::now(), began_ms: AtomicU64::new(0) }
    }

    /// Time since the beginning of the running step.
    fn step_seconds(&self) -> Option<Duration> {
        let began_ms = self.began_ms.load(Ordering::Relaxed);
        (began_ms > 0).then(|| self.epoch.elapsed().saturating_sub(Duration::from_millis(began_ms)))
    }

    pub(crate) fn begin(&self) {
        self.began_ms.store((self.epoch.elapsed().as_millis() as u64).max(1), Ordering::Relaxed);
    }

    pub(crate) fn end(&self) {
        self.began_ms.store(0, Ordering::Relaxed);
    }
}
