//! The log: lines for standard error, which a thread writes, and the bars of downloads below them.

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

/// Most bytes that wait for standard error.
const QUEUE_BYTES: usize = 1 << 20;
/// Longest time for the lines that are left when the program ends.
const LAST_LINES: Duration = Duration::from_secs(1);

/// The lines of this process that nobody has written yet.
static QUEUE: Queue = Queue::new(QUEUE_BYTES);

/// Where bars of downloads are drawn, if standard error is a terminal.
#[derive(Clone, Debug, Default)]
pub struct Terminal {
    bars: MultiProgress,
    /// Whether a bar is drawn, so that lines have to be printed above it.
    has_bars: Arc<AtomicBool>,
}

/// Starts the process's log, lines or JSON on standard error. Panics are logged too.
///
/// # Errors
/// The thread that writes the log cannot be started.
pub fn init_logging(config: &ServeConfig) -> io::Result<Terminal> {
    let terminal = Terminal::default();
    Writer::new(&QUEUE, terminal.clone())?.start()?;
    // Other crates only speak up when something is wrong.
    let filter = EnvFilter::new(format!("warn,candlepower={}", config.log_level.as_str()));
    let log = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(IntoQueue)
        .log_internal_errors(false)
        .with_target(false);
    // An error means that a log was started before, which is then used.
    let _ = match config.log_format {
        LogFormat::Text => log.with_ansi(io::stderr().is_terminal()).try_init(),
        LogFormat::Json => log.json().flatten_event(true).try_init(),
    };
    log_panics();
    Ok(terminal)
}

/// Has panics logged as errors. The usual hook waits for standard error.
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
        tracing::error!("thread `{name}` panicked at {place}: {message}{trace}");
    }));
}

/// Counts lines that are dropped: those that could not be written, and those that the queue had no room for.
pub(crate) fn count_dropped_lines(unwritten: Counter, without_room: Counter) {
    QUEUE.count_dropped(unwritten, without_room);
}

/// When dropped, waits until the log is written, for a second at most.
#[derive(Debug)]
pub struct EndOfLog;

impl Drop for EndOfLog {
    fn drop(&mut self) {
        QUEUE.wait_until_written(LAST_LINES);
    }
}

impl Terminal {
    /// Where bars can be drawn; `None` where nobody would see them.
    pub(crate) fn bars(&self) -> Option<&MultiProgress> {
        (!self.bars.is_hidden()).then_some(&self.bars)
    }

    /// Says whether bars are drawn from now on.
    pub(crate) fn set_has_bars(&self, has_bars: bool) {
        self.has_bars.store(has_bars, Ordering::Relaxed);
    }

    /// The bars, while some are drawn.
    fn drawn_bars(&self) -> Option<&MultiProgress> {
        self.has_bars.load(Ordering::Relaxed).then_some(&self.bars)
    }
}

/// Hands each line to the queue, which never fails.
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
    /// The subscriber writes each event at once.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        QUEUE.push(line, self.0 == Level::ERROR);
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
