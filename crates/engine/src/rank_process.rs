//! A rank as a process: this binary started again, which has the socket to rank 0 as its standard input.

use std::{
    collections::VecDeque,
    ffi::OsString,
    io::{self, BufRead, BufReader},
    os::{
        fd::{AsFd, OwnedFd},
        unix::{
            net::UnixStream,
            process::{CommandExt, ExitStatusExt, parent_id},
        },
    },
    process::{Child, Command, ExitCode, ExitStatus, Stdio},
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering},
        mpsc::{Receiver, RecvTimeoutError, channel},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use candlepower_comm::Comm;
use rustix::process::{Pid, Signal, kill_process, set_parent_process_death_signal};

use crate::{
    Error, Result,
    follower::{Setup, decode, run},
};

/// The hidden command of the binary that becomes a rank: `__rank PARENT RANK RANKS DEADLINE_MS`.
pub const RANK_COMMAND: &str = "__rank";
/// This binary, also after it was replaced by a newer one.
const OWN_BINARY: &str = "/proc/self/exe";
/// How long a rank has to end by itself when rank 0 has.
const STOP_PATIENCE: Duration = Duration::from_secs(2);
/// Lines that are told of a rank that has died.
const LAST_LINES: usize = 3;

/// Why ranks are not there any more, once one of them is not: told by whoever watches it.
pub(crate) type Death = Arc<OnceLock<String>>;

/// A rank's process. Dropping waits for it, and ends it where it does not end by itself.
pub(crate) struct RankProcess {
    pid: u32,
    watcher: Option<JoinHandle<()>>,
    ended: Receiver<()>,
    closing: Arc<AtomicBool>,
}

impl RankProcess {
    /// Starts rank `rank` of `ranks`. Returns the socket to it. An end that nobody asked for is told to `death`.
    pub(crate) fn start(
        (rank, ranks): (usize, usize),
        deadline: Duration,
        death: Death,
    ) -> Result<(Self, UnixStream)> {
        let failed = |source| Error::RankStart { rank, source };
        let (ours, theirs) = UnixStream::pair().map_err(failed)?;
        let closing = Arc::new(AtomicBool::new(false));
        let is_closing = Arc::clone(&closing);
        let (told, started) = channel();
        let (end, ended) = channel::<()>();
        let deadline_ms = deadline.as_millis().to_string();
        // A process dies with the thread that started it: this one stays until the end.
        let stay = move || {
            match spawn(theirs, [rank.to_string(), ranks.to_string(), deadline_ms]) {
                Ok(child) => {
                    let _ = told.send(Ok(child.id())); // it is waited for
                    // A rank ends without a failure when rank 0 has ended.
                    let failure = watch(child, rank);
                    if let Some(how) = failure.filter(|_| !is_closing.load(Ordering::SeqCst)) {
                        let _ = death.set(how); // the first is the cause
                    }
                }
                Err(error) => drop(told.send(Err(error))),
            }
            drop(end);
        };
        let watcher = thread::Builder::new().name(format!("rank-{rank}")).spawn(stay);
        let watcher = watcher.map_err(|error| Error::Thread(error.to_string()))?;
        let pid = started.recv().map_err(io::Error::other).and_then(|pid| pid).map_err(failed)?;
        Ok((Self { pid, watcher: Some(watcher), ended, closing }, ours))
    }

    /// Says that its end is not a failure from here on.
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
            // Nobody has waited for it, so the number is its own.
            let _ = kill_process(pid, Signal::KILL);
        }
        if let Some(watcher) = self.watcher.take() {
            let _ = watcher.join(); // it does not panic
        }
    }
}

fn spawn(link: UnixStream, numbers: [String; 3]) -> io::Result<Child> {
    Command::new(OWN_BINARY)
        .arg0("candlepower")
        .arg(RANK_COMMAND)
        .arg(std::process::id().to_string())
        .args(numbers)
        .stdin(OwnedFd::from(link))
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        // A terminal's Ctrl-C is for rank 0, which lets running requests end first.
        .process_group(0)
        .spawn()
}

/// Passes on what a rank says until it has ended, and tells how it failed, if it did.
fn watch(mut child: Child, rank: usize) -> Option<String> {
    let mut last: VecDeque<String> = VecDeque::new();
    let said = child.stderr.take().expect("it is piped");
    for line in BufReader::new(said).split(b'\n').map_while(io::Result::ok) {
        let line = String::from_utf8_lossy(&line).into_owned();
        tracing::warn!("rank {rank}: {line}");
        last.push_back(line);
        if last.len() > LAST_LINES {
            last.pop_front();
        }
    }
    let how = match child.wait() {
        Ok(status) if status.success() => return None,
        Ok(status) => describe(status),
        Err(error) => format!("has ended, nobody knows how ({error})"),
    };
    let said: Vec<String> = last.into();
    Some(match said.is_empty() {
        true => format!("rank {rank} {how}"),
        false => format!("rank {rank} {how}: {}", said.join(" / ")),
    })
}

fn describe(status: ExitStatus) -> String {
    match (status.signal(), status.code()) {
        (Some(9), _) => "was killed (SIGKILL)".to_owned(),
        (Some(signal), _) => format!("was ended by signal {signal}"),
        (None, Some(code)) => format!("ended with status {code}"),
        (None, None) => "ended".to_owned(),
    }
}

/// Becomes a rank that the kernel kills when its parent ends: what follows the hidden command is the parent's number, which
/// rank this is, of how many, and how long it waits for rank 0 within a step, in milliseconds.
pub fn run_rank(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    let numbers: Option<Vec<u64>> =
        args.into_iter().map(|arg| arg.to_str()?.parse().ok()).collect();
    let Some(&[parent, rank, ranks, deadline_ms]) = numbers.as_deref() else {
        return ExitCode::FAILURE;
    };
    let bound = set_parent_process_death_signal(Some(Signal::KILL));
    // It may have ended before the kernel was told.
    if bound.is_err() || parent != u64::from(parent_id()) {
        return ExitCode::FAILURE;
    }
    let link = match io::stdin().as_fd().try_clone_to_owned() {
        Ok(link) => UnixStream::from(link),
        Err(error) => {
            eprintln!("there is no socket to rank 0: {error}");
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
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}
