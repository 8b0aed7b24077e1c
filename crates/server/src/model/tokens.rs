//! Numbers of prompt and generated tokens of a request, for its line in the access log.

use std::sync::atomic::{AtomicU64, Ordering};

/// Counters that the endpoint increments and the logging layer reads.
#[derive(Debug, Default)]
pub(crate) struct RequestTokens {
    prompt: AtomicU64,
    generated: AtomicU64,
}

impl RequestTokens {
    /// Adds tokens of a prompt.
    pub(crate) fn add_prompt(&self, num_tokens: usize) {
        self.prompt.fetch_add(num_tokens as u64, Ordering::Relaxed);
    }

    /// Counts a generated token.
    pub(crate) fn add_generated(&self) {
        self.generated.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn prompt(&self) -> u64 {
        self.prompt.load(Ordering::Relaxed)
    }

    pub(crate) fn generated(&self) -> u64 {
        self.generated.load(Ordering::Relaxed)
    }
}
