//! Reads a server's log files: their end, or all lines as they come.

use std::collections::VecDeque;
use std::fs::{File, Metadata};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::log::{NUM_FILES, file_name};
use crate::logs::Lines;

/// Interval of the checks for new lines.
const LOOK: Duration = Duration::from_millis(100);

/// The newest `tail` lines, or all of them, oldest first.
pub(crate) fn tail(log: &Path, tail: Option<usize>) -> Vec<String> {
    let wanted = tail.unwrap_or(usize::MAX);
    let mut lines = VecDeque::new();
    for age in 0..NUM_FILES {
        // The newest file comes first. Older ones are read only as far as needed.
        let bytes = std::fs::read(file_name(log, age)).unwrap_or_default();
        for line in String::from_utf8_lossy(&bytes).lines().rev() {
            if lines.len() == wanted {
                return lines.into();
            }
            lines.push_front(line.to_owned());
        }
    }
    lines.into()
}

/// Lines of the log as they are written, until the deployment is deleted.
#[derive(Debug)]
pub(crate) struct FileLines {
    log: PathBuf,
    file: Option<File>,
    pub(super) lines: VecDeque<String>,
    /// The unfinished last line.
    partial: Vec<u8>,
}

impl FileLines {
    /// Starts with the newest `tail` lines (all if `None`), and continues with new ones.
    pub(crate) fn new(log: PathBuf, wanted: Option<usize>) -> io::Result<Self> {
        // While the log rotates, its own name may be missing for a moment.
        let mut file = (0..NUM_FILES).find_map(|age| File::open(file_name(&log, age)).ok());
        // The end is taken before the tail is read. So a line that is written in between is returned twice rather
        // than never.
        let end = file.as_mut().map(|file| file.seek(SeekFrom::End(0))).transpose()?;
        let lines = if end.is_some() { tail(&log, wanted).into() } else { VecDeque::new() };
        Ok(Self { log, file, lines, partial: Vec::new() })
    }

    /// Reads new bytes. Returns whether there were any, or a new file.
    pub(super) fn read_more(&mut self) -> bool {
        let Some(file) = &mut self.file else {
            self.file = oldest(&self.log, None);
            return self.file.is_some();
        };
        // The name is looked up before the file is read: once another file has the log's name, this one is complete.
        let is_complete = match (inode(&std::fs::metadata(&self.log)), inode(&file.metadata())) {
            (Some(current), Some(own)) => current != own,
            // While the log rotates, its own name may be missing for a moment.
            _ => false,
        };
        let mut bytes = Vec::new();
        // A file that can no longer be read has no more lines.
        let _ = file.read_to_end(&mut bytes);
        if bytes.is_empty() {
            let Some(next) = is_complete.then(|| next(&self.log, file)).flatten() else {
                return false;
            };
            self.file = Some(next);
            return true;
        }
        self.partial.extend(bytes);
        while let Some(end) = self.partial.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = self.partial.drain(..=end).collect();
            self.lines.push_back(String::from_utf8_lossy(&line[..end]).into_owned());
        }
        true
    }
}

fn inode(metadata: &io::Result<Metadata>) -> Option<u64> {
    metadata.as_ref().ok().map(Metadata::ino)
}

/// The file that was begun after this one; `None` while the log rotates.
fn next(log: &Path, file: &File) -> Option<File> {
    let own = inode(&file.metadata());
    let is_own = |age: &usize| inode(&std::fs::metadata(file_name(log, *age))) == own;
    match (1..NUM_FILES).find(is_own) {
        // A rotation in the meantime moves all files by one. Then the opened one may be a later one.
        Some(age) => File::open(file_name(log, age - 1)).ok().filter(|_| is_own(&age)),
        // Several rotations have removed the file.
        None => oldest(log, file.metadata().ok().as_ref()),
    }
}

/// The oldest file of the log, of those that were written after a removed one.
fn oldest(log: &Path, removed: Option<&Metadata>) -> Option<File> {
    let files = (0..NUM_FILES).rev().filter_map(|age| File::open(file_name(log, age)).ok());
    let is_newer = |file: &File| {
        let Some(removed) = removed else { return true };
        file.metadata().is_ok_and(|found| {
            let written = |of: &Metadata| (of.mtime(), of.mtime_nsec());
            written(&found) >= written(removed)
        })
    };
    files.into_iter().find(is_newer)
}

impl Lines for FileLines {
    async fn next(&mut self) -> Option<String> {
        loop {
            if let Some(line) = self.lines.pop_front() {
                return Some(line);
            }
            if !self.read_more() {
                if !self.log.parent().is_some_and(Path::exists) {
                    return None;
                }
                tokio::time::sleep(LOOK).await;
            }
        }
    }
}
