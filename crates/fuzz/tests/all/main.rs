//! Runs some rounds of each target, the same ones in every run.

use std::path::Path;

use candlepower_fuzz::{Budget, TARGETS, run};

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
