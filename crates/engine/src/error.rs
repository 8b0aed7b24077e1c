//! Errors of the engine.

/// Why the engine could not start, or ended.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The checkpoint cannot be served with these settings.
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
    /// A collective of the ranks failed.
    #[error(transparent)]
    Comm(#[from] candlepower_comm::Error),
    /// A rank's process has ended.
    #[error("{0}")]
    RankEnded(String),
    /// A rank's process could not be started.
    #[error("rank {rank} cannot be started: {source}")]
    RankStart {
        /// The rank.
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
        /// GPUs that this process sees.
        gpus: usize,
    },
    /// A rank's GPU cannot be used.
    #[error(transparent)]
    NoGpu(#[from] NoGpu),
    /// A message between ranks cannot be decoded.
    #[error("internal fault: a message between ranks is damaged: {0}")]
    Message(String),
    /// The engine has lost track of its sequences or blocks, which is a fault in candlepower.
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
        /// The values that it can have.
        reason: &'static str,
    },
    /// A thread could not be started.
    #[error("cannot start a thread: {0}; raise the limit on processes or lower --threads")]
    Thread(String),
}

/// The reason why no GPU can be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoGpu {
    /// The build is without the feature `cuda`.
    #[error("this build has no CUDA")]
    NotBuilt,
    /// CUDA does not start.
    #[error("{0}")]
    NoDriver(String),
    /// The driver cannot run what this build was compiled to.
    #[error(
        "the NVIDIA driver {driver} is too old: it runs CUDA up to {}.{}, and this build needs {}.{}",
        found.0, found.1, needed.0, needed.1
    )]
    DriverTooOld {
        /// The driver's version, such as `570.86.10`.
        driver: String,
        /// The newest CUDA that it runs, major and minor.
        found: (u32, u32),
        /// The CUDA of this build.
        needed: (u32, u32),
    },
    /// The GPU, or a library that it is used through, does not start.
    #[error(
        "the GPU cannot be used: {0}; libcublas and libcurand must lie where the system looks for libraries, in LD_LIBRARY_PATH, or in a folder `lib` beside the program"
    )]
    Unusable(String),
    /// The kernels are for other GPUs.
    #[error(
        "this build is for GPUs of compute capability {}.{}, and this one has {}.{}",
        built.0, built.1, found.0, found.1
    )]
    OtherArchitecture {
        /// The compute capability that the kernels were compiled for, major and minor.
        built: (u32, u32),
        /// The compute capability of the GPU.
        found: (u32, u32),
    },
}

/// Why a request was not taken.
#[derive(Debug, thiserror::Error)]
pub enum SubmitError {
    /// The queue of the caller is full.
    #[error(
        "the queue is full: {in_flight} of your sequences are running or waiting, at most {limit} may be; try again later"
    )]
    QueueFull {
        /// Sequences of the caller that run or wait.
        in_flight: usize,
        /// `max_num_seqs + max_queued_seqs`, or less where other callers leave less.
        limit: usize,
    },
    /// The request cannot run on this engine whatever the load.
    #[error("{0}")]
    Invalid(String),
    /// The engine has ended.
    #[error("the engine is not running: {0}")]
    Dead(String),
}

/// A result of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;
