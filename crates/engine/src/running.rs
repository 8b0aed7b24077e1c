//! Which engines run, so that a program can end after them.

use std::{
    sync::{Condvar, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

static RUNNING: Mutex<usize> = Mutex::new(0);
static ENDED: Condvar = Condvar::new();

/// An engine's thread, from before its start until it has dropped all that it had.
pub(crate) struct Running(());

impl Running {
    pub(crate) fn begin() -> Self {
        *running() += 1;
        Self(())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        *running() -= 1;
        ENDED.notify_all();
    }
}

fn running() -> MutexGuard<'static, usize> {
    RUNNING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Waits until the threads of all engines have ended, which they do when their last handles are dropped; at most for `limit`. Whether
/// they have.
///
/// A program calls it before it exits: what CUDA's libraries have is gone when their exit handlers have run, and a thread that still
/// frees its part of it crashes.
pub fn wait_for_engines(limit: Duration) -> bool {
    let waited = ENDED.wait_timeout_while(running(), limit, |running| *running > 0);
    *waited.unwrap_or_else(PoisonError::into_inner).0 == 0
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    #[test]
    fn whoever_waits_goes_on_when_the_last_one_has_ended() {
        let one = Running::begin();
        assert!(!wait_for_engines(Duration::from_millis(20)));
        let ends = thread::spawn(move || drop(one));
        assert!(wait_for_engines(Duration::from_secs(60)));
        ends.join().unwrap();
    }
}
