//! Writes a server's output into log files of bounded size.

use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, PipeReader, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::oneshot;

use crate::secret::Secrets;

/// Most bytes of one file.
const MAX_BYTES: u64 = 10 << 20;
/// Number of files: the current one and older ones.
pub(super) const NUM_FILES: usize = 5;

/// The current file, and its size.
struct RotatingLog {
    path: PathBuf,
    file: File,
    bytes: u64,
    max_bytes: u64,
}

/// The end of a server's output, and whether it could be written.
#[derive(Debug, Default)]
pub(super) struct Last {
    line: String,
    /// The last line that is marked as an error; the first line of an error with several.
    error: Option<String>,
    pub(super) trouble: Option<String>,
}

/// The prefix by which a program marks the reason of its end.
const ERROR: &str = "error: ";

impl Last {
    fn hear(&mut self, line: String) {
        if let Some(error) = line.strip_prefix(ERROR) {
            self.error = Some(error.trim().to_owned());
        }
        if !line.trim().is_empty() {
            self.line = line;
        }
    }

    /// The reason of the end as the server's log states it: the error, or else the last line.
    pub(super) fn words(&self) -> &str {
        self.error.as_deref().unwrap_or(&self.line)
    }
}

/// The name of an older file; age 0 is the current one.
pub(super) fn file_name(log: &Path, age: usize) -> PathBuf {
    match age {
        0 => log.to_owned(),
        age => log.with_extension(age.to_string()),
    }
}

/// Writes the lines of a pipe into `log`, in a thread of its own, until no process can write to the pipe any more.
/// Lines that cannot be written, on a full disk for example, are dropped: the server must not block on its log.
pub(super) fn capture(
    pipe: PipeReader,
    log: PathBuf,
    secrets: Secrets,
) -> io::Result<(Arc<Mutex<Last>>, oneshot::Receiver<()>)> {
    let last = Arc::new(Mutex::new(Last::default()));
    let (ended, end) = oneshot::channel();
    let shared = Arc::clone(&last);
    let work = move || {
        let mut file = RotatingLog::open(log.clone(), MAX_BYTES);
        for line in BufReader::new(pipe).split(b'\n').map_while(Result::ok) {
            // A line is the unit that is redacted, so a secret is never cut in two by the size of a read.
            let line = secrets.redact(String::from_utf8_lossy(&line).into_owned());
            // The disk may have room again.
            if file.is_err() {
                file = RotatingLog::open(log.clone(), MAX_BYTES);
            }
            let written = match &mut file {
                Ok(file) => file.write(&line),
                Err(error) => Err(io::Error::new(error.kind(), error.to_string())),
            };
            let mut last = shared.lock().unwrap_or_else(PoisonError::into_inner);
            last.trouble = written.err().map(|error| format!("the log cannot be written: {error}"));
            last.hear(line);
        }
        // The supervisor may have stopped waiting.
        let _ = ended.send(());
    };
    std::thread::Builder::new().name("log".into()).spawn(work)?;
    Ok((last, end))
}

impl RotatingLog {
    fn open(path: PathBuf, max_bytes: u64) -> io::Result<Self> {
        let file = OpenOptions::new().create(true).append(true).mode(0o600).open(&path)?;
        let bytes = file.metadata()?.len();
        Ok(Self { path, file, bytes, max_bytes })
    }

    fn write(&mut self, line: &str) -> io::Result<()> {
        if self.bytes > 0 && self.bytes + line.len() as u64 >= self.max_bytes {
            // The oldest file goes first: each rename replaces the next older one.
            for age in (0..NUM_FILES - 1).rev() {
                // At first not all of the files exist.
                let _ = std::fs::rename(file_name(&self.path, age), file_name(&self.path, age + 1));
            }
            *self = Self::open(self.path.clone(), self.max_bytes)?;
        }
        let line = format!("{line}\n");
        self.file.write_all(line.as_bytes())?;
        self.bytes += line.len() as u64;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::logs;
    use super::*;

    #[test]
    fn the_reason_of_several_lines_is_the_first() {
        let words = |lines: &[&str]| {
            let mut last = Last::default();
            lines.iter().for_each(|line| last.hear((*line).to_owned()));
            last.words().to_owned()
        };
        let help = "For more information, try '--help'.";
        assert_eq!(words(&["starting", "error: no such port", "", help]), "no such port");
        assert_eq!(words(&["starting", "panicked", ""]), "panicked");
    }

    /// The lines that a follower has not returned yet.
    fn new_lines(follower: &mut logs::FileLines) -> Vec<String> {
        while follower.read_more() {}
        follower.lines.drain(..).collect()
    }

    fn numbered(range: std::ops::Range<usize>) -> Vec<String> {
        range.map(|i| format!("line {i:04}")).collect()
    }

    #[test]
    fn lines_are_followed_over_several_rotations() {
        let folder = std::env::temp_dir().join(format!("candlepower-turns-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let path = folder.join("log");
        let mut follower = logs::FileLines::new(path.clone(), None).unwrap();
        let mut log = RotatingLog::open(path.clone(), 40).unwrap();
        let mut write = |range| numbered(range).iter().for_each(|line| log.write(line).unwrap());
        // Four lines a file. The follower looks after one, two and four rotations.
        for range in [0..1, 1..6, 6..15, 15..30] {
            write(range.clone());
            assert_eq!(new_lines(&mut follower), numbered(range));
        }
        assert!(new_lines(&mut follower).is_empty());
        // The oldest files are gone, except for the open one. All others are read.
        write(30..96);
        // The time of the last write tells files of a removed one apart, and clocks of file systems are coarse.
        std::thread::sleep(std::time::Duration::from_millis(50));
        write(96..100);
        let all = logs::tail(&path, None);
        assert_eq!(new_lines(&mut follower), [numbered(30..32), all].concat());
        // A new follower begins with the tail.
        let mut follower = logs::FileLines::new(path.clone(), Some(2)).unwrap();
        assert_eq!(new_lines(&mut follower), numbered(98..100));
        // A file that was removed by hand does not bring back older lines.
        std::fs::remove_file(&path).unwrap();
        write(100..106);
        let found = new_lines(&mut follower);
        assert!(found.ends_with(&numbered(105..106)), "{found:?}");
        assert!(found.iter().all(|line| line.as_str() >= "line 0100"), "{found:?}");
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn no_line_is_lost_while_the_log_rotates() {
        let folder = std::env::temp_dir().join(format!("candlepower-race-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        for round in 0..20 {
            let path = folder.join(format!("{round}/log"));
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            let mut follower = logs::FileLines::new(path.clone(), None).unwrap();
            // Fewer rotations than files, so that every line can be read.
            let mut log = RotatingLog::open(path, 2000).unwrap();
            let writer = std::thread::spawn(move || {
                numbered(0..800).iter().for_each(|line| log.write(line).unwrap());
            });
            let mut found = Vec::new();
            while !writer.is_finished() {
                follower.read_more();
                found.extend(follower.lines.drain(..));
            }
            writer.join().unwrap();
            found.extend(new_lines(&mut follower));
            assert!(found == numbered(0..800), "{} lines", found.len());
        }
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_log_is_bounded_and_its_end_is_read_across_files() {
        let folder = std::env::temp_dir().join(format!("candlepower-log-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let mut log = RotatingLog::open(folder.join("log"), 40).unwrap();
        for i in 0..100 {
            log.write(&format!("line {i:04}")).unwrap();
        }
        assert_eq!(std::fs::read_dir(&folder).unwrap().count(), NUM_FILES);
        let expected: Vec<String> = (93..100).map(|i| format!("line {i:04}")).collect();
        assert_eq!(logs::tail(&folder.join("log"), Some(7)), expected);
        let all = logs::tail(&folder.join("log"), None);
        assert!(all.len() > 7 && all.ends_with(&expected), "{all:?}");
        std::fs::remove_dir_all(folder).unwrap();
    }
}
