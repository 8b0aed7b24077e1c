//! `file:` URLs below an allowed folder.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use url::Url;

use crate::{Error, Limits, Result};

/// Reads a file below `root`.
///
/// One error covers all that is not such a file, so that nobody learns which files there are elsewhere.
pub(super) fn read(url: &Url, root: &Path, limits: &Limits) -> Result<Vec<u8>> {
    let refused = |_| Error::FileNotAllowed;
    let path = url.to_file_path().map_err(refused)?;
    // Links are followed first, and the check is made on where they lead.
    let root = root.canonicalize().map_err(|_| Error::FileNotAllowed)?;
    let path = path.canonicalize().map_err(|_| Error::FileNotAllowed)?;
    // A pipe or a device would block, so the kind is checked before opening.
    let is_file =
        |found: std::io::Result<std::fs::Metadata>| found.is_ok_and(|found| found.is_file());
    if !path.starts_with(&root) || !is_file(path.symlink_metadata()) {
        return Err(Error::FileNotAllowed);
    }
    let file = File::open(&path).map_err(|_| Error::FileNotAllowed)?;
    // Somebody may have put a link there since; then the path leads elsewhere now.
    if !is_file(file.metadata()) || path.canonicalize().ok().as_ref() != Some(&path) {
        return Err(Error::FileNotAllowed);
    }
    let mut bytes = Vec::new();
    let most = limits.max_encoded_bytes as u64 + 1;
    file.take(most).read_to_end(&mut bytes).map_err(|_| Error::FileNotAllowed)?;
    limits.check_bytes(bytes.len() as u64)?;
    Ok(bytes)
}
