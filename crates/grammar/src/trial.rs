//! Trials of constraints in child processes: compiling one that is too large takes minutes, all memory, or overflows the stack, and the
//! library can be stopped in none of these. A child can be killed, so only a constraint that it has compiled is compiled here.
//!
//! A child is this program, started again with [`TRIAL_COMMAND`], which has a socket as its standard input. It waits for constraints with
//! the vocabulary loaded, and ends when the socket is closed.

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

/// The hidden command of the binary that tries constraints.
pub const TRIAL_COMMAND: &str = "__try_constraints";
/// A child that needed more than this for one constraint is not used again: memory that it uses again is not seen to grow.
const MAX_KEPT_BYTES: usize = 8 << 20;
/// Children that wait for constraints.
const MAX_IDLE: usize = 2;
/// How often it is looked whether the request is gone.
const POLL: Duration = Duration::from_millis(10);
/// Longest wait for a child. Its own limit counts processor time, which it may get little of.
const PATIENCE: Duration = Duration::from_secs(10);
/// The stack that a child compiles with.
const CHILD_STACK_BYTES: usize = 64 << 20;
/// The stack for compiling what a child has compiled: the order in which the library enters schemas varies.
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
    /// It was compiled, and memory has grown by so many bytes.
    Compiled {
        bytes: usize,
    },
    /// It cannot be held, for this reason.
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

    /// Compiles a constraint in a child; the bytes that it takes.
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
            // A child that has ended had no memory left, or no stack.
            None | Some(Answer::TooLarge) => Err(self.limits.too_large()),
            Some(Answer::Ready) => Err(Error::Trial("a child is ready twice".to_owned())),
        }
    }

    fn keep(&self, worker: Worker) {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        if idle.len() < MAX_IDLE {
            idle.push(worker);
        }
    }

    /// Starts a child for the next constraint, if none is left.
    fn start_one(self: &Arc<Self>) {
        let trials = Arc::clone(self);
        let start = move || {
            let is_needed = trials.idle.lock().unwrap_or_else(PoisonError::into_inner).is_empty();
            // One that cannot be started now is started, and its error told, when it is needed.
            if is_needed && let Ok(worker) = trials.start() {
                trials.keep(worker);
            }
        };
        let _ = std::thread::Builder::new().name("start-trial".to_owned()).spawn(start);
    }

    fn start(&self) -> Result<Worker> {
        let failed = |error: std::io::Error| {
            Error::Trial(format!("the child process that tries constraints: {error}"))
        };
        let (ours, theirs) = UnixStream::pair().map_err(failed)?;
        let mut command = (self.program)();
        command.stdin(OwnedFd::from(theirs)).stdout(Stdio::null()).stderr(Stdio::null());
        let child = command.spawn().map_err(failed)?;
        // The child alone keeps the other end open from here on.
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

/// A child. Dropping kills it.
struct Worker {
    child: Child,
    link: UnixStream,
}

impl Worker {
    /// Asks about a constraint; `None` if the child has ended.
    fn ask(
        &mut self,
        question: &Question<&Constraint>,
        cancelled: &AtomicBool,
    ) -> Result<Option<Answer>> {
        let question =
            serde_json::to_vec(question).map_err(|error| Error::Trial(error.to_string()))?;
        // A child that has ended answers nothing, which is found below.
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
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
