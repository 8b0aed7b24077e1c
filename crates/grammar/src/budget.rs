//! The time budget of a request's grammars during generation.
//!
//! An ambiguous grammar takes longer with each token, and all requests share the threads that compute masks: without a budget,
//! one request could delay the tokens of all others for seconds.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

use crate::{Error, Result};

/// The budget at first, and its maximum.
const MOST: Duration = Duration::from_millis(500);
/// The time that each sampled token adds. Most masks take some hundredths of a millisecond, and the slowest some milliseconds.
const PER_TOKEN: Duration = Duration::from_millis(2);
/// The time that a forced token adds: no mask is computed for it.
const PER_FORCED_TOKEN: Duration = Duration::from_micros(100);

/// The thread time left to the sequences of a request. Clones share it.
#[derive(Clone, Debug)]
pub(crate) struct Budget {
    left: Arc<Mutex<Duration>>,
}

impl Budget {
    pub(crate) fn new() -> Self {
        Self { left: Arc::new(Mutex::new(MOST)) }
    }

    /// Adds the time of a sampled token, unless the budget is used up.
    pub(crate) fn earn(&self) {
        self.add(PER_TOKEN);
    }

    /// Adds the time of a forced token, unless the budget is used up.
    pub(crate) fn earn_forced(&self) {
        self.add(PER_FORCED_TOKEN);
    }

    fn add(&self, earned: Duration) {
        let mut left = self.left();
        if !left.is_zero() {
            *left = (*left + earned).min(MOST);
        }
    }

    /// Does some work if any budget is left. Many sequences of one request may do so in the same step.
    ///
    /// # Errors
    /// [`Error::Limit`] if this work or the work before it took too long.
    pub(crate) fn spend<T>(&self, work: impl FnOnce() -> Result<T>) -> Result<T> {
        // No work at all once the budget is used up. Otherwise each further token would take its time before it
        // fails.
        self.take(Duration::ZERO)?;
        // CPU time, so that waiting for a busy processor does not fail a request.
        let before = thread_time();
        let done = work();
        self.take(thread_time().saturating_sub(before))?;
        done
    }

    fn take(&self, spent: Duration) -> Result<()> {
        let mut left = self.left();
        *left = left.saturating_sub(spent);
        if left.is_zero() {
            return Err(Error::Limit("its masks take too long; make the grammar unambiguous"));
        }
        Ok(())
    }

    fn left(&self) -> MutexGuard<'_, Duration> {
        self.left.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The CPU time of this thread.
fn thread_time() -> Duration {
    clock(ClockId::ThreadCPUTime)
}

/// The CPU time of all threads of this process.
pub(crate) fn process_time() -> Duration {
    clock(ClockId::ProcessCPUTime)
}

fn clock(clock: ClockId) -> Duration {
    let time = clock_gettime(clock);
    let seconds = u64::try_from(time.tv_sec).unwrap_or_default();
    Duration::from_secs(seconds)
        + Duration::from_nanos(u64::try_from(time.tv_nsec).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_takes_longer_than_tokens_earn_fails_and_stays_failed() {
        let budget = Budget::new();
        for _ in 0..1000 {
            budget.take(PER_TOKEN).unwrap();
            budget.earn();
        }
        let tokens = (0..1000).position(|_| {
            budget.earn();
            budget.take(3 * PER_TOKEN).is_err()
        });
        // Each round earns 2 ms and takes 6 ms. The first one cannot earn more than the maximum: 500 - 6 - 124 * 4 is
        // below zero.
        assert_eq!(tokens, Some(124));
        budget.clone().earn();
        let mut is_done = false;
        let work = || {
            is_done = true;
            Ok(())
        };
        assert!(budget.spend(work).is_err() && !is_done);
    }
}
