//! The docker backend: containers of Docker or Podman on this machine, through the engine's API.
//!
//! - `engine` speaks HTTP over the engine's socket.
//! - `create` makes a container from a plan.
//! - `container` is a container as clients see it; `seen` translates the engine's answers for it.
//! - `logs` parses the engine's log streams.
//! - `update` lets another container take over.
//!
//! The API is called with reqwest, which the client needs anyway and which supports Unix sockets, rather than
//! with bollard. The backend needs a dozen calls, and both engines serve their paths without a version.
//! Bollard's types of the whole API would be larger than the rest of this crate.
//!
//! The description of a deployment is a label of its container. No other record exists that could disagree
//! with the engine.

mod container;
mod create;
mod engine;
mod logs;
mod seen;
mod update;

pub(crate) use container::Container;
pub(crate) use create::deploy;
pub(crate) use engine::Engine;
