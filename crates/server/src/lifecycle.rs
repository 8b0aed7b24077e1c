//! The lifecycle of a server process: listen, find and load the model, serve, drain.
//!
//! `startup` controls it: `source` finds the model, `pull` downloads and describes it, `preflight` checks that it fits, and
//! `load` reads the weights. `offline` does the same without HTTP.

pub(crate) mod activity;
mod bind;
pub(crate) mod demo;
pub(crate) mod error;
pub(crate) mod load;
pub(crate) mod logging;
pub(crate) mod offline;
pub(crate) mod preflight;
pub(crate) mod pull;
pub(crate) mod reload;
pub(crate) mod signals;
pub(crate) mod source;
mod start_screen;
pub(crate) mod startup;
pub(crate) mod template_trial;
