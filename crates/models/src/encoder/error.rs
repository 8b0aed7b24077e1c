//! What can go wrong while loading or running an encoder, in words that say what to do.

/// Result with this crate's [`enum@Error`].
pub type Result<T> = std::result::Result<T, Error>;

/// An encoder that cannot be loaded or run.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The checkpoint's description is wrong.
    #[error(transparent)]
    Checkpoint(#[from] candlepower_checkpoint::Error),
    /// A kernel refused its operands, or memory ran out.
    #[error(transparent)]
    Kernel(#[from] candlepower_kernels::Error),
    /// A tensor operation failed.
    #[error(transparent)]
    Candle(#[from] candle_core::Error),
    /// A weight file could not be read.
    #[error("cannot read the weight file {file}: {source}")]
    Io {
        /// The file's name.
        file: String,
        /// The system's own error.
        source: std::io::Error,
    },
    /// A weight file is not what its header says.
    #[error("{file} is damaged or truncated ({len} bytes: {reason}); download it again")]
    Damaged {
        /// The file's name.
        file: String,
        /// Its length in bytes.
        len: u64,
        /// What was found, in words.
        reason: String,
    },
    /// The weight files lack tensors.
    #[error("{count} tensors of the model are not in the weight files: {names}")]
    TensorsMissing {
        /// How many.
        count: usize,
        /// The first of them.
        names: String,
    },
    /// The weight files hold tensors that the architecture does not explain.
    #[error(
        "{count} tensors in the weight files are not part of {architecture} as config.json describes it: {names}"
    )]
    TensorsUnknown {
        /// How many.
        count: usize,
        /// The first of them.
        names: String,
        /// The architecture's class name.
        architecture: &'static str,
    },
    /// A tensor that is there twice.
    #[error("the tensor {name} is there twice; remove one of the files")]
    TensorTwice {
        /// The tensor's name.
        name: String,
    },
    /// A tensor has another shape than the configuration says.
    #[error("tensor {name} has shape {found:?}, but config.json makes it {expected:?}")]
    TensorShape {
        /// The tensor's name.
        name: String,
        /// Its shape in the file.
        found: Vec<usize>,
        /// Its shape by the configuration.
        expected: Vec<usize>,
    },
    /// A tensor's numbers are of a kind that is not computed with.
    #[error("tensor {name} is stored as {found}, which is not supported; F32, F16 and BF16 are")]
    TensorDtype {
        /// The tensor's name.
        name: String,
        /// Its dtype as safetensors calls it.
        found: String,
    },
    /// An input that cannot be computed.
    #[error("the input {0}")]
    Input(String),
}
