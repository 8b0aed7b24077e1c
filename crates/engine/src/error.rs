//! What can go wrong in the engine.

/// Why the engine could not start, or ended.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The checkpoint cannot be served as asked.
    #[error(transparent)]
    Model(#[from] candlepower_models::Error),
    /// The model does not fit the memory.
    #[error(transparent)]
    Memory(#[from] candlepower_checkpoint::Error),
    /// A device operation failed.
    #[error(transparent)]
    Kernel(#[from] candlepower_kernels::Error),
    /// A tensor operation failed.
    #[error(transparent)]
    Tensor(#[from] candle_core::Error),
    /// The scheduler refused its configuration or a step.
    #[error(transparent)]
    Scheduler(#[from] candlepower_scheduler::Error),
    /// The ranks of the model do not come together.
    #[error(transparent)]
    Comm(#[from] candlepower_comm::Error),
    /// A rank's process has ended.
    #[error("{0}")]
    RankEnded(String),
    /// A rank's process could not be started.
    #[error("rank {rank} cannot be started: {source}")]
    RankStart {
        /// Which.
        rank: usize,
        /// The system's own error.
        source: std::io::Error,
    },
    /// More ranks than GPUs.
    #[error(
        "tensor_parallel_size {ranks} takes as many GPUs, and this process sees {gpus}; lower it, look at CUDA_VISIBLE_DEVICES, or take --device cpu"
    )]
    TooFewGpus {
        /// Ranks asked for.
        ranks: usize,
        /// GPUs that there are.
        gpus: usize,
    },
    /// A rank's GPU cannot be used.
    #[error(transparent)]
    NoGpu(#[from] crate::NoGpu),
    /// A rank does not understand another.
    #[error("internal fault: a message between ranks is damaged: {0}")]
    Message(String),
    /// The engine has lost track of its sequences or blocks: a fault in candlepower.
    #[error("internal fault: {0}")]
    Invariant(String),
    /// The model computes NaN or infinities only.
    #[error(
        "the model computes no finite values: config.json has a value that is out of range (rms_norm_eps, rope_theta ..), the weights are damaged, or the dtype is too narrow; look at the files, or try --dtype float32"
    )]
    NothingFinite,
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
