//! `candlepower-fuzz SECONDS [--seed N] [TARGET..]` runs rounds of mutated inputs for the given time, all targets in
//! parallel.

#![expect(
    clippy::print_stderr,
    clippy::print_stdout,
    reason = "a command-line tool answers on its output streams"
)]

use std::process::ExitCode;
use std::time::{Duration, SystemTime};

use candlepower_fuzz::{Budget, ROUNDS_COMMAND, TARGETS, Target, run, run_rounds};
use candlepower_server::{CONSTRAINT_COMMAND, TEMPLATE_COMMAND, run_template_trial, run_trials};

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.split_first() {
        Some((first, more)) if first == ROUNDS_COMMAND => run_rounds(more),
        // Constraints are tried out in child processes that run this program with these commands.
        Some((first, _)) if first == CONSTRAINT_COMMAND => run_trials(),
        Some((first, _)) if first == TEMPLATE_COMMAND => run_template_trial(),
        _ => run_targets(arguments),
    }
}

fn run_targets(arguments: Vec<String>) -> ExitCode {
    let mut arguments = arguments.into_iter();
    let names: Vec<&str> = TARGETS.iter().map(|target| target.name).collect();
    let usage = format!(
        "usage: candlepower-fuzz SECONDS [--seed N] [TARGET..]; targets are {}",
        names.join(", ")
    );
    let Some(seconds) = arguments.next().and_then(|text| text.parse().ok()) else {
        eprintln!("{usage}");
        return ExitCode::FAILURE;
    };
    let mut asked: Vec<String> = arguments.collect();
    // Without `--seed` each second has other rounds, and the seed of a failed one is printed. With it the rounds are
    // the same.
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    // The low bits leave room for the seeds of the rounds, so two seconds share none.
    let mut seed = since.as_secs() << 24;
    if asked.first().is_some_and(|first| first == "--seed") {
        let Some(number) = asked.get(1).and_then(|number| number.parse().ok()) else {
            eprintln!("--seed takes a number\n{usage}");
            return ExitCode::FAILURE;
        };
        seed = number;
        asked.drain(..2);
    }
    if let Some(unknown) = asked.iter().find(|name| !names.contains(&name.as_str())) {
        eprintln!("there is no target {unknown}\n{usage}");
        return ExitCode::FAILURE;
    }
    let Ok(program) = std::env::current_exe() else {
        eprintln!("the path of this program is not known");
        return ExitCode::FAILURE;
    };
    let chosen =
        |target: &&Target| asked.is_empty() || asked.iter().any(|name| name == target.name);
    let budget = Budget::Time(Duration::from_secs(seconds));
    let failed = std::thread::scope(|scope| {
        let start = |target: &'static Target| {
            let program = &program;
            scope.spawn(move || run(target, program, seed, budget))
        };
        let running: Vec<_> =
            TARGETS.iter().filter(chosen).map(|target| (target, start(target))).collect();
        let mut failed = false;
        for (target, thread) in running {
            match thread.join() {
                Ok(Ok(report)) => {
                    println!(
                        "{}: {} accepted, {} refused",
                        target.name, report.accepted, report.refused
                    );
                }
                Ok(Err(error)) => {
                    println!("FAILED {error}");
                    failed = true;
                }
                Err(_) => failed = true,
            }
        }
        failed
    });
    if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}
