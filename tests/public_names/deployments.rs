//! Names that deployments write: state files and their keys, JSON of the command line, labels, Kubernetes objects and
//! the image's variables.

use std::path::Path;

use serde_json::Value;

use super::answers::keys;
use super::{Names, serialized, sources};
use crate::deploy::Home;

/// The name of the deployment. It is the test's own, so no list has it.
const NAME: &str = "chat";

pub(super) fn collect(names: &mut Names) {
    let home = Home::new();
    keys("deploy", "", &home.deploy_demo(NAME, ""), names);
    for command in ["status chat", "ls", "events chat"] {
        keys(command.split(' ').next().unwrap(), "", &home.json(command), names);
    }
    files(home.folder("").parent().unwrap(), "candlepower", names);
    for command in ["status nothing", "deploy demo --name X"] {
        let status = if command.starts_with("status") { 3 } else { 2 };
        keys("error", "", &home.error(command, status), names);
    }
    from_sources(names);
    manifests(&home, names);
    image(names);
}

/// Lists every file below a folder, with the keys of JSON files.
fn files(folder: &Path, path: &str, names: &mut Names) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let entry = entry.unwrap();
        let name = entry.file_name().into_string().unwrap();
        // The supervisor writes a file under this name first, and then renames it.
        if name.ends_with(".new") {
            continue;
        }
        let path = format!("{path}/{}", if name == NAME { "NAME" } else { &name });
        if entry.path().is_dir() {
            files(&entry.path(), &path, names);
            continue;
        }
        names.add(format!("file {path}"));
        let text = std::fs::read(entry.path()).unwrap_or_default();
        if let Ok(value) = serde_json::from_slice::<Value>(&text) {
            keys(&format!("file {path}"), "", &value, names);
        }
    }
}

/// Names that no single deployment shows: error codes, labels, and keys of JSON.
fn from_sources(names: &mut Names) {
    let client = sources::of("client");
    for text in client.literals().all {
        let starts = ["candlepower.", "candlepower-", "nvidia.com/"];
        let is_label =
            starts.iter().any(|start| text.starts_with(start)) || text.contains("kubernetes.io/");
        if is_label && !text.contains([' ', '{']) {
            names.add(format!("label {text}"));
        }
    }
    for code in client.literals_of_method("Error", "code").all {
        names.add(format!("error code {code}"));
    }
    for key in client.literals_of_method("Error", "to_json").json_keys {
        names.add(format!("error key {key}"));
    }
    for crate_name in ["candlepower", "client", "machine", "server"] {
        let sources = sources::of(crate_name);
        let mut keys = serialized::collect(&sources);
        // The client's other keys belong to the APIs of container engines and Kubernetes.
        if crate_name != "client" {
            keys.extend(sources.literals().json_keys);
        }
        keys.iter().for_each(|key| names.add(format!("json {crate_name} {key}")));
    }
}

/// Lists the keys and object names of the Kubernetes manifests.
fn manifests(home: &Home, names: &mut Names) {
    let flags = "--backend kubernetes --image a-registry/an-image --gpu-count 1 --gpu-models H100 --min-gpu-memory-gb 40 --hub-cache claim \
        --env BLAZE_API_KEY=a-key --env BLAZE_SEED=1 --dry-run";
    let output = home.run(&format!("deploy owner/model --name {NAME} {flags}"));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    for line in String::from_utf8(output.stdout).unwrap().lines() {
        let line = line.trim_start().trim_start_matches("- ");
        let Some((key, value)) = line.split_once(':') else { continue };
        let key = key.trim_matches(['"', '\'']);
        if key.is_empty() || key.contains([' ', '{']) {
            continue;
        }
        names.add(format!("manifest {key}"));
        let value = value.trim().trim_matches(['"', '\'']);
        if ["name", "kind", "apiVersion", "mountPath", "path"].contains(&key)
            && !["", NAME].contains(&value)
        {
            names.add(format!("manifest {key} {value}"));
        }
    }
}

/// Lists the arguments, variables, labels and ports of the Dockerfile.
fn image(names: &mut Names) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../Dockerfile");
    let text = std::fs::read_to_string(path).unwrap().replace("\\\n", " ");
    for line in text.lines() {
        let (instruction, rest) = line.split_once(' ').unwrap_or_default();
        for word in rest.split_whitespace() {
            let name = match instruction {
                "ARG" | "ENV" | "LABEL" => word.split_once('=').map(|(name, _)| name),
                "EXPOSE" | "USER" | "VOLUME" => Some(word),
                _ => None,
            };
            if let Some(name) = name {
                names.add(format!("image {instruction} {name}"));
            }
        }
    }
}
