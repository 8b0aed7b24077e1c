//! Deployments: a server from nothing to ready in one call, supervised, found again by any later client, and a reason in
//! words where it cannot be.
//!
//! [`Client::deploy_blaze`] checks every parameter (`check`, `model`) before anything starts, then hands a `Spec` to a
//! supervisor (`process`): the same binary, in a session of its own, which outlives the client. What a client knows of a
//! deployment it reads from the folder in which the supervisor keeps its state.

pub mod blocking;
mod check;
mod client;
mod deployment;
mod error;
mod model;
mod params;
mod process;
mod quantity;
mod secret;
mod spec;
mod status;

pub use client::Client;
pub use deployment::Deployment;
pub use error::{Error, Leftover, Result};
pub use params::{BlazeParams, Params, PrismParams};
pub use process::{LogStream, REPORT_VARIABLE, Report, run_bound, supervise};
pub use status::{DeploymentStatus, Event, Framework, Phase, Progress, State};
