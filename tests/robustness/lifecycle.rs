//! Start, stop and failure, as a supervisor sees them.

use std::io::Write;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

use crate::support::{Request, ResponseStream, Server, ServerBuilder, TempFolder, wait_for};

/// The demo model as a folder, which a test may damage.
fn demo_folder() -> TempFolder {
    let folder = TempFolder::new();
    let demo = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates/server/demo");
    for entry in std::fs::read_dir(demo).unwrap() {
        let entry = entry.unwrap();
        folder.write(entry.file_name().to_str().unwrap(), std::fs::read(entry.path()).unwrap());
    }
    folder
}

fn long_stream() -> Value {
    json!({
        "model": "demo", "prompt": "a", "max_tokens": 1900, "temperature": 0, "ignore_eos": true, "stream": true,
        "stream_options": {"include_usage": true},
    })
}

#[test]
fn sigterm_lets_running_requests_finish_and_refuses_new_ones() {
    // Only the end of the streams may end the server.
    let mut server = ServerBuilder::new("demo").flags("--shutdown-timeout 600").start();
    let mut streams: Vec<_> =
        (0..12).map(|_| server.open("/v1/completions", &long_stream())).collect();
    let first: Vec<Value> = streams.iter_mut().map(|stream| stream.next_chunk().unwrap()).collect();
    server.terminate();
    let health = wait_for("the server to drain", || {
        let health = server.get("/health");
        (health.status == 503).then_some(health)
    });
    assert_eq!(
        (&health.json()["status"], &health.json()["phase"]),
        (&json!("draining"), &json!("draining"))
    );
    let response =
        server.post("/v1/completions", &json!({"model": "demo", "prompt": "a", "max_tokens": 2}));
    response.error(503);
    assert!(response.header("retry-after").is_some());

    let finish = |(first, stream): (Value, ResponseStream)| {
        let chunks = [vec![first], stream.chunks()].concat();
        assert_eq!(chunks.last().unwrap()["usage"]["completion_tokens"], 1900);
        let texts =
            chunks.iter().map(|chunk| chunk["choices"][0]["text"].as_str().unwrap_or_default());
        texts.collect::<String>()
    };
    let texts: Vec<String> = first.into_iter().zip(streams).map(finish).collect();
    // Greedy answers to one prompt are the same, so any difference comes from draining.
    for text in &texts {
        assert_eq!(*text, texts[0]);
    }
    assert_eq!(server.wait_for_exit().code(), Some(0), "{}", server.log());
}

#[test]
fn an_idle_server_stops_at_once_with_status_zero() {
    let mut server = Server::demo();
    server.terminate();
    assert_eq!(server.wait_for_exit().code(), Some(0), "{}", server.log());
}

#[test]
fn requests_that_outlast_the_shutdown_timeout_are_cut_short_and_told() {
    let mut server = ServerBuilder::new("demo").flags("--shutdown-timeout 0").start();
    let mut stream = server.open("/v1/completions", &long_stream());
    stream.next_chunk().unwrap();
    server.terminate();
    let mut ends = Vec::new();
    while let Ok(Some(event)) = stream.next_event() {
        ends.push(event);
    }
    let told = |event: &String| {
        event.contains("\"finish_reason\":\"abort\"") || event.contains("\"error\"")
    };
    assert!(ends.iter().any(told), "the client was not told: {:?}", ends.last());
    assert_eq!(server.wait_for_exit().code(), Some(0), "{}", server.log());
}

#[test]
fn a_second_signal_drops_running_requests_and_the_status_says_so() {
    let mut server = ServerBuilder::new("demo").flags("--shutdown-timeout 600").start();
    let mut stream = server.open("/v1/completions", &long_stream());
    stream.next_chunk().unwrap();
    server.terminate();
    wait_for("the server to drain", || (server.get("/health").status == 503).then_some(()));
    server.terminate();
    assert_eq!(server.wait_for_exit().code(), Some(1), "{}", server.log());
    server.log_with("running requests are dropped");
}

#[test]
fn while_it_loads_the_server_answers_503_with_its_phase() {
    let folder = demo_folder();
    // A pipe without a writer blocks the loading.
    let config = folder.path().join("config.json");
    std::fs::remove_file(&config).unwrap();
    assert!(Command::new("mkfifo").arg(&config).status().unwrap().success());
    let mut server = ServerBuilder::new(folder.path()).listen();

    let health = server.get("/health");
    assert_eq!(health.status, 503);
    assert_eq!(health.json()["status"], "starting");
    assert!(
        ["pending", "initializing"].contains(&health.json()["phase"].as_str().unwrap()),
        "{}",
        health.text()
    );
    let response = server.post("/v1/completions", &json!({"model": "demo", "prompt": "a"}));
    response.error(503);
    assert!(response.header("retry-after").is_some());
    server.get("/v1/models").error(503);
    assert_eq!(server.get("/version").status, 200);
    assert_eq!(server.get("/metrics").status, 200);

    server.terminate();
    let status = server.wait_for_exit();
    assert!(status.code() == Some(0) && status.signal().is_none(), "{status}: {}", server.log());
}

#[test]
fn loading_goes_on_where_it_waited() {
    let folder = demo_folder();
    let config = folder.path().join("config.json");
    let text = std::fs::read(&config).unwrap();
    std::fs::remove_file(&config).unwrap();
    assert!(Command::new("mkfifo").arg(&config).status().unwrap().success());
    let server = ServerBuilder::new(folder.path()).flags("--served-model-name demo").listen();
    assert_eq!(server.get("/health").status, 503);
    // Opening blocks until the server reads the pipe. Later readers find an ordinary file.
    let mut pipe = std::fs::File::options().write(true).open(&config).unwrap();
    // A rename replaces the pipe at once, so no reader sees half a file.
    std::fs::rename(folder.write("config.json.new", &text), &config).unwrap();
    pipe.write_all(&text).unwrap();
    drop(pipe);
    server.wait_until_healthy();
    server.complete(json!({"prompt": "a", "max_tokens": 2}));
}

/// Starts a server with a damaged model and returns the error line, which must be the same everywhere it is reported.
fn failure_of(folder: &TempFolder, flags: &str) -> String {
    let server = ServerBuilder::new(folder.path()).flags(flags).refused();
    let line = server.message.lines().rev().find(|line| line.to_lowercase().contains("error"));
    line.unwrap_or_else(|| panic!("no error is told:\n{}", server.message)).to_owned()
}

#[test]
fn damaged_models_are_refused_with_one_clear_line() {
    let truncated = demo_folder();
    let weights = std::fs::read(truncated.path().join("model.safetensors")).unwrap();
    truncated.write("model.safetensors", &weights[..weights.len() / 2]);
    let line = failure_of(&truncated, "");
    assert!(line.contains("model.safetensors"), "{line}");

    let damaged = demo_folder();
    damaged.write("model.safetensors", [0xff; 64]);
    assert!(failure_of(&damaged, "").contains("model.safetensors"));

    let unknown = demo_folder();
    let config = std::fs::read_to_string(unknown.path().join("config.json")).unwrap();
    unknown.write("config.json", config.replace("LlamaForCausalLM", "WizardForCausalLM"));
    let line = failure_of(&unknown, "");
    assert!(line.contains("WizardForCausalLM"), "{line}");

    let without = demo_folder();
    std::fs::remove_file(without.path().join("config.json")).unwrap();
    assert!(failure_of(&without, "").contains("config.json"));

    let line = failure_of(&demo_folder(), "--quantization awq");
    assert!(line.contains("awq"), "{line}");
    // 64 KiB are 32 tokens of 2 KiB.
    let line = failure_of(&demo_folder(), "--kv-cache-memory 64Ki --max-model-len 2048");
    assert!(
        line.contains("2048") && line.contains("32"),
        "the length that fits is missing: {line}"
    );
}

#[test]
fn models_that_compute_nothing_finite_are_refused() {
    // The root of a negative number is NaN, and angles of such a base are infinite.
    for (setting, value) in [("rms_norm_eps", "-1"), ("rope_theta", "1e-308")] {
        let folder = demo_folder();
        let config = std::fs::read(folder.path().join("config.json")).unwrap();
        let mut config: Value = serde_json::from_slice(&config).unwrap();
        assert!(config[setting].is_number());
        config[setting] = serde_json::from_str(value).unwrap();
        folder.write("config.json", config.to_string());
        let line = failure_of(&folder, "");
        assert!(line.contains("no finite values") && line.contains(setting), "{line}");
    }
    let encoder = TempFolder::new();
    for entry in candlepower_testing::goldens::folder("encoders/bert-score").read_dir().unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        if path.is_file() {
            encoder.write(name, std::fs::read(&path).unwrap());
        }
    }
    let config = std::fs::read(encoder.path().join("config.json")).unwrap();
    let mut config: Value = serde_json::from_slice(&config).unwrap();
    config["layer_norm_eps"] = json!(-1000);
    encoder.write("config.json", config.to_string());
    let line = failure_of(&encoder, "");
    assert!(line.contains("no finite values"), "{line}");
}

#[test]
fn a_failure_to_load_is_told_by_health_before_the_process_ends() {
    let folder = demo_folder();
    folder.write("model.safetensors", [0xff; 64]);
    let mut server = ServerBuilder::new(folder.path()).listen();
    let health = wait_for("the failure", || {
        let health = Request::get("/health").send(server.address).ok()?;
        (health.json()["status"] == "failed").then_some(health)
    });
    assert_eq!(health.status, 503);
    assert!(
        health.json()["message"].as_str().unwrap().contains("model.safetensors"),
        "{}",
        health.text()
    );
    assert!(!server.wait_for_exit().success());
}

#[test]
fn a_folder_is_served_as_the_model_inside_the_program_is() {
    let folder = demo_folder();
    let from_folder =
        ServerBuilder::new(folder.path()).flags("--served-model-name demo,other").start();
    let body = json!({"prompt": "The capital of France is", "max_tokens": 24, "temperature": 0});
    let expected = Server::demo().complete(body.clone())["choices"].clone();
    assert_eq!(from_folder.complete(body.clone())["choices"], expected);
    let mut renamed = body;
    renamed["model"] = json!("other");
    assert_eq!(from_folder.complete(renamed)["choices"], expected);
}
