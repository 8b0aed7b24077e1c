//! Numbers of prompt and generated tokens of a request, for its line in the access log, and its trace.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::model::trace::RequestTrace;

/// Counters that the endpoint increments and the logging layer reads.
#[derive(Default)]
pub(crate) struct RequestTokens {
    prompt: AtomicU64,
    generated: AtomicU64,
    trace: Option<Box<RequestTrace>>,
}

impl RequestTokens {
    /// Counters at zero, beside a trace if there is one.
    pub(crate) fn traced(trace: Option<Box<RequestTrace>>) -> Self {
        Self { trace, ..Self::default() }
    }

    /// The trace of the request, if it has one.
    pub(crate) fn trace(&self) -> Option<&RequestTrace> {
        self.trace.as_deref()
    }

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
