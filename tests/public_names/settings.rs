//! Keys of the config file, variables of the environment, and features of the build.

use std::path::Path;

use super::{Names, sources};
use crate::support::program;

/// Prefixes of the variables that candlepower reads: its own, the hub's, OpenAI's, and those of
/// deployment backends.
const PREFIXES: [&str; 10] = [
    "BLAZE_",
    "PRISM_",
    "CANDLEPOWER_",
    "HF_",
    "HUGGINGFACE_",
    "OPENAI_",
    "DOCKER_",
    // Without an underscore, since there are `KUBECONFIG` and the cluster's `KUBERNETES_` variables.
    "KUBE",
    "XDG_",
    "CUDA_",
];

pub(super) fn collect(names: &mut Names) {
    let settings = documented();
    for (key, _) in &settings {
        names.add(format!("key {key}"));
    }
    for framework in ["blaze", "prism"] {
        for line in config(framework, &[]).lines() {
            if let Some((key, _)) = setting(line) {
                names.add(format!("key {key}"));
            }
        }
        // The command line gives the other two.
        let variables: Vec<(String, String)> = settings
            .iter()
            .filter(|(key, _)| !["model", "framework"].contains(&key.as_str()))
            .map(|(key, value)| (variable(framework, key), value.clone()))
            .collect();
        for line in config(framework, &variables).lines() {
            if let Some((_, source)) = line.rsplit_once("# environment (") {
                names.add(format!("environment {}", source.trim_end_matches(')')));
            }
        }
    }
    for crate_name in sources::product_crates() {
        let literals = sources::containing(&crate_name, &PREFIXES).literals();
        let variables = literals.all.iter().map(String::as_str).filter(|text| is_variable(text));
        for variable in variables.chain(literals.attribute_values("env")) {
            names.add(format!("environment {variable}"));
        }
    }
    for crate_name in ["candlepower", "client"] {
        features(crate_name, names);
    }
}

/// The keys of `configs/default.toml` with the values that it shows, as the environment would have them.
fn documented() -> Vec<(String, String)> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../configs/default.toml");
    let text = std::fs::read_to_string(path).unwrap();
    let settings: Vec<(String, String)> = text.lines().filter_map(setting).collect();
    assert!(settings.len() > 20, "configs/default.toml is of another form");
    settings
}

/// A line `key = value`, commented out or not.
fn setting(line: &str) -> Option<(String, String)> {
    // Settings without a default are commented out.
    let line = line.strip_prefix("# ").unwrap_or(line);
    let (key, value) = line.split_once(" =")?;
    let is_key =
        !key.is_empty() && key.chars().all(|c| c.is_ascii_lowercase() || "_0123456789".contains(c));
    let value = value.trim().trim_matches(['[', ']', '"']);
    is_key.then(|| (key.to_owned(), value.to_owned()))
}

/// The environment variable of a key.
fn variable(framework: &str, key: &str) -> String {
    let key = key.to_uppercase();
    // Settings of the hub have the names that the hub's own tools read.
    if key.starts_with("HF_") { key } else { format!("{}_{key}", framework.to_uppercase()) }
}

/// The output of `candlepower config` with these variables set.
fn config(framework: &str, variables: &[(String, String)]) -> String {
    let mut command = program();
    command.args(["config", "demo", "--framework", framework]).envs(variables.iter().cloned());
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn is_variable(text: &str) -> bool {
    let is_shouted = text.chars().all(|c| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_');
    // A text that ends in `_` is itself a prefix.
    is_shouted && !text.ends_with('_') && PREFIXES.iter().any(|prefix| text.starts_with(prefix))
}

/// The features of a crate: the keys of that table of its manifest.
fn features(crate_name: &str, names: &mut Names) {
    let manifest = std::fs::read_to_string(sources::folder(crate_name).join("Cargo.toml")).unwrap();
    let table = manifest.split_once("[features]\n").unwrap().1;
    for line in table.lines().take_while(|line| !line.starts_with('[')) {
        if let Some((key, _)) = setting(line) {
            names.add(format!("feature {crate_name}/{key}"));
        }
    }
}
