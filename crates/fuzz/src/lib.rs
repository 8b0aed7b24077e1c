//! Every parser against files and texts with anything in them: what it is given is accepted or refused in one line, and
//! nothing panics, hangs or reserves memory for what is not there.
//!
//! `cargo test` gives each target some rounds, the same ones in every run; `cargo xtask fuzz SECONDS [TARGET..]` goes on
//! with others for as long as it is told.

#![expect(clippy::print_stderr, clippy::unwrap_used, reason = "all of this is a test")]

mod change;
mod targets;

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::time::{Duration, Instant};

use fastrand::Rng;
pub use targets::TARGETS;

/// A round that takes longer hangs, whatever else the machine does.
const MOST_SECONDS: u64 = 60;
/// More memory than this is for what is not there.
const MOST_BYTES: u64 = 8 << 30;

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
    /// Runs rounds from `first_seed` on.
    ///
    /// # Panics
    /// The parser panics, takes too long, or says more than a line; before, the seed of the round is printed.
    pub fn run(&self, first_seed: u64, budget: Budget) -> Report {
        let mut round = (self.open)();
        let mut report = Report::default();
        let before = peak_bytes();
        let start = Instant::now();
        for seed in first_seed.. {
            let is_over = match budget {
                Budget::Rounds(rounds) => seed - first_seed == rounds,
                Budget::Time(time) => start.elapsed() >= time,
            };
            if is_over {
                break;
            }
            let began = Instant::now();
            // The first numbers of neighbouring seeds are alike, those of their forks are not.
            let mut random = Rng::with_seed(seed).fork();
            let verdict = catch_unwind(AssertUnwindSafe(|| round(&mut random)));
            let verdict = verdict.unwrap_or_else(|panic| {
                eprintln!("{}: seed {seed} makes it panic", self.name);
                resume_unwind(panic)
            });
            let seconds = began.elapsed().as_secs();
            assert!(seconds < MOST_SECONDS, "{}: seed {seed} takes {seconds} s", self.name);
            match verdict {
                Verdict::Accepted => report.accepted += 1,
                Verdict::Refused(line) => {
                    report.refused += 1;
                    let is_line = !line.contains('\n') && !line.is_empty() && line.len() < 4_000;
                    assert!(is_line, "{}: seed {seed} is refused with {line:.500}", self.name);
                }
            }
        }
        if let (Some(before), Some(after)) = (before, peak_bytes()) {
            let bytes = after.saturating_sub(before);
            assert!(bytes < MOST_BYTES, "{}: {bytes} bytes were reserved", self.name);
        }
        report
    }
}

/// The most memory that this process has had reserved; `None` where nobody knows.
fn peak_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmPeak:"))?;
    Some(line.split_whitespace().next()?.parse::<u64>().ok()? * 1024)
}
