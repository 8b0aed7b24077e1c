//! GGUF files: served like folders, and refused with one line.

use candlepower_testing::goldens::folder as golden;
use serde_json::Value;

use crate::support::{ServerBuilder, TempFolder, program, python, run_to_end};

#[test]
fn the_python_client_talks_to_a_file_of_k_quants() {
    let server = ServerBuilder::new(golden("gguf-qwen2").join("model.gguf")).start();
    run_to_end(python("clients/ask.py").args([server.url().as_str(), "model"]));
    server.log_with("Qwen2ForCausalLM");
}

#[test]
fn a_folder_with_one_split_model_is_served() {
    let folder = golden("gguf-llama");
    let server = ServerBuilder::new(&folder).start();
    let body = serde_json::json!({"model": "gguf-llama", "prompt": "to be", "max_tokens": 4});
    let answer = server.post("/v1/completions", &body).ok();
    assert_eq!(answer["usage"]["completion_tokens"], 4, "{answer}");
}

#[test]
fn doctor_counts_what_the_file_holds() {
    let file = golden("gguf-qwen2").join("model.gguf");
    let output = program().args(["doctor", "--json"]).arg(&file).output().unwrap();
    let json: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&json["quantization"], &json["supported"]), (&"gguf".into(), &true.into()));
    let log = ServerBuilder::new(&file).start().log_when_ready();
    let kibibytes = json["weights_bytes"].as_f64().unwrap() / f64::from(1 << 10);
    assert!(log.contains(&format!("{kibibytes:.1} KiB of")), "{kibibytes}\n{log}");
}

#[test]
fn files_that_cannot_be_served_are_refused_in_one_line() {
    let folder = TempFolder::new();
    let whole = std::fs::read(golden("gguf-yarn").join("model.gguf")).unwrap();
    folder.write("cut.gguf", &whole[..whole.len() / 2]);
    folder.write("text.gguf", "no such thing");
    let file = |name: &str| folder.path().join(name);
    let whole = golden("gguf-qwen2").join("model.gguf");
    for (builder, line) in [
        (
            ServerBuilder::new(file("text.gguf")),
            "text.gguf is damaged, or no GGUF file: it does not begin with GGUF",
        ),
        (ServerBuilder::new(file("cut.gguf")), "cut.gguf is damaged, or no GGUF file: tensor "),
        (
            ServerBuilder::new(folder.path()),
            " holds several models, cut.gguf, text.gguf; name one of the files",
        ),
        (ServerBuilder::new(file("none.gguf")), "there is no model folder or GGUF file `"),
        (
            ServerBuilder::new(&whole).flags("--quantization awq"),
            "--quantization awq does not match the weights: model.gguf says `gguf`; leave the flag out",
        ),
    ] {
        let refused = builder.refused();
        assert!(refused.message.contains(line), "{line}\n{}", refused.message);
    }
}
