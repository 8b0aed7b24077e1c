//! Deployments: starts a server with one call, supervises it, and lets any later client find it again.
//!
//! [`Client::deploy_blaze`] checks every parameter (`check`, `model`) before anything starts. It then passes
//! a `Spec` to a [`Backend`]:
//!
//! - `process`: a supervisor, which is the same binary in a session of its own and outlives the client.
//! - `docker`: a container engine, in builds with this feature.
//! - `kubernetes`: a cluster, in builds with this feature.
//!
//! The client itself stores nothing: it queries the backend for the state of a deployment.

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
