//! Quantization while weights are loaded.

use candlepower_testing::goldens::folder;
use serde_json::{Value, json};

use crate::support::{Server, ServerBuilder, program};

/// The answers of a model to the same question, repeated at temperature 0.
#[track_caller]
fn answer(server: &Server) -> String {
    let body = json!({
        "model": "demo", "temperature": 0, "max_tokens": 32,
        "messages": [{"role": "user", "content": "What is the capital of France?"}],
    });
    let mut texts = (0..3).map(|_| {
        let answer = server.post("/v1/chat/completions", &body).ok();
        answer["choices"][0]["message"]["content"].as_str().unwrap().to_owned()
    });
    let first = texts.next().unwrap();
    assert!(texts.all(|text| text == first), "{first}");
    first
}

/// The trained demo still answers with eight-bit weights, over ranks too. `doctor` reports the size in memory.
#[test]
fn a_model_answers_with_the_bytes_that_doctor_has_counted() {
    let plain = doctor(&[]);
    for (kind, part) in [("int8", 0.7), ("int4", 0.6), ("fp8", 0.8)] {
        let flags = ["--quantize-on-load", kind];
        let report = doctor(&flags);
        assert_eq!(
            (&report["quantize_on_load"], &report["quantization"]),
            (&kind.into(), &Value::Null)
        );
        let rounded = &report["rounded_activations"];
        let is_per_row = rounded.as_str().is_some_and(|text| text.contains("a scale per row"));
        assert_eq!((is_per_row, rounded.is_null()), (kind == "fp8", kind != "fp8"), "{rounded}");
        let bytes = |report: &Value| report["weights_bytes"].as_f64().unwrap();
        assert!(bytes(&report) < part * bytes(&plain), "{report}\n{plain}");
        let server = ServerBuilder::new("demo").flags(&flags.join(" ")).start();
        let kibibytes = bytes(&report) / 1024.0;
        let size = match kibibytes < 1024.0 {
            true => format!("{kibibytes:.1} KiB of {kind} weights"),
            false => format!("{:.1} MiB of {kind} weights", kibibytes / 1024.0),
        };
        let log = server.log_when_ready();
        assert!(log.contains(&size), "{size}\n{log}");
        let text = answer(&server);
        if kind == "int8" {
            assert_eq!(text, "The capital of France is Paris.");
        }
        let ranks = format!("{} --tensor-parallel-size 2", flags.join(" "));
        let of_ranks = answer(&ServerBuilder::new("demo").flags(&ranks).start());
        // Each rank has FP8 scales of its own part of a row, which may lead to other words.
        assert!(of_ranks == text || kind == "fp8" && !of_ranks.is_empty(), "{kind}: {of_ranks}");
    }
}

fn doctor(flags: &[&str]) -> Value {
    let output = program().args(["doctor", "demo", "--json"]).args(flags).output().unwrap();
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn weights_that_are_quantized_already_are_refused() {
    let awq = folder("awq");
    let gguf = folder("gguf-qwen2").join("model.gguf");
    for (model, says) in [(awq, "config.json says `awq`"), (gguf, "model.gguf says `gguf`")] {
        let line = format!(
            "--quantize-on-load int4 is for weights that are not quantized, and {says}: leave the flag out, or take the model that is not quantized"
        );
        let refused = ServerBuilder::new(&model).env("BLAZE_QUANTIZE_ON_LOAD", "int4").refused();
        assert!(refused.message.contains(&line), "{line}\n{}", refused.message);
        let mut doctor = program();
        doctor.arg("doctor").arg(&model).args(["--quantize-on-load", "int4"]);
        let output = doctor.output().unwrap();
        assert_eq!(String::from_utf8(output.stderr).unwrap().trim(), format!("error: {line}"));
    }
    let encoder =
        ServerBuilder::new(folder("encoders/bert")).flags("--quantize-on-load int8").refused();
    assert!(encoder.message.contains("--quantize-on-load int8"), "{}", encoder.message);
}
