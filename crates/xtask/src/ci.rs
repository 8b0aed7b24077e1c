//! `cargo xtask ci`: all of CI. Work that leaves processors idle has other work beside it.

use std::thread;
use std::time::Duration;

use anyhow::{Result, bail};

use crate::ahead::Ahead;
use crate::emulated::Scope;
use crate::instruction_sets::Machine;
use crate::steps::Steps;
use crate::test::RealModel;
use crate::{check, cuda, inlined, instruction_sets, test, wheel};

/// The same rounds each time; `cargo xtask deep fuzz` makes others.
const FUZZ: [&str; 3] = ["60", "--seed", "0"];

/// The tests run by then.
const LINTS_AFTER: Duration = Duration::from_secs(20);

pub(crate) fn run_steps(steps: &mut Steps) {
    check::run_short_steps(steps);
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
    // Packages are waited for. An installation that fails does so again in its own step, which says why.
    steps.run("build", |shell| {
        thread::scope(|scoped| {
            scoped.spawn(|| {
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
                // Cargo does not compile for two at once: the tests' own cargo comes first.
                thread::sleep(LINTS_AFTER);
                let linted = both(check::clippy(&nice), check::doc(&nice));
                (scope.map(|_| Ahead::compile(&nice)), linted)
            });
            let tested = test::test(shell, RealModel::Needed);
            let (compiled, linted) = beside.join().expect("compiling does not panic");
            // Without it cargo compiles the kernels in their own step.
            ahead = compiled.and_then(|compiled| {
                compiled.inspect_err(|error| println!("not compiled ahead: {error:#}")).ok()
            });
            both(tested, linted)
        })
    });
    // The wheel's tests wait for servers, and fuzzing has its time.
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

/// The first's word, if both succeeded; what is wrong with each otherwise.
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
