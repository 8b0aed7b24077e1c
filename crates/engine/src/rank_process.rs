//! A rank as a process: this binary started again, which has the socket to rank 0 as its standard input. On its standard output it
//! lets itself be heard, so that one that is stopped is missed however long a step may take.

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
        Arc, OnceLock,
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
    follower::{Setup, decode, run},
};

/// The hidden command of the binary that becomes a rank: `__rank PARENT RANK RANKS DEADLINE_MS`.
pub const RANK_COMMAND: &str = "__rank";
/// This binary, also after it was replaced by a newer one.
const OWN_BINARY: &str = "/proc/self/exe";
/// How long a rank has to end by itself when rank 0 has.
const STOP_PATIENCE: Duration = Duration::from_secs(2);
/// How often a rank lets itself be heard.
const PULSE: Duration = Duration::from_millis(500);
/// After how long a rank of which nothing is heard is taken for stopped. The server exits two seconds later.
const SILENCE: Duration = Duration::from_secs(6);
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
        let (pulse, beats) = UnixStream::pair().map_err(failed)?;
        let closing = Arc::new(AtomicBool::new(false));
        let is_closing = Arc::clone(&closing);
        let (told, started) = channel();
        let (end, ended) = channel::<()>();
        let deadline_ms = deadline.as_millis().to_string();
        // A process dies with the thread that started it: this one stays until the end.
        let stay = move || {
            match spawn((theirs, beats), [rank.to_string(), ranks.to_string(), deadline_ms]) {
                Ok(child) => {
                    let _ = told.send(Ok(child.id())); // it is waited for
                    // A rank ends without a failure when rank 0 has ended.
                    let failure = watch(child, rank, &pulse);
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

fn spawn((link, beats): (UnixStream, UnixStream), numbers: [String; 3]) -> io::Result<Child> {
    Command::new(OWN_BINARY)
        .arg0("candlepower")
        .arg(RANK_COMMAND)
        .arg(std::process::id().to_string())
        .args(numbers)
        .stdin(OwnedFd::from(link))
        .stdout(OwnedFd::from(beats))
        .stderr(Stdio::piped())
        // A terminal's Ctrl-C is for rank 0, which lets running requests end first.
        .process_group(0)
        .spawn()
}

/// Passes on what a rank says until it has ended, and tells how it failed, if it did. One that falls silent is ended.
fn watch(mut child: Child, rank: usize, pulse: &UnixStream) -> Option<String> {
    let said = child.stderr.take().expect("it is piped");
    let (ended, last) = thread::scope(|scope| {
        let listener = thread::Builder::new().name(format!("rank-{rank}-log"));
        let last = listener.spawn_scoped(scope, move || pass_on(said, rank));
        let ended = match &last {
            Err(error) => Some(format!("cannot be watched: {error}")),
            Ok(_) => falls_silent(pulse).then(|| {
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
    let said: Vec<String> = last.into();
    Some(match said.is_empty() {
        true => format!("rank {rank} {how}"),
        false => format!("rank {rank} {how}: {}", said.join(" / ")),
    })
}

/// Passes on the lines of a rank, and returns the last of them.
fn pass_on(said: ChildStderr, rank: usize) -> VecDeque<String> {
    let mut last: VecDeque<String> = VecDeque::new();
    for line in BufReader::new(said).split(b'\n').map_while(io::Result::ok) {
        let line = String::from_utf8_lossy(&line).into_owned();
        tracing::warn!("rank {rank}: {line}");
        last.push_back(line);
        if last.len() > LAST_LINES {
            last.pop_front();
        }
    }
    last
}

/// Listens to a rank's pulse until the rank has ended; or until nothing was heard of it for too long, which is true.
fn falls_silent(mut pulse: &UnixStream) -> bool {
    if pulse.set_read_timeout(Some(SILENCE)).is_err() {
        return false;
    }
    let mut beats = [0; 64];
    loop {
        match pulse.read(&mut beats) {
            Ok(0) => return false,
            Ok(_) => {}
            // This process was stopped itself: what was sent meanwhile lies there.
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => {
                return matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut);
            }
        }
    }
}

/// Lets this rank be heard as long as it runs and rank 0 listens.
fn let_be_heard() -> io::Result<()> {
    let mut pulse = UnixStream::from(io::stdout().as_fd().try_clone_to_owned()?);
    let beat = move || {
        while pulse.write_all(&[1]).is_ok() {
            thread::sleep(PULSE);
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
    let link = match let_be_heard().and_then(|()| io::stdin().as_fd().try_clone_to_owned()) {
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
