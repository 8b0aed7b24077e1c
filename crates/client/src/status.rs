//! Where a deployment is: states, phases, progress, events.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Makes an enum whose variants have names in words.
macro_rules! named {
    ($(#[$doc:meta])* $name:ident, $($(#[$variant_doc:meta])* $variant:ident = $text:literal,)+) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
        pub enum $name {
            $($(#[$variant_doc])* #[serde(rename = $text)] $variant,)+
        }

        impl $name {
            /// Its name.
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
    /// For what a server is set up.
    Framework,
    /// Requests and responses at the highest throughput.
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
    /// What has become of a deployment.
    State,
    /// Accepted; nothing runs yet.
    Pending = "Pending",
    /// Its server starts, or starts again.
    Provisioning = "Provisioning",
    /// Its server has been ready.
    Running = "Running",
    /// It cannot go on; the message says why.
    Failed = "Failed",
    /// It is being deleted.
    Terminating = "Terminating",
    /// It is gone.
    Deleted = "Deleted",
    /// Its state cannot be read.
    Unknown = "Unknown",
}

named! {
    /// What is being done.
    Phase,
    /// Nothing yet.
    Pending = "pending",
    /// A place to run is looked for.
    Scheduling = "scheduling",
    /// Weights are downloaded.
    Pulling = "pulling",
    /// Weights are loaded.
    Initializing = "initializing",
    /// The first forward runs.
    Starting = "starting",
    /// The server is asked whether it is healthy.
    HealthCheck = "health_check",
    /// Requests are answered.
    Ready = "ready",
    /// It was ready, and does not answer now.
    Degraded = "degraded",
    /// It cannot go on.
    Failed = "failed",
    /// It is being ended.
    Terminating = "terminating",
}

impl Phase {
    /// The phase of this name.
    pub(crate) fn named(text: &str) -> Option<Self> {
        serde_json::from_value(text.into()).ok()
    }
}

/// How far a start is.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Progress {
    /// What is being done.
    pub step: Phase,
    /// Bytes downloaded or loaded in this step; 0 where bytes do not tell.
    pub bytes_done: u64,
    /// Bytes of this step in all; 0 where bytes do not tell.
    pub bytes_total: u64,
    /// Seconds since the deployment was asked for.
    pub elapsed_s: f64,
}

/// A deployment at one moment.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct DeploymentStatus {
    /// What has become of it.
    pub state: State,
    /// What is being done.
    pub phase: Phase,
    /// Whether its state is Running and every replica answers `/health` with 200.
    pub is_ready: bool,
    /// What there is to say: the reason of a failure, warnings.
    pub message: String,
    /// How far the start is.
    pub progress: Progress,
    /// Replicas that answer `/health` with 200.
    pub replicas_ready: u32,
    /// Replicas asked for.
    pub replicas_desired: u32,
    /// How often the server was started again after it ended by itself.
    pub restarts: u32,
    /// With which status the server ended last; absent if it did not, or by a signal.
    pub exit_code: Option<i32>,
    /// GPUs allocated, times seconds since they were.
    pub gpu_seconds: f64,
}

/// Something that has happened to a deployment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    /// Seconds since 1970.
    pub time: u64,
    /// The state from then on.
    pub state: State,
    /// The phase from then on.
    pub phase: Phase,
    /// What there is to say.
    pub message: String,
}

/// Seconds since 1970.
pub(crate) fn now() -> f64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.map_or(0.0, |since| since.as_secs_f64())
}
