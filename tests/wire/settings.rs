//! Flags, environment and config file, and the two frameworks.

use std::process::Command;

use serde_json::json;

use crate::support::{Server, ServerBuilder, TempFolder};

/// Output tokens of a request that sets no limit: the setting that these tests set in several places.
fn default_max_tokens(server: &Server) -> u64 {
    server.complete(json!({"prompt": "a", "ignore_eos": true}))["usage"]["completion_tokens"]
        .as_u64()
        .unwrap()
}

#[test]
fn a_flag_goes_before_the_environment_before_the_file_before_the_default() {
    // `max_logprobs` is set in the file alone.
    let folder = TempFolder::new();
    let file = folder.write("settings.toml", "default_max_tokens = 3\nmax_logprobs = 1\n");
    let with_file = || ServerBuilder::new("demo").flag("--config", &file);
    assert_eq!(default_max_tokens(&with_file().start()), 3);
    let server = with_file().env("BLAZE_DEFAULT_MAX_TOKENS", "4").start();
    assert_eq!(default_max_tokens(&server), 4);
    let server =
        with_file().env("BLAZE_DEFAULT_MAX_TOKENS", "4").flags("--default-max-tokens 5").start();
    assert_eq!(default_max_tokens(&server), 5);
    // Settings that only the file has apply, too.
    assert_eq!(server.complete_refused(json!({"prompt": "a", "logprobs": 2}))["param"], "logprobs");
}

#[test]
fn unknown_names_stop_the_start_and_the_nearest_is_named() {
    let refused = ServerBuilder::new("demo").env("BLAZE_MAX_NUM_SEQ", "4").refused();
    assert!(refused.message.contains("BLAZE_MAX_NUM_SEQ "), "{}", refused.message);
    assert!(refused.message.contains("BLAZE_MAX_NUM_SEQS"), "{}", refused.message);

    let folder = TempFolder::new();
    let file = folder.write("settings.toml", "max_num_sqs = 4\n");
    let refused = ServerBuilder::new("demo").flag("--config", file).refused();
    assert!(
        refused.message.contains("max_num_sqs") && refused.message.contains("max_num_seqs"),
        "{}",
        refused.message
    );

    let refused = ServerBuilder::new("demo").flags("--max-num-sqs 4").refused();
    assert!(refused.message.contains("--max-num-seqs"), "{}", refused.message);
}

#[test]
fn values_that_do_not_parse_stop_the_start() {
    for (name, value) in [
        ("BLAZE_MAX_NUM_SEQS", "many"),
        ("BLAZE_ENFORCE_EAGER", "perhaps"),
        ("BLAZE_KV_CACHE_MEMORY", "1Zi"),
    ] {
        let refused = ServerBuilder::new("demo").env(name, value).refused();
        assert!(
            refused.message.contains(name) && refused.message.contains(value),
            "{}",
            refused.message
        );
    }
    for flags in [
        "--max-num-seqs 0",
        "--dtype int4",
        "--device tpu",
        "--framework haze",
        "--default-max-tokens 0",
    ] {
        let refused = ServerBuilder::new("demo").flags(flags).refused();
        let value = flags.split_whitespace().nth(1).unwrap();
        assert!(refused.message.contains(value), "{flags}: {}", refused.message);
    }
}

#[test]
fn what_kubernetes_injects_is_ignored() {
    // Kubernetes sets these for a Service with the name `blaze`, and one of them has the name of a setting.
    let server = ServerBuilder::new("demo")
        .env("BLAZE_SERVICE_HOST", "10.0.0.11")
        .env("BLAZE_SERVICE_PORT", "8000")
        .env("BLAZE_PORT", "tcp://10.0.0.11:8000")
        .env("BLAZE_PORT_8000_TCP", "tcp://10.0.0.11:8000")
        .env("BLAZE_PORT_8000_TCP_ADDR", "10.0.0.11")
        .start();
    assert_eq!(default_max_tokens(&server), 16);
}

#[test]
fn each_framework_reads_its_own_prefix() {
    let builder = || {
        ServerBuilder::new("demo")
            .env("BLAZE_DEFAULT_MAX_TOKENS", "4")
            .env("PRISM_DEFAULT_MAX_TOKENS", "6")
            .env("PRISM_MAX_LOGPROBS", "1")
    };
    assert_eq!(default_max_tokens(&builder().start()), 4);
    assert_eq!(default_max_tokens(&builder().flags("--framework blaze").start()), 4);
    let prism = builder().flags("--framework prism").start();
    assert_eq!(default_max_tokens(&prism), 6);
    // An unknown variable of the other framework is ignored.
    let server = ServerBuilder::new("demo").env("PRISM_NO_SUCH_NAME", "1").start();
    assert_eq!(default_max_tokens(&server), 16);
    ServerBuilder::new("demo").flags("--framework prism").env("PRISM_NO_SUCH_NAME", "1").refused();
}

#[test]
fn start_up_says_what_is_in_force_and_what_was_found() {
    let server = ServerBuilder::new("demo")
        .flags("--max-num-seqs 7 --swap-space 2 --log-format text")
        .start();
    let log = server.log_when_ready();
    for part in [
        "max_num_seqs=7 (flag)",
        "kv_cache_memory=64Mi (environment)",
        "block_size=16",
        "swap_space has no effect",
    ] {
        assert!(log.contains(part), "{part} is not in\n{log}");
    }
    assert!(log.contains(&server.url()), "{log}");
}

#[test]
fn the_log_can_be_json() {
    let server = ServerBuilder::new("demo").flags("--log-format json").start();
    let log = server.log_when_ready();
    let lines: Vec<&str> = log.lines().collect();
    assert!(lines.len() > 3);
    for line in lines {
        serde_json::from_str::<serde_json::Value>(line)
            .unwrap_or_else(|error| panic!("{error}: {line}"));
    }
}

#[test]
fn the_help_groups_its_flags_and_names_the_ports() {
    let help = Command::new(crate::support::binary()).args(["serve", "--help"]).output().unwrap();
    assert!(help.status.success());
    let help = String::from_utf8(help.stdout).unwrap();
    for part in [
        "Model:",
        "Server:",
        "Engine:",
        "--max-num-seqs",
        "--api-key",
        "--kv-cache-memory",
        // Each framework has its own default port.
        "8000",
        "30000",
    ] {
        assert!(help.contains(part), "{part} is not in\n{help}");
    }
}

#[test]
fn what_is_not_a_model_is_refused_before_anything_starts() {
    let refused = ServerBuilder::new("no-such-folder").refused();
    assert!(refused.message.contains("no-such-folder"), "{}", refused.message);
    let taken = Server::demo();
    let port = taken.address.port().to_string();
    let refused = ServerBuilder::new("demo").flag("--port", port).refused_on_its_port();
    assert!(refused.message.contains(&taken.address.to_string()), "{}", refused.message);
}

#[test]
fn dummy_weights_serve_any_config() {
    let folder = TempFolder::new();
    let demo = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates/server/demo");
    for name in [
        "config.json",
        "generation_config.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "chat_template.jinja",
    ] {
        folder.write(name, std::fs::read(demo.join(name)).unwrap());
    }
    let server = ServerBuilder::new(folder.path())
        .flags("--load-format dummy --served-model-name demo")
        .start();
    let answer = server.complete(json!({"prompt": "a", "max_tokens": 4, "ignore_eos": true}));
    assert_eq!(answer["usage"]["completion_tokens"], 4);
}
