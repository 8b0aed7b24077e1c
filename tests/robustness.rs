//! What goes wrong around a server, and that it goes on serving.

mod connections;
mod lifecycle;
mod limits;
mod malformed;
