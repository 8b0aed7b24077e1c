//! Faults around a server, which must go on serving.

mod callers;
mod clock;
mod connections;
mod constraints;
mod early_answers;
mod keys;
mod lifecycle;
mod limits;
mod logging;
mod malformed;
mod rolling;
mod telling;
