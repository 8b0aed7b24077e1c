//! A bound on the bytes of all images that wait for their encoder.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use crate::Processed;

/// Bytes that waiting images may take, over all requests.
#[derive(Clone, Debug)]
pub struct ImageBudget {
    limit: usize,
    used: Arc<AtomicUsize>,
}

impl ImageBudget {
    /// A budget of `limit` bytes.
    pub fn new(limit: usize) -> Self {
        Self { limit, used: Arc::default() }
    }

    /// The bound in bytes.
    pub fn limit(&self) -> usize {
        self.limit
    }

    /// Bytes in use.
    pub fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }

    /// Keeps an image until the result is dropped. Returns `None` if it does not fit beside those that are kept.
    pub fn keep(&self, image: Processed) -> Option<WaitingImage> {
        let bytes = image.bytes();
        let grown = |used: usize| used.checked_add(bytes).filter(|used| *used <= self.limit);
        self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, grown).ok()?;
        let held = HeldBytes { bytes, used: Arc::clone(&self.used) };
        Some(WaitingImage { image, _held: held })
    }
}

/// A processed image whose bytes are counted by a budget.
#[derive(Debug)]
pub struct WaitingImage {
    image: Processed,
    _held: HeldBytes,
}

impl WaitingImage {
    /// The image.
    pub fn image(&self) -> &Processed {
        &self.image
    }
}

/// Bytes of a budget, which are given back on drop.
#[derive(Debug)]
struct HeldBytes {
    bytes: usize,
    used: Arc<AtomicUsize>,
}

impl Drop for HeldBytes {
    fn drop(&mut self) {
        self.used.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}
