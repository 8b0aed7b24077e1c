//! The pages for browsers in Debian's Chromium, driven by `tests/playground/playground.test.mjs` and `reference.test.mjs`.

use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use crate::support::{Scripted, ServerBuilder, node, run_to_end, skipped};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("playground")
}

/// The browser: `CANDLEPOWER_TEST_CHROMIUM`, or the one of the system's packages.
fn chromium() -> Option<PathBuf> {
    let named = std::env::var_os("CANDLEPOWER_TEST_CHROMIUM").map(PathBuf::from);
    named.or_else(|| Some(PathBuf::from("/usr/bin/chromium")).filter(|program| program.exists()))
}

/// A server whose model writes the answers, and the template that chooses among them.
fn server() -> Scripted {
    let file = std::fs::read(folder().join("answers.json")).unwrap();
    let file: Value = serde_json::from_slice(&file).unwrap();
    let payloads = file["payloads"].as_array().unwrap();
    let mut names: Vec<String> = (0..payloads.len()).map(|i| format!("payload-{i}")).collect();
    let mut texts: Vec<String> =
        payloads.iter().map(|text| text.as_str().unwrap().to_owned()).collect();
    for answer in file["answers"].as_array().unwrap() {
        let repeat = answer["repeat"].as_u64().unwrap_or(1) as usize;
        names.push(answer["name"].as_str().unwrap().to_owned());
        texts.push(answer["text"].as_str().unwrap().repeat(repeat));
    }
    let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
    let template = |starts: &[usize]| {
        let starts = starts.iter().map(|start| Value::from(*start));
        let starts: Map<String, Value> = names.into_iter().zip(starts).collect();
        let template = include_str!("playground/template.jinja");
        template.replace("set starts = STARTS", &format!("set starts = {}", Value::from(starts)))
    };
    Scripted::steered(template, &[], &texts, "")
}

#[test]
fn the_playground_works_in_a_browser_and_runs_nothing_that_is_written_to_it() {
    let Some(chromium) = chromium() else {
        skipped("there is no Chromium (package chromium); CANDLEPOWER_TEST_CHROMIUM names one");
        return;
    };
    let scripted = server();
    let mut test = node("playground/playground.test.mjs");
    run_to_end(test.env("PLAYGROUND_URL", scripted.server.url()).env("CHROMIUM", chromium));
}

#[test]
fn the_reference_works_in_a_browser_and_sends_its_examples() {
    let Some(chromium) = chromium() else {
        skipped("there is no Chromium (package chromium); CANDLEPOWER_TEST_CHROMIUM names one");
        return;
    };
    // The name of a model is written into the page.
    let server = ServerBuilder::new("demo")
        .flag("--served-model-name", "</script><img src=x onerror=window.hacked=1>")
        .start();
    let mut test = node("playground/reference.test.mjs");
    run_to_end(test.env("PLAYGROUND_URL", server.url()).env("CHROMIUM", chromium));
}
