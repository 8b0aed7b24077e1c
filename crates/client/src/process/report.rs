//! A server's report to its supervisor: its address, and the reason of a failure.
//!
//! The server binds a free port itself and reports it. A port that the supervisor had chosen could be taken by another
//! program before the server binds it.

use std::io;
use std::net::SocketAddr;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::folder::replace;

/// The environment variable with the report's path. A supervisor sets it.
pub const REPORT_VARIABLE: &str = "CANDLEPOWER_REPORT";

/// A server's report: JSON, which readers see complete or not at all.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    /// The address on which the server listens.
    pub address: Option<SocketAddr>,
    /// The reason of a failure, in one line.
    pub error: Option<String>,
}

impl Report {
    /// Writes the report to a file.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn write(&self, path: &Path) -> io::Result<()> {
        replace(path, &serde_json::to_vec(self)?)
    }

    /// The last report; an empty one if there is none.
    pub(crate) fn read(path: &Path) -> Self {
        let bytes = std::fs::read(path).unwrap_or_default();
        serde_json::from_slice(&bytes).unwrap_or_default()
    }
}
