//! Why a deployment cannot be, or did not become, what was asked for.

use candlepower_checkpoint::Error as CheckpointError;
use candlepower_hub::Error as HubError;
use serde_json::{Value, json};

use crate::status::Phase;

/// Result with this crate's [`enum@Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What went wrong with a deployment.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A parameter cannot be used.
    #[error("{field} `{value}`: {reason}")]
    Validation {
        /// The parameter.
        field: &'static str,
        /// What was given.
        value: String,
        /// What is wrong with it, and what would do.
        reason: String,
    },
    /// There is a deployment of this name with other parameters.
    #[error(
        "there is a deployment `{name}` with other parameters ({difference}): update changes it, or choose another name"
    )]
    NameInUse {
        /// The name.
        name: String,
        /// The parameters that differ, in words.
        difference: String,
    },
    /// There is no such deployment.
    #[error("there is no deployment `{name}`: `candlepower ls` shows those that there are")]
    NotFound {
        /// The name.
        name: String,
    },
    /// It was not ready in time.
    #[error(
        "`{name}` was not ready after {seconds} s, its last phase was {phase}{message}; {left}"
    )]
    Timeout {
        /// The deployment.
        name: String,
        /// How long was waited.
        seconds: u64,
        /// Where it was last.
        phase: Phase,
        /// What was said of that, after a colon.
        message: String,
        /// The last lines of its log.
        log: Vec<String>,
        /// What is left of it.
        left: Leftover,
    },
    /// Its server ended, or could not start.
    #[error("`{name}` failed: {reason}; {left}")]
    Failed {
        /// The deployment.
        name: String,
        /// The server's own words.
        reason: String,
        /// The last lines of its log.
        log: Vec<String>,
        /// What is left of it.
        left: Leftover,
    },
    /// This machine does not have what was asked for.
    #[error("{asked} asked for, but {available}")]
    ResourceUnavailable {
        /// What was asked for.
        asked: String,
        /// What there is.
        available: String,
    },
    /// The model needs a token, or another one.
    #[error("{0}")]
    GatedModel(#[source] Box<HubError>),
    /// The weights are quantized in another way.
    #[error(
        "quantization `{asked}` does not match the weights: {file} says {found}; leave quantization out"
    )]
    QuantizationMismatch {
        /// What was asked for.
        asked: String,
        /// The file with the configuration.
        file: String,
        /// What the model says, in words.
        found: String,
    },
    /// The model does not fit the memory.
    #[error("{source}")]
    OutOfMemory {
        /// Bytes that are needed.
        needed: u64,
        /// Bytes that are free.
        free: u64,
        /// The longest context that would fit, in tokens; 0 where none would.
        max_model_len: usize,
        /// The arithmetic's own words.
        source: Box<CheckpointError>,
    },
    /// The hub cannot be reached or does not do as it should.
    #[error("{0}")]
    Network(#[source] Box<HubError>),
    /// The backend itself failed.
    #[error("{doing}: {cause}")]
    Backend {
        /// What was being done.
        doing: String,
        /// What the system said.
        cause: String,
    },
}

/// What remains of a deployment that did not become ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leftover {
    /// Nothing: no process, port or file.
    Nothing,
    /// The deployment, to be looked at.
    Kept,
    /// The deployment as it was before the update.
    Before,
}

impl std::fmt::Display for Leftover {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Nothing => "nothing is left running",
            Self::Kept => "it is kept until it is deleted",
            Self::Before => "the server before the update runs on",
        })
    }
}

impl Error {
    /// The kind, for programs.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Validation { .. } => "VALIDATION_ERROR",
            Self::NameInUse { .. } => "NAME_IN_USE",
            Self::NotFound { .. } => "NOT_FOUND",
            Self::Timeout { .. } => "TIMEOUT",
            Self::Failed { .. } => "FAILED",
            Self::ResourceUnavailable { .. } => "RESOURCE_UNAVAILABLE",
            Self::GatedModel(_) => "GATED_MODEL",
            Self::QuantizationMismatch { .. } => "QUANTIZATION_MISMATCH",
            Self::OutOfMemory { .. } => "OUT_OF_MEMORY",
            Self::Network(_) => "NETWORK_ERROR",
            Self::Backend { .. } => "BACKEND_ERROR",
        }
    }

    /// Whether the same call may succeed later.
    pub fn retryable(&self) -> bool {
        match self {
            Self::Timeout { .. } | Self::ResourceUnavailable { .. } | Self::OutOfMemory { .. } => {
                true
            }
            Self::Network(error) => {
                !matches!(**error, HubError::OfflineNotCached { .. } | HubError::NoRanges { .. })
            }
            _ => false,
        }
    }

    /// The last lines of the server's log, where there is one.
    pub fn log(&self) -> &[String] {
        match self {
            Self::Timeout { log, .. } | Self::Failed { log, .. } => log,
            _ => &[],
        }
    }

    /// Code, message, whether to retry, and what belongs to the kind, as one object.
    pub fn to_json(&self) -> Value {
        let mut object = json!({
            "code": self.code(), "message": self.to_string(), "retryable": self.retryable(),
        });
        let more = match self {
            Self::Validation { field, value, .. } => json!({"field": field, "value": value}),
            Self::NameInUse { difference, .. } => json!({"difference": difference}),
            Self::Timeout { seconds, phase, log, .. } => {
                json!({"seconds": seconds, "phase": phase, "log": log})
            }
            Self::Failed { reason, log, .. } => json!({"reason": reason, "log": log}),
            Self::ResourceUnavailable { asked, available } => {
                json!({"asked": asked, "available": available})
            }
            Self::QuantizationMismatch { asked, found, .. } => {
                json!({"asked": asked, "found": found})
            }
            Self::OutOfMemory { needed, free, max_model_len, .. } => {
                json!({"needed": needed, "free": free, "max_model_len": max_model_len})
            }
            _ => Value::Null,
        };
        if let (Some(object), Value::Object(more)) = (object.as_object_mut(), more) {
            object.extend(more);
        }
        object
    }

    /// The same, where this is left of the deployment.
    pub(crate) fn leaving(mut self, remains: Leftover) -> Self {
        if let Self::Timeout { left, .. } | Self::Failed { left, .. } = &mut self {
            *left = remains;
        }
        self
    }

    /// A parameter that cannot be used.
    pub(crate) fn validation(
        field: &'static str,
        value: impl ToString,
        reason: impl Into<String>,
    ) -> Self {
        Self::Validation { field, value: value.to_string(), reason: reason.into() }
    }

    /// What the hub says of a model.
    pub(crate) fn from_hub(model: &str, error: HubError) -> Self {
        use HubError as E;
        match error {
            E::GatedWithoutToken { .. } | E::GatedWithoutAccess { .. } | E::TokenRefused { .. } => {
                Self::GatedModel(Box::new(error))
            }
            E::NotFoundWithoutToken { .. }
            | E::NotFoundWithToken { .. }
            | E::Forbidden { .. }
            | E::NoRevision { .. }
            | E::BadRevision(_)
            | E::NoSafetensors { .. }
            | E::WhichGguf { .. }
            | E::NoGguf { .. }
            | E::NoFile { .. } => Self::validation("model", model, error.to_string()),
            E::BadEndpoint(value) | E::BadTimeout(value) => {
                Self::validation("env", value, "it is not what the hub's tools understand")
            }
            E::UnusableToken { .. } => Self::validation("env", "HF_TOKEN", error.to_string()),
            E::DiskTooSmall { .. } => Self::ResourceUnavailable {
                asked: "room for the model was".into(),
                available: error.to_string(),
            },
            E::Checkpoint(error) => Self::from_checkpoint(model, error),
            E::NoHome | E::Cache { .. } | E::Client(_) => {
                Self::Backend { doing: "the hub cannot be asked".into(), cause: error.to_string() }
            }
            _ => Self::Network(Box::new(error)),
        }
    }

    /// What a model's description says.
    pub(crate) fn from_checkpoint(model: &str, error: CheckpointError) -> Self {
        match error {
            CheckpointError::OutOfMemory { needed, free, max_model_len, .. } => {
                Self::OutOfMemory { needed, free, max_model_len, source: Box::new(error) }
            }
            CheckpointError::KvCacheTooSmall { needed, available, fits, .. } => Self::OutOfMemory {
                needed,
                free: available,
                max_model_len: fits,
                source: Box::new(error),
            },
            CheckpointError::MaxModelLen { asked, .. } => {
                Self::validation("max_model_len", asked, error.to_string())
            }
            CheckpointError::TensorParallel { asked, .. } => {
                Self::validation("tensor_parallel_size", asked, error.to_string())
            }
            _ => Self::validation("model", model, error.to_string()),
        }
    }

    /// The system refused something.
    pub(crate) fn backend(doing: impl Into<String>, cause: impl ToString) -> Self {
        Self::Backend { doing: doing.into(), cause: cause.to_string() }
    }
}
