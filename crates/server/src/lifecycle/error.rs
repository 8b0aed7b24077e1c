//! Errors that keep the server from starting or running, in one line each.

use std::path::PathBuf;

use candlepower_checkpoint::QuantizationMethod;
use candlepower_engine::NoGpu;

use crate::config::ConfigError;
use crate::model::keys::KeysError;

/// An error of the whole server; errors of requests are `ApiError`s.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The settings are invalid.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The API keys are invalid.
    #[error(transparent)]
    Keys(#[from] KeysError),
    /// Harmony writes tool calls and reasoning in one format, so that one parser reads both.
    #[error(
        "--tool-call-parser and --reasoning-parser conflict: give gpt_oss for both, or for neither"
    )]
    MixedParsers,
    /// The chat template takes too much time or memory.
    #[error(
        "the chat template in {file} cannot be used: {reason}; give another with --chat-template"
    )]
    Template {
        /// The template's file.
        file: String,
        /// The limit, or the result of its trial.
        reason: String,
    },
    /// No model was named.
    #[error(
        "no model is named: give one, such as `candlepower serve demo` or `candlepower serve FOLDER`"
    )]
    NoModel,
    /// The model is neither `demo` nor a folder, a GGUF file or a hub id.
    #[error(
        "there is no model folder or GGUF file `{0}`; give a folder with config.json, a GGUF file, a hub id as owner/name or owner/name:Q4_K_M, or `demo`"
    )]
    NoSuchModel(String),
    /// The model could not be downloaded from the hub.
    #[error(transparent)]
    Hub(#[from] candlepower_hub::Error),
    /// The tokenizer's GGUF file is not on this machine.
    #[error(
        "--tokenizer {0} is a GGUF file on the hub, which is not supported; give a folder, a GGUF file on this machine, or a hub id as owner/name"
    )]
    TokenizerInGguf(String),
    /// The tokenizer has a token without an embedding in the model.
    #[error(
        "tokenizer_config.json (or added_tokens.json) adds the token {token:?} with the id {id}, but the model's vocabulary has {known} tokens; use the files of one version of the model, or give another tokenizer with --tokenizer"
    )]
    TokenOutsideVocabulary {
        /// The token's text.
        token: String,
        /// Its id.
        id: u32,
        /// The size of the model's vocabulary.
        known: usize,
    },
    /// The settings of images in the model's files are invalid, or images cannot be fetched.
    #[error(
        "images cannot be read: {0}; or serve the model without images by --language-model-only"
    )]
    Images(#[from] candlepower_media::Error),
    /// The tokenizer lacks a token that stands for images.
    #[error(
        "the model's configuration names the token {0} for images, which the tokenizer does not have; use the files of one version of the model, or serve it without images by --language-model-only"
    )]
    NoImageToken(u32),
    /// The build has no CUDA.
    #[error("this build has no CUDA: leave --device out, or use a build with CUDA")]
    NoCuda,
    /// No GPU can be used.
    #[error("{0}; leave --device out to run on the CPU")]
    NoGpu(NoGpu),
    /// The engine has stopped while the server ran.
    #[error("the engine has stopped: {0}")]
    EngineDied(String),
    /// HTTP has no date before 1970, and the library that writes dates panics there.
    #[error("the clock of this machine is before 1970: set it")]
    NoClock,
    /// Requests were still running when a second signal came.
    #[error("second stop signal: running requests are dropped")]
    StoppedTwice,
    /// `--quantization` names another method than the checkpoint.
    #[error(
        "--quantization {asked} does not match the weights: {file} says {found}; leave the flag out"
    )]
    QuantizationMismatch {
        /// The method of `--quantization`.
        asked: &'static str,
        /// The file with the configuration.
        file: String,
        /// The method in the checkpoint, or that there is none.
        found: String,
    },
    /// The quantization method is not supported.
    #[error(
        "the weights are quantized with {0}, which is not supported; use a checkpoint quantized with one of {supported}, or the float16 or bfloat16 original",
        supported = QuantizationMethod::supported()
    )]
    QuantizationUnsupported(String),
    /// The weights of an embedding or reranking model are quantized.
    #[error(
        "the weights are quantized with {0}, which is not supported for embedding and reranking models; use the float32, float16 or bfloat16 original"
    )]
    QuantizedEncoder(String),
    /// A setting for models that generate text was given to an encoder.
    #[error(
        "{setting} is for models that generate text, and {architecture} is an encoder: leave it out"
    )]
    OnlyGenerating {
        /// The setting, with its value.
        setting: String,
        /// The model's class name.
        architecture: &'static str,
    },
    /// A setting that is not supported for a decoder that serves embeddings.
    #[error(
        "{setting} is for models that generate text, and {architecture} is served for embeddings (because of --pooling, or the model's modules.json), which run on the CPU: leave it out"
    )]
    NotForVectors {
        /// The setting, with its value.
        setting: String,
        /// The model's class name.
        architecture: &'static str,
    },
    /// A setting for embedding models was given to a reranking model.
    #[error("{setting} is for embedding models, and {architecture} gives scores: leave it out")]
    OnlyPooling {
        /// The setting, with its value.
        setting: String,
        /// The model's class name.
        architecture: &'static str,
    },
    /// A model that generates text is needed, and this is an embedding or reranking model.
    #[error("this model does not generate text: give one that does")]
    NotGenerating,
    /// A certificate or a private key is invalid; the text names the flag and the reason.
    #[error("{0}")]
    Tls(String),
    /// The server cannot listen on the address.
    #[error("cannot listen on {address}: {source}{}", listen_hint(source))]
    Listen {
        /// Host and port.
        address: String,
        /// The operating system's error.
        source: std::io::Error,
    },
    /// A Unix socket and certificates are set.
    #[error("--uds has no TLS: leave --ssl-certfile and --ssl-keyfile out, or --uds")]
    SocketWithTls,
    /// The server cannot listen on the Unix socket.
    #[error("cannot listen on the Unix socket {}: {source}{}", path.display(), socket_hint(source))]
    ListenOnSocket {
        /// The socket's file.
        path: PathBuf,
        /// The operating system's error.
        source: std::io::Error,
    },
    /// A file in the settings cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    ReadFile {
        /// The file.
        path: PathBuf,
        /// The operating system's error.
        source: std::io::Error,
    },
    /// A file that every model needs is missing.
    #[error("{file} is missing in {place}: every model needs it")]
    FileMissing {
        /// The file's name.
        file: &'static str,
        /// The folder or GGUF file.
        place: String,
    },
    /// The checkpoint is invalid or not supported.
    #[error(transparent)]
    Checkpoint(#[from] candlepower_checkpoint::Error),
    /// The tokenizer or the chat template is invalid.
    #[error(transparent)]
    Tokenizer(#[from] candlepower_tokenizer::Error),
    /// The engine cannot be started.
    #[error(transparent)]
    Engine(Box<candlepower_engine::Error>),
    /// Loading panicked.
    #[error("loading the model failed because of a defect of candlepower: {0}")]
    LoadingPanicked(String),
    /// Signals cannot be received.
    #[error("cannot wait for signals: {0}")]
    Signals(std::io::Error),
    /// The client for traces cannot start.
    #[error("cannot send traces (--otlp-endpoint): {0}")]
    Traces(String),
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

/// Advice for common errors of listening on a Unix socket.
fn socket_hint(source: &std::io::Error) -> &'static str {
    match source.kind() {
        std::io::ErrorKind::AddrInUse => {
            "; another server listens there, or a file has this name: choose another path with --uds"
        }
        std::io::ErrorKind::NotFound => "; its folder does not exist",
        _ => "",
    }
}

/// Advice for common errors of listening.
fn listen_hint(source: &std::io::Error) -> &'static str {
    match source.kind() {
        std::io::ErrorKind::AddrInUse => {
            "; another server listens on this port: choose another with --port N, or a free one with --port 0"
        }
        std::io::ErrorKind::PermissionDenied => {
            "; ports below 1024 need a privilege: choose another with --port N"
        }
        // Look-ups of names have no error number.
        kind if kind == std::io::ErrorKind::AddrNotAvailable || source.raw_os_error().is_none() => {
            "; give an address of this machine with --host, or 0.0.0.0 for all of them"
        }
        _ => "",
    }
}
