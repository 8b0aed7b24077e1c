//! `cargo xtask ci`: all of CI. Work that leaves processors idle has other work beside it.

use std::thread;

use anyhow::{Result, bail};

use crate::ahead::Ahead;
use crate::steps::Steps;
use crate::{check, cuda, inlined, test, wheel};

/// The same rounds each time; `cargo xtask deep fuzz` makes others.
const FUZZ: [&str; 3] = ["60", "--seed", "0"];

pub(crate) fn run_steps(steps: &mut Steps) {
    check::run_short_steps(steps);
    // Packages are waited for. An installation that fails does so again in its own step, which says why.
    steps.run("build", |shell| {
        thread::scope(|scope| {
            scope.spawn(|| test::install(shell).and_then(|()| cuda::toolkit(shell)));
            test::build(shell)
        })
    });
    steps.run("inlined", inlined::check);
    let mut ahead = None;
    steps.run("test, lints", |shell| {
        thread::scope(|scope| {
            let nice = shell.nice();
            let beside = scope.spawn(move || {
                // By its end the tests run, so that their cargo does not wait for this one.
                let compiled = Ahead::compile(&nice);
                (compiled, both(check::clippy(&nice), check::doc(&nice)))
            });
            let tested = test::test(shell);
            let (compiled, linted) = beside.join().expect("compiling does not panic");
            // Without it cargo compiles the kernels in their own step.
            ahead = compiled.inspect_err(|error| println!("not compiled ahead: {error:#}")).ok();
            both(tested, linted)
        })
    });
    // The wheel's tests wait for servers, and fuzzing has its time.
    steps.run("wheel, fuzz", |shell| {
        thread::scope(|scope| {
            let fuzzed = scope.spawn(|| test::fuzz(shell, &FUZZ.map(str::to_owned)));
            both(wheel::test(shell), fuzzed.join().expect("fuzzing does not panic"))
        })
    });
    cuda::run_changed(steps, ahead);
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
