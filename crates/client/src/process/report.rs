//! What a server tells its supervisor: where it listens, and why it failed.

use std::io;
use std::net::SocketAddr;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::folder::replace;

/// Names the file that a supervised server reports to.
pub const REPORT_VARIABLE: &str = "CANDLEPOWER_REPORT";

/// A server's report: JSON, written whole or not at all.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    /// Where it listens.
    pub address: Option<SocketAddr>,
    /// Why it failed, in one line.
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
