//! The memory limit that the bodies of all requests share.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::model::api_error::{ApiError, ApiResult};

/// The memory for request bodies. Without a common limit, clients that send large bodies slowly over many connections fill the machine.
pub(crate) struct BodyMemory {
    /// One permit for each KiB.
    free: Arc<Semaphore>,
    limit: u64,
}

impl BodyMemory {
    pub(crate) fn new(limit: u64) -> Self {
        let permits = usize::try_from(limit / 1024).unwrap_or(usize::MAX);
        // A semaphore panics beyond its own limit.
        Self { free: Arc::new(Semaphore::new(permits.min(Semaphore::MAX_PERMITS))), limit }
    }

    /// # Errors
    /// 503 if the other bodies leave too little memory.
    pub(crate) fn take(&self, bytes: usize) -> ApiResult<OwnedSemaphorePermit> {
        // Bytes are rounded up, so that many small bodies are counted, too.
        let permits = u32::try_from(bytes.div_ceil(1024)).unwrap_or(u32::MAX);
        let taken = Arc::clone(&self.free).try_acquire_many_owned(permits);
        taken.map_err(|_| ApiError::bodies_full(self.limit))
    }

    #[cfg(test)]
    pub(crate) fn free_bytes(&self) -> usize {
        self.free.available_permits() * 1024
    }
}
