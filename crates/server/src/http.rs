//! The HTTP layers around the endpoints: listening, TLS, connections, routing, authentication, request ids and metrics.

pub(crate) mod answer_head;
pub(crate) mod auth;
pub(crate) mod caller;
pub(crate) mod connection;
pub(crate) mod held;
pub(crate) mod host;
pub(crate) mod linger;
pub(crate) mod listen;
pub(crate) mod router;
pub(crate) mod tls;
pub(crate) mod track;
pub(crate) mod unix_socket;
