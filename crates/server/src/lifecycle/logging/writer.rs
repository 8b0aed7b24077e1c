//! Writes queued lines to standard error, in a thread that may block there without harm.

use std::fs::File;
use std::io::{self, ErrorKind, Write};
use std::os::fd::AsFd;
use std::thread;
use std::time::Duration;

use super::Terminal;
use super::queue::Queue;

/// Pause before a retry when standard error is full. Another program that shares it may have made it non-blocking.
const FULL_RETRY: Duration = Duration::from_millis(10);

/// The consumer of the queue.
pub(super) struct Writer {
    queue: &'static Queue,
    terminal: Terminal,
    output: Output,
    /// Numbers of dropped lines that the log has reported: unwritten ones, and those for which the queue was full.
    reported: [u64; 2],
}

/// A file for whole lines.
struct Output {
    file: File,
    /// Whether the last line was written only in part.
    is_torn: bool,
}

impl Writer {
    /// # Errors
    /// Standard error cannot be opened a second time.
    pub(super) fn new(queue: &'static Queue, terminal: Terminal) -> io::Result<Self> {
        // Other threads would wait for the lock of `io::stderr`; this file has none.
        let file = File::from(io::stderr().as_fd().try_clone_to_owned()?);
        let output = Output { file, is_torn: false };
        Ok(Self { queue, terminal, output, reported: [0; 2] })
    }

    /// # Errors
    /// The thread cannot be started.
    pub(super) fn start(mut self) -> io::Result<()> {
        let run = move || {
            loop {
                let line = self.queue.pop();
                self.write(&line);
            }
        };
        thread::Builder::new().name("log".into()).spawn(run).map(drop)
    }

    fn write(&mut self, line: &[u8]) {
        let written = match self.terminal.drawn_bars() {
            // A line that is written directly would be drawn over by the bars.
            Some(bars) => bars.println(String::from_utf8_lossy(line).trim_end_matches('\n')),
            None => self.output.write(line),
        };
        if written.is_err() {
            self.queue.count_unwritten();
            return;
        }
        let Some(dropped) = self.queue.dropped_when_empty() else { return };
        if dropped != self.reported {
            let [unwritten, without_room] = [0, 1].map(|i| dropped[i] - self.reported[i]);
            self.reported = dropped;
            tracing::warn!(
                "the log has lost lines: {unwritten} could not be written, {without_room} because standard error was read too slowly"
            );
        }
    }
}

impl Output {
    fn write(&mut self, line: &[u8]) -> io::Result<()> {
        // The next line begins on a line of its own, so a torn one damages nothing else.
        if self.is_torn {
            self.write_all(b"\n")?;
            self.is_torn = false;
        }
        self.write_all(line)
    }

    fn write_all(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        let whole = bytes.len();
        while !bytes.is_empty() {
            match self.file.write(bytes) {
                // Zero bytes without an error would make this a busy loop.
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(count) => bytes = &bytes[count..],
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => thread::sleep(FULL_RETRY),
                Err(error) => {
                    self.is_torn |= bytes.len() < whole;
                    return Err(error);
                }
            }
        }
        Ok(())
    }
}
