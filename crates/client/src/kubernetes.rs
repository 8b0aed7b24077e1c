//! The kubernetes backend: a Deployment, a Service and, for secrets, a Secret.
//!
//! `manifest` makes them of a plan, by what `nodes` says of the cluster's GPUs; `deploy` applies them; `workload` is what
//! clients see of them, by what `seen` makes of the cluster's words; `cluster` speaks with the API server; `update`
//! changes the objects of a deployment.

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
