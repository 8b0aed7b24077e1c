//! `candlepower bench` counts tokens as the server does, reports errors, and keeps the form of its JSON. No time is
//! asserted.

mod serve;

use std::path::Path;
use std::process::Output;

use serde_json::Value;

use super::support::{TempFolder, program};

fn bench(args: &[&str]) -> Output {
    let mut command = program();
    command.arg("bench").args(args).env_remove("OPENAI_API_KEY");
    // Little memory, since tests run in parallel.
    command.env("BLAZE_KV_CACHE_MEMORY", "64Mi").output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// The JSON on standard output of a run that ends with `status`.
#[track_caller]
fn json(args: &[&str], status: i32) -> Value {
    let output = bench(&[args, &["--json", "-"]].concat());
    assert_eq!(output.status.code(), Some(status), "{}", text(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// The message of a run that ends with `status`.
#[track_caller]
fn refused(args: &[&str], status: i32) -> String {
    let output = bench(args);
    let message = text(&output.stderr);
    assert_eq!(output.status.code(), Some(status), "{message}");
    assert!(message.starts_with("error: "), "{message}");
    message
}

#[track_caller]
fn assert_summary(value: &Value) {
    let at = |key: &str| value[key].as_f64().unwrap_or_else(|| panic!("{key} in {value}"));
    assert!(at("mean") > 0.0 && at("p50") <= at("p90") && at("p90") <= at("p99"), "{value}");
    assert!(at("p99") <= at("max"), "{value}");
}

#[test]
fn the_engine_is_measured_by_batch_and_length() {
    let folder = TempFolder::new();
    let file = folder.path().join("out.json");
    let args = ["run", "demo", "--batch", "1,3", "--input-tokens", "17,40", "--output-tokens", "9"];
    let output = bench(&[&args[..], &["--json", file.to_str().unwrap()]].concat());
    assert!(output.status.success(), "{}", text(&output.stderr));
    let shown = text(&output.stdout);
    for part in ["LlamaForCausalLM", "prefill tokens/s", "weights GB/s", "between steps"] {
        assert!(shown.contains(part), "{part} is not in\n{shown}");
    }
    let json: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    assert_eq!((&json["kind"], &json["model"]["name"]), (&"run".into(), &"demo".into()));
    // The demo's embeddings are tied, so each step reads all weights.
    let model = &json["model"];
    assert!(model["weights_bytes"].as_u64().unwrap() > 2_000_000);
    assert_eq!(model["weights_bytes"], model["weights_bytes_per_step"]);
    assert!(json["machine"]["cpu"]["logical_cores"].as_u64().unwrap() > 0);
    assert_eq!(json["engine"]["settings"]["kv_cache_memory"], "64Mi");
    let shapes = json["shapes"].as_array().unwrap();
    let of = |shape: &Value| (shape["batch"].as_u64(), shape["input_tokens"].as_u64());
    let expected = [(1, 17), (3, 17), (1, 40), (3, 40)].map(|(b, n)| (Some(b), Some(n)));
    assert_eq!(shapes.iter().map(of).collect::<Vec<_>>(), expected);
    for shape in shapes {
        let (batch, input) = of(shape);
        let (prefill, decode) = (&shape["prefill"], &shape["decode"]);
        assert_eq!(prefill["tokens"].as_u64(), Some(batch.unwrap() * input.unwrap()));
        assert!(prefill["tokens_per_s"].as_f64().unwrap() > 0.0);
        // The first step after a prefill is not measured.
        assert!(decode["steps"].as_u64().unwrap() >= 2, "{decode}");
        assert_summary(&decode["step_s"]);
        let share = |key: &str| decode[key].as_f64().unwrap();
        let shares =
            share("forward_share") + share("rest_of_step_share") + share("between_steps_share");
        assert!((shares - 1.0).abs() < 1e-6, "{decode}");
    }
}

#[test]
fn an_embedding_that_is_not_the_head_is_not_read_in_each_step() {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR"));
    let demo = tests.join("../crates/server/demo");
    let model = candlepower_testing::goldens::folder("llama");
    let args = ["run", model.to_str().unwrap(), "--tokenizer", demo.to_str().unwrap()];
    let shape = ["--batch", "2", "--input-tokens", "16", "--output-tokens", "8"];
    let report = json(&[&args[..], &shape[..]].concat(), 0);
    let bytes = |key: &str| report["model"][key].as_u64().unwrap();
    // 320 rows of 64 values in float32.
    assert_eq!(bytes("weights_bytes") - bytes("weights_bytes_per_step"), 320 * 64 * 4);
}

#[test]
fn experts_are_counted_as_far_as_tokens_choose_them() {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR"));
    let demo = tests.join("../crates/server/demo");
    let model = candlepower_testing::goldens::folder("mixtral");
    let args = ["run", model.to_str().unwrap(), "--tokenizer", demo.to_str().unwrap()];
    let shape = ["--batch", "1,2", "--input-tokens", "16", "--output-tokens", "8"];
    let output = bench(&[&args[..], &shape[..]].concat());
    assert!(output.status.success(), "{}", text(&output.stderr));
    let shown = text(&output.stdout);
    assert!(shown.contains("MixtralForCausalLM") && shown.contains("reads at most "), "{shown}");
}

#[test]
fn a_shape_that_the_engine_cannot_hold_is_refused() {
    let run = |flags: &[&str]| refused(&[&["run", "demo"], flags].concat(), 1);
    let long = run(&["--input-tokens", "2040"]);
    assert!(long.contains("more than the context of 2048"), "{long}");
    let wide = run(&["--batch", "300", "--input-tokens", "8"]);
    assert!(wide.contains("raise --max-num-seqs"), "{wide}");
    // 64 sequences of 700 tokens do not fit into 4 MiB.
    let small = ["--kv-cache-memory", "4Mi", "--batch", "64"];
    let large = run(&[&small[..], &["--max-model-len", "700"]].concat());
    assert!(large.contains("give --kv-cache-memory"), "{large}");
    assert!(run(&["--no-enable-prefix-caching"]).contains("prefix cache"));
    assert!(refused(&["run", "./nowhere"], 1).contains("there is no model folder"));
    refused(&["run", "demo", "--batch", "0"], 2);
    let mut command = program();
    let unknown =
        command.args(["bench", "run", "demo"]).env("BLAZE_NONSENSE", "1").output().unwrap();
    assert_eq!(unknown.status.code(), Some(2));
    assert!(text(&unknown.stderr).contains("BLAZE_NONSENSE"), "{}", text(&unknown.stderr));
    let endless = refused(&["run", "demo", "--input-tokens", "18446744073709551615"], 2);
    assert!(endless.contains("a whole number from 1 to 10000000 is needed"), "{endless}");
}

#[test]
fn the_help_shows_what_matters_here() {
    let help = |form: &str| text(&bench(&[form, "--help"]).stdout);
    let run = help("run");
    for part in ["--batch", "--kv-cache-memory", "--dtype", "--config", "Examples:"] {
        assert!(run.contains(part), "{part} is not in\n{run}");
    }
    assert!(!run.contains("--port") && !run.contains("--api-key"), "{run}");
    for part in ["--concurrency", "--rate", "--json", "Examples:", "OPENAI_API_KEY"] {
        assert!(help("serve").contains(part), "{part}");
    }
}
