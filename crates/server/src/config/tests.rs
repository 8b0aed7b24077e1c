//! Precedence, unknown names, invalid values, and the files in `configs/`.

use std::path::PathBuf;

use candlepower_dialect::{ReasoningFormat, ToolFormat};
use clap::{ArgMatches, Args, Command};

use super::*;

fn flags(argv: &[&str]) -> ArgMatches {
    ServeConfig::augment_args(Command::new("serve").no_binary_name(true))
        .try_get_matches_from(argv)
        .unwrap()
}

fn resolve(argv: &[&str], env: &[(&str, &str)]) -> Result<Effective, ConfigError> {
    ServeConfig::resolve(&flags(argv), env.iter().map(|(name, value)| (name.into(), value.into())))
}

fn config(argv: &[&str], env: &[(&str, &str)]) -> ServeConfig {
    resolve(argv, env).unwrap().config
}

/// A config file, which is removed on drop.
struct TempFile(PathBuf);

impl TempFile {
    fn new(name: &str, text: &str) -> Self {
        let path =
            std::env::temp_dir().join(format!("candlepower-{}-{name}.toml", std::process::id()));
        std::fs::write(&path, text).unwrap();
        Self(path)
    }

    fn flag(&self) -> String {
        format!("--config={}", self.0.display())
    }
}

impl Drop for TempFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

#[test]
fn defaults_are_the_contracts() {
    let config = config(&["demo"], &[]);
    assert_eq!(config.model.as_deref(), Some("demo"));
    assert_eq!((config.host.as_str(), config.port()), ("127.0.0.1", 8000));
    assert_eq!(
        (config.max_num_seqs, config.max_num_batched_tokens, config.block_size),
        (256, None, 16)
    );
    assert_eq!(config.default_max_tokens.to_string(), "16");
    assert_eq!(config.max_logprobs, 20);
    assert!(config.prefix_caching() && !config.enforce_eager && config.api_key.is_empty());
    assert_eq!(config.generation_config, GenerationConfigSource::None);
}

#[test]
fn a_framework_brings_its_port_and_its_prefix() {
    let env = [("BLAZE_MAX_NUM_SEQS", "3"), ("PRISM_MAX_NUM_SEQS", "5"), ("PRISM_NONSENSE", "x")];
    assert_eq!(config(&["demo"], &env).max_num_seqs, 3);
    let prism = config(&["demo", "--framework", "prism"], &env[..2]);
    assert_eq!((prism.max_num_seqs, prism.port()), (5, 30000));
}

#[test]
fn flags_win_over_environment_over_file_over_default() {
    let file = TempFile::new(
        "precedence",
        "model = \"from-file\"\nmax_num_seqs = 1\nblock_size = 8\nseed = 7\nserved_model_name = [\"a\", \"b\"]\nenforce_eager = true\n",
    );
    let env = [("BLAZE_MAX_NUM_SEQS", "2"), ("BLAZE_BLOCK_SIZE", "32"), ("BLAZE_SWAP_SPACE", "4")];
    let effective = resolve(&[&file.flag(), "--max-num-seqs", "3"], &env).unwrap();
    let config = effective.config;
    assert_eq!((config.max_num_seqs, config.block_size, config.seed), (3, 32, 7));
    assert_eq!(config.model.as_deref(), Some("from-file"));
    assert_eq!(config.served_model_name, ["a", "b"]);
    assert_eq!(config.without_effect(), ["enforce_eager", "swap_space"]);
    let source =
        |name: &str| effective.settings.iter().find(|setting| setting.name == name).unwrap().source;
    assert_eq!(source("max_num_seqs"), Source::Flag);
    assert_eq!(source("block_size"), Source::Environment);
    assert_eq!(source("seed"), Source::File);
    assert_eq!(source("dtype"), Source::Default);
}

#[test]
fn the_contracts_variables_are_read() {
    let config = config(
        &["demo"],
        &[
            ("BLAZE_MAX_NUM_BATCHED_TOKENS", "64"),
            ("BLAZE_MAX_NUM_SEQS", "4"),
            ("BLAZE_ENFORCE_EAGER", "true"),
            ("BLAZE_SWAP_SPACE", "4"),
            ("BLAZE_API_KEY", "secret"),
            ("BLAZE_PORT", "9000"),
            ("BLAZE_SERVED_MODEL_NAME", "a,b"),
        ],
    );
    assert_eq!(
        (config.max_num_batched_tokens, config.max_num_seqs, config.port()),
        (Some(64), 4, 9000)
    );
    assert!(config.enforce_eager);
    assert_eq!(config.swap_space, 4.0);
    assert_eq!(config.api_key, ["secret"]);
    assert_eq!(config.served_model_name, ["a", "b"]);
}

#[test]
fn every_switch_takes_the_same_words() {
    for (word, expected) in [("1", true), ("yes", true), ("0", false), ("off", false)] {
        let names = ["BLAZE_ENFORCE_EAGER", "BLAZE_ENABLE_PREFIX_CACHING", "HF_HUB_OFFLINE"];
        let found = config(&["demo"], &names.map(|name| (name, word)));
        let found = [found.enforce_eager, found.prefix_caching(), found.hf_hub_offline];
        assert_eq!(found, [expected; 3], "{word}");
    }
}

#[test]
fn the_hubs_settings_have_the_hubs_names() {
    let env = [
        ("HF_HOME", "/models"),
        ("HF_HUB_CACHE", "/cache"),
        ("HUGGINGFACE_HUB_CACHE", "/older"),
        ("HF_ENDPOINT", "http://127.0.0.1:1/"),
        ("HF_HUB_OFFLINE", "YES"),
        ("BLAZE_REVISION", "v1"),
    ];
    let found = config(&["demo"], &env);
    assert_eq!(found.hf_home, Some("/models".into()));
    assert_eq!(found.hf_hub_cache, Some("/cache".into()));
    assert_eq!(found.hf_endpoint.as_deref(), Some("http://127.0.0.1:1"));
    assert!(found.hf_hub_offline);
    assert_eq!(found.revision, "v1");
    let found = config(
        &["demo", "--hf-home=/flag"],
        &[("HF_HOME", "/env"), ("HUGGINGFACE_HUB_CACHE", "/older")],
    );
    assert_eq!(found.hf_home, Some("/flag".into()));
    assert_eq!(found.hf_hub_cache, Some("/older".into()));
    assert_eq!((found.revision.as_str(), found.hf_hub_offline), ("main", false));

    let file = TempFile::new("hub", "hf_hub_offline = true\nhf_home = \"/file\"\n");
    assert!(config(&["demo", &file.flag()], &[("HF_HOME", "")]).hf_hub_offline);
    let found = config(&["demo", &file.flag()], &[("HF_HOME", ""), ("HF_HUB_OFFLINE", "")]);
    assert_eq!((found.hf_home, found.hf_hub_offline), (Some("/file".into()), false));
    assert!(config(&["demo", "--hf-hub-offline"], &[("HF_HUB_OFFLINE", "0")]).hf_hub_offline);

    for name in ["BLAZE_HF_HOME", "BLAZE_HF_HUB_OFFLINE", "BLAZE_HF_TOKEN"] {
        let error = resolve(&["demo"], &[(name, "1")]).unwrap_err();
        assert!(matches!(error, ConfigError::UnknownVariable { .. }), "{error}");
    }
    let error = resolve(&["demo"], &[("HF_HUB_OFFLINE", "perhaps")]).unwrap_err().to_string();
    assert!(error.starts_with("the environment variable HF_HUB_OFFLINE: "), "{error}");
}

#[test]
fn the_hubs_token_is_in_the_environment_only_and_not_shown() {
    let effective = resolve(&["demo"], &[("HF_TOKEN", "hf_sesame")]).unwrap();
    assert!(!format!("{effective:?}").contains("sesame"));

    let file = TempFile::new("token", "hf_token = \"hf_sesame\"\n");
    for argv in [["demo", "--hf-token=hf_sesame"], ["demo", &file.flag()]] {
        let error = resolve(&argv, &[]).unwrap_err().to_string();
        assert!(error.contains("set HF_TOKEN") && !error.contains("sesame"), "{error}");
    }
}

#[test]
fn a_negation_on_the_command_line_wins_over_the_environment() {
    let env = [("BLAZE_ENABLE_PREFIX_CACHING", "true")];
    assert!(config(&["demo"], &env).prefix_caching());
    assert!(!config(&["demo", "--no-enable-prefix-caching"], &env).prefix_caching());
    assert!(!config(&["demo"], &[("BLAZE_ENABLE_PREFIX_CACHING", "false")]).prefix_caching());
    let env = [("BLAZE_ENABLE_PREFIX_CACHING", "false")];
    assert!(config(&["--enable-prefix-caching", "demo"], &env).prefix_caching());
}

#[test]
fn unknown_names_stop_the_start_with_the_nearest() {
    let error = resolve(&["demo"], &[("BLAZE_MAX_NUM_SEQ", "3")]).unwrap_err();
    assert_eq!(
        error,
        ConfigError::UnknownVariable {
            name: "BLAZE_MAX_NUM_SEQ".into(),
            nearest: "BLAZE_MAX_NUM_SEQS".into()
        }
    );
    for name in
        ["BLAZE_NO_ENABLE_PREFIX_CACHING", "BLAZE_CONFIG", "BLAZE_FRAMEWORK", "BLAZE_FOO_PORT"]
    {
        assert!(
            matches!(resolve(&["demo"], &[(name, "1")]), Err(ConfigError::UnknownVariable { .. })),
            "{name}"
        );
    }
    let file = TempFile::new("unknown", "max_num_sequences = 3\n");
    let error = resolve(&["demo", &file.flag()], &[]).unwrap_err();
    assert!(error.to_string().ends_with("did you mean `max_num_seqs`?"), "{error}");
}

#[test]
fn values_that_do_not_parse_are_named_with_their_place() {
    for (name, value) in [
        ("BLAZE_MAX_NUM_SEQS", "many"),
        ("BLAZE_MAX_NUM_SEQS", "0"),
        ("BLAZE_ENFORCE_EAGER", "perhaps"),
        ("BLAZE_API_KEY", ""),
        ("BLAZE_PORT", "99999"),
        ("BLAZE_QUANTIZATION", "int3"),
    ] {
        let error = resolve(&["demo"], &[(name, value)]).unwrap_err().to_string();
        assert!(error.starts_with(&format!("the environment variable {name}: ")), "{error}");
        assert!(!error.contains('\n'), "{error}");
    }
    let error = resolve(&["demo"], &[("BLAZE_QUANTIZATION", "int3")]).unwrap_err().to_string();
    assert!(error.contains("awq, gptq, squeezellm, fp8"), "{error}");
    for text in [
        "max_num_seqs = \"x\"\n",
        "max_num_seqs = {}\n",
        "max_num_seqs = 1.5\n",
        "max_num_seqs = \n",
    ] {
        let file = TempFile::new("values", text);
        let error = resolve(&["demo", &file.flag()], &[]).unwrap_err().to_string();
        assert!(error.contains("values.toml") && !error.contains('\n'), "{error}");
    }
    let missing = resolve(&["--config=/nonexistent.toml"], &[]).err().unwrap();
    assert!(matches!(missing, ConfigError::File { .. }));
    let missing = missing.to_string();
    assert!(missing.starts_with("/nonexistent.toml: the file of --config "), "{missing}");
}

#[test]
fn what_kubernetes_injects_is_ignored() {
    let env = [
        ("BLAZE_SERVICE_HOST", "10.0.0.1"),
        ("BLAZE_SERVICE_PORT", "8000"),
        ("BLAZE_SERVICE_PORT_HTTP", "8000"),
        ("BLAZE_PORT", "tcp://10.0.0.1:8000"),
        ("BLAZE_PORT_8000_TCP", "tcp://10.0.0.1:8000"),
        ("BLAZE_PORT_8000_TCP_PROTO", "tcp"),
        ("BLAZE_PORT_8000_TCP_PORT", "8000"),
        ("BLAZE_PORT_8000_TCP_ADDR", "10.0.0.1"),
        ("BLAZE_LLAMA_PORT", "tcp://10.0.0.2:80"),
        ("BLAZE_LLAMA_PORT_80_UDP", "udp://10.0.0.2:80"),
        ("BLAZE_LLAMA_SERVICE_HOST", "10.0.0.2"),
    ];
    assert_eq!(config(&["demo"], &env).port(), 8000);
}

#[test]
fn secrets_are_not_shown() {
    let effective = resolve(&["demo"], &[("BLAZE_API_KEY", "open sesame")]).unwrap();
    assert!(!format!("{:?}", effective.settings).contains("sesame"));
}

#[test]
fn the_settings_in_force_are_a_config_file_with_the_same_effect() {
    let file = TempFile::new("printed-from", "max_num_seqs = 4\ndefault_max_tokens = \"max\"\n");
    let env = [
        ("BLAZE_PORT", "9000"),
        ("BLAZE_SWAP_SPACE", "0.5"),
        ("BLAZE_API_KEY", "open sesame"),
        ("HF_HUB_OFFLINE", "Yes"),
        ("HF_TOKEN", "hf_sesame"),
    ];
    let argv = [
        "demo",
        "--served-model-name=a,b \"c\",7",
        "--no-enable-prefix-caching",
        "--kv-cache-memory=1.5Gi",
        "--seed=18446744073709551615",
        &file.flag(),
    ];
    let effective = resolve(&argv, &env).unwrap();
    let text = effective.to_toml();
    let path = file.0.display();
    for line in [
        "model = \"demo\"  # flag",
        "served_model_name = [\"a\", 'b \"c\"', 7]  # flag",
        "port = 9000  # environment (BLAZE_PORT)",
        "hf_hub_offline = \"Yes\"  # environment (HF_HUB_OFFLINE)",
        &format!("max_num_seqs = 4  # file ({path})"),
        "enable_prefix_caching = false  # flag",
        "block_size = 16  # default",
        "# max_model_len =  # not set; default: the model's own limit",
        "# api_key is set and not shown  # environment (BLAZE_API_KEY)",
    ] {
        assert!(text.lines().any(|found| found == line), "{line} is not in\n{text}");
    }
    assert!(!text.contains("sesame") && !text.contains("hf_token"), "{text}");

    let printed = TempFile::new("printed", &text);
    let again = resolve(&[&printed.flag()], &[("BLAZE_API_KEY", "open sesame")]).unwrap();
    let in_force = |config: &ServeConfig| ServeConfig {
        config: None,
        port: Some(config.port()),
        ..config.clone()
    };
    assert_eq!(in_force(&again.config), in_force(&effective.config));
    let values = |text: &str| -> Vec<String> {
        text.lines().map(|line| line.split("  # ").next().unwrap().to_owned()).collect()
    };
    assert_eq!(values(&again.to_toml()), values(&text));
}

/// The workspace's `configs/`.
fn configs() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../configs")
}

#[test]
fn every_file_in_configs_is_valid() {
    let mut files = 0;
    for entry in std::fs::read_dir(configs()).unwrap() {
        let path = entry.unwrap().path();
        // The folder `k8s` has tests of its own in `tests/deploy`.
        if path.is_dir() {
            continue;
        }
        resolve(&["demo", &format!("--config={}", path.display())], &[]).unwrap();
        files += 1;
    }
    assert!(files > 0);
}

/// A file's text without the syntax of its kind of file.
fn words_of(path: PathBuf) -> String {
    let text = std::fs::read_to_string(path).unwrap();
    let lines = text.lines().map(|line| line.trim_start_matches("# "));
    let words = lines.flat_map(str::split_whitespace).collect::<Vec<_>>();
    words.join(" ").replace('`', "")
}

#[test]
fn the_default_file_and_the_documentation_list_every_format() {
    let default = configs().join("default.toml");
    let page = std::fs::read_to_string(configs().join("../docs/structured-output.md")).unwrap();
    for format in ToolFormat::ALL {
        let row = format!("| `{}` | {} |\n", format.name(), format.models());
        assert!(page.contains(&row), "docs/structured-output.md has no {row}");
    }
    let tools =
        ToolFormat::ALL.iter().map(|format| format!("{} ({})", format.name(), format.models()));
    let tools = Vec::from_iter(tools).join("; ");
    let reasoning =
        Vec::from_iter(ReasoningFormat::ALL.iter().map(|format| format.name())).join(", ");
    for list in [&tools, &reasoning] {
        let is_listed = words_of(default.clone()).contains(&format!(" {list}."));
        assert!(is_listed, "{} must list the formats as follows: {list}.", default.display());
    }
}

#[test]
fn the_default_file_documents_every_setting_and_changes_none() {
    let path = configs().join("default.toml");
    let text = std::fs::read_to_string(&path).unwrap();
    let from_file = config(&["demo", &format!("--config={}", path.display())], &[]);
    assert_eq!(ServeConfig { config: None, ..from_file }, config(&["demo"], &[]));
    let command = ServeConfig::augment_args(Command::new("serve"));
    for arg in command.get_arguments() {
        let key = arg.get_id().as_str();
        if ["config", "hf_token"].contains(&key) || key.starts_with("no_") {
            continue;
        }
        let documented = text
            .lines()
            .any(|line| line.trim_start_matches("# ").starts_with(&format!("{key} = ")));
        assert!(documented, "{key} is not in default.toml");
    }
}

#[test]
fn the_default_file_names_every_value_of_a_list() {
    let text = std::fs::read_to_string(configs().join("default.toml")).unwrap();
    let mut lists = 0;
    for arg in ServeConfig::augment_args(Command::new("serve")).get_arguments() {
        let values = arg.get_possible_values();
        let values: Vec<&str> =
            values.iter().filter(|value| !value.is_hide_set()).map(|v| v.get_name()).collect();
        if values.is_empty() || !arg.get_action().takes_values() {
            continue;
        }
        // The comment lines directly above the key.
        let key = format!("{} = ", arg.get_id());
        let above =
            text.lines().take_while(|line| !line.trim_start_matches("# ").starts_with(&key));
        let above: Vec<&str> = above.collect();
        let is_words = |line: &&&str| line.starts_with("# ") && !line.contains(" = ");
        let comment: Vec<&str> = above.iter().rev().take_while(is_words).copied().collect();
        for value in values {
            let is_named = comment.iter().any(|line| {
                line.split(|c: char| !c.is_alphanumeric() && c != '_').any(|word| word == value)
            });
            assert!(is_named, "{key}{value} is not in default.toml: {comment:?}");
        }
        lists += 1;
    }
    assert!(lists > 8, "{lists}");
    let methods = format!("must have: {}. Default", QuantizationMethod::settings());
    assert!(text.contains(&methods), "{methods}");
}
