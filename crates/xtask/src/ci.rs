//! `cargo xtask ci`: all of CI. Work that leaves processors idle runs in parallel with other work.

use std::thread;
use std::time::Duration;

use anyhow::{Result, bail};

use crate::ahead::Ahead;
use crate::emulated::Scope;
use crate::instruction_sets::Machine;
use crate::steps::Steps;
use crate::test::RealModel;
use crate::{check, cuda, inlined, instruction_sets, packages, test, wheel};

/// A fixed seed, so that each run does the same. `cargo xtask deep fuzz` uses random seeds.
const FUZZ: [&str; 3] = ["60", "--seed", "0"];

/// Delay of the lints. The tests are running by then.
const LINTS_AFTER: Duration = Duration::from_secs(20);

pub(crate) fn run_steps(steps: &mut Steps) {
    check::run_short_steps(steps);
    // If the step fails, nothing runs on the emulated GPU. The failed step alone makes CI fail then.
    let mut scope = None;
    steps.run("changes", |shell| {
        scope = cuda::scope(shell)?;
        Ok(match scope {
            Some(Scope::All) => "kernels have changed: nvcc, comparisons, goldens and the server on the emulated GPU",
            Some(Scope::Models) => "models have changed: goldens and the server on the emulated GPU",
            Some(Scope::Engine) => "the engine has changed: the server on the emulated GPU",
            None => "no kernels, models or engine have changed since `cargo xtask deep`: nothing on the emulated GPU",
        }
        .to_owned())
    });
    // Installation runs during the build. A failed installation is repeated in its own step, which reports the
    // reason.
    steps.run("build", |shell| {
        thread::scope(|scoped| {
            scoped.spawn(|| {
                // Without them their tests are skipped, which is no failure of the code.
                if let Err(error) = packages::install(shell) {
                    println!("tests in a browser and with Prometheus are skipped: {error:#}");
                }
                test::install(shell)?;
                if scope.is_some() { cuda::toolkit(shell).map(drop) } else { Ok(()) }
            });
            test::build(shell)
        })
    });
    steps.run("inlined", inlined::check);
    steps.run("instructions", |shell| instruction_sets::check(shell, Machine::Ci));
    let mut ahead = None;
    steps.run("test, lints", |shell| {
        thread::scope(|scoped| {
            let nice = shell.nice();
            let beside = scoped.spawn(move || {
                // Two cargo processes would block each other. The tests' own cargo must come first.
                thread::sleep(LINTS_AFTER);
                let linted = both(check::clippy(&nice), check::doc(&nice));
                (scope.map(|_| Ahead::compile(&nice)), linted)
            });
            let tested = test::test(shell, RealModel::Needed);
            let (compiled, linted) = beside.join().expect("compiling does not panic");
            // Without these objects cargo compiles the kernels in their own step.
            ahead = compiled.and_then(|compiled| {
                compiled.inspect_err(|error| println!("not compiled ahead: {error:#}")).ok()
            });
            both(tested, linted)
        })
    });
    // The tests of the wheel wait for servers most of the time, so fuzzing runs in parallel.
    steps.run("wheel, fuzz", |shell| {
        thread::scope(|scoped| {
            let fuzzed = scoped.spawn(|| test::fuzz(shell, &FUZZ.map(str::to_owned)));
            both(wheel::test(shell), fuzzed.join().expect("fuzzing does not panic"))
        })
    });
    if let Some(scope) = scope {
        cuda::run_changed(steps, scope, ahead);
    }
}

/// The first remark if both succeeded, otherwise the errors of both.
fn both(first: Result<String>, second: Result<String>) -> Result<String> {
    match (first, second) {
        (first, Ok(_)) => first,
        (Ok(_), second) => second,
        (Err(first), Err(second)) => bail!("{first:#}; {second:#}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neither_of_two_hides_that_the_other_failed() {
        let good = || Ok("0.1.0".to_owned());
        let bad = |why: &'static str| Err(anyhow::anyhow!(why));
        let said = |outcome: Result<String>| format!("{:#}", outcome.unwrap_err());
        assert_eq!(both(good(), good()).unwrap(), "0.1.0");
        assert_eq!(said(both(bad("no wheel"), good())), "no wheel");
        assert_eq!(said(both(good(), bad("a panic"))), "a panic");
        assert_eq!(said(both(bad("no wheel"), bad("a panic"))), "no wheel; a panic");
    }
}
