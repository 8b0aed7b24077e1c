//! Runs the scripts beside these tests with the Python and the Node that `cargo xtask test` has installed.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// A command for a script with the packages of `requirements.txt`.
pub(crate) fn python(script: &str) -> Command {
    prepared("CANDLEPOWER_TEST_PYTHON", script)
}

/// A command for a script with the packages of `requirements-frameworks.txt`.
pub(crate) fn framework_python(script: &str) -> Command {
    prepared("CANDLEPOWER_TEST_FRAMEWORK_PYTHON", script)
}

/// A command for a Node script with the packages of `node/package.json`.
pub(crate) fn node(script: &str) -> Command {
    prepared("CANDLEPOWER_TEST_NODE", script)
}

fn prepared(variable: &str, script: &str) -> Command {
    let Some(program) = std::env::var_os(variable) else {
        panic!("{variable} is not set: run the tests with `cargo xtask test`, which prepares it");
    };
    let script: PathBuf = Path::new(env!("CARGO_MANIFEST_DIR")).join(script);
    let mut command = Command::new(program);
    // A proxy or a server in the machine's settings must not be tested.
    for name in ["OPENAI_API_KEY", "OPENAI_BASE_URL", "ANTHROPIC_API_KEY", "ANTHROPIC_BASE_URL"] {
        command.env_remove(name);
    }
    command.env("NO_PROXY", "*");
    command.arg(script).stdin(Stdio::null());
    command
}

/// Says that a test is skipped. The runner captures what `println!` writes, and shows it only if a test fails.
pub(crate) fn skipped(why: &str) {
    // A closed standard error is no failure of a test.
    let _ = writeln!(std::io::stderr(), "skipped: {why}");
}

/// Runs a program to its end, and shows its output if it fails.
#[track_caller]
pub(crate) fn run_to_end(command: &mut Command) {
    let output = command.output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(
        output.status.success(),
        "{command:?}\n{}\n{}",
        text(&output.stdout),
        text(&output.stderr)
    );
}
