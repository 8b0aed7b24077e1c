//! Usage of an API key: its concurrent sequences, and its tokens of the last minute.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use metrics::Counter;

use super::KeyLimits;

/// Shared by all requests of a key.
#[derive(Debug, Default)]
pub(super) struct Usage(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    num_sequences: usize,
    /// Remaining tokens and the time of the count; `None` before the first use. Requests may take it below zero.
    tokens: Option<(f64, Instant)>,
}

/// The limit that a request would exceed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refused {
    /// More sequences than the limit.
    Never { asked: usize, limit: u32 },
    /// The limit is reached at the moment.
    Sequences { running: usize, limit: u32 },
    /// The tokens are used up for `seconds`.
    Tokens { limit: u32, seconds: u64 },
}

/// One running sequence of a key. Dropping it frees its slot.
#[derive(Debug)]
pub(crate) struct KeyPermit {
    usage: Arc<Usage>,
    generated: Counter,
}

impl Usage {
    pub(super) fn check(&self, limits: &KeyLimits, num_sequences: usize) -> Result<(), Refused> {
        check(&mut self.state(), limits, num_sequences, Instant::now())
    }

    /// Counts sequences, each of which a [`KeyPermit`] gives back.
    pub(super) fn take(&self, limits: &KeyLimits, num_sequences: usize) -> Result<(), Refused> {
        let mut state = self.state();
        check(&mut state, limits, num_sequences, Instant::now())?;
        state.num_sequences += num_sequences;
        Ok(())
    }

    pub(super) fn spend(&self, num_tokens: usize) {
        if let Some((left, _)) = &mut self.state().tokens {
            *left -= num_tokens as f64;
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Checks the limits. Tokens are refilled evenly, up to those of a minute.
fn check(
    state: &mut State,
    limits: &KeyLimits,
    num_sequences: usize,
    now: Instant,
) -> Result<(), Refused> {
    if let Some(limit) = limits.max_concurrent {
        if num_sequences > limit as usize {
            return Err(Refused::Never { asked: num_sequences, limit });
        }
        let running = state.num_sequences;
        if running + num_sequences > limit as usize {
            return Err(Refused::Sequences { running, limit });
        }
    }
    let Some(limit) = limits.max_tokens_per_minute else {
        // Without a limit nothing is counted; a limit that a reload adds begins with a full minute.
        state.tokens = None;
        return Ok(());
    };
    let (most, per_second) = (f64::from(limit), f64::from(limit) / 60.0);
    let (left, counted) = state.tokens.unwrap_or((most, now));
    let left = most.min(left + (now - counted).as_secs_f64() * per_second);
    state.tokens = Some((left, now));
    // The tokens of an answer are not known before, so a request starts while any are left.
    if left > 0.0 {
        return Ok(());
    }
    let seconds = (-left / per_second).ceil() as u64;
    Err(Refused::Tokens { limit, seconds: seconds.max(1) })
}

impl KeyPermit {
    pub(super) fn new(usage: Arc<Usage>, generated: Counter) -> Self {
        Self { usage, generated }
    }

    /// Counts a token that was generated.
    pub(crate) fn count_token(&self) {
        self.generated.increment(1);
        self.usage.spend(1);
    }
}

impl Drop for KeyPermit {
    fn drop(&mut self) {
        self.usage.state().num_sequences -= 1;
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn tokens_come_back_within_a_minute() {
        let limits = KeyLimits { max_tokens_per_minute: Some(600), ..KeyLimits::default() };
        let usage = Usage::default();
        let start = Instant::now();
        let check =
            |after: u64| check(&mut usage.state(), &limits, 1, start + Duration::from_secs(after));
        check(0).unwrap();
        usage.spend(599);
        check(0).unwrap();
        // A request may use more tokens than remain; then the next one waits.
        usage.spend(101);
        assert_eq!(check(0), Err(Refused::Tokens { limit: 600, seconds: 10 }));
        assert_eq!(check(4), Err(Refused::Tokens { limit: 600, seconds: 6 }));
        check(11).unwrap();
        // Unused tokens are not saved beyond the limit for one minute.
        check(10_000).unwrap();
        usage.spend(600);
        assert!(check(10_000).is_err());
    }

    #[test]
    fn sequences_are_counted_until_they_end() {
        let limits = KeyLimits { max_concurrent: Some(3), ..KeyLimits::default() };
        let usage = Arc::new(Usage::default());
        usage.take(&limits, 2).unwrap();
        let permit = || KeyPermit::new(Arc::clone(&usage), Counter::noop());
        let permits = [permit(), permit()];
        assert_eq!(usage.take(&limits, 2), Err(Refused::Sequences { running: 2, limit: 3 }));
        assert_eq!(usage.take(&limits, 4), Err(Refused::Never { asked: 4, limit: 3 }));
        drop(permits);
        usage.take(&limits, 3).unwrap();
    }
}
