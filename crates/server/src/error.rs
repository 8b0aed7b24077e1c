//! Why the server cannot start or go on, in one line each.

use std::path::PathBuf;

use candlepower_engine::NoGpu;

use crate::config::ConfigError;

/// An error of the server as a whole; errors of requests are `ApiError`s.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The settings cannot be used.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// Harmony holds calls and reasoning in one format.
    #[error(
        "--tool-call-parser and --reasoning-parser do not go together: gpt_oss is for both or for neither"
    )]
    MixedParsers,
    /// No model was named.
    #[error("which model? Name one: `candlepower serve demo`, or the folder of a model")]
    NoModel,
    /// The model is neither `demo` nor a folder nor an id.
    #[error(
        "there is no model folder `{0}`; name a folder with config.json, a model on the hub as owner/name, or `demo`"
    )]
    NoSuchModel(String),
    /// The model could not be had from the hub.
    #[error(transparent)]
    Hub(#[from] candlepower_hub::Error),
    /// The build has no CUDA.
    #[error("this build has no CUDA: leave --device out, or take a build with CUDA")]
    NoCuda,
    /// There is no GPU that could be used.
    #[error("{0}; leave --device out to compute on the CPU")]
    NoGpu(NoGpu),
    /// More devices are asked for than one.
    #[error(
        "--tensor-parallel-size {asked} is not supported by this version, which computes on one device: leave the setting out"
    )]
    TensorParallel {
        /// How many.
        asked: usize,
    },
    /// The weights are quantized in another way than was asked for.
    #[error(
        "--quantization {asked} does not match the weights: config.json says {found}; leave the flag out"
    )]
    QuantizationMismatch {
        /// What was asked for.
        asked: &'static str,
        /// What the checkpoint says.
        found: String,
    },
    /// The weights are quantized in a way that is not computed with.
    #[error(
        "the weights are quantized with {0}, which is not supported; awq, gptq, squeezellm and fp8 are: use such a version of the model, or its float16 or bfloat16 original"
    )]
    QuantizationUnsupported(String),
    /// The weights are quantized, and the model is to run on a GPU.
    #[error(
        "quantized weights do not run on a GPU yet; use --device cpu, or the float16 or bfloat16 original of the model"
    )]
    QuantizedOnGpu,
    /// The address cannot be listened on.
    #[error("cannot listen on {address}: {source}")]
    Listen {
        /// Host and port.
        address: String,
        /// The system's own error.
        source: std::io::Error,
    },
    /// A file that was named cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    ReadFile {
        /// The file.
        path: PathBuf,
        /// The system's own error.
        source: std::io::Error,
    },
    /// A file that every model needs is not there.
    #[error("{file} is missing in {place}: a model folder needs it")]
    FileMissing {
        /// The file's name.
        file: &'static str,
        /// The folder, in words.
        place: String,
    },
    /// The checkpoint cannot be understood.
    #[error(transparent)]
    Checkpoint(#[from] candlepower_checkpoint::Error),
    /// The tokenizer or the chat template cannot be used.
    #[error(transparent)]
    Tokenizer(#[from] candlepower_tokenizer::Error),
    /// The engine cannot be started.
    #[error(transparent)]
    Engine(#[from] candlepower_engine::Error),
    /// Loading ended without a result.
    #[error("loading the model failed without a reason: {0}")]
    LoadingPanicked(String),
    /// Signals cannot be received.
    #[error("cannot wait for signals: {0}")]
    Signals(std::io::Error),
}

impl From<NoGpu> for Error {
    fn from(reason: NoGpu) -> Self {
        match reason {
            NoGpu::NotBuilt => Self::NoCuda,
            reason => Self::NoGpu(reason),
        }
    }
}

/// A result of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;
