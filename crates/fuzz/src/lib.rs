//! Fuzzes every parser with mutated files and texts. A parser must accept its input, or refuse it with an error of
//! one line. It must not panic, hang, overflow the stack, or use memory and time out of proportion to its input.
//!
//! Each target runs in a process of its own. So a crash is noticed, and the seed of its round is known.
//!
//! `cargo test` runs a fixed set of rounds for each target. `cargo xtask fuzz SECONDS [TARGET..]` runs random ones
//! for the given time.

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

/// The result of a parser.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The input was accepted.
    Accepted,
    /// The input was refused with this error.
    Refused(String),
}

/// One round against a parser. The random numbers decide its input.
pub(crate) type Round = Box<dyn FnMut(&mut Rng) -> Verdict>;

/// A parser that is fuzzed.
#[derive(Clone, Copy)]
pub struct Target {
    /// Its name.
    pub name: &'static str,
    /// Reads the originals of the inputs.
    open: fn() -> Round,
}

/// The extent of a run.
#[derive(Clone, Copy, Debug)]
pub enum Budget {
    /// A number of rounds.
    Rounds(u64),
    /// A duration.
    Time(Duration),
}

/// Counts of the results.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Rounds whose input was accepted.
    pub accepted: u64,
    /// Rounds whose input was refused.
    pub refused: u64,
}

impl Target {
    /// Runs rounds in this process, starting with `first_seed`.
    ///
    /// # Panics
    /// The parser panics, exceeds a limit, or returns an error of more than one line.
    fn rounds(&self, first_seed: u64, budget: Budget, watch: &Watch) -> Report {
        let mut round = (self.open)();
        // Reading the originals takes memory that is no round's.
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
            // The first numbers of consecutive seeds are alike. Those of their forks are not.
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

#[cfg(test)]
mod tests {
    use super::*;

    /// The message of the panic that ends three rounds, which start with seed 5.
    fn end_of_rounds(open: fn() -> Round) -> Option<String> {
        let target = Target { name: "sample", open };
        let watch = Watch::new(|_| ());
        let rounds = AssertUnwindSafe(|| target.rounds(5, Budget::Rounds(3), &watch));
        let payload = catch_unwind(rounds).err()?;
        let text = payload.downcast_ref::<&str>().map(|text| (*text).to_owned());
        text.or_else(|| payload.downcast_ref::<String>().cloned())
    }

    #[test]
    fn panics_and_errors_of_several_lines_end_the_rounds() {
        assert_eq!(end_of_rounds(|| Box::new(|_| Verdict::Accepted)), None);
        assert_eq!(end_of_rounds(|| Box::new(|_| Verdict::Refused("why".to_owned()))), None);
        assert_eq!(end_of_rounds(|| Box::new(|_| panic!("broken"))).unwrap(), "broken");
        let end = end_of_rounds(|| Box::new(|_| Verdict::Refused("a\nb".to_owned())));
        assert!(end.unwrap().contains("sample: seed 5 is refused with a\nb"));
    }
}
