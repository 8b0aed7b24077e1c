//! Every parser against files and texts with anything in them. It accepts its input, or refuses it in one line.
//! Nothing panics, hangs, overflows the stack, or takes memory and time out of proportion.
//!
//! Each target runs in a process of its own, so that one that ends is found, with the seed of the round that ended it.
//!
//! `cargo test` gives each target some rounds, the same ones in every run; `cargo xtask fuzz SECONDS [TARGET..]` goes on
//! with others for as long as it is told.

#![expect(clippy::print_stderr, clippy::unwrap_used, reason = "all of this is a test")]

mod change;
mod child;
mod targets;
mod watch;

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::time::{Duration, Instant};

pub use child::{ROUNDS_COMMAND, run, run_rounds};
use fastrand::Rng;
pub use targets::TARGETS;
use watch::Watch;

/// What a parser has said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It has understood.
    Accepted,
    /// It has refused, in these words.
    Refused(String),
}

/// One round against a parser, with the numbers that decide what it is given.
pub(crate) type Round = Box<dyn FnMut(&mut Rng) -> Verdict>;

/// A parser.
#[derive(Clone, Copy)]
pub struct Target {
    /// Its name.
    pub name: &'static str,
    /// Reads what is to be changed.
    open: fn() -> Round,
}

/// How long to go on.
#[derive(Clone, Copy, Debug)]
pub enum Budget {
    /// So many rounds.
    Rounds(u64),
    /// So long.
    Time(Duration),
}

/// How often a parser has said what.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Rounds in which it has understood.
    pub accepted: u64,
    /// Rounds in which it has refused.
    pub refused: u64,
}

impl Target {
    /// Runs rounds from `first_seed` on, in this process.
    ///
    /// # Panics
    /// The parser panics, takes too much, or says more than a line.
    fn rounds(&self, first_seed: u64, budget: Budget, watch: &Watch) -> Report {
        let mut round = (self.open)();
        watch.forget_peak();
        let mut report = Report::default();
        let start = Instant::now();
        for seed in first_seed.. {
            let is_over = match budget {
                Budget::Rounds(rounds) => seed - first_seed == rounds,
                Budget::Time(time) => start.elapsed() >= time,
            };
            if is_over {
                break;
            }
            watch.begin(seed);
            // The first numbers of neighbouring seeds are alike, those of their forks are not.
            let mut random = Rng::with_seed(seed).fork();
            let verdict = catch_unwind(AssertUnwindSafe(|| round(&mut random)));
            let verdict = verdict.unwrap_or_else(|panic| {
                eprintln!("{}: seed {seed} makes it panic", self.name);
                resume_unwind(panic)
            });
            if let Some(excess) = watch.end() {
                panic!("{}: seed {seed} {excess}", self.name);
            }
            match verdict {
                Verdict::Accepted => report.accepted += 1,
                Verdict::Refused(line) => {
                    report.refused += 1;
                    let is_line = !line.contains('\n') && !line.is_empty() && line.len() < 4_000;
                    assert!(is_line, "{}: seed {seed} is refused with {line:.500}", self.name);
                }
            }
        }
        report
    }
}
