//! Permits for work that occupies a thread. One caller has at most half of them, so that it cannot block the others.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use candlepower_engine::CallerId;
use tokio::sync::{AcquireError, OwnedSemaphorePermit, Semaphore};

/// The permits of all callers and of each one.
pub(crate) struct Permits {
    all: Arc<Semaphore>,
    each: usize,
    /// Callers that hold or wait for permits.
    of_callers: Mutex<HashMap<CallerId, Weak<Semaphore>>>,
}

/// One permit.
#[derive(Debug)]
pub(crate) struct Permit {
    _of_all: OwnedSemaphorePermit,
    _of_caller: OwnedSemaphorePermit,
}

impl Permits {
    /// `each` permits for one caller, and twice as many in total.
    pub(crate) fn new(each: usize) -> Self {
        Self { all: Arc::new(Semaphore::new(2 * each)), each, of_callers: Mutex::default() }
    }

    /// Waits for a permit of the caller's share, and then for one of the total.
    ///
    /// # Errors
    /// Never, because the semaphores are never closed.
    pub(crate) async fn acquire(&self, caller: CallerId) -> Result<Permit, AcquireError> {
        // The caller's own share comes first, so that its waiting requests do not queue for the total.
        let of_caller = self.of_caller(caller).acquire_owned().await?;
        let of_all = Arc::clone(&self.all).acquire_owned().await?;
        Ok(Permit { _of_all: of_all, _of_caller: of_caller })
    }

    fn of_caller(&self, caller: CallerId) -> Arc<Semaphore> {
        let mut of_callers = self.of_callers.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(found) = of_callers.get(&caller).and_then(Weak::upgrade) {
            return found;
        }
        // Entries of callers without a permit are removed when another is added, so the map stays small.
        of_callers.retain(|_, permits| permits.strong_count() > 0);
        let permits = Arc::new(Semaphore::new(self.each));
        of_callers.insert(caller, Arc::downgrade(&permits));
        permits
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn one_caller_leaves_half_to_others() {
        let permits = Permits::new(2);
        let acquire = |caller| {
            tokio::time::timeout(Duration::from_secs(1), permits.acquire(CallerId(caller)))
        };
        let first = acquire(1).await.unwrap();
        let _second = acquire(1).await.unwrap();
        // The third one waits, and paused time lets the timeout pass at once.
        acquire(1).await.unwrap_err();
        let other = acquire(2).await.unwrap();
        drop(first);
        let _third = acquire(1).await.unwrap();
        let _more = acquire(2).await.unwrap();
        acquire(3).await.unwrap_err();
        drop(other);
        acquire(3).await.unwrap().unwrap();
        assert!(permits.of_callers.lock().unwrap().len() <= 3);
    }

    #[tokio::test]
    async fn callers_without_permits_are_forgotten() {
        let permits = Permits::new(1);
        for caller in 0..1000 {
            permits.acquire(CallerId(caller)).await.unwrap();
        }
        assert_eq!(permits.of_callers.lock().unwrap().len(), 1);
    }
}
