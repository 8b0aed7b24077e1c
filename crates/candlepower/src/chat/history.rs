//! The lines that a user has typed, kept in a file of the state folder.

use std::fs::{self, DirBuilder, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Lines that are kept.
pub(super) const MAX_LINES: usize = 1000;
/// Maximum bytes of a line that is kept.
const MAX_LINE: usize = 16 << 10;
/// Maximum bytes of the file that are read.
const MAX_BYTES: u64 = 32 << 20;

/// The file, in which each line is a JSON text, since a message may have several lines.
#[derive(Debug)]
pub(super) struct HistoryFile(Option<PathBuf>);

impl HistoryFile {
    /// `$XDG_STATE_HOME/candlepower/chat_history`. Without a home folder nothing is kept.
    pub(super) fn of_user() -> Self {
        // The XDG specification says that relative paths are to be ignored.
        let variable =
            |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
        let state =
            variable("XDG_STATE_HOME").or_else(|| Some(variable("HOME")?.join(".local/state")));
        Self(state.map(|state| state.join("candlepower/chat_history")))
    }

    /// The kept lines, oldest first. A file with many more is shortened.
    pub(super) fn read(&self) -> Vec<String> {
        let Some(path) = &self.0 else { return Vec::new() };
        if fs::metadata(path).is_ok_and(|file| file.len() > MAX_BYTES) {
            // Only lines of this program are in it, so it has been changed by something else.
            let _ = fs::remove_file(path);
        }
        let text = fs::read_to_string(path).unwrap_or_default();
        let lines: Vec<String> =
            text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
        let newest = lines[lines.len().saturating_sub(MAX_LINES)..].to_vec();
        if lines.len() > 2 * MAX_LINES {
            // The history is a convenience, so failures to write it are not reported.
            let _ = replace(path, &newest);
        }
        newest
    }

    /// Adds a line.
    pub(super) fn add(&self, line: &str) {
        if let Some(path) = self.0.as_ref().filter(|_| line.len() <= MAX_LINE) {
            let _ = append(path, line);
        }
    }
}

fn append(path: &Path, line: &str) -> std::io::Result<()> {
    if let Some(folder) = path.parent() {
        DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    }
    // Messages may be private.
    let mut file = OpenOptions::new().create(true).append(true).mode(0o600).open(path)?;
    // One write keeps the lines of several conversations apart.
    file.write_all(format!("{}\n", serde_json::Value::from(line)).as_bytes())
}

fn replace(path: &Path, lines: &[String]) -> std::io::Result<()> {
    let next = path.with_extension(format!("{}.tmp", std::process::id()));
    let text: String =
        lines.iter().map(|line| format!("{}\n", serde_json::Value::from(line.as_str()))).collect();
    let mut file =
        OpenOptions::new().create(true).truncate(true).write(true).mode(0o600).open(&next)?;
    file.write_all(text.as_bytes())?;
    fs::rename(next, path)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn the_history_is_private_and_bounded() {
        let folder =
            std::env::temp_dir().join(format!("candlepower-history-{}", std::process::id()));
        let path = folder.join("state/chat_history");
        let history = HistoryFile(Some(path.clone()));
        assert!(history.read().is_empty());
        for i in 0..=2 * MAX_LINES {
            history.add(&format!("line\n{i}"));
        }
        history.add(&"a".repeat(MAX_LINE + 1));
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        let lines = history.read();
        assert_eq!((lines.len(), lines[MAX_LINES - 1].as_str()), (MAX_LINES, "line\n2000"));
        // The file was shortened.
        assert_eq!(fs::read_to_string(&path).unwrap().lines().count(), MAX_LINES);
        // A file of another program in its place is removed, and does not fill the memory.
        OpenOptions::new().write(true).open(&path).unwrap().set_len(MAX_BYTES + 1).unwrap();
        assert!(history.read().is_empty() && !path.exists());
        history.add("after that");
        assert_eq!(history.read(), ["after that"]);
        fs::remove_dir_all(folder).unwrap();
        assert!(HistoryFile(None).read().is_empty());
    }
}
