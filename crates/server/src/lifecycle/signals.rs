//! The signals that stop the server, or make it reload files.

use std::io::{self, IsTerminal};

use crate::lifecycle::reload::Reloads;

#[cfg(unix)]
use tokio::signal::unix::{Signal, SignalKind, signal};

/// SIGTERM, SIGINT and SIGHUP, or Ctrl-C on systems without them.
pub(crate) struct StopSignals {
    #[cfg(unix)]
    terminate: Signal,
    #[cfg(unix)]
    interrupt: Signal,
    /// `None` if SIGHUP does not stop the server, because it reloads files, or because it is ignored, such as under `nohup`.
    #[cfg(unix)]
    hangup: Option<Signal>,
}

impl StopSignals {
    /// Begins to catch the signals.
    pub(crate) fn new() -> io::Result<Self> {
        #[cfg(unix)]
        {
            let hangup = (!is_hangup_ignored()).then(|| signal(SignalKind::hangup()));
            Ok(Self {
                terminate: signal(SignalKind::terminate())?,
                interrupt: signal(SignalKind::interrupt())?,
                hangup: hangup.transpose()?,
            })
        }
        #[cfg(not(unix))]
        Ok(Self {})
    }

    /// Makes SIGHUP reload files instead of stopping the server. On a terminal SIGHUP still stops it, because there it means that the
    /// terminal was closed.
    pub(crate) fn reload_on_hangup(&mut self, reloads: Reloads) -> io::Result<()> {
        // Started by systemd or in a container, standard error is no terminal, and SIGHUP means reload.
        #[cfg(unix)]
        if !reloads.is_empty() && !io::stderr().is_terminal() {
            let mut hangups = signal(SignalKind::hangup())?;
            self.hangup = None;
            let reloads = std::sync::Arc::new(reloads);
            tokio::spawn(async move {
                while hangups.recv().await.is_some() {
                    let reloads = std::sync::Arc::clone(&reloads);
                    // A panic is in the log, and the old files stay in force.
                    let _ = tokio::task::spawn_blocking(move || reloads.run()).await;
                }
            });
        }
        Ok(())
    }

    /// Waits for the next signal that stops the server.
    pub(crate) async fn next(&mut self) {
        #[cfg(unix)]
        {
            let hangup = self.hangup.as_mut();
            let hangup = async {
                match hangup {
                    Some(hangup) => hangup.recv().await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                _ = self.terminate.recv() => {}
                _ = self.interrupt.recv() => {}
                _ = hangup => {}
            }
        }
        #[cfg(not(unix))]
        self.next_of_somebody().await;
    }

    /// Waits for the next signal that was sent on purpose. It leaves out SIGHUP, which a closed terminal may send twice.
    pub(crate) async fn next_of_somebody(&mut self) {
        #[cfg(unix)]
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
        #[cfg(not(unix))]
        if tokio::signal::ctrl_c().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

/// Whether SIGHUP is ignored; false if the system does not report it.
#[cfg(unix)]
fn is_hangup_ignored() -> bool {
    std::fs::read_to_string("/proc/self/status").is_ok_and(|status| ignores_hangup(&status))
}

/// Looks for signal 1, SIGHUP, in a process's mask of ignored signals.
#[cfg(unix)]
fn ignores_hangup(status: &str) -> bool {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    // Bit 0 is signal 1.
    mask.is_some_and(|mask| mask & 1 == 1)
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    #[test]
    fn an_ignored_hangup_is_seen() {
        let status = |mask: &str| format!("SigBlk:\t0000000000000001\nSigIgn:\t{mask}\n");
        assert!(ignores_hangup(&status("0000000000001001")));
        assert!(!ignores_hangup(&status("0000000000001000")));
        assert!(!ignores_hangup(&status("nothing")) && !ignores_hangup(""));
    }
}
