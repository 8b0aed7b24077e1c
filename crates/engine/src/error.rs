//! What can go wrong in the engine.

/// Why the engine could not start, or ended.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The checkpoint cannot be served as asked.
    #[error(transparent)]
    Model(#[from] candlepower_models::Error),
    /// A device operation failed.
    #[error(transparent)]
    Kernel(#[from] candlepower_kernels::Error),
    /// A tensor operation failed.
    #[error(transparent)]
    Tensor(#[from] candle_core::Error),
    /// The scheduler refused its configuration or a step.
    #[error(transparent)]
    Scheduler(#[from] candlepower_scheduler::Error),
    /// The engine has lost track of its sequences or blocks: a fault in candlepower.
    #[error("internal fault: {0}")]
    Invariant(String),
    /// One sequence of `max_model_len` does not fit the KV cache.
    #[error(
        "the KV cache cannot hold one sequence of max_model_len {max_model_len}: that needs {needed} bytes and it has \
         {available}; give --kv-cache-memory at least {needed}{}", shorter(*.fits)
    )]
    KvCacheTooSmall {
        /// Longest sequence asked for.
        max_model_len: usize,
        /// Bytes that one such sequence needs.
        needed: u64,
        /// Bytes that the cache has.
        available: u64,
        /// Longest sequence that fits.
        fits: usize,
    },
    /// A setting is out of range.
    #[error("{name} is {value}: {reason}")]
    Config {
        /// The setting's name.
        name: &'static str,
        /// Its value.
        value: String,
        /// What it must be.
        reason: &'static str,
    },
    /// A thread could not be started.
    #[error("cannot start a thread: {0}; raise the limit on processes or lower --threads")]
    Thread(String),
}

/// A result of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The other way out of a cache that is too small, where there is one.
fn shorter(fits: usize) -> String {
    if fits == 0 { String::new() } else { format!(", or lower --max-model-len to {fits}") }
}
