//! Layers of crates. A crate imports only the crates that the table allows, all of them in lower layers.

use super::Finding;
use super::files::SourceFile;

struct Crate {
    name: &'static str,
    layer: usize,
    may_import: &'static [&'static str],
}

const fn row(name: &'static str, layer: usize, may_import: &'static [&'static str]) -> Crate {
    Crate { name, layer, may_import }
}

/// The crates of ARCHITECTURE.md, by the names of their folders.
const CRATES: &[Crate] = &[
    row("api", 0, &[]),
    row("tokenizer", 0, &[]),
    row("scheduler", 0, &[]),
    row("layout", 0, &[]),
    row("machine", 0, &[]),
    row("media", 0, &[]),
    row("comm", 0, &[]),
    row("testing", 0, &[]),
    row("checkpoint", 1, &["layout", "media"]),
    row("kernels", 1, &["layout"]),
    row("grammar", 1, &["tokenizer"]),
    row("gpu", 2, &["kernels", "layout"]),
    row("hub", 2, &["checkpoint"]),
    row("dialect", 2, &["grammar", "tokenizer"]),
    row("models", 3, &["checkpoint", "comm", "gpu", "kernels", "media"]),
    row("client", 3, &["api", "checkpoint", "hub", "machine"]),
    row(
        "engine",
        4,
        &[
            "checkpoint",
            "comm",
            "gpu",
            "grammar",
            "kernels",
            "machine",
            "media",
            "models",
            "scheduler",
        ],
    ),
    row(
        "server",
        5,
        &[
            "api",
            "checkpoint",
            "dialect",
            "engine",
            "grammar",
            "hub",
            "machine",
            "media",
            "tokenizer",
        ],
    ),
    row("candlepower", 6, &["checkpoint", "client", "engine", "hub", "machine", "server"]),
    row("python", 6, &["client"]),
    row(
        "fuzz",
        6,
        &[
            "api",
            "checkpoint",
            "client",
            "dialect",
            "grammar",
            "hub",
            "media",
            "models",
            "server",
            "testing",
            "tokenizer",
        ],
    ),
    row("xtask", 7, &["testing"]),
];

/// The tables of a manifest that name other crates.
const DEPENDENCIES: [&str; 3] = ["dependencies", "dev-dependencies", "build-dependencies"];

/// The crate with data for tests, which the tests of every crate may import.
const FOR_TESTS: (&str, &str) = ("dev-dependencies", "candlepower-testing");

pub(super) fn findings(files: &[SourceFile]) -> Vec<Finding> {
    files.iter().flat_map(manifest_findings).collect()
}

fn manifest_findings(file: &SourceFile) -> Vec<Finding> {
    let Some(name) = crate_folder(&file.path) else { return Vec::new() };
    let Some(this) = CRATES.iter().find(|row| row.name == name) else {
        return vec![Finding::new(
            file,
            0,
            format!("crate `{name}` is not in the table of layers"),
        )];
    };
    let manifest: toml::Table = match file.text.parse() {
        Ok(manifest) => manifest,
        Err(error) => return vec![Finding::new(file, 0, format!("does not parse: {error}"))],
    };
    imports(&manifest)
        .into_iter()
        .filter(|import| !this.may_import.contains(&import.as_str()))
        .map(|import| {
            let allowed = match this.may_import {
                [] => "no crate of ours".to_owned(),
                allowed => allowed.join(", "),
            };
            let message =
                format!("`{name}` (layer {}) may import {allowed}, not `{import}`", this.layer);
            Finding::new(file, line_of(&file.text, &import), message)
        })
        .collect()
}

/// `crates/NAME/Cargo.toml` gives NAME. The end-to-end tests in `tests/` may import any crate.
fn crate_folder(path: &str) -> Option<&str> {
    let name = path.strip_prefix("crates/")?.strip_suffix("/Cargo.toml")?;
    (!name.contains('/')).then_some(name)
}

/// The folders of our crates that a manifest depends on, also under `[target.'..']`.
fn imports(manifest: &toml::Table) -> Vec<String> {
    let targets = manifest.get("target").and_then(toml::Value::as_table);
    let tables =
        targets.into_iter().flat_map(toml::Table::values).filter_map(toml::Value::as_table);
    std::iter::once(manifest)
        .chain(tables)
        .flat_map(|table| {
            let of_kind = |kind: &'static &str| Some((*kind, table.get(*kind)?.as_table()?));
            DEPENDENCIES.iter().filter_map(of_kind)
        })
        .flat_map(|(kind, named)| named.iter().map(move |(name, value)| (kind, name, value)))
        .filter(|(kind, name, _)| (*kind, name.as_str()) != FOR_TESTS)
        .filter_map(|(_, name, value)| {
            let renamed = value.get("package").and_then(toml::Value::as_str);
            let name = renamed.unwrap_or(name);
            // The program's crate has no suffix behind its name.
            if name == "candlepower" {
                return Some(name.to_owned());
            }
            name.strip_prefix("candlepower-").map(str::to_owned)
        })
        .collect()
}

fn line_of(text: &str, import: &str) -> usize {
    let name = format!("candlepower-{import}");
    text.lines().position(|line| line.contains(&name)).map_or(0, |line| line + 1)
}

#[cfg(test)]
mod tests {
    use super::super::files::sample;
    use super::*;

    fn messages(path: &str, text: &str) -> Vec<String> {
        findings(&sample(path, text)).iter().map(Finding::to_string).collect()
    }

    #[test]
    fn an_import_from_a_higher_layer_is_found() {
        let text = "[dependencies]\ncandlepower-engine.workspace = true\n";
        assert_eq!(
            messages("crates/models/Cargo.toml", text),
            [
                "crates/models/Cargo.toml:2: `models` (layer 3) may import checkpoint, comm, gpu, kernels, media, not `engine`"
            ]
        );
    }

    #[test]
    fn dev_build_target_and_renamed_dependencies_count() {
        for text in [
            "[dev-dependencies]\ncandlepower-models.workspace = true\n",
            "[build-dependencies]\ncandlepower-models.workspace = true\n",
            "[target.'cfg(unix)'.dependencies]\ncandlepower-models.workspace = true\n",
            "[dependencies]\nm = { package = \"candlepower-models\", path = \"../models\" }\n",
        ] {
            assert_eq!(messages("crates/kernels/Cargo.toml", text).len(), 1, "{text}");
        }
    }

    #[test]
    fn allowed_imports_and_foreign_crates_pass() {
        let text = "[dependencies]\ncandlepower-kernels.workspace = true\nserde = \"1\"\n";
        assert!(messages("crates/models/Cargo.toml", text).is_empty());
    }

    #[test]
    fn only_tests_import_what_is_for_tests() {
        let text = |kind| format!("[{kind}]\ncandlepower-testing.workspace = true\n");
        assert!(messages("crates/models/Cargo.toml", &text("dev-dependencies")).is_empty());
        for kind in ["dependencies", "build-dependencies"] {
            assert_eq!(messages("crates/models/Cargo.toml", &text(kind)).len(), 1, "{kind}");
        }
    }

    #[test]
    fn the_tests_may_import_any_crate() {
        let text = "[dev-dependencies]\ncandlepower-engine.workspace = true\n";
        assert!(messages("tests/Cargo.toml", text).is_empty());
    }

    #[test]
    fn an_unknown_crate_is_found() {
        let found = messages("crates/misc/Cargo.toml", "");
        assert_eq!(found, ["crates/misc/Cargo.toml:0: crate `misc` is not in the table of layers"]);
    }

    #[test]
    fn the_table_grants_only_lower_layers() {
        for this in CRATES {
            for import in this.may_import {
                let import = CRATES.iter().find(|row| row.name == *import).unwrap();
                assert!(import.layer < this.layer, "{} -> {}", this.name, import.name);
            }
        }
    }
}
