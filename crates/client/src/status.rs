//! Status of a deployment: states, phases, progress, events.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Defines an enum whose variants have names as text.
macro_rules! named {
    ($(#[$doc:meta])* $name:ident, $($(#[$variant_doc:meta])* $variant:ident = $text:literal,)+) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
        pub enum $name {
            $($(#[$variant_doc])* #[serde(rename = $text)] $variant,)+
        }

        impl $name {
            /// The name.
            pub fn as_str(self) -> &'static str {
                match self {
                    $(Self::$variant => $text,)+
                }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(self.as_str())
            }
        }
    };
}

named! {
    /// Framework that a server is set up for.
    Framework,
    /// Independent requests at the highest throughput.
    Blaze = "blaze",
    /// Conversations and branches that share prefixes.
    Prism = "prism",
}

impl Framework {
    /// The environment variable of a server's setting.
    pub(crate) fn variable(self, setting: &str) -> String {
        format!("{}_{setting}", self.as_str().to_ascii_uppercase())
    }
}

named! {
    /// State of a deployment.
    State,
    /// Accepted; nothing runs yet.
    Pending = "Pending",
    /// The server starts, or restarts.
    Provisioning = "Provisioning",
    /// The server has been ready.
    Running = "Running",
    /// The deployment cannot go on; the message has the reason.
    Failed = "Failed",
    /// The deployment is being deleted.
    Terminating = "Terminating",
    /// The deployment is gone.
    Deleted = "Deleted",
    /// The state cannot be read.
    Unknown = "Unknown",
}

named! {
    /// Current activity of a deployment.
    Phase,
    /// Nothing yet.
    Pending = "pending",
    /// Searching for a place to run.
    Scheduling = "scheduling",
    /// Downloading weights.
    Pulling = "pulling",
    /// Loading weights.
    Initializing = "initializing",
    /// Running the first forward pass.
    Starting = "starting",
    /// Checking the server's health.
    HealthCheck = "health_check",
    /// Answering requests.
    Ready = "ready",
    /// Not answering now, after having been ready.
    Degraded = "degraded",
    /// Failed.
    Failed = "failed",
    /// Ending.
    Terminating = "terminating",
}

impl Phase {
    /// The phase of this name.
    pub(crate) fn named(text: &str) -> Option<Self> {
        serde_json::from_value(text.into()).ok()
    }
}

/// Progress of a start.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Progress {
    /// The current step.
    pub step: Phase,
    /// Bytes downloaded or loaded in this step; 0 if the step is not measured in bytes.
    pub bytes_done: u64,
    /// Bytes of this step in all; 0 if the step is not measured in bytes.
    pub bytes_total: u64,
    /// Seconds since the call to deploy.
    pub elapsed_s: f64,
}

/// Status of a deployment at one moment.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct DeploymentStatus {
    /// State of the deployment.
    pub state: State,
    /// Current activity.
    pub phase: Phase,
    /// Whether the state is Running and every replica answers `/health` with 200.
    pub is_ready: bool,
    /// Remark for the user: the reason of a failure, or warnings.
    pub message: String,
    /// Progress of the start.
    pub progress: Progress,
    /// Replicas that answer `/health` with 200.
    pub replicas_ready: u32,
    /// Number of requested replicas.
    pub replicas_desired: u32,
    /// Number of restarts after the server ended by itself.
    pub restarts: u32,
    /// Exit status of the server's last end; absent if it has not ended, or was ended by a signal.
    pub exit_code: Option<i32>,
    /// Allocated GPUs, multiplied by the seconds since their allocation.
    pub gpu_seconds: f64,
}

/// An event in the life of a deployment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    /// Seconds since 1970.
    pub time: u64,
    /// State after the event.
    pub state: State,
    /// Phase after the event.
    pub phase: Phase,
    /// Description of the event.
    pub message: String,
}

/// Seconds since 1970.
pub(crate) fn now() -> f64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.map_or(0.0, |since| since.as_secs_f64())
}
