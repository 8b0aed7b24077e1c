//! Writes the results: a table for people, JSON for programs.

use std::fs::File;
use std::io::Write;
use std::path::PathBuf;

use anyhow::{Context, Result};
use candlepower_machine::{print, print_error};
use serde_json::Value;

/// A file, or `-` for standard output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum JsonTarget {
    StandardOutput,
    File(PathBuf),
}

impl From<String> for JsonTarget {
    fn from(text: String) -> Self {
        if text == "-" { Self::StandardOutput } else { Self::File(text.into()) }
    }
}

/// The destination of the results. It is opened first, so that a file that cannot be written fails before the measurement.
pub(super) enum Output {
    Table,
    JsonOnly,
    TableAndFile(PathBuf, File),
}

impl Output {
    /// # Errors
    /// The file cannot be written.
    pub(super) fn open(target: Option<&JsonTarget>) -> Result<Self> {
        Ok(match target {
            None => Self::Table,
            Some(JsonTarget::StandardOutput) => Self::JsonOnly,
            Some(JsonTarget::File(path)) => {
                let file = File::create(path)
                    .with_context(|| format!("cannot write {}", path.display()))?;
                Self::TableAndFile(path.clone(), file)
            }
        })
    }

    /// The table goes to standard output, unless the JSON goes there: then to standard error.
    ///
    /// # Errors
    /// The file cannot be written.
    pub(super) fn deliver(self, table: &str, json: &Value) -> Result<()> {
        let text = format!("{json:#}\n");
        match self {
            Self::Table => {
                print(table);
            }
            Self::JsonOnly => {
                print_error(table.trim_end_matches('\n'));
                print(&text);
            }
            Self::TableAndFile(path, mut file) => {
                print(table);
                file.write_all(text.as_bytes())
                    .with_context(|| format!("cannot write {}", path.display()))?;
            }
        }
        Ok(())
    }
}
