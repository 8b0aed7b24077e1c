//! A server of this program's own, on a Unix socket in a private folder, which ends with the conversation.

mod bound;

use std::collections::VecDeque;
use std::fs::{self, DirBuilder};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, ChildStderr, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use candlepower_client::{REPORT_VARIABLE, Report};
use rustix::process::{Pid, Signal, kill_process, kill_process_group};

use crate::api::UNIX;
pub(crate) use bound::Bound;

/// The hidden command that runs a server which ends with its parent. The parent's pid and the folder follow.
const BOUND: &str = "__chat_server";
/// This program, even after a newer one has replaced it.
const OWN_PROGRAM: &str = "/proc/self/exe";
const SOCKET: &str = "server.sock";
const REPORT: &str = "report.json";
/// Maximum bytes of a folder's path. A socket's path has at most 107.
const MAX_PATH: usize = 80;
/// Lines of the log that are kept.
const MAX_LINES: usize = 200;
/// Time in which the server must stop.
const STOP_TIMEOUT: Duration = Duration::from_secs(5);
const LOOK_AGAIN: Duration = Duration::from_millis(5);
/// Settings of other servers in the environment. This one has a socket, and no other clients.
const FOREIGN: [&str; 10] = [
    "HOST",
    "PORT",
    "UDS",
    "API_KEY",
    "API_KEYS_FILE",
    "SSL_CERTFILE",
    "SSL_KEYFILE",
    "SSL_CA_CERTS",
    "HTTP2",
    "DRAIN_DELAY",
];

/// A running server. It is stopped on drop.
#[derive(Debug)]
pub(super) struct LocalServer {
    child: Child,
    folder: PathBuf,
    lines: Arc<Mutex<VecDeque<String>>>,
}

impl LocalServer {
    /// Starts `serve MODEL FLAGS..`. The kernel stops it when the calling thread ends, so that must be the main thread.
    ///
    /// # Errors
    /// The folder or the process cannot be created.
    pub(super) fn start(model: &str, flags: &[String]) -> Result<Self> {
        let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
        let temporary = [std::env::temp_dir(), PathBuf::from("/tmp")];
        let folder = private_folder(runtime.into_iter().chain(temporary))?;
        let mut command = Command::new(OWN_PROGRAM);
        // Without this name, lists of processes would show the path under `/proc`.
        command.arg0("candlepower").arg(BOUND).arg(std::process::id().to_string()).arg(&folder);
        command.arg("serve").arg("--uds").arg(folder.join(SOCKET)).args(flags).arg("--").arg(model);
        for prefix in ["BLAZE_", "PRISM_"] {
            for name in FOREIGN {
                command.env_remove(format!("{prefix}{name}"));
            }
        }
        command.env(REPORT_VARIABLE, folder.join(REPORT));
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        // In a group of its own, Ctrl-C does not reach it.
        let started = command.process_group(0).spawn();
        let mut child = started.context("the server cannot be started")?;
        let lines = Arc::default();
        if let Some(log) = child.stderr.take() {
            keep_lines(log, Arc::clone(&lines));
        }
        Ok(Self { child, folder, lines })
    }

    /// The address for [`Api`](crate::api::Api).
    pub(super) fn url(&self) -> String {
        format!("{UNIX}{}", self.folder.join(SOCKET).display())
    }

    /// Checks that the server runs.
    ///
    /// # Errors
    /// It has ended; the error has its reason.
    pub(super) fn check(&mut self) -> Result<()> {
        let report = || fs::read(self.folder.join(REPORT)).ok();
        let report = report().and_then(|bytes| serde_json::from_slice::<Report>(&bytes).ok());
        // A server that has failed shows the reason for some time before it ends.
        if let Some(error) = report.and_then(|report| report.error) {
            bail!("{error}");
        }
        match self.child.try_wait()? {
            None => Ok(()),
            Some(status) => bail!("the server has ended ({status}){}", self.last_words()),
        }
    }

    /// The warnings in its log so far.
    pub(super) fn warnings(&self) -> Vec<String> {
        let lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        let warning = |line: &String| Some(line.split_once(" WARN ")?.1.to_owned());
        lines.iter().filter_map(warning).collect()
    }

    fn last_words(&self) -> String {
        let lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        // An error may have further lines with hints.
        let error = lines.iter().rev().find_map(|line| line.strip_prefix("error: "));
        let last = error.or(lines.back().map(String::as_str));
        last.map_or_else(String::new, |line| format!(": {line}"))
    }
}

impl Drop for LocalServer {
    fn drop(&mut self) {
        let begin = Instant::now();
        let pid = Pid::from_child(&self.child);
        // It may have ended by itself, here and below.
        let _ = kill_process(pid, Signal::TERM);
        while matches!(self.child.try_wait(), Ok(None)) && begin.elapsed() < STOP_TIMEOUT {
            std::thread::sleep(LOOK_AGAIN);
        }
        if matches!(self.child.try_wait(), Ok(None)) {
            let _ = kill_process_group(pid, Signal::KILL);
            let _ = self.child.wait();
        }
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// Creates a folder that only this user can enter, whose path is short enough for a socket, in the first of these places where that
/// is possible.
fn private_folder(places: impl IntoIterator<Item = PathBuf>) -> Result<PathBuf> {
    let mut failure = None;
    for place in places {
        let name = format!("candlepower-chat-{}-{:08x}", std::process::id(), fastrand::u32(..));
        let folder = place.join(name);
        if folder.as_os_str().len() > MAX_PATH {
            continue;
        }
        match DirBuilder::new().mode(0o700).create(&folder) {
            Ok(()) => return Ok(folder),
            Err(error) => failure = Some(anyhow::anyhow!("{}: {error}", folder.display())),
        }
    }
    let failure =
        failure.unwrap_or_else(|| anyhow::anyhow!("the paths of temporary folders are too long"));
    Err(failure).context("no folder for the server's socket")
}

/// Reads the log in a thread of its own: a full pipe would block the server.
fn keep_lines(log: ChildStderr, lines: Arc<Mutex<VecDeque<String>>>) {
    std::thread::spawn(move || {
        for line in BufReader::new(log).split(b'\n').map_while(Result::ok) {
            let mut lines = lines.lock().unwrap_or_else(PoisonError::into_inner);
            if lines.len() == MAX_LINES {
                lines.pop_front();
            }
            lines.push_back(String::from_utf8_lossy(&line).into_owned());
        }
    });
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;
    use std::path::Path;

    use super::*;

    /// A shell script in the place of a server. Its last line on standard error is `last`.
    fn running(script: &str, last: &str) -> LocalServer {
        let folder = private_folder([PathBuf::from("/tmp")]).unwrap();
        let mut command = Command::new("sh");
        command.args(["-c", script]).stdin(Stdio::null()).stdout(Stdio::null());
        let mut child = command.stderr(Stdio::piped()).process_group(0).spawn().unwrap();
        let lines = Arc::default();
        keep_lines(child.stderr.take().unwrap(), Arc::clone(&lines));
        let server = LocalServer { child, folder, lines };
        let begin = Instant::now();
        while server.lines.lock().unwrap().back().is_none_or(|line| line != last) {
            assert!(begin.elapsed() < Duration::from_secs(60), "{:?}", server.lines);
            std::thread::sleep(LOOK_AGAIN);
        }
        server
    }

    #[test]
    fn the_reason_of_an_end_is_the_last_error_in_the_log() {
        let script = "i=0; while [ $i -lt 300 ]; do echo \"1 WARN line $i\" >&2; i=$((i + 1)); done; \
            printf 'error: no room\\n  take more\\n' >&2; exit 3";
        let mut server = running(script, "  take more");
        // Only the newest lines are kept.
        assert_eq!(server.lines.lock().unwrap().len(), MAX_LINES);
        let warnings = server.warnings();
        assert_eq!(
            (warnings.len(), warnings.last().unwrap().as_str()),
            (MAX_LINES - 2, "line 299")
        );
        server.child.wait().unwrap();
        let error = server.check().unwrap_err().to_string();
        assert_eq!(error, "the server has ended (exit status: 3): no room");
    }

    #[test]
    fn a_server_that_does_not_stop_is_killed() {
        let server = running("trap '' TERM; echo ready >&2; while :; do sleep 1; done", "ready");
        let (process, folder) = (format!("/proc/{}", server.child.id()), server.folder.clone());
        assert!(Path::new(&process).exists() && folder.exists());
        drop(server);
        assert!(!Path::new(&process).exists() && !folder.exists());
    }

    #[test]
    fn the_folder_of_the_socket_is_private_and_has_a_short_path() {
        let long = Path::new("/tmp").join("a".repeat(MAX_PATH));
        let missing = PathBuf::from("/nowhere/at/all");
        let places = [long.clone(), missing.clone(), PathBuf::from("/tmp")];
        let folder = private_folder(places).unwrap();
        let mode = fs::metadata(&folder).unwrap().permissions().mode();
        fs::remove_dir(&folder).unwrap();
        assert!(folder.starts_with("/tmp") && mode & 0o777 == 0o700, "{folder:?} {mode:o}");
        let failure = |place: PathBuf| format!("{:#}", private_folder([place]).unwrap_err());
        let none = "no folder for the server's socket: ";
        assert_eq!(failure(long), format!("{none}the paths of temporary folders are too long"));
        let refused = failure(missing);
        assert!(
            refused.starts_with(&format!("{none}/nowhere/at/all/candlepower-chat-")),
            "{refused}"
        );
    }
}
