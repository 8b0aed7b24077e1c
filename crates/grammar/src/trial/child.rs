//! The child process: it compiles constraints and watches its time and memory.

use std::io::{self, ErrorKind};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use rustix::process::{Resource, Rlimit, getrlimit, setpriority_process, setrlimit};

use super::link::{self, Frame};
use super::{Answer, Question};
use crate::budget::process_time;
use crate::vocabulary::Words;
use crate::{Constraint, GrammarCompiler, Result};

/// The interval at which time and memory are checked.
const WATCH: Duration = Duration::from_millis(2);
/// A lower priority than the server's, because a trial must not delay tokens.
const NICENESS: i32 = 10;
/// Address space above the memory limit. A single large allocation may fail before the next check.
const SPARE_BYTES: u64 = 512 << 20;

/// Compiles constraints until the server closes the socket.
pub fn run_trials() -> ExitCode {
    match serve() {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

fn serve() -> io::Result<()> {
    let _ = setpriority_process(None, NICENESS); // it works as well without
    let none = Rlimit { current: Some(0), maximum: Some(0) };
    let _ = setrlimit(Resource::Core, none); // an overflow is expected here
    let mut link = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    let Some(vocabulary) = read(&mut link)? else { return Ok(()) };
    let words = Words::decode(&vocabulary).ok_or(ErrorKind::InvalidData)?;
    // It is a copy of the words, which would stay in memory as long as the child lives.
    drop(vocabulary);
    let compiler = Arc::new(GrammarCompiler::of_words(words).map_err(io::Error::other)?);
    answer(&mut link, &Answer::Ready)?;
    let mut is_first = true;
    while let Some(question) = read(&mut link)? {
        let question: Question<Constraint> = serde_json::from_slice(&question)?;
        if std::mem::take(&mut is_first) {
            // After the vocabulary is loaded, so that the limit counts from there. All questions of a server have the
            // same limits.
            limit_address_space(&question)?;
        }
        let answered = attempt(&compiler, question)?;
        answer(&mut link, &answered)?;
        if matches!(answered, Answer::TooLong | Answer::TooLarge) {
            // The thread cannot be stopped, so the server kills this process.
            break;
        }
    }
    Ok(())
}

fn read(link: &mut UnixStream) -> io::Result<Option<Vec<u8>>> {
    let mut frame = Frame::default();
    loop {
        match frame.read(link) {
            Ok(is_whole) => return Ok(is_whole.then(|| frame.bytes().to_vec())),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

fn answer(link: &mut UnixStream, answer: &Answer) -> io::Result<()> {
    link::write(link, &serde_json::to_vec(answer)?)
}

/// Compiles a constraint in a new thread. The thread goes on after a limit is exceeded.
fn attempt(compiler: &Arc<GrammarCompiler>, question: Question<Constraint>) -> io::Result<Answer> {
    let Question { constraint, time_ms, memory_bytes, stack_bytes } = question;
    // The time of the whole process: compilation runs in another thread, and nothing else runs here.
    let (began, before) = (process_time(), resident_bytes()?);
    let (done, compiled) = channel::<Result<()>>();
    let (measured, wait_until_measured) = channel::<()>();
    let compiler = Arc::clone(compiler);
    let compile = move || {
        let grammar = compiler.compile_here(&constraint, false);
        let outcome = grammar.as_ref().map(|_| ()).map_err(Clone::clone);
        let _ = done.send(outcome); // nobody listens once it took too long
        // The grammar is measured while it exists. It is dropped here, in a large stack, because a state may be as deep as its
        // constraint.
        let _ = wait_until_measured.recv();
        drop(grammar);
    };
    let mut thread = Some(std::thread::Builder::new().stack_size(stack_bytes).spawn(compile)?);
    let mut most = before;
    loop {
        let outcome = compiled.recv_timeout(WATCH);
        most = most.max(resident_bytes()?);
        if let Some(thread) = thread.take_if(|_| outcome.is_ok()) {
            let _ = measured.send(());
            // Its memory is free before that of the next constraint is measured.
            let _ = thread.join();
        }
        return Ok(match outcome {
            // The limits come before the outcome, so that a constraint beyond them is refused also if it finished in
            // the meantime.
            _ if most > before.saturating_add(memory_bytes) => Answer::TooLarge,
            _ if process_time().saturating_sub(began) > Duration::from_millis(time_ms) => {
                Answer::TooLong
            }
            Ok(Ok(())) => Answer::Compiled { bytes: most - before },
            Ok(Err(error)) => Answer::Refused(error.to_string()),
            Err(RecvTimeoutError::Timeout) => continue,
            Err(RecvTimeoutError::Disconnected) => return Err(ErrorKind::Other.into()),
        });
    }
}

/// Resident memory from `/proc/self/statm`.
fn resident_bytes() -> io::Result<usize> {
    pages(1)
}

/// A field of `statm`, in bytes.
fn pages(field: usize) -> io::Result<usize> {
    let statm = std::fs::read_to_string("/proc/self/statm")?;
    let pages = statm.split_ascii_whitespace().nth(field).and_then(|pages| pages.parse().ok());
    let pages: usize = pages.ok_or(ErrorKind::InvalidData)?;
    Ok(pages * rustix::param::page_size())
}

fn limit_address_space(question: &Question<Constraint>) -> io::Result<()> {
    let asked = question.memory_bytes.saturating_add(question.stack_bytes) as u64;
    let most = (pages(0)? as u64).saturating_add(asked).saturating_add(SPARE_BYTES);
    // An unprivileged process cannot raise its own maximum.
    let maximum = getrlimit(Resource::As).maximum;
    let most = maximum.map_or(most, |maximum| most.min(maximum));
    Ok(setrlimit(Resource::As, Rlimit { current: Some(most), maximum })?)
}
