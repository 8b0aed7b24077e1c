//! Public names stay: flags, settings, paths, fields, headers, error codes, metrics, clients and state files.
//!
//! Each test collects names of one kind and compares them with a committed list in `public_names/`, one name a line.
//! Names come from outside where possible: from the program's output, its answers and its files. Other names come from
//! the sources of whole crates, so moving code changes no list.

mod answers;
mod command_line;
mod deployments;
mod fields;
mod http;
mod live;
mod metrics;
mod openapi;
mod python_client;
mod rust_client;
mod serialized;
mod settings;
mod sources;

use std::collections::BTreeSet;
use std::fmt::Write;
use std::path::Path;

/// The variable that updates the lists: `add` writes new names into them, `replace` drops lost ones too.
const UPDATE: &str = "CANDLEPOWER_PUBLIC_NAMES";

/// Collects the names of one kind from running servers.
type Collect = fn(&live::Servers, &mut Names);

/// Names of one kind, each a line of its list.
#[derive(Debug, Default)]
struct Names(BTreeSet<String>);

impl Names {
    fn add(&mut self, name: impl Into<String>) {
        let name = name.into();
        assert!(!name.contains('\n') && name.trim() == name, "not a line: {name:?}");
        self.0.insert(name);
    }

    /// Compares the names with the list `public_names/KIND.txt`.
    #[track_caller]
    fn check(&self, kind: &str) {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("public_names/{kind}.txt"));
        let listed = listed(kind);
        let update = std::env::var(UPDATE).unwrap_or_default();
        let kept: BTreeSet<String> = match update.as_str() {
            "" => BTreeSet::new(),
            "add" => &listed | &self.0,
            "replace" => self.0.clone(),
            other => panic!("{UPDATE} is `{other}`: it can be `add` or `replace`"),
        };
        if !update.is_empty() {
            let lines: String = kept.iter().map(|name| format!("{name}\n")).collect();
            std::fs::write(&path, lines).unwrap();
        }
        let expected = if update.is_empty() { &listed } else { &kept };
        if let Some(message) = difference(kind, expected, &self.0) {
            panic!("{message}");
        }
    }
}

/// The committed names of a kind.
fn listed(kind: &str) -> BTreeSet<String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("public_names/{kind}.txt"));
    let text = std::fs::read_to_string(path).unwrap_or_default();
    text.lines().map(str::to_owned).collect()
}

/// Describes how two lists differ. `None`: they are equal.
fn difference(kind: &str, listed: &BTreeSet<String>, found: &BTreeSet<String>) -> Option<String> {
    let mut message = String::new();
    let mut part = |title: &str, names: Vec<&String>, advice: &str| {
        if names.is_empty() {
            return;
        }
        writeln!(message, "{title} ({}, tests/public_names/{kind}.txt):", names.len()).unwrap();
        for name in names {
            writeln!(message, "    {name}").unwrap();
        }
        writeln!(message, "{advice}").unwrap();
    };
    part(
        "Public names are lost",
        listed.difference(found).collect(),
        &format!(
            "This breaks users, so it needs a new major version. Bring the names back. \
             For a new major version, run this test with {UPDATE}=replace, which drops them from the list."
        ),
    );
    part(
        "Public names are new",
        found.difference(listed).collect(),
        &format!(
            "Once released, they must stay. To add them, run this test with {UPDATE}=add and commit the \
             list. This never drops a name."
        ),
    );
    (!message.is_empty()).then_some(message)
}

#[test]
fn commands_flags_and_their_values_stay() {
    let mut names = Names::default();
    command_line::collect(&mut names);
    names.check("command_line");
}

#[test]
fn keys_of_settings_and_environment_variables_stay() {
    let mut names = Names::default();
    settings::collect(&mut names);
    names.check("settings");
}

#[test]
fn paths_schemas_fields_headers_errors_and_metrics_stay() {
    let servers = live::Servers::start();
    let mut failed = Vec::new();
    let kinds: [(&str, Collect); 5] = [
        ("openapi", openapi::collect),
        ("fields", fields::collect),
        ("http", http::collect),
        ("answers", answers::collect),
        // The last, since most metrics count earlier requests.
        ("metrics", metrics::collect),
    ];
    for (kind, collect) in kinds {
        let mut names = Names::default();
        collect(&servers, &mut names);
        // A difference of one kind must not hide those of the others.
        let checked = std::panic::catch_unwind(|| names.check(kind));
        failed.extend(checked.is_err().then_some(kind));
    }
    assert!(failed.is_empty(), "names of these kinds differ, see above: {failed:?}");
}

#[test]
fn files_json_and_labels_of_deployments_stay() {
    let mut names = Names::default();
    deployments::collect(&mut names);
    names.check("deployments");
}

#[test]
fn names_of_the_rust_client_stay() {
    let mut names = Names::default();
    rust_client::collect(&mut names);
    names.check("rust_client");
}

#[test]
fn names_of_the_python_client_stay() {
    let mut names = Names::default();
    python_client::collect(&mut names);
    names.check("python_client");
}

#[test]
fn a_difference_says_what_is_lost_and_what_is_new() {
    let set = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
    let listed = set(&["--port", "--seed"]);
    assert_eq!(difference("flags", &listed, &listed), None);
    let message = difference("flags", &listed, &set(&["--ports", "--seed"])).unwrap();
    let (lost, new) = message.split_once("Public names are new").unwrap();
    assert!(lost.contains("    --port\n") && lost.contains("major version"), "{message}");
    assert!(new.contains("    --ports\n") && new.contains("=add"), "{message}");
    assert!(!message.contains("--seed"), "{message}");
}
