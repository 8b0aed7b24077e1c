//! Output of the program without a server: the machine, whether a model fits, the current settings.

use std::process::{Command, Output};

use serde_json::{Value, json};

use crate::support::{Server, TempFolder, binary, program, without_settings};

/// The configuration of a one-layer Llama, `width` times as wide as a small one.
fn llama(width: usize) -> Value {
    json!({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu", "hidden_size": 512 * width,
        "intermediate_size": 2048 * width, "max_position_embeddings": 8192, "num_attention_heads": 8 * width,
        "num_hidden_layers": 1, "num_key_value_heads": 8, "rms_norm_eps": 1e-5, "rope_theta": 500000.0,
        "tie_word_embeddings": false, "torch_dtype": "bfloat16", "vocab_size": 1000,
    })
}

fn folder(config: &Value) -> TempFolder {
    let folder = TempFolder::new();
    folder.write("config.json", config.to_string());
    folder
}

/// Runs the program to its end.
fn run(args: &[&str]) -> Output {
    program().args(args).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

#[track_caller]
fn doctor_json(model: &str, flags: &[&str], status: i32) -> Value {
    let output = run(&[&["doctor", model, "--json"], flags].concat());
    assert_eq!(output.status.code(), Some(status), "{}", text(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn the_machine_is_shown_without_a_model() {
    let output = run(&["doctor"]);
    assert!(output.status.success());
    let shown = text(&output.stdout);
    for part in ["cpu", "memory", "gpu", "docker", "podman", "kubernetes"] {
        assert!(shown.contains(part), "{part} is not in\n{shown}");
    }
    let json: Value = serde_json::from_slice(&run(&["doctor", "--json"]).stdout).unwrap();
    assert!(json["machine"]["cpu"]["logical_cores"].as_u64().unwrap() > 0);
}

#[test]
fn the_numbers_are_those_of_the_loaded_server() {
    // Servers of tests have 64 MiB for the KV cache.
    let json = doctor_json("demo", &["--kv-cache-memory", "64Mi"], 0);
    assert_eq!((&json["supported"], &json["fits"]), (&true.into(), &true.into()));
    assert_eq!(
        (&json["architecture"], &json["quantization"]),
        (&"LlamaForCausalLM".into(), &Value::Null)
    );
    let number = |key: &str| json[key].as_u64().unwrap_or_else(|| panic!("{key} in {json}"));
    assert_eq!(
        number("needed_bytes"),
        number("weights_bytes") + number("activation_bytes") + number("kv_bytes_per_sequence")
    );
    assert_eq!(number("max_model_len_that_fits"), number("max_model_len"));
    let log = Server::demo().log_when_ready();
    let mebibytes = number("weights_bytes") as f64 / f64::from(1 << 20);
    assert!(log.contains(&format!("{mebibytes:.1} MiB of")), "{mebibytes}\n{log}");
    let blocks = number("kv_cache_bytes") / number("kv_bytes_per_token") / 16;
    assert!(log.contains(&format!("KV cache: {blocks} blocks of 16 tokens")), "{blocks}\n{log}");
}

#[test]
fn a_configuration_alone_is_enough_to_see_what_fits() {
    let small = folder(&llama(1));
    let model = small.path().to_str().unwrap().to_owned();
    let json = doctor_json(&model, &["--dtype", "float32", "--max-model-len", "64"], 0);
    // Rows of the embedding and of the head are padded to a multiple of 32. The layer has projections of queries, of keys
    // with values, and of the output, with heads of 64; then gate, up and down. Three norms are in f32.
    let matrices: u64 = 2 * 1024 * 512 + (8 + 2 * 8 + 8) * 64 * 512 + 3 * 2048 * 512;
    assert_eq!(json["weights_bytes"], matrices * 4 + 3 * 512 * 4);
    assert_eq!(json["kv_bytes_per_token"], 2 * 8 * 64 * 4);
    assert_eq!(json["dtype"], "float32");
    let stored = |plan: &&Value| plan["dtype"] == "bfloat16" && plan["device"] == "cpu";
    let plan = json["plans"].as_array().unwrap().iter().find(stored).unwrap();
    assert_eq!(plan["weights_bytes"], matrices * 2 + 3 * 512 * 4);
    assert_eq!(plan["stored"], true);

    let tight = doctor_json(&model, &["--kv-cache-memory", "1Mi", "--max-model-len", "8192"], 1);
    // 2 KiB of keys and values a token in bfloat16: 512 tokens take 1 MiB.
    assert_eq!((&tight["fits"], &tight["max_model_len_that_fits"]), (&false.into(), &512.into()));
    assert!(tight["message"].as_str().unwrap().contains("lower --max-model-len to 512"));
}

/// 4 bits a weight, and a scale of 16 bits and a zero-point of 8 for each 128 weights. The rest is stored as in the checkpoint.
#[test]
fn memory_for_images_is_counted() {
    let folder = candlepower_testing::goldens::folder("vision_qwen3_vl");
    let on_cpu = |flags: &[&str]| {
        let json = doctor_json(folder.to_str().unwrap(), flags, 0);
        let plan = json["plans"].as_array().unwrap().iter().find(|plan| plan["device"] == "cpu");
        plan.unwrap().clone()
    };
    let number = |plan: &Value, key: &str| plan[key].as_u64().unwrap();
    let all = on_cpu(&[]);
    assert_eq!(number(&all, "image_bytes"), 512 << 20);
    let less = on_cpu(&["--image-memory", "1Mi", "--encoder-cache-memory", "2Mi"]);
    assert_eq!(number(&less, "image_bytes"), 3 << 20);
    let texts = on_cpu(&["--language-model-only"]);
    assert_eq!(number(&texts, "image_bytes"), 0);
    assert!(number(&texts, "weights_bytes") < number(&all, "weights_bytes"));
    let needed = number(&all, "needed_bytes") - number(&texts, "needed_bytes");
    assert!(needed > 512 << 20, "{needed}");
}

#[test]
fn quantized_weights_are_counted_as_they_are_kept() {
    let mut config = llama(1);
    config["quantization_config"] =
        json!({"quant_method": "awq", "bits": 4, "group_size": 128, "version": "gemm"});
    let folder = folder(&config);
    let model = folder.path().to_str().unwrap().to_owned();
    let json = doctor_json(&model, &["--max-model-len", "64"], 0);
    let linears: u64 = (8 + 2 * 8 + 8) * 64 * 512 + 3 * 2048 * 512;
    let expected = 2 * 1024 * 512 * 2 + linears / 2 + linears / 128 * 3 + 3 * 512 * 4;
    assert_eq!(json["weights_bytes"], expected);
    assert_eq!((&json["quantization"], &json["dtype"]), (&"awq".into(), &"bfloat16".into()));
    let shown = text(&run(&["doctor", &model]).stdout);
    assert!(shown.contains("quantized with awq, other weights stored in bfloat16"), "{shown}");
}

#[test]
fn what_does_not_fit_is_said_after_the_table() {
    let huge = folder(&llama(256));
    let output = run(&["doctor", huge.path().to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(1));
    let shown = text(&output.stdout);
    for part in ["bfloat16 (stored)", "float16", "float32", " no ", "out of memory: ", "are needed"]
    {
        assert!(shown.contains(part), "{part} is not in\n{shown}");
    }
}

#[test]
fn what_is_not_supported_is_one_line() {
    let mut unknown = llama(1);
    unknown["architectures"] = json!(["MambaForCausalLM"]);
    let mut quantized = llama(1);
    quantized["quantization_config"] = json!({"quant_method": "bitsandbytes", "bits": 4});
    for (config, name) in [(unknown, "MambaForCausalLM"), (quantized, "bitsandbytes")] {
        let folder = folder(&config);
        let model = folder.path().to_str().unwrap();
        let output = run(&["doctor", model]);
        assert_eq!(output.status.code(), Some(1));
        let error = text(&output.stderr);
        assert!(error.contains(name) && error.trim().lines().count() == 1, "{error}");
        let json = doctor_json(model, &[], 1);
        assert_eq!(json["supported"], false);
        assert_eq!(json["architecture"], config["architectures"][0]);
        assert!(json["message"].as_str().unwrap().contains(name), "{json}");
    }
    let ranks = run(&["doctor", "demo", "--tensor-parallel-size", "7"]);
    assert_eq!(ranks.status.code(), Some(1));
    assert!(text(&ranks.stderr).contains("choose one of 1, 2"), "{}", text(&ranks.stderr));
    assert_eq!(run(&["doctor", "no-such-folder"]).status.code(), Some(1));
    assert_eq!(run(&["doctor", "--max-model-len", "0"]).status.code(), Some(2));
}

#[test]
fn ranks_and_weights_that_are_quantized_on_load_are_reported() {
    let flags = ["--tensor-parallel-size", "2", "--quantize-on-load", "fp8"];
    let output = run(&[&["doctor", "demo"], flags.as_slice()].concat());
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let shown = text(&output.stdout);
    for words in ["quantized to fp8 while loading", "each of the 2 ranks needs:"] {
        assert!(shown.contains(words), "{words} is not in\n{shown}");
    }
}

#[test]
fn what_else_is_known_of_a_model_is_told() {
    let mut config = llama(1);
    config.as_object_mut().unwrap().remove("torch_dtype");
    let folder = folder(&config);
    let shown = text(&run(&["doctor", folder.path().to_str().unwrap()]).stdout);
    assert!(shown.contains("config.json does not say its dtype"), "{shown}");
    let recurrent = candlepower_testing::goldens::folder("qwen3_5-text");
    let shown = text(&run(&["doctor", recurrent.to_str().unwrap()]).stdout);
    assert!(shown.contains("each sequence has a recurrent state of "), "{shown}");
    let encoder = candlepower_testing::goldens::folder("encoders/bert");
    let refused = run(&["doctor", encoder.to_str().unwrap(), "--quantize-on-load", "fp8"]);
    assert_eq!(refused.status.code(), Some(1));
    let error = text(&refused.stderr);
    assert!(error.contains("this is an encoder: leave it out"), "{error}");
}

#[test]
fn a_system_without_files_to_open_is_told_in_a_line() {
    for command in ["ls", "top --once", "bench serve", "bench run demo", "serve demo"] {
        // The loader of programs needs one file beside standard input, output and error. The program that runs the tests may have
        // left others open.
        let close: String = (3..10).map(|file| format!("{file}>&- ")).collect();
        let limited = format!("exec {close}; ulimit -n 4; exec \"$0\" {command}");
        let mut limited = without_settings({
            let mut shell = Command::new("sh");
            shell.args(["-c", &limited]).arg(binary());
            shell
        });
        let output = limited.output().unwrap();
        let error = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{command}: {error}");
        let reason = "error: cannot start the async runtime: Too many open files";
        assert!(error.starts_with(reason) && output.stdout.is_empty(), "{command}: {error}");
    }
}

#[test]
fn a_start_that_cannot_be_reported_is_told_twice() {
    let mut command = program();
    command.args(["serve", "demo"]).env("BLAZE_NONSENSE", "1");
    let output = command.env("CANDLEPOWER_REPORT", "/nowhere/report.json").output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    let error = text(&output.stderr);
    assert!(error.starts_with("error: ") && error.contains("BLAZE_NONSENSE"), "{error}");
    let expected = "cannot report to the supervisor in /nowhere/report.json: ";
    assert!(error.lines().last().unwrap().starts_with(expected), "{error}");
}

#[test]
fn commands_and_flags_of_other_servers_are_explained() {
    let command = run(&["ps"]);
    assert_eq!(command.status.code(), Some(2));
    assert!(text(&command.stderr).contains("no command `ps`: use `candlepower ls`"));
    let flag = run(&["serve", "demo", "--trust-remote-code", "--help"]);
    assert_eq!(flag.status.code(), Some(0));
    assert!(text(&flag.stderr).starts_with("note: --trust-remote-code is not needed"));
}

#[test]
fn the_settings_in_force_are_a_config_file() {
    let args = ["config", "demo", "--max-num-seqs", "7"];
    let output = program().args(args).env("BLAZE_BLOCK_SIZE", "32").output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    let shown = text(&output.stdout);
    for line in [
        "max_num_seqs = 7  # flag",
        "block_size = 32  # environment (BLAZE_BLOCK_SIZE)",
        "port = 8000  # default",
    ] {
        assert!(shown.lines().any(|found| found == line), "{line} is not in\n{shown}");
    }
    let folder = TempFolder::new();
    let file = folder.write("printed.toml", &shown);
    let again = program().args(["config", "--config"]).arg(&file).output().unwrap();
    // The comments say where values come from, and the file changes that.
    let values = |text: &str| -> Vec<String> {
        text.lines().map(|line| line.split("  # ").next().unwrap().to_owned()).collect()
    };
    assert_eq!(values(&text(&again.stdout)), values(&shown));
    let refused = program().args(["config", "demo"]).env("BLAZE_NONSENSE", "1").output().unwrap();
    assert_eq!(refused.status.code(), Some(2));
}

#[test]
fn the_settings_in_force_name_the_api_keys() {
    let folder = TempFolder::new();
    let keys = "[[key]]\nname = \"alice\"\nkey = \"hidden-1\"\nmax_concurrent = 3\n";
    let file = folder.write("keys.toml", keys);
    let config = |file: &std::path::Path| {
        let args = ["config", "demo", "--api-key", "hidden-2", "--api-keys-file"];
        program().args(args).arg(file).output().unwrap()
    };
    let shown = config(&file);
    assert!(shown.status.success(), "{}", text(&shown.stderr));
    let shown = text(&shown.stdout);
    assert!(shown.contains("# Keys of clients: alice (max_concurrent 3), key-1\n"), "{shown}");
    assert!(!shown.contains("hidden"), "{shown}");
    // A file of keys that cannot be read does not hide the other settings.
    let bad = folder.write("bad.toml", "[[key]]\nname = \"alice\"\n");
    let warned = config(&bad);
    assert!(warned.status.success() && text(&warned.stdout).contains("max_num_seqs = "));
    let warning = text(&warned.stderr);
    assert!(warning.contains("neither `key` nor `sha256`"), "{warning}");
}

#[test]
fn the_licences_of_what_is_linked_are_printed() {
    let shown = text(&run(&["licenses"]).stdout);
    assert!(shown.contains("Apache License"), "its own");
    for linked in ["candle-core ", "tokenizers ", "hyper ", "Rust's standard library"] {
        assert!(shown.lines().any(|line| line.starts_with(linked)), "{linked}");
    }
}
