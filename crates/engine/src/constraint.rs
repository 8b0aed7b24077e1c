//! Work on constraints, on threads beside the steps: it finds what a sampled token leads to, and what may follow it.
//!
//! A sequence sits out the steps until its work is done. So a constraint that takes long delays nobody else for long.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use candlepower_grammar::{Error, Grammar, Mask, Result};
use candlepower_kernels::sampling::SampledRow;
use candlepower_scheduler::SeqId;
use rayon::ThreadPool;

/// How long a step of a server waits for work, from the work's beginning.
pub const MASK_PATIENCE: Duration = Duration::from_millis(50);

/// The demands on a sequence's output, and the tokens that they allow next.
#[derive(Clone)]
pub(crate) struct Constraint {
    grammar: Grammar,
    /// The only tokens that the request allows at all.
    among: Option<Mask>,
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

/// A sampled token that a constraint is to take.
pub(crate) struct SampledToken {
    /// Its sequence.
    pub(crate) id: SeqId,
    pub(crate) sampled: SampledRow,
    pub(crate) token_id: u32,
    pub(crate) room: Room,
}

/// Work that is done.
pub(crate) struct Done {
    pub(crate) id: SeqId,
    /// The token that it was about.
    pub(crate) sampled: SampledRow,
    /// The token's consequences, if the constraint allows it.
    pub(crate) taken: Option<Taken>,
    /// The new state.
    pub(crate) constraint: Result<Constraint>,
    pub(crate) seconds: f64,
    number: u64,
}

/// Work that goes on.
pub(crate) struct ConstraintWork {
    /// When each began, the oldest first.
    running: BTreeMap<u64, Instant>,
    next_number: u64,
    sender: Sender<Done>,
    done: Receiver<Done>,
    /// Work that is done and was not handed out yet.
    finished: Vec<Done>,
    /// How long a step waits for work, from the work's beginning.
    patience: Duration,
}

impl Constraint {
    /// The constraint of a request that takes no other tokens than those `among`. The grammar's first mask is known since it was
    /// compiled.
    pub(crate) fn new(grammar: Grammar, among: Option<Mask>) -> Result<Self> {
        Self { grammar, among, mask: None }.with_mask()
    }

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
        let allowed = self.grammar.allowed()?;
        self.mask = Some(match &self.among {
            None => allowed,
            Some(among) => Some(allowed.and(among))
                .filter(|mask| !mask.is_empty())
                .ok_or(Error::NoneAllowed)?,
        });
        Ok(self)
    }
}

impl ConstraintWork {
    pub(crate) fn new(patience: Duration) -> Self {
        let (sender, done) = channel();
        let (running, finished) = (BTreeMap::new(), Vec::new());
        Self { running, next_number: 0, sender, done, finished, patience }
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.running.is_empty() && self.finished.is_empty()
    }

    /// Finds what the sampled token of a sequence leads to.
    pub(crate) fn go_on(
        &mut self,
        pool: &ThreadPool,
        mut constraint: Constraint,
        token: SampledToken,
    ) {
        let SampledToken { id, sampled, token_id, room } = token;
        self.start(pool, id, sampled, move || {
            let mut taken = None;
            let constraint = followed(|| {
                let found = taken.insert(constraint.take(token_id, room)?);
                match found.is_finished || found.forced.len() >= room.all {
                    true => Ok(constraint),
                    false => constraint.with_mask(),
                }
            });
            (taken, constraint)
        });
    }

    fn start(
        &mut self,
        pool: &ThreadPool,
        id: SeqId,
        sampled: SampledRow,
        work: impl FnOnce() -> (Option<Taken>, Result<Constraint>) + Send + 'static,
    ) {
        let (number, began, sender) = (self.next_number, Instant::now(), self.sender.clone());
        self.next_number += 1;
        self.running.insert(number, began);
        pool.spawn(move || {
            let (taken, constraint) = work();
            let seconds = began.elapsed().as_secs_f64();
            // The engine may have ended meanwhile.
            let _ = sender.send(Done { id, sampled, taken, constraint, seconds, number });
        });
    }

    /// Hands out the work that is done. Work that began a moment ago is waited for.
    pub(crate) fn finished(&mut self) -> Vec<Done> {
        while let Some((_, youngest)) = self.running.last_key_value() {
            let patience = self.patience.saturating_sub(youngest.elapsed());
            if !self.receive(patience) {
                break;
            }
        }
        std::mem::take(&mut self.finished)
    }

    /// Waits a moment for some work, where there is nothing else to do.
    pub(crate) fn wait(&mut self) {
        self.receive(MASK_PATIENCE);
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

    fn start(
        work: &mut ConstraintWork,
        pool: &ThreadPool,
        id: u64,
        until: impl FnOnce() + Send + 'static,
    ) {
        let sampled = SampledRow { token_id: None, logprobs: None };
        work.start(pool, SeqId(id), sampled, || {
            until();
            (None, Err(Error::EmptyChoice))
        });
    }

    fn ids(finished: &[Done]) -> Vec<u64> {
        finished.iter().map(|done| done.id.0).collect()
    }

    #[test]
    fn work_that_takes_long_is_waited_for_once() {
        let pool = ThreadPoolBuilder::new().num_threads(2).build().unwrap();
        let mut work = ConstraintWork::new(MASK_PATIENCE);
        let (end, ended) = channel::<()>();
        start(&mut work, &pool, 1, move || {
            let _ = ended.recv(); // it ends when the test says so
        });
        let began = Instant::now();
        assert!(work.finished().is_empty());
        assert!(began.elapsed() >= MASK_PATIENCE, "it was not waited for");
        start(&mut work, &pool, 2, || ());
        assert_eq!(ids(&work.finished()), [2], "others are handed out meanwhile");
        let began = Instant::now();
        assert!(work.finished().is_empty() && !work.is_idle());
        assert!(began.elapsed() < MASK_PATIENCE, "it was waited for again");
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
