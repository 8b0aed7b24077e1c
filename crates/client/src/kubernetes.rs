//! The kubernetes backend: a Deployment, a Service and, for secrets, a Secret.
//!
//! - `manifest` makes these objects from a plan; `nodes` chooses among the cluster's GPUs for it.
//! - `deploy` applies them.
//! - `workload` is a deployment as clients see it; `seen` translates the cluster's objects for it.
//! - `cluster` calls the API server.
//! - `update` changes the objects of a deployment.

mod cluster;
mod deploy;
mod logs;
mod manifest;
mod nodes;
mod seen;
mod update;
mod workload;

pub(crate) use cluster::Cluster;
pub(crate) use deploy::{deploy, manifests};
pub(crate) use workload::Workload;
