//! The process backend: a supervisor for each deployment, which outlives the client that started it.
//!
//! - `launch` starts a supervisor and passes it the deployment.
//! - `supervisor` runs the `server` and keeps `folder` up to date.
//! - `control` carries requests from clients to the supervisor.
//! - `deployment` is a deployment as clients see it.
//! - `logs` reads the files that `log` has written.

mod budget;
mod cgroup;
mod control;
mod deployment;
mod folder;
mod identity;
mod launch;
mod lease;
mod log;
mod logs;
mod report;
mod server;
mod supervisor;

#[cfg(feature = "docker")]
pub(crate) use deployment::free_gpus;
pub(crate) use deployment::{Supervised, deploy, find, list};
pub use report::{REPORT_VARIABLE, Report};
pub use server::run_bound;
pub use supervisor::supervise;
