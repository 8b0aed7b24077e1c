//! How long a grammar may keep a thread while it is followed: a text that can be read in many ways takes longer with each token.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

use crate::{Error, Result};

/// What a request has at first, and at most.
const MOST: Duration = Duration::from_millis(500);
/// What each token of its sequences adds. Masks take some hundredths of a millisecond, and the longest some milliseconds.
const PER_TOKEN: Duration = Duration::from_millis(2);
/// Added by a token that had to follow. Such a token is not looked for, only taken.
const PER_FORCED_TOKEN: Duration = Duration::from_micros(100);

/// The time of threads that the sequences of a request may still take. Clones are one.
#[derive(Clone, Debug)]
pub(crate) struct Budget {
    left: Arc<Mutex<Duration>>,
}

impl Budget {
    pub(crate) fn new() -> Self {
        Self { left: Arc::new(Mutex::new(MOST)) }
    }

    /// Adds what a sampled token does, unless nothing was left.
    pub(crate) fn earn(&self) {
        self.add(PER_TOKEN);
    }

    /// Adds what a token does that had to follow, unless nothing was left.
    pub(crate) fn earn_forced(&self) {
        self.add(PER_FORCED_TOKEN);
    }

    fn add(&self, earned: Duration) {
        let mut left = self.left();
        if !left.is_zero() {
            *left = (*left + earned).min(MOST);
        }
    }

    /// Does some work, if anything is left for it: many sequences of a request do theirs in one step.
    ///
    /// # Errors
    /// [`Error::Limit`] if it, or what was done before it, took too long.
    pub(crate) fn spend<T>(&self, work: impl FnOnce() -> Result<T>) -> Result<T> {
        self.take(Duration::ZERO)?;
        let before = thread_time();
        let done = work();
        self.take(thread_time().saturating_sub(before))?;
        done
    }

    fn take(&self, spent: Duration) -> Result<()> {
        let mut left = self.left();
        *left = left.saturating_sub(spent);
        if left.is_zero() {
            return Err(Error::Limit(
                "its texts take too long; write it so that each can be read in one way only",
            ));
        }
        Ok(())
    }

    fn left(&self) -> MutexGuard<'_, Duration> {
        self.left.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The time that this thread has computed for; that of others beside it does not count.
fn thread_time() -> Duration {
    clock(ClockId::ThreadCPUTime)
}

/// The time that all threads of this process have computed for.
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
