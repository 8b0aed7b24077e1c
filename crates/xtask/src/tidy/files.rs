//! The files that the rules check: every text file that git tracks or would track.

use std::io::ErrorKind;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};

use crate::steps::output;

/// A text file of the project.
pub(crate) struct SourceFile {
    /// Path relative to the workspace's root, with forward slashes.
    pub(crate) path: String,
    pub(crate) text: String,
}

impl SourceFile {
    pub(crate) fn has_extension(&self, extension: &str) -> bool {
        Path::new(&self.path).extension().is_some_and(|found| found == extension)
    }

    pub(crate) fn is_rust(&self) -> bool {
        self.has_extension("rs")
    }
}

/// Reads the project's files. Files that are not UTF-8, such as weights, are left out.
pub(crate) fn read(root: &Path) -> Result<Vec<SourceFile>> {
    let mut files = Vec::new();
    for path in paths(root)? {
        let bytes = match std::fs::read(root.join(&path)) {
            Ok(bytes) => bytes,
            // Deleted, but the deletion is not committed yet.
            Err(error) if error.kind() == ErrorKind::NotFound => continue,
            Err(error) => return Err(error).with_context(|| format!("cannot read {path}")),
        };
        if let Ok(text) = String::from_utf8(bytes) {
            files.push(SourceFile { path, text });
        }
    }
    Ok(files)
}

/// Path and size in bytes of every file, weights included.
pub(super) fn sizes(root: &Path) -> Result<Vec<(String, u64)>> {
    let mut sizes = Vec::new();
    for path in paths(root)? {
        match std::fs::symlink_metadata(root.join(&path)) {
            Ok(metadata) => sizes.push((path, metadata.len())),
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => return Err(error).with_context(|| format!("cannot read {path}")),
        }
    }
    Ok(sizes)
}

/// The paths that git tracks or would track.
fn paths(root: &Path) -> Result<Vec<String>> {
    // `-z` keeps names with spaces or non-ASCII letters as they are.
    let mut git = Command::new("git");
    git.current_dir(root).args([
        "ls-files",
        "-z",
        "--cached",
        "--others",
        "--exclude-standard",
        "--deduplicate",
    ]);
    let listing = output(&mut git).context("tidy lists the project's files with git")?;
    Ok(listing.split('\0').filter(|path| !path.is_empty()).map(str::to_owned).collect())
}

#[cfg(test)]
pub(crate) fn sample(path: &str, text: &str) -> Vec<SourceFile> {
    vec![SourceFile { path: path.to_owned(), text: text.to_owned() }]
}
