//! The log: lines for standard error, and progress bars below them.
//!
//! A thread of its own writes the lines from a queue. If nobody reads standard error, a pipe is full after 64 KiB, and a direct write
//! would then stop every request.

mod queue;
mod writer;

use std::backtrace::{Backtrace, BacktraceStatus};
use std::io::{self, IsTerminal, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use indicatif::MultiProgress;
use metrics::Counter;
use tracing::{Level, Metadata};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::MakeWriter;

use crate::config::{LogFormat, ServeConfig};
use queue::Queue;
use writer::Writer;

/// Maximum bytes that wait for standard error.
const QUEUE_BYTES: usize = 1 << 20;
/// Time to write the remaining lines when the program exits.
const LAST_LINES: Duration = Duration::from_secs(1);

/// The lines of this process that are not written yet.
static QUEUE: Queue = Queue::new(QUEUE_BYTES);

/// The place for progress bars, if standard error is a terminal.
#[derive(Clone, Debug, Default)]
pub struct Terminal {
    bars: MultiProgress,
    /// Whether a bar is shown, so that lines have to be printed above it.
    has_bars: Arc<AtomicBool>,
    /// Whether a person reads the log as text.
    shows_start: bool,
}

/// Starts the process's log, lines or JSON on standard error. Panics are logged too.
///
/// # Errors
/// The thread that writes the log cannot be started.
pub fn init_logging(config: &ServeConfig) -> io::Result<Terminal> {
    let shows_start = io::stderr().is_terminal() && config.log_format == LogFormat::Text;
    let terminal = Terminal { shows_start, ..Terminal::default() };
    Writer::new(&QUEUE, terminal.clone())?.start()?;
    // Other crates log warnings and errors only.
    let filter = EnvFilter::new(format!("warn,candlepower={}", config.log_level.as_str()));
    // `log_internal_errors` would answer a failed write with `eprintln!`, which panics when standard error is closed or its disk is full.
    let log = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(IntoQueue)
        .log_internal_errors(false)
        .with_target(false);
    // An error means that a log was started before; it is used.
    let _ = match config.log_format {
        LogFormat::Text => log.with_ansi(io::stderr().is_terminal()).try_init(),
        LogFormat::Json => log.json().flatten_event(true).try_init(),
    };
    log_panics();
    Ok(terminal)
}

/// Logs panics as errors. The default hook would wait for standard error.
fn log_panics() {
    std::panic::set_hook(Box::new(|panic| {
        let thread = thread::current();
        let name = thread.name().unwrap_or("without a name");
        let place = panic.location().map(ToString::to_string).unwrap_or_default();
        let message = panic.payload_as_str().unwrap_or("no message");
        let backtrace = Backtrace::capture();
        let trace = match backtrace.status() {
            BacktraceStatus::Captured => format!("\n{backtrace}"),
            _ => String::new(),
        };
        tracing::error!(
            "a defect of candlepower: thread `{name}` panicked at {place}: {message}{trace}"
        );
    }));
}

/// Sets the counters of dropped lines: lines that could not be written, and lines for which the queue was full.
pub(crate) fn count_dropped_lines(unwritten: Counter, without_room: Counter) {
    QUEUE.count_dropped(unwritten, without_room);
}

/// Waits on drop until the log is written, for a second at most.
#[derive(Debug)]
pub struct EndOfLog;

impl Drop for EndOfLog {
    fn drop(&mut self) {
        QUEUE.wait_until_written(LAST_LINES);
    }
}

impl Terminal {
    /// The place for bars; `None` if standard error is no terminal.
    pub(crate) fn bars(&self) -> Option<&MultiProgress> {
        (!self.bars.is_hidden()).then_some(&self.bars)
    }

    /// Whether the start is shown with bars and a summary.
    pub(crate) fn shows_start(&self) -> bool {
        self.shows_start
    }

    /// Shows text in order with the lines of the log.
    pub(crate) fn show(&self, text: &str) {
        QUEUE.push(text.as_bytes(), false);
    }

    /// Sets whether bars are shown from now on.
    pub(crate) fn set_has_bars(&self, has_bars: bool) {
        self.has_bars.store(has_bars, Ordering::Relaxed);
    }

    /// The bars, while some are shown.
    fn drawn_bars(&self) -> Option<&MultiProgress> {
        self.has_bars.load(Ordering::Relaxed).then_some(&self.bars)
    }
}

/// A writer of lines into the queue, which never fails.
struct IntoQueue;

/// A line on its way to the queue.
struct IntoQueueAt(Level);

impl<'a> MakeWriter<'a> for IntoQueue {
    type Writer = IntoQueueAt;

    fn make_writer(&'a self) -> IntoQueueAt {
        IntoQueueAt(Level::INFO)
    }

    fn make_writer_for(&'a self, metadata: &Metadata<'_>) -> IntoQueueAt {
        IntoQueueAt(*metadata.level())
    }
}

impl Write for IntoQueueAt {
    /// Adds a line. The subscriber writes each event with one call.
    // A line that finds no room is dropped and counted, so logging never fails a request.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        QUEUE.push(line, self.0 == Level::ERROR);
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
