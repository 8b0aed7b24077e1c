//! Runs some rounds of each target, the same ones in every run.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use candlepower_fuzz::{Budget, ROUNDS_COMMAND, TARGETS, run};

/// Runs a target, and checks that some of its inputs are accepted and some refused.
fn check(name: &str, rounds: u64) {
    let target = TARGETS.iter().find(|target| target.name == name);
    let target = target.unwrap_or_else(|| panic!("there is no target {name}"));
    let program = Path::new(env!("CARGO_BIN_EXE_candlepower-fuzz"));
    let report = run(target, program, 0, Budget::Rounds(rounds));
    let report = report.unwrap_or_else(|failure| panic!("{failure}"));
    assert_eq!(report.accepted + report.refused, rounds);
    // A target whose inputs are all accepted, or all refused by the first check, tests little of its parser.
    assert!(report.accepted > rounds / 50 && report.refused > rounds / 10, "{name}: {report:?}");
}

#[test]
fn config() {
    check("config", 5_000);
}

#[test]
fn safetensors() {
    check("safetensors", 400);
}

#[test]
fn gguf() {
    check("gguf", 150);
}

#[test]
fn tokenizer() {
    check("tokenizer", 500);
}

#[test]
fn request() {
    check("request", 20_000);
}

#[test]
fn grammar() {
    check("grammar", 600);
}

#[test]
fn constraint() {
    check("constraint", 150);
}

#[test]
fn walk() {
    check("walk", 80);
}

#[test]
fn output() {
    check("output", 5_000);
}

#[test]
fn template() {
    check("template", 300);
}

#[test]
fn listing() {
    check("listing", 200);
}

#[test]
fn http() {
    check("http", 150);
}

#[test]
fn images() {
    check("images", 2_000);
}

#[test]
fn deployments() {
    check("deployments", 300);
}

#[test]
fn settings() {
    check("settings", 800);
}

#[test]
fn a_time_limit_ends_the_rounds() {
    let target = TARGETS.iter().find(|target| target.name == "config").unwrap();
    let program = Path::new(env!("CARGO_BIN_EXE_candlepower-fuzz"));
    let report = run(target, program, 0, Budget::Time(Duration::from_millis(200))).unwrap();
    assert!(report.accepted + report.refused > 0);
}

#[test]
fn a_child_without_a_report_has_failed() {
    let failure =
        |program: &str| run(&TARGETS[0], Path::new(program), 0, Budget::Rounds(1)).unwrap_err();
    let name = TARGETS[0].name;
    // `echo` writes its arguments, which are read as seeds.
    assert!(failure("/bin/echo").starts_with(&format!("{name}: seed ")));
    assert!(failure("/bin/false").starts_with(&format!("{name}: before its first round: ")));
    assert!(failure("/no/such/program").starts_with("/no/such/program: "));

    let mut child = Command::new(env!("CARGO_BIN_EXE_candlepower-fuzz"));
    let status = child.args([ROUNDS_COMMAND, "nothing", "0", "rounds", "1"]).status().unwrap();
    assert_eq!(status.code(), Some(1), "an unknown target");
}
