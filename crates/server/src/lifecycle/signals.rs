//! The signals that ask the server to stop.

#[cfg(unix)]
use tokio::signal::unix::{Signal, SignalKind, signal};

/// SIGTERM, SIGINT and SIGHUP, or Ctrl-C where there are no such signals.
pub(crate) struct StopSignals {
    #[cfg(unix)]
    terminate: Signal,
    #[cfg(unix)]
    interrupt: Signal,
    /// `None` where whoever started the server has it ignored, as `nohup` does.
    #[cfg(unix)]
    hangup: Option<Signal>,
}

impl StopSignals {
    /// Begins to catch the signals.
    pub(crate) fn new() -> std::io::Result<Self> {
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

    /// Waits for the next one.
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

    /// Waits for the next one that somebody has sent on purpose. A terminal that is closed may send SIGHUP twice.
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

/// Whether SIGHUP is ignored. Where the system does not say, it is not.
#[cfg(unix)]
fn is_hangup_ignored() -> bool {
    std::fs::read_to_string("/proc/self/status").is_ok_and(|status| ignores_hangup(&status))
}

/// Looks for signal 1, SIGHUP, in a process's mask of ignored signals.
#[cfg(unix)]
fn ignores_hangup(status: &str) -> bool {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
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
