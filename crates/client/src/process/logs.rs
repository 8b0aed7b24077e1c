//! Reads a server's log files: their end, or all lines as they come.

use std::collections::VecDeque;
use std::fs::File;
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
    lines: VecDeque<String>,
    /// The unfinished last line.
    partial: Vec<u8>,
}

impl FileLines {
    /// Starts with the newest `tail` lines (all if `None`), and continues with new ones.
    pub(crate) fn new(log: PathBuf, wanted: Option<usize>) -> io::Result<Self> {
        let mut file = File::open(&log).ok();
        // The end is taken before the tail is read. So a line that is written in between is returned twice rather
        // than never.
        let end = file.as_mut().map(|file| file.seek(SeekFrom::End(0))).transpose()?;
        let lines = if end.is_some() { tail(&log, wanted).into() } else { VecDeque::new() };
        Ok(Self { log, file, lines, partial: Vec::new() })
    }

    /// Reads new bytes. Returns whether there were any, or a new file.
    fn read_more(&mut self) -> bool {
        let Some(file) = &mut self.file else {
            self.file = File::open(&self.log).ok();
            return self.file.is_some();
        };
        let mut bytes = Vec::new();
        // A file that can no longer be read has no more lines.
        let _ = file.read_to_end(&mut bytes);
        if bytes.is_empty() {
            let inode = |path: io::Result<std::fs::Metadata>| path.ok().map(|found| found.ino());
            let current = inode(std::fs::metadata(&self.log));
            // The log was rotated: its name belongs to another file now.
            if current.is_some() && current != inode(file.metadata()) {
                self.file = None;
                return true;
            }
            return false;
        }
        self.partial.extend(bytes);
        while let Some(end) = self.partial.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = self.partial.drain(..=end).collect();
            self.lines.push_back(String::from_utf8_lossy(&line[..end]).into_owned());
        }
        true
    }
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
