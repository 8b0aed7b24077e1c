//! Work on constraints, on threads beside the steps: it finds what a sampled token leads to, and what may follow it.
//!
//! A sequence sits out the steps until its work is done. So a constraint that takes long delays nobody else for long.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use candlepower_grammar::{Error, Grammar, Mask, Result};
use candlepower_kernels::sampling::SampledRow;
use candlepower_scheduler::SeqId;
use rayon::ThreadPool;

use crate::engine::Submission;

/// How long a step waits for work, from the work's beginning.
const PATIENCE: Duration = Duration::from_millis(50);

/// The demands on a sequence's output, and the tokens that they allow next.
#[derive(Clone)]
pub(crate) struct Constraint {
    grammar: Grammar,
    /// The tokens that may be sampled next; `None` where nothing is.
    pub(crate) mask: Option<Mask>,
}

/// The consequences of a sampled token.
#[derive(Default)]
pub(crate) struct Taken {
    /// The tokens that must follow it.
    pub(crate) forced: Vec<u32>,
    /// Whether nothing may follow these.
    pub(crate) is_finished: bool,
}

/// Tokens that may follow a sampled one.
#[derive(Clone, Copy)]
pub(crate) struct Room {
    /// Those that may be appended, because they must follow.
    pub(crate) forced: usize,
    /// All.
    pub(crate) all: usize,
}

/// Whom work is for.
pub(crate) enum Owner {
    /// A request that waits for its first mask.
    Submission(Box<Submission>),
    /// A sequence with a new token.
    Sequence {
        id: SeqId,
        sampled: SampledRow,
        /// The token's consequences, if the constraint allows it.
        taken: Option<Taken>,
    },
}

/// Work that is done.
pub(crate) struct Done {
    pub(crate) owner: Owner,
    /// The new state.
    pub(crate) constraint: Result<Constraint>,
    pub(crate) seconds: f64,
    number: u64,
}

/// Work that goes on.
pub(crate) struct ConstraintWork {
    /// When each began.
    running: HashMap<u64, Instant>,
    next_number: u64,
    sender: Sender<Done>,
    done: Receiver<Done>,
    /// Work that is done and was not handed out yet.
    finished: Vec<Done>,
}

impl Constraint {
    /// Takes the sampled token, and those that must follow it, as far as there is room. They are the ones that would
    /// be sampled, as nothing else is allowed.
    fn take(&mut self, token_id: u32, room: Room) -> Result<Taken> {
        self.mask = None;
        self.grammar.accept(token_id)?;
        let mut forced = Vec::new();
        while forced.len() < room.forced
            && let Some(token_id) = self.grammar.forced_token()
        {
            self.grammar.accept(token_id)?;
            forced.push(token_id);
        }
        Ok(Taken { forced, is_finished: self.grammar.is_finished() })
    }

    /// Finds what may follow. Takes some milliseconds where a constraint is complex.
    fn with_mask(mut self) -> Result<Self> {
        self.mask = Some(self.grammar.allowed()?);
        Ok(self)
    }
}

impl ConstraintWork {
    pub(crate) fn new() -> Self {
        let (sender, done) = channel();
        Self { running: HashMap::new(), next_number: 0, sender, done, finished: Vec::new() }
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.running.is_empty() && self.finished.is_empty()
    }

    /// Finds what a request's texts may begin with.
    pub(crate) fn begin(&mut self, pool: &ThreadPool, submission: Submission, grammar: Grammar) {
        self.start(pool, move || {
            let constraint = followed(|| Constraint { grammar, mask: None }.with_mask());
            (Owner::Submission(Box::new(submission)), constraint)
        });
    }

    /// Finds what the sampled token of a sequence leads to.
    pub(crate) fn go_on(
        &mut self,
        pool: &ThreadPool,
        (id, sampled): (SeqId, SampledRow),
        (mut constraint, token_id, room): (Constraint, u32, Room),
    ) {
        self.start(pool, move || {
            let mut taken = None;
            let constraint = followed(|| {
                let found = taken.insert(constraint.take(token_id, room)?);
                match found.is_finished || found.forced.len() >= room.all {
                    true => Ok(constraint),
                    false => constraint.with_mask(),
                }
            });
            (Owner::Sequence { id, sampled, taken }, constraint)
        });
    }

    fn start(
        &mut self,
        pool: &ThreadPool,
        work: impl FnOnce() -> (Owner, Result<Constraint>) + Send + 'static,
    ) {
        let (number, began, sender) = (self.next_number, Instant::now(), self.sender.clone());
        self.next_number += 1;
        self.running.insert(number, began);
        pool.spawn(move || {
            let (owner, constraint) = work();
            let seconds = began.elapsed().as_secs_f64();
            // The engine may have ended meanwhile.
            let _ = sender.send(Done { owner, constraint, seconds, number });
        });
    }

    /// Hands out the work that is done. Work that began a moment ago is waited for.
    pub(crate) fn finished(&mut self) -> Vec<Done> {
        while let Some(youngest) = self.running.values().max() {
            let patience = PATIENCE.saturating_sub(youngest.elapsed());
            if !self.receive(patience) {
                break;
            }
        }
        std::mem::take(&mut self.finished)
    }

    /// Waits a moment for some work, where there is nothing else to do.
    pub(crate) fn wait(&mut self) {
        self.receive(PATIENCE);
    }

    fn receive(&mut self, patience: Duration) -> bool {
        let Ok(done) = self.done.recv_timeout(patience) else { return false };
        self.running.remove(&done.number);
        self.finished.push(done);
        true
    }
}

/// The outcome of work on a grammar. A panic in the library ends nothing else.
fn followed(work: impl FnOnce() -> Result<Constraint>) -> Result<Constraint> {
    catch_unwind(AssertUnwindSafe(work))
        .unwrap_or_else(|_| Err(Error::State("it cannot be followed".to_owned())))
}

#[cfg(test)]
mod tests {
    use rayon::ThreadPoolBuilder;

    use super::*;

    fn failed(id: u64) -> (Owner, Result<Constraint>) {
        let sampled = SampledRow { token_id: None, logprobs: None };
        let owner = Owner::Sequence { id: SeqId(id), sampled, taken: None };
        (owner, Err(Error::EmptyChoice))
    }

    fn ids(finished: &[Done]) -> Vec<u64> {
        let id = |done: &Done| match &done.owner {
            Owner::Sequence { id, .. } => Some(id.0),
            Owner::Submission(_) => None,
        };
        finished.iter().filter_map(id).collect()
    }

    #[test]
    fn work_that_takes_long_is_waited_for_once() {
        let pool = ThreadPoolBuilder::new().num_threads(2).build().unwrap();
        let mut work = ConstraintWork::new();
        let (end, ended) = channel::<()>();
        work.start(&pool, move || {
            let _ = ended.recv(); // until the test says so
            failed(1)
        });
        let began = Instant::now();
        assert!(work.finished().is_empty());
        assert!(began.elapsed() >= PATIENCE, "it was not waited for");
        work.start(&pool, || failed(2));
        assert_eq!(ids(&work.finished()), [2], "others are handed out meanwhile");
        let began = Instant::now();
        assert!(work.finished().is_empty() && !work.is_idle());
        assert!(began.elapsed() < PATIENCE, "it was waited for again");
        drop(end);
        while work.finished.is_empty() {
            work.wait();
        }
        assert!(!work.is_idle(), "it is not handed out yet");
        assert_eq!(ids(&work.finished()), [1]);
        assert!(work.is_idle());
    }

    #[test]
    fn a_panic_in_the_library_fails_the_constraint_alone() {
        let outcome = followed(|| panic!("of the library"));
        assert!(matches!(outcome, Err(Error::State(reason)) if !reason.contains("library")));
    }
}
