//! The memory for pictures while they are decoded, of all requests together.

use std::sync::Arc;

use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Pixels of one permit.
const PIXELS_PER_PERMIT: u64 = 1_000_000;

/// Permits to decode pictures, by their size. Without them, large pictures of several requests would add up to gigabytes.
pub(crate) struct DecodeMemory {
    free: Arc<Semaphore>,
    num_permits: u32,
}

impl DecodeMemory {
    /// Memory for `max_pixels` pixels at once, which one picture may have.
    pub(crate) fn new(max_pixels: u64) -> Self {
        let num_permits = permits(max_pixels);
        Self { free: Arc::new(Semaphore::new(num_permits as usize)), num_permits }
    }

    /// Blocks this thread until a picture of this size may be decoded. Pictures take turns in the order of their arrival.
    pub(crate) fn wait_for(&self, pixels: u64) -> OwnedSemaphorePermit {
        let num_permits = permits(pixels).min(self.num_permits);
        let taken = Arc::clone(&self.free).acquire_many_owned(num_permits);
        Handle::current().block_on(taken).expect("the semaphore is never closed")
    }
}

fn permits(pixels: u64) -> u32 {
    u32::try_from(pixels.div_ceil(PIXELS_PER_PERMIT)).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn pictures_share_the_pixels_of_the_largest_one() {
        let memory = Arc::new(DecodeMemory::new(64_000_000));
        let waiting = |pixels| {
            let memory = Arc::clone(&memory);
            tokio::task::spawn_blocking(move || memory.wait_for(pixels))
        };
        let first = waiting(12_000_001).await.unwrap();
        assert_eq!(memory.free.available_permits(), 64 - 13);
        let huge = waiting(u64::MAX);
        drop(first);
        let huge = huge.await.unwrap();
        assert_eq!(memory.free.available_permits(), 0);
        drop(huge);
        assert_eq!(memory.free.available_permits(), 64);
    }
}
