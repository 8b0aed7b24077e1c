//! The log, and the terminal that it shares with the bars of downloads.

use std::io::{self, IsTerminal, Write};

use indicatif::MultiProgress;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::MakeWriter;

use crate::config::{LogFormat, ServeConfig};

/// Standard error: lines of the log, and below them bars, where it is a terminal.
#[derive(Clone, Debug, Default)]
pub struct Terminal {
    bars: MultiProgress,
}

/// Starts the process's log, lines or JSON on standard error. Does nothing if there is one already.
pub fn init_logging(config: &ServeConfig) -> Terminal {
    let terminal = Terminal::default();
    // Other crates only speak up when something is wrong.
    let filter = EnvFilter::new(format!("warn,candlepower={}", config.log_level.as_str()));
    let log = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(terminal.clone())
        .with_target(false);
    // An error means that a log was started before, which is then used.
    let _ = match config.log_format {
        LogFormat::Text => log.with_ansi(io::stderr().is_terminal()).try_init(),
        LogFormat::Json => log.json().flatten_event(true).try_init(),
    };
    terminal
}

impl Terminal {
    /// Where bars can be drawn; `None` where nobody would see them.
    pub(crate) fn bars(&self) -> Option<&MultiProgress> {
        (!self.bars.is_hidden()).then_some(&self.bars)
    }
}

impl<'a> MakeWriter<'a> for Terminal {
    type Writer = AboveBars<'a>;

    fn make_writer(&'a self) -> AboveBars<'a> {
        AboveBars(&self.bars)
    }
}

/// Writes lines of the log above the bars.
pub struct AboveBars<'a>(&'a MultiProgress);

impl Write for AboveBars<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.suspend(|| io::stderr().write(bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stderr().flush()
    }
}
