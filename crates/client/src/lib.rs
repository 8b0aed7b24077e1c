//! Deployments: a server from nothing to ready in one call, supervised, found again by any later client, and a reason in
//! words where it cannot be.
//!
//! [`Client::deploy_blaze`] checks every parameter (`check`, `model`) before anything starts, then hands a `Spec` to a
//! [`Backend`]: a supervisor (`process`), the same binary in a session of its own, which outlives the client; a container
//! engine (`docker`, with the feature of that name); a cluster (`kubernetes`, likewise). What a client knows of a
//! deployment it asks there.

mod backend;
pub mod blocking;
mod check;
mod client;
mod deadline;
mod deployment;
#[cfg(feature = "docker")]
mod docker;
mod error;
mod forward;
mod health;
#[cfg(feature = "kubernetes")]
mod kubernetes;
mod logs;
mod model;
mod params;
mod process;
mod quantity;
mod secret;
mod secret_file;
mod spec;
mod status;
pub mod tls;

pub use backend::Backend;
pub use client::Client;
pub use deployment::Deployment;
pub use error::{Error, Leftover, Result};
pub use forward::Forward;
pub use logs::LogStream;
pub use params::{BlazeParams, Params, PrismParams};
pub use process::{REPORT_VARIABLE, Report, run_bound, supervise};
pub use secret_file::run_with_secrets;
pub use status::{DeploymentStatus, Event, Framework, Phase, Progress, State};
