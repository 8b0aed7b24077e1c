//! Attacks: two hostile clients repeat an attack and disconnect, beside a plain stream, chats with a tool and health
//! probes.

mod cases;

use std::collections::BTreeMap;
use std::io;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use fastrand::Rng;
use serde_json::json;

use super::traffic::MAX_GROWTH;
use super::watch::{Latencies, Seen, Usage, is_timeout, warm_up, watch};
use crate::support::{Response, Server, ServerBuilder, process};
use cases::ATTACKS;

const NUM_CLIENTS: u64 = 2;
/// One request in this many waits for its answer, which shows the outcome for the others.
const PATIENT: u8 = 8;
const PATIENCE: Duration = Duration::from_secs(30);
/// Error of a client that disconnects without waiting for an answer.
const LEFT: io::ErrorKind = io::ErrorKind::ConnectionAborted;
/// Time after an attack, at whose end the server must have freed its resources.
const REST: Duration = Duration::from_secs(10);
/// Targets for 99 % of the probes and gaps, and for all.
const PROBES: [Duration; 2] = [Duration::from_millis(100), Duration::from_secs(1)];
const GAPS: [Duration; 2] = [Duration::from_millis(250), Duration::from_secs(1)];

/// A kind of attack on a server.
pub(super) struct Attack {
    name: &'static str,
    flags: &'static str,
    /// Makes one attempt, with a time limit.
    attempt: fn(&Server, &mut Rng, Duration) -> io::Result<Response>,
}

/// Runs the named attacks, or all, for `length` each. Asserts that none does more harm than a short delay.
pub(super) fn run(length: Duration, names: &str, seed: u64) {
    let names: Vec<&str> = names.split_whitespace().collect();
    let known: Vec<&str> = ATTACKS.iter().map(|attack| attack.name).collect();
    let unknown: Vec<_> = names.iter().filter(|name| !known.contains(name)).collect();
    assert!(unknown.is_empty(), "{unknown:?} are not among the attacks {known:?}");
    eprintln!(
        "seed {seed}; times in ms at 50 %, 99 % and 100 %; memory in MiB before, at most, and after {} s",
        REST.as_secs()
    );
    eprintln!(
        "{:<9} {:>5}  {:>14} {:>14} {:>14} {:>7} {:>15}  {:<5} answers",
        "attack", "tries", "probes", "gaps", "calls", "refused", "memory", "rest"
    );
    let chosen = ATTACKS.iter().filter(|attack| names.is_empty() || names.contains(&attack.name));
    let failures: Vec<String> = chosen.filter_map(|attack| attack.run(length, seed)).collect();
    assert!(failures.is_empty(), "\n{}", failures.join("\n"));
}

impl Attack {
    /// Runs the attack on a server of its own and prints the results. Returns the failure, if any.
    fn run(&self, length: Duration, seed: u64) -> Option<String> {
        let builder = ServerBuilder::new("demo").flags("--framework prism").flags(self.flags);
        let server = builder.start();
        warm_up(&server);
        // Numbered, so that a failure can be found again with its seed.
        let before = Usage::of(&server).memory;
        let tries = AtomicUsize::new(0);
        let answers: Mutex<BTreeMap<String, usize>> = Mutex::default();
        let seen = watch(&server, length, NUM_CLIENTS, |watch, index| {
            let mut random = Rng::with_seed(seed.wrapping_mul(1000) + index);
            while !watch.is_over() {
                let patience = match random.u8(0..PATIENT) {
                    // Most attempts leave early, at a time that falls into any stage of the work.
                    0 => PATIENCE,
                    _ => Duration::from_millis(random.u64(50..1000)),
                };
                let number = tries.fetch_add(1, Ordering::Relaxed) + 1;
                let answer = match (self.attempt)(&server, &mut random, patience) {
                    // 503 is a limit of the server at work, and no failure.
                    Ok(answer) if answer.status >= 500 && answer.status != 503 => {
                        watch.fail(format!("{} {}", answer.status, answer.text()));
                        answer.status.to_string()
                    }
                    Ok(answer) => answer.status.to_string(),
                    Err(error) if is_timeout(&error) && patience == PATIENCE => {
                        watch.fail(format!(
                            "try {number} got no answer in {} s",
                            PATIENCE.as_secs()
                        ));
                        "none".to_owned()
                    }
                    Err(error) if is_timeout(&error) || error.kind() == LEFT => "left".to_owned(),
                    Err(error) => error.kind().to_string(),
                };
                *answers.lock().unwrap().entry(answer).or_default() += 1;
            }
        });
        // The check of idleness takes the last second itself.
        std::thread::sleep(REST - Duration::from_secs(1));
        let is_idle = is_idle(&server);
        let after = Usage::of(&server).memory;
        let mib = |bytes: usize| bytes >> 20;
        let memory = format!("{}/{}/{}", mib(before), mib(seen.peak), mib(after));
        let rest = if is_idle { "idle" } else { "BUSY" };
        let answers = answers.into_inner().unwrap();
        let answers: Vec<String> =
            answers.iter().map(|(answer, count)| format!("{answer}: {count}")).collect();
        let tries = tries.into_inner();
        eprintln!(
            "{:<9} {tries:>5}  {:>14} {:>14} {:>14} {:>7} {memory:>15}  {rest:<5} {}",
            self.name,
            seen.probes,
            seen.gaps,
            seen.calls,
            seen.refused,
            answers.join(", ")
        );
        let has_grown = after > before + MAX_GROWTH;
        for target in missed(&seen, has_grown) {
            eprintln!("          missed: {target}");
        }
        let failure = match seen.failure {
            Some(failure) => failure,
            None if has_grown => "memory grew".to_owned(),
            None => {
                // A client that comes now is served.
                server.complete(json!({"prompt": "a", "max_tokens": 2}));
                server.wait_until_all_blocks_are_free();
                return None;
            }
        };
        // Failures may repeat a hostile body.
        let failure: String = failure.chars().take(500).collect();
        let failure = format!("{}, after {tries} tries with seed {seed}: {failure}", self.name);
        eprintln!("          FAILED: {failure}");
        Some(failure)
    }
}

/// Whether the server and its child processes use almost no CPU for a second.
fn is_idle(server: &Server) -> bool {
    let ticks = || {
        let children = process::children(server.pid());
        let all = children.into_iter().chain([server.pid()]);
        all.filter_map(process::ticks).sum::<u64>()
    };
    let before = ticks();
    std::thread::sleep(Duration::from_secs(1));
    // In hundredths of a second.
    ticks().saturating_sub(before) < 10
}

fn missed(seen: &Seen, has_grown: bool) -> Vec<String> {
    let mut missed = Vec::new();
    let mut judge = |what: &str, latencies: &Latencies, [most, longest]: [Duration; 2]| {
        for (part, target) in [(0.99, most), (1.0, longest)] {
            let found = latencies.quantile(part);
            if found > target {
                missed.push(format!(
                    "{} % of {what} within {target:?}, not {found:.0?}",
                    part * 100.0
                ));
            }
        }
    };
    judge("probes", &seen.probes, PROBES);
    judge("gaps", &seen.gaps, GAPS);
    if has_grown {
        missed.push("memory within 64 MiB of before".to_owned());
    }
    missed
}
