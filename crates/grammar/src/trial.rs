//! Trial compilation of constraints in child processes. Compiling a too large one takes minutes, uses all memory, or overflows
//! the stack, and the library cannot be stopped in any of these cases. A stack overflow would even end the server, because it
//! is not a panic that could be caught. A child can be killed, so the server compiles only what a child has compiled before.
//!
//! A child is this program, started again with [`TRIAL_COMMAND`] and a socket as its standard input. It loads the vocabulary,
//! waits for constraints, and ends when the socket is closed.

mod child;
mod link;

use std::io::ErrorKind;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

pub use child::run_trials;
use serde::{Deserialize, Serialize};

use crate::{CompileLimits, Constraint, Error, Result};

/// The binary's hidden command for trial compilation.
pub const TRIAL_COMMAND: &str = "__try_constraints";
/// A child that needed more than this for one constraint is not used again: when it reuses memory, no growth can be measured.
const MAX_KEPT_BYTES: usize = 8 << 20;
/// Maximum idle children.
const MAX_IDLE: usize = 2;
/// The interval at which cancellation is checked.
const POLL: Duration = Duration::from_millis(10);
/// Maximum wait for a child. Its own limit counts CPU time, of which it may get little.
const PATIENCE: Duration = Duration::from_secs(10);
/// The size of the stack in a child.
const CHILD_STACK_BYTES: usize = 64 << 20;
/// The size of the stack in the server. It is larger, because the order in which the library enters schemas varies.
pub(crate) const STACK_BYTES: usize = 4 * CHILD_STACK_BYTES;

/// A request to a child.
#[derive(Serialize, Deserialize)]
struct Question<C> {
    constraint: C,
    time_ms: u64,
    memory_bytes: usize,
    stack_bytes: usize,
}

/// The child's answer.
#[derive(Serialize, Deserialize, Debug)]
enum Answer {
    /// The vocabulary is loaded.
    Ready,
    /// It compiled, and memory grew by this number of bytes.
    Compiled {
        bytes: usize,
    },
    /// It cannot be enforced, for this reason.
    Refused(String),
    TooLong,
    TooLarge,
}

/// The children for one vocabulary.
pub(crate) struct Trials {
    program: fn() -> Command,
    vocabulary: Vec<u8>,
    limits: CompileLimits,
    idle: Mutex<Vec<Worker>>,
}

impl Trials {
    /// Starts the first child in the background.
    pub(crate) fn new(
        program: fn() -> Command,
        vocabulary: Vec<u8>,
        limits: CompileLimits,
    ) -> Arc<Self> {
        let trials = Arc::new(Self { program, vocabulary, limits, idle: Mutex::default() });
        trials.start_one();
        trials
    }

    /// Compiles a constraint in a child and returns its size in bytes.
    ///
    /// # Errors
    /// [`Error::Constraint`] with the keyword or the limit, [`Error::Cancelled`], [`Error::Trial`].
    pub(crate) fn run(
        self: &Arc<Self>,
        constraint: &Constraint,
        cancelled: &AtomicBool,
    ) -> Result<usize> {
        let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let mut worker = idle.map_or_else(|| self.start(), Ok)?;
        let question = Question {
            constraint,
            time_ms: self.limits.time.as_millis() as u64,
            memory_bytes: self.limits.memory_bytes,
            stack_bytes: CHILD_STACK_BYTES,
        };
        let answer = worker.ask(&question, cancelled);
        match answer {
            Ok(Some(Answer::Compiled { bytes })) if bytes < MAX_KEPT_BYTES => self.keep(worker),
            Ok(Some(Answer::Refused(_))) => self.keep(worker),
            _ => {
                drop(worker);
                self.start_one();
            }
        }
        match answer? {
            Some(Answer::Compiled { bytes }) => Ok(bytes),
            Some(Answer::Refused(reason)) => Err(Error::Constraint(reason)),
            Some(Answer::TooLong) => Err(self.limits.too_long()),
            // A child that has ended ran out of memory or stack.
            None | Some(Answer::TooLarge) => Err(self.limits.too_large()),
            Some(Answer::Ready) => {
                Err(Error::Trial("a child process sent an unexpected answer".to_owned()))
            }
        }
    }

    fn keep(&self, worker: Worker) {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        if idle.len() < MAX_IDLE {
            idle.push(worker);
        }
    }

    /// Starts a child for the next constraint, if none is idle.
    fn start_one(self: &Arc<Self>) {
        let trials = Arc::clone(self);
        let start = move || {
            let is_needed = trials.idle.lock().unwrap_or_else(PoisonError::into_inner).is_empty();
            // After a failure, the next constraint starts a child, and returns the error.
            if is_needed && let Ok(worker) = trials.start() {
                trials.keep(worker);
            }
        };
        // A child takes tenths of a second to load a large vocabulary, for which no request should wait.
        let _ = std::thread::Builder::new().name("start-trial".to_owned()).spawn(start);
    }

    fn start(&self) -> Result<Worker> {
        let failed = |error: std::io::Error| {
            Error::Trial(format!("cannot start the child process: {error}"))
        };
        let (ours, theirs) = UnixStream::pair().map_err(failed)?;
        let mut command = (self.program)();
        // The child's panics and overflows are answers here, so its messages must not reach the server's log.
        command.stdin(OwnedFd::from(theirs)).stdout(Stdio::null()).stderr(Stdio::null());
        let child = command.spawn().map_err(failed)?;
        // From here on, only the child has the other end open.
        drop(command);
        let mut worker = Worker { child, link: ours };
        worker.link.set_write_timeout(Some(PATIENCE)).map_err(failed)?;
        worker.link.set_read_timeout(Some(POLL)).map_err(failed)?;
        link::write(&mut worker.link, &self.vocabulary).map_err(failed)?;
        match worker.answer(&AtomicBool::new(false))? {
            Some(Answer::Ready) => Ok(worker),
            _ => Err(failed(ErrorKind::UnexpectedEof.into())),
        }
    }
}

/// A child, which is killed on drop.
struct Worker {
    child: Child,
    link: UnixStream,
}

impl Worker {
    /// Sends a constraint and waits for the answer; `None` if the child has ended.
    fn ask(
        &mut self,
        question: &Question<&Constraint>,
        cancelled: &AtomicBool,
    ) -> Result<Option<Answer>> {
        let question =
            serde_json::to_vec(question).map_err(|error| Error::Trial(error.to_string()))?;
        // If the child has ended, reading the answer finds out.
        let _ = link::write(&mut self.link, &question);
        self.answer(cancelled)
    }

    fn answer(&mut self, cancelled: &AtomicBool) -> Result<Option<Answer>> {
        let began = Instant::now();
        let mut frame = link::Frame::default();
        loop {
            match frame.read(&mut self.link) {
                Ok(true) => {
                    let answer = serde_json::from_slice(frame.bytes());
                    return answer.map(Some).map_err(|error| Error::Trial(error.to_string()));
                }
                Ok(false) => return Ok(None),
                Err(error)
                    if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => return Ok(None),
            }
            if cancelled.load(Ordering::Relaxed) || began.elapsed() > PATIENCE {
                return Err(Error::Cancelled);
            }
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // The child may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
