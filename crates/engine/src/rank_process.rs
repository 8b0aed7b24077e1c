//! A rank as a process: this binary started again, with the socket to rank 0 as its standard input. On its standard output it sends
//! heartbeats, so a stopped rank is noticed however long a step may take.

use std::{
    collections::VecDeque,
    ffi::OsString,
    io::{self, BufRead, BufReader, ErrorKind, Read, Write},
    os::{
        fd::{AsFd, OwnedFd},
        unix::{
            net::UnixStream,
            process::{CommandExt, ExitStatusExt, parent_id},
        },
    },
    process::{Child, ChildStderr, Command, ExitCode, ExitStatus, Stdio},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc::{Receiver, RecvTimeoutError, channel},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use candlepower_comm::Comm;
use candlepower_machine::print_error;
use rustix::process::{Pid, Signal, kill_process, set_parent_process_death_signal};

use crate::{
    Error, Result,
    follower::{Setup, run},
    gate::Death,
    orders::decode,
};

/// The hidden command of the binary that becomes a rank: `__rank PARENT RANK RANKS DEADLINE_MS`.
pub const RANK_COMMAND: &str = "__rank";
/// This binary, also after it was replaced by a newer one.
const OWN_BINARY: &str = "/proc/self/exe";
/// Time for a rank to end by itself after rank 0 has ended.
const STOP_PATIENCE: Duration = Duration::from_secs(2);
/// Time between two heartbeats of a rank.
const HEARTBEAT: Duration = Duration::from_millis(500);
/// Time without a heartbeat after which a rank counts as stopped. The server exits two seconds later.
const SILENCE: Duration = Duration::from_secs(6);
/// Last lines of a dead rank's log that the reason of its end repeats.
const LAST_LINES: usize = 3;

/// A rank's process. Dropping waits for it, and ends it where it does not end by itself.
pub(crate) struct RankProcess {
    pid: u32,
    watcher: Option<JoinHandle<()>>,
    ended: Receiver<()>,
    closing: Arc<AtomicBool>,
}

impl RankProcess {
    /// Starts rank `rank` of `ranks`. Returns the socket to it. An unexpected end is recorded in `death`.
    pub(crate) fn start(
        rank: usize,
        ranks: usize,
        deadline: Duration,
        death: Death,
    ) -> Result<(Self, UnixStream)> {
        let failed = |source| Error::RankStart { rank, source };
        let (ours, theirs) = UnixStream::pair().map_err(failed)?;
        let (heartbeats, sender) = UnixStream::pair().map_err(failed)?;
        let closing = Arc::new(AtomicBool::new(false));
        let is_closing = Arc::clone(&closing);
        let (report, started) = channel();
        let (end, ended) = channel::<()>();
        let deadline_ms = deadline.as_millis().to_string();
        // The kernel ends a process with the thread that started it, so this thread stays until the process has ended.
        let stay = move || {
            let args = [rank.to_string(), ranks.to_string(), deadline_ms];
            match spawn(theirs, sender, args) {
                Ok(child) => {
                    let _ = report.send(Ok(child.id())); // it is waited for
                    // A rank ends without a failure when rank 0 has ended.
                    let failure = watch(child, rank, &heartbeats);
                    if let Some(how) = failure.filter(|_| !is_closing.load(Ordering::SeqCst)) {
                        let _ = death.set(how); // the first is the cause
                    }
                }
                Err(error) => drop(report.send(Err(error))),
            }
            drop(end);
        };
        let watcher = thread::Builder::new().name(format!("rank-{rank}")).spawn(stay);
        let watcher = watcher.map_err(|error| Error::Thread(error.to_string()))?;
        let pid = started.recv().map_err(io::Error::other).and_then(|pid| pid).map_err(failed)?;
        Ok((Self { pid, watcher: Some(watcher), ended, closing }, ours))
    }

    /// Marks its end as expected from here on.
    pub(crate) fn close(&self) {
        self.closing.store(true, Ordering::SeqCst);
    }
}

impl Drop for RankProcess {
    fn drop(&mut self) {
        self.close();
        if self.ended.recv_timeout(STOP_PATIENCE) == Err(RecvTimeoutError::Timeout)
            && let Some(pid) = Pid::from_raw(self.pid.cast_signed())
        {
            // The process is not waited for yet, so the system has not given its id to another.
            let _ = kill_process(pid, Signal::KILL);
        }
        if let Some(watcher) = self.watcher.take() {
            let _ = watcher.join(); // it does not panic
        }
    }
}

fn spawn(link: UnixStream, heartbeats: UnixStream, args: [String; 3]) -> io::Result<Child> {
    Command::new(OWN_BINARY)
        .arg0("candlepower")
        .arg(RANK_COMMAND)
        .arg(std::process::id().to_string())
        .args(args)
        .stdin(OwnedFd::from(link))
        .stdout(OwnedFd::from(heartbeats))
        .stderr(Stdio::piped())
        // Ctrl-C in a terminal must reach rank 0 alone, which lets running requests end first.
        .process_group(0)
        .spawn()
}

/// Forwards the log of a rank until it has ended, and returns how it failed, if it did. A rank without heartbeats is killed.
fn watch(mut child: Child, rank: usize, heartbeats: &UnixStream) -> Option<String> {
    let log = child.stderr.take().expect("it is piped");
    let (ended, last) = thread::scope(|scope| {
        let listener = thread::Builder::new().name(format!("rank-{rank}-log"));
        let last = listener.spawn_scoped(scope, move || forward_log(log, rank));
        let ended = match &last {
            Err(error) => Some(format!("cannot be watched: {error}")),
            Ok(_) => falls_silent(heartbeats).then(|| {
                let after = SILENCE.as_secs();
                format!("is stopped or stuck: nothing was heard of it for {after} s")
            }),
        };
        if ended.is_some() {
            let _ = child.kill(); // it may have ended just now
        }
        let last = last.map(|last| last.join().unwrap_or_default()); // it does not panic
        (ended, last.unwrap_or_default())
    });
    let how = match (ended, child.wait()) {
        (Some(ended), _) => ended,
        (None, Ok(status)) if status.success() => return None,
        (None, Ok(status)) => describe(status),
        (None, Err(error)) => format!("has ended, nobody knows how ({error})"),
    };
    let last: Vec<String> = last.into();
    Some(match last.is_empty() {
        true => format!("rank {rank} {how}"),
        false => format!("rank {rank} {how}: {}", last.join(" / ")),
    })
}

/// Forwards the lines of a rank's log, and returns the last of them.
fn forward_log(log: ChildStderr, rank: usize) -> VecDeque<String> {
    let mut last: VecDeque<String> = VecDeque::new();
    for line in BufReader::new(log).split(b'\n').map_while(io::Result::ok) {
        let line = String::from_utf8_lossy(&line).into_owned();
        tracing::warn!("rank {rank}: {line}");
        last.push_back(line);
        if last.len() > LAST_LINES {
            last.pop_front();
        }
    }
    last
}

/// Reads a rank's heartbeats until the rank has ended (false), or until none came for too long (true).
fn falls_silent(mut heartbeats: &UnixStream) -> bool {
    if heartbeats.set_read_timeout(Some(SILENCE)).is_err() {
        return false;
    }
    let mut bytes = [0; 64];
    loop {
        match heartbeats.read(&mut bytes) {
            Ok(0) => return false,
            Ok(_) => {}
            // This process was stopped itself. Heartbeats that were sent meanwhile are in the socket.
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => {
                return matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut);
            }
        }
    }
}

/// Sends heartbeats as long as this rank runs and rank 0 reads them.
fn send_heartbeats() -> io::Result<()> {
    let mut socket = UnixStream::from(io::stdout().as_fd().try_clone_to_owned()?);
    let beat = move || {
        while socket.write_all(&[1]).is_ok() {
            thread::sleep(HEARTBEAT);
        }
    };
    thread::Builder::new().name("pulse".into()).spawn(beat).map(drop)
}

fn describe(status: ExitStatus) -> String {
    match (status.signal(), status.code()) {
        (Some(9), _) => "was killed (SIGKILL)".to_owned(),
        (Some(signal), _) => format!("was ended by signal {signal}"),
        (None, Some(code)) => format!("ended with status {code}"),
        (None, None) => "ended".to_owned(),
    }
}

/// Becomes a rank that the kernel kills when its parent ends. The arguments after the hidden command are the parent's process id, the
/// rank's number, the number of ranks, and the time that it waits for rank 0 within a step, in milliseconds.
pub fn run_rank(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    let numbers: Option<Vec<u64>> =
        args.into_iter().map(|arg| arg.to_str()?.parse().ok()).collect();
    let Some(&[parent, rank, ranks, deadline_ms]) = numbers.as_deref() else {
        return ExitCode::FAILURE;
    };
    let bound = set_parent_process_death_signal(Some(Signal::KILL));
    // The parent may have ended before the call.
    if bound.is_err() || parent != u64::from(parent_id()) {
        return ExitCode::FAILURE;
    }
    let link = match send_heartbeats().and_then(|()| io::stdin().as_fd().try_clone_to_owned()) {
        Ok(link) => UnixStream::from(link),
        Err(error) => {
            print_error(format_args!("there are no sockets to rank 0: {error}"));
            return ExitCode::FAILURE;
        }
    };
    let deadline = Duration::from_millis(deadline_ms);
    let comm = Arc::new(Comm::leaf(rank as usize, ranks as usize, link, deadline));
    let setup = match comm.next_message() {
        Ok(Some(setup)) => decode::<Setup>(&setup),
        // Rank 0 has ended.
        Ok(None) => return ExitCode::SUCCESS,
        Err(error) => Err(error.into()),
    };
    match setup.and_then(|setup| run(comm, setup.config(rank as usize)?)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            print_error(error);
            ExitCode::FAILURE
        }
    }
}
