//! Why the server cannot start or go on, in one line each.

use std::path::PathBuf;

use candlepower_checkpoint::QuantizationMethod;
use candlepower_engine::NoGpu;

use crate::config::ConfigError;
use crate::model::keys::KeysError;

/// An error of the server as a whole; errors of requests are `ApiError`s.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The settings cannot be used.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The API keys cannot be used.
    #[error(transparent)]
    Keys(#[from] KeysError),
    /// Harmony holds calls and reasoning in one format.
    #[error(
        "--tool-call-parser and --reasoning-parser do not go together: gpt_oss is for both or for neither"
    )]
    MixedParsers,
    /// The chat template cannot be used, because it takes too much.
    #[error(
        "the chat template in {file} cannot be used: {reason}; give another with --chat-template"
    )]
    Template {
        /// The file that it comes from.
        file: String,
        /// The limit, or how its trial ended.
        reason: String,
    },
    /// No model was named.
    #[error("which model? Name one: `candlepower serve demo`, or the folder of a model")]
    NoModel,
    /// The model is neither `demo` nor a folder nor an id.
    #[error(
        "there is no model folder or GGUF file `{0}`; name a folder with config.json, a GGUF file, a model on the hub as owner/name or owner/name:Q4_K_M, or `demo`"
    )]
    NoSuchModel(String),
    /// The model could not be had from the hub.
    #[error(transparent)]
    Hub(#[from] candlepower_hub::Error),
    /// The tokenizer is to come from a GGUF file that is not on this machine.
    #[error(
        "--tokenizer {0} is a GGUF file on the hub, whose header is read with its model only; name a folder, a file on this machine, or a model on the hub as owner/name"
    )]
    TokenizerInGguf(String),
    /// A token that the model has no embedding for.
    #[error(
        "tokenizer_config.json (or added_tokens.json) adds the token {token:?} with the id {id}, and the model knows ids below {known} only; take the files of one version of the model, or name another tokenizer by --tokenizer"
    )]
    TokenOutsideVocabulary {
        /// The token as it is written.
        token: String,
        /// Its id.
        id: u32,
        /// How many the model knows.
        known: usize,
    },
    /// The build has no CUDA.
    #[error("this build has no CUDA: leave --device out, or take a build with CUDA")]
    NoCuda,
    /// There is no GPU that could be used.
    #[error("{0}; leave --device out to compute on the CPU")]
    NoGpu(NoGpu),
    /// The engine has ended while the server ran.
    #[error("the engine has stopped: {0}")]
    EngineDied(String),
    /// HTTP has no date before 1970, and the library that writes dates panics there.
    #[error("the clock of this machine is before 1970: set it")]
    NoClock,
    /// Requests were still running when a second signal came.
    #[error("asked to stop a second time: running requests are dropped")]
    StoppedTwice,
    /// The weights are quantized in another way than was asked for.
    #[error(
        "--quantization {asked} does not match the weights: {file} says {found}; leave the flag out"
    )]
    QuantizationMismatch {
        /// What was asked for.
        asked: &'static str,
        /// The file with the configuration.
        file: String,
        /// What the checkpoint says.
        found: String,
    },
    /// The weights are quantized in a way that is not computed with.
    #[error(
        "the weights are quantized with {0}, which is not supported; {supported} are: use such a version of the model, or its float16 or bfloat16 original",
        supported = QuantizationMethod::supported()
    )]
    QuantizationUnsupported(String),
    /// The weights are quantized, and the model gives vectors or scores.
    #[error(
        "the weights are quantized with {0}, which is not supported for models that give vectors or scores; use the float32, float16 or bfloat16 original of the model"
    )]
    QuantizedEncoder(String),
    /// A setting that is for models that generate text.
    #[error(
        "{setting} is for models that generate text, and {architecture} does not: leave it out"
    )]
    OnlyGenerating {
        /// The setting, with its value.
        setting: String,
        /// The model's class name.
        architecture: &'static str,
    },
    /// A setting that a model cannot have which is served for its vectors.
    #[error(
        "{setting} is for models that generate text, and {architecture} is served for its vectors (--pooling, or the model's modules.json, says so), which are computed on the CPU: leave it out"
    )]
    NotForVectors {
        /// The setting, with its value.
        setting: String,
        /// The model's class name.
        architecture: &'static str,
    },
    /// A setting that is for models that give vectors.
    #[error("{setting} is for models that give vectors, and {architecture} does not: leave it out")]
    OnlyPooling {
        /// The setting, with its value.
        setting: String,
        /// The model's class name.
        architecture: &'static str,
    },
    /// Text was to be generated by a model that generates none.
    #[error("this model generates no text: name one that does")]
    NotGenerating,
    /// Certificates or keys cannot be used; it says which and why.
    #[error("{0}")]
    Tls(String),
    /// The address cannot be listened on.
    #[error("cannot listen on {address}: {source}{}", listen_hint(source))]
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
    Engine(Box<candlepower_engine::Error>),
    /// Loading ended without a result.
    #[error("loading the model failed without a reason: {0}")]
    LoadingPanicked(String),
    /// Signals cannot be received.
    #[error("cannot wait for signals: {0}")]
    Signals(std::io::Error),
}

impl From<candlepower_engine::Error> for Error {
    fn from(error: candlepower_engine::Error) -> Self {
        Self::Engine(Box::new(error))
    }
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

/// Advice where an address is taken.
fn listen_hint(source: &std::io::Error) -> &'static str {
    match source.kind() {
        std::io::ErrorKind::AddrInUse => {
            "; another server listens there: choose another port with --port N, or 0 for a free one"
        }
        std::io::ErrorKind::PermissionDenied => {
            "; ports below 1024 need a right of their own: --port N"
        }
        _ => "",
    }
}
