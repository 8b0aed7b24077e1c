//! The process backend: a supervisor for each deployment, which outlives the client that started it.
//!
//! `launch` starts a supervisor and tells it what to run; `supervisor` runs the `server` and keeps `folder` true; `control`
//! is how clients ask it for something; `logs` reads what `log` has written.

mod budget;
mod cgroup;
pub(crate) mod control;
pub(crate) mod folder;
pub(crate) mod health;
pub(crate) mod identity;
pub(crate) mod launch;
pub(crate) mod lease;
mod log;
pub(crate) mod logs;
mod report;
mod server;
pub(crate) mod supervisor;

pub use logs::LogStream;
pub use report::{REPORT_VARIABLE, Report};
pub use server::run_bound;
pub use supervisor::supervise;
