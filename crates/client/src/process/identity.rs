//! Identifies a process. A pid alone may belong to another process by now, or be from another boot.

use std::io;
use std::time::Duration;

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde::{Deserialize, Serialize};

/// Interval of the checks whether a process has ended.
const LOOK: Duration = Duration::from_millis(10);
/// Time limit for a killed process to end.
const KILL_PATIENCE: Duration = Duration::from_secs(10);

/// One process of one boot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Identity {
    pub(crate) pid: u32,
    /// Clock ticks from boot to the start of the process.
    start_time: u64,
    boot_id: String,
}

impl Identity {
    /// The process that has this pid now.
    pub(crate) fn of(pid: u32) -> Option<Self> {
        let (_, start_time) = stat(pid)?;
        Some(Self { pid, start_time, boot_id: boot_id() })
    }

    /// Whether the process still runs. A zombie does not.
    pub(crate) fn is_alive(&self) -> bool {
        self.boot_id == boot_id()
            && stat(self.pid).is_some_and(|(state, start)| state != 'Z' && start == self.start_time)
    }

    /// Whether the machine was rebooted since.
    pub(crate) fn is_of_another_boot(&self) -> bool {
        self.boot_id != boot_id()
    }

    /// Sends a signal to this process, and to no other that may have its pid by now.
    pub(crate) fn signal(&self, signal: Signal) -> io::Result<()> {
        let pid = Pid::from_raw(self.pid.cast_signed()).ok_or(io::ErrorKind::InvalidInput)?;
        // The descriptor is opened before the check. If the check succeeds, the descriptor stands for the process
        // that was meant, even if that ends before the signal.
        let fd = pidfd_open(pid, PidfdFlags::empty())?;
        if !self.is_alive() {
            return Err(io::ErrorKind::NotFound.into());
        }
        Ok(pidfd_send_signal(fd, signal)?)
    }

    /// Kills the process if it runs, and waits until it has ended.
    pub(crate) async fn end(&self) {
        let begin = std::time::Instant::now();
        while self.is_alive() && begin.elapsed() < KILL_PATIENCE {
            // It may have ended by itself between the two.
            let _ = self.signal(Signal::KILL);
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Waits until the process has ended, at most for `patience`.
    pub(crate) async fn wait(&self, patience: Duration) -> bool {
        let begin = std::time::Instant::now();
        while self.is_alive() {
            if begin.elapsed() > patience {
                return false;
            }
            tokio::time::sleep(LOOK).await;
        }
        true
    }
}

/// State and start time of a process.
///
/// Source: proc_pid_stat(5). The name, in parentheses, may contain any character.
fn stat(pid: u32) -> Option<(char, u64)> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let mut fields = text.rsplit_once(')')?.1.split_whitespace();
    let state = fields.next()?.chars().next()?;
    // The start time is field 22. The state, which was just taken, is field 3.
    Some((state, fields.nth(18)?.parse().ok()?))
}

fn boot_id() -> String {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id");
    text.unwrap_or_default().trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_more_than_its_number() {
        let own = Identity::of(std::process::id()).unwrap();
        assert!(own.is_alive());
        let reused = Identity { start_time: own.start_time + 1, ..own.clone() };
        assert!(!reused.is_alive());
        assert!(reused.signal(Signal::KILL).is_err());
        let earlier = Identity { boot_id: "earlier".into(), ..own };
        assert!(!earlier.is_alive() && earlier.is_of_another_boot());
    }
}
