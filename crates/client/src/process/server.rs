//! A server as the child process of its supervisor.

use std::ffi::OsString;
use std::io;
use std::net::SocketAddr;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use candlepower_machine::print_error;
use rustix::process::{Pid, Signal, kill_process_group, set_parent_process_death_signal};
use tokio::sync::oneshot;
use tokio::time::timeout;

use super::cgroup::Cgroup;
use super::folder::Folder;
use super::identity::Identity;
use super::log::{Last, capture};
use super::report::{REPORT_VARIABLE, Report};
use crate::check::HUB_TOKEN;
use crate::spec::Launch;

/// The hidden command of the binary that runs a server which ends with its supervisor.
const RUN_BOUND: &str = "__run";
/// This binary, even after a newer one has replaced it.
const OWN_BINARY: &str = "/proc/self/exe";
/// Time limit for the last lines of the log.
const LAST_WORDS: Duration = Duration::from_secs(1);
/// Prefixes of settings in the environment of the user who started the supervisor. They do not belong to the
/// deployment.
pub(super) const FOREIGN: [&str; 3] = ["BLAZE_", "PRISM_", "CANDLEPOWER_"];

/// A server that was started and whose end has not been noticed.
#[derive(Debug)]
pub(super) struct Server {
    pub(super) identity: Identity,
    /// Whether it has been healthy.
    pub(super) was_ready: bool,
    exit: oneshot::Receiver<io::Result<ExitStatus>>,
    /// The status that came through `exit`; the inner `None` is an unknown status.
    status: Option<Option<ExitStatus>>,
    last: Arc<Mutex<Last>>,
    /// Signals that the log is complete; `None` after the signal.
    log_end: Option<oneshot::Receiver<()>>,
    report: PathBuf,
    /// Time limit to end by itself.
    patience: Duration,
}

/// The end of a server.
#[derive(Debug)]
pub(super) struct Ended {
    pub(super) exit_code: Option<i32>,
    /// The server's own message, or else the system's.
    pub(super) reason: String,
}

impl Server {
    /// Starts the server. The kernel ends it when the calling thread ends, so the caller must be the supervisor's
    /// main thread.
    pub(super) fn start(
        launch: &Launch,
        folder: &Folder,
        report: PathBuf,
        port: u16,
        cgroup: Option<&Cgroup>,
    ) -> io::Result<Self> {
        // A report of the previous server must not be taken for this one's.
        let _ = std::fs::remove_file(&report);
        let (reader, writer) = io::pipe()?;
        let mut command = Command::new(OWN_BINARY);
        // Without this name, lists of processes would show the path under `/proc`.
        command.arg0("candlepower").arg(RUN_BOUND).arg(std::process::id().to_string());
        command.arg(cgroup.map(Cgroup::processes).unwrap_or_default());
        command
            .args(&launch.spec.argv)
            .arg(format!("--device={}", launch.device.as_str()))
            .args(["--host=127.0.0.1".to_owned(), format!("--port={port}")]);
        let is_foreign =
            |name: &str| name == HUB_TOKEN || FOREIGN.iter().any(|prefix| name.starts_with(prefix));
        for (name, _) in
            std::env::vars_os().filter(|(name, _)| name.to_str().is_some_and(is_foreign))
        {
            command.env_remove(name);
        }
        // The report's path comes after the user's variables, which must not replace it.
        command.envs(&launch.spec.env).envs(&launch.secrets.0).env(REPORT_VARIABLE, &report);
        if !launch.gpus.is_empty() {
            command.env("CUDA_VISIBLE_DEVICES", launch.gpus.join(","));
        }
        // The supervisor itself runs elsewhere. The server starts even if the client's folder is gone.
        let is_there = launch.folder.is_dir();
        command.current_dir(if is_there { launch.folder.as_path() } else { Path::new("/") });
        // A group of its own lets `stop` kill the server's own children, too.
        command.stdin(Stdio::null()).stdout(writer.try_clone()?).stderr(writer).process_group(0);
        let mut child = command.spawn()?;
        // The command holds the server's ends of the pipe. Without this the log would never end.
        drop(command);
        let identity = Identity::of(child.id()).ok_or(io::ErrorKind::NotFound)?;
        let (last, log_end) = capture(reader, folder.log(), launch.secrets.clone())?;
        let (ended, exit) = oneshot::channel();
        let wait = move || {
            // The supervisor may have ended, so that no receiver is left.
            let _ = ended.send(child.wait());
        };
        std::thread::Builder::new().name("server".into()).spawn(wait)?;
        Ok(Self {
            identity,
            was_ready: false,
            exit,
            status: None,
            last,
            log_end: Some(log_end),
            report,
            patience: Duration::from_secs(launch.spec.stop_seconds(0)),
        })
    }

    /// Waits for the end and returns its reason. May be cancelled.
    pub(super) async fn ended(&mut self) -> Ended {
        let status = self.exit_status().await;
        self.hear_last_words().await;
        let last = self.last.lock().unwrap_or_else(PoisonError::into_inner).words().to_owned();
        let reason = Report::read(&self.report).error.unwrap_or_else(|| describe(status, &last));
        Ended { exit_code: status.and_then(|status| status.code()), reason }
    }

    /// Waits for the exit status, which is kept, since the channel delivers it once.
    async fn exit_status(&mut self) -> Option<ExitStatus> {
        if self.status.is_none() {
            self.status = Some((&mut self.exit).await.ok().and_then(Result::ok));
        }
        self.status.flatten()
    }

    /// Sends the server the signal to stop, and kills it after its time limit.
    pub(super) async fn stop(mut self) {
        // It may have ended by itself.
        let _ = self.identity.signal(Signal::TERM);
        if timeout(self.patience, self.exit_status()).await.is_err() {
            if let Some(group) = Pid::from_raw(self.identity.pid.cast_signed()) {
                let _ = kill_process_group(group, Signal::KILL);
            }
            let _ = self.exit_status().await;
        }
        self.hear_last_words().await;
    }

    /// Waits until the log is complete, which is signalled once.
    async fn hear_last_words(&mut self) {
        // The wait has a limit, since a child of the server may hold the pipe for longer.
        if let Some(end) = &mut self.log_end
            && timeout(LAST_WORDS, end).await.is_ok()
        {
            self.log_end = None;
        }
    }

    /// The file of the server's report.
    pub(super) fn report(&self) -> &Path {
        &self.report
    }

    /// The server's address, once it listens.
    pub(super) fn address(&self) -> Option<SocketAddr> {
        Report::read(&self.report).address
    }

    /// The reason that the log is incomplete, if it is.
    pub(super) fn log_trouble(&self) -> Option<String> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner).trouble.clone()
    }
}

fn describe(status: Option<ExitStatus>, last_line: &str) -> String {
    let how = match status.map(|status| (status.signal(), status.code())) {
        Some((Some(9), _)) => "the server was killed (SIGKILL)".to_owned(),
        Some((Some(signal), _)) => format!("the server was ended by signal {signal}"),
        Some((None, Some(code))) => format!("the server ended with status {code}"),
        _ => "the server ended".to_owned(),
    };
    match (status.and_then(|status| status.code()), last_line) {
        // After a signal the last line usually has nothing to do with the end.
        (Some(1..), line) if !line.is_empty() => format!("{how}: {line}"),
        _ => how,
    }
}

/// Becomes a server that the kernel kills when its supervisor ends. The hidden command is followed by the
/// supervisor's pid, the control group's file or an empty argument, and the server's command line.
pub fn run_bound(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    let mut args = args.into_iter();
    let supervisor = args.next().and_then(|pid| pid.to_str()?.parse::<u32>().ok());
    let cgroup = args.next().unwrap_or_default();
    let bound = set_parent_process_death_signal(Some(Signal::KILL));
    // The supervisor may have ended before this request to the kernel. Then no signal would ever come.
    if bound.is_err() || supervisor != Some(std::os::unix::process::parent_id()) {
        return ExitCode::FAILURE;
    }
    if !cgroup.is_empty()
        && let Err(error) = std::fs::write(&cgroup, std::process::id().to_string())
    {
        print_error(format_args!("the memory is not limited: {error}"));
    }
    // The request to the kernel outlives `exec`, and so does the process id in the control group.
    let error = Command::new(OWN_BINARY).arg0("candlepower").args(args).exec();
    print_error(format_args!("the server cannot be started: {error}"));
    ExitCode::FAILURE
}
