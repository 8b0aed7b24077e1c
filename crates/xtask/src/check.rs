//! `cargo xtask check`: all checks that need no run of the project's own code.

use anyhow::Result;

use crate::steps::{Shell, Steps, output, run};
use crate::tools::{Venv, cargo_deny};
use crate::{advisories, notices, site, tidy};

/// Pinned versions of tools that come as Python wheels.
const REQUIREMENTS: &str = "crates/xtask/requirements.txt";

pub(crate) fn run_steps(steps: &mut Steps) {
    run_short_steps(steps);
    steps.run("clippy", clippy);
    steps.run("doc", doc);
}

/// The steps that compile nothing of the project but this tool.
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
    // The first run checks everything with all features. The second checks the default features, and only crates that
    // have features are compiled again for it.
    for features in ["--features candlepower/full", ""] {
        let what = format!("--workspace {features} --all-targets --locked");
        output(&mut shell.cargo(&format!("clippy --quiet {what} -- -D warnings")))?;
    }
    Ok(String::new())
}

pub(crate) fn doc(shell: &Shell) -> Result<String> {
    // `--examples` gives the dependencies the features that they have in tests. Clippy has checked them with these
    // features, so they are not compiled again.
    let what = "--workspace --features candlepower/full --no-deps --locked";
    let targets = "--lib --examples --bin candlepower --bin candlepower-xtask";
    let mut doc = shell.cargo(&format!("doc --quiet {what} {targets}"));
    output(doc.env("RUSTDOCFLAGS", "-D warnings"))
}

fn typos(shell: &Shell) -> Result<String> {
    let venv = Venv::new(shell, "check", REQUIREMENTS)?;
    quiet(run(shell.command(venv.program("typos")).args(["--config", ".typos.toml"])))
}

/// Licences, duplicate and banned crates, and the sources of crates.
fn deny(shell: &Shell) -> Result<String> {
    let venv = Venv::new(shell, "check", REQUIREMENTS)?;
    let program = cargo_deny(shell, &venv)?;
    let mut deny = shell.command(program);
    deny.args(["--locked", "--workspace", "check"]);
    quiet(run(deny.args(["--hide-inclusion-graph", "licenses", "bans", "sources"])))
}

/// A step whose success needs no remark.
fn quiet(outcome: Result<()>) -> Result<String> {
    outcome.map(|()| String::new())
}
