//! The docker backend: containers of Docker or Podman on this machine, through the engine's API.
//!
//! `engine` speaks HTTP over the engine's socket; `create` makes a container of a plan; `container` is what clients see of
//! it, by what `seen` makes of the engine's words; `logs` takes the engine's streams apart; `update`
//! has another container take over.
//!
//! The API is spoken with reqwest, which the client has anyway and which knows such sockets, rather than with bollard:
//! it is a dozen calls, whose paths both engines serve without a version, and bollard's types of the whole API would
//! be the larger part of this crate. What a deployment is stands in a label; there is no other record of it.

mod container;
mod create;
mod engine;
mod logs;
mod seen;
mod update;

pub(crate) use container::Container;
pub(crate) use create::deploy;
pub(crate) use engine::Engine;
