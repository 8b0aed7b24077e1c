//! The log: lines or JSON on standard error.

use std::io::IsTerminal;

use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt;

use crate::config::{LogFormat, ServeConfig};

/// Starts the process's log. Does nothing if there is one already.
pub fn init_logging(config: &ServeConfig) {
    // Other crates only speak up when something is wrong.
    let filter = EnvFilter::new(format!("warn,candlepower={}", config.log_level.as_str()));
    let log = fmt().with_env_filter(filter).with_writer(std::io::stderr).with_target(false);
    // An error means that a log was started before, which is then used.
    let _ = match config.log_format {
        LogFormat::Text => log.with_ansi(std::io::stderr().is_terminal()).try_init(),
        LogFormat::Json => log.json().flatten_event(true).try_init(),
    };
}
