//! The engines that run, so that a program can end after them.

use std::{
    sync::{Condvar, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

static RUNNING: Mutex<usize> = Mutex::new(0);
static ENDED: Condvar = Condvar::new();

/// An engine's thread, from before its start until it has dropped all its data.
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

/// Waits until the threads of all engines have ended, at most for `limit`, and returns whether they have. A thread ends when the last
/// handle of its engine is dropped.
///
/// A program calls it before it exits: the exit handlers of CUDA's libraries free their memory, and a thread that frees it later
/// crashes.
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
