//! The process backend: a supervisor for each deployment, which outlives the client that started it.
//!
//! `launch` starts a supervisor and tells it what to run; `supervisor` runs the `server` and keeps `folder` true; `control`
//! is how clients ask it for something; `deployment` is what they see; `logs` reads what `log` has written.

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
