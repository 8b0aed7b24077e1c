//! The moment until which work on an image may go on, and a flag that ends it earlier.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::{Error, Result};

/// Time that an image may take to decode.
const DECODE: Duration = Duration::from_secs(10);

/// The moment until which work on an image may go on.
#[derive(Clone, Debug)]
pub struct Deadline {
    at: Instant,
    limit: Duration,
    cancelled: Arc<AtomicBool>,
}

impl Deadline {
    /// A deadline in `limit` from now.
    pub fn after(limit: Duration) -> Self {
        Self { at: Instant::now() + limit, limit, cancelled: Arc::default() }
    }

    /// A deadline that also ends the work when `cancelled` becomes true, for example because the client has gone.
    pub fn with_cancel(limit: Duration, cancelled: Arc<AtomicBool>) -> Self {
        Self { cancelled, ..Self::after(limit) }
    }

    /// Checks whether the work may go on.
    ///
    /// # Errors
    /// [`Error::Cancelled`] or [`Error::TimedOut`].
    pub fn check(&self) -> Result<()> {
        if self.cancelled.load(Ordering::Relaxed) {
            return Err(Error::Cancelled);
        }
        if Instant::now() >= self.at {
            return Err(Error::TimedOut { seconds: self.limit.as_secs_f64() });
        }
        Ok(())
    }
}

impl Default for Deadline {
    /// A deadline in ten seconds.
    fn default() -> Self {
        Self::after(DECODE)
    }
}
