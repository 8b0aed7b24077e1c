//! Errors of deployments, each with its reason.

use candlepower_checkpoint::Error as CheckpointError;
use candlepower_hub::Error as HubError;
use serde_json::{Value, json};

use crate::status::Phase;

/// Result with this crate's [`enum@Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error of a deployment.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A parameter cannot be used.
    #[error("{field} `{value}`: {reason}")]
    Validation {
        /// Name of the parameter.
        field: &'static str,
        /// The value that was given.
        value: String,
        /// The reason, and the values that are possible.
        reason: String,
    },
    /// A deployment of this name exists with other parameters.
    #[error(
        "there is a deployment `{name}` with other parameters ({difference}): update changes it, or choose another name"
    )]
    NameInUse {
        /// Name of the deployment.
        name: String,
        /// The parameters that differ, as text.
        difference: String,
    },
    /// There is no deployment of this name.
    #[error("there is no deployment `{name}`: `candlepower ls` shows those that there are")]
    NotFound {
        /// The requested name.
        name: String,
    },
    /// The deployment was not ready in time.
    #[error(
        "`{name}` was not ready after {seconds} s, its last phase was {phase}{message}; {left}"
    )]
    Timeout {
        /// Name of the deployment.
        name: String,
        /// Seconds of waiting.
        seconds: u64,
        /// The last phase before the timeout.
        phase: Phase,
        /// Message of that phase, after a colon; may be empty.
        message: String,
        /// The last lines of the server's log.
        log: Vec<String>,
        /// Remains of the deployment.
        left: Leftover,
    },
    /// The server ended or could not start.
    #[error("`{name}` failed: {reason}; {left}")]
    Failed {
        /// Name of the deployment.
        name: String,
        /// The server's own error message.
        reason: String,
        /// The last lines of the server's log.
        log: Vec<String>,
        /// Remains of the deployment.
        left: Leftover,
    },
    /// This machine does not have the requested resources.
    #[error("{asked} asked for, but {available}")]
    ResourceUnavailable {
        /// The requested resource.
        asked: String,
        /// The resources that exist.
        available: String,
    },
    /// The model needs a token, or a different one.
    #[error("{0}")]
    GatedModel(#[source] Box<HubError>),
    /// The weights have another quantization than the requested one.
    #[error(
        "quantization `{asked}` does not match the weights: {file} says {found}; leave quantization out"
    )]
    QuantizationMismatch {
        /// The requested quantization.
        asked: String,
        /// The file with the configuration.
        file: String,
        /// The quantization in that file, as text.
        found: String,
    },
    /// The model does not fit into memory.
    #[error("{source}")]
    OutOfMemory {
        /// Bytes that are needed.
        needed: u64,
        /// Bytes that are free.
        free: u64,
        /// The longest context that would fit, in tokens; 0 if none would.
        max_model_len: usize,
        /// The error of the memory calculation.
        source: Box<CheckpointError>,
    },
    /// The hub cannot be reached, or its answer is wrong.
    #[error("{0}")]
    Network(#[source] Box<HubError>),
    /// The backend itself failed.
    #[error("{doing}: {cause}")]
    Backend {
        /// The operation that failed.
        doing: String,
        /// The system's error message.
        cause: String,
    },
}

/// The remains of a deployment that did not become ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leftover {
    /// Nothing: no process, port or file.
    Nothing,
    /// The deployment, for inspection.
    Kept,
    /// The deployment as it was before the update.
    Before,
}

impl std::fmt::Display for Leftover {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Nothing => "nothing is left running",
            Self::Kept => "the deployment is kept until it is deleted",
            Self::Before => "the server before the update runs on",
        })
    }
}

impl Error {
    /// The error code, for programs.
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
                // These two depend on settings, which do not change by waiting.
                !matches!(**error, HubError::OfflineNotCached { .. } | HubError::NoRanges { .. })
            }
            _ => false,
        }
    }

    /// The last lines of the server's log; empty for errors without one.
    pub fn log(&self) -> &[String] {
        match self {
            Self::Timeout { log, .. } | Self::Failed { log, .. } => log,
            _ => &[],
        }
    }

    /// The error as a JSON object: code, message, whether a retry may help, and the fields of its kind.
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

    /// The same error with another note on what remains of the deployment.
    pub(crate) fn leaving(mut self, remains: Leftover) -> Self {
        if let Self::Timeout { left, .. } | Self::Failed { left, .. } = &mut self {
            *left = remains;
        }
        self
    }

    /// The error for a parameter that cannot be used.
    pub(crate) fn validation(
        field: &'static str,
        value: impl ToString,
        reason: impl Into<String>,
    ) -> Self {
        Self::Validation { field, value: value.to_string(), reason: reason.into() }
    }

    /// The error for a failed request to the hub.
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
                Self::validation("env", value, "the hub's tools do not accept this value")
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
            // The errors that remain are those of the connection, and unexpected answers.
            _ => Self::Network(Box::new(error)),
        }
    }

    /// The error for a model's configuration.
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

    /// The error for an operation that the system has refused.
    pub(crate) fn backend(doing: impl Into<String>, cause: impl ToString) -> Self {
        Self::Backend { doing: doing.into(), cause: cause.to_string() }
    }
}
