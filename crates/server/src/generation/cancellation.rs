//! The cancellation flag of the request that this thread prepares.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

thread_local! {
    static CURRENT: RefCell<Arc<AtomicBool>> = RefCell::default();
}

/// Runs `work`. Tokenization in it fails soon after `is_cancelled` has become true.
pub(crate) fn until<T>(is_cancelled: Arc<AtomicBool>, work: impl FnOnce() -> T) -> T {
    /// Restores the earlier flag, after a panic too.
    struct Restored(Arc<AtomicBool>);
    impl Drop for Restored {
        fn drop(&mut self) {
            CURRENT.set(Arc::clone(&self.0));
        }
    }
    let _restored = Restored(CURRENT.replace(is_cancelled));
    work()
}

/// Becomes true when the work of this thread is cancelled.
pub(crate) fn flag() -> Arc<AtomicBool> {
    CURRENT.with_borrow(Arc::clone)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use super::*;

    #[test]
    fn work_sees_its_own_flag_and_no_other() {
        let given_up = Arc::new(AtomicBool::new(true));
        let is_set = || flag().load(Ordering::Relaxed);
        assert!(!is_set());
        until(Arc::clone(&given_up), || {
            assert!(is_set());
            until(Arc::default(), || assert!(!is_set()));
            assert!(is_set());
            std::thread::scope(|scope| scope.spawn(|| assert!(!is_set())).join().unwrap());
        });
        assert!(!is_set());
        let panicked = std::panic::catch_unwind(|| until(given_up, || panic!("on purpose")));
        assert!(panicked.is_err() && !is_set());
    }
}
