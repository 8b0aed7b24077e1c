//! Checks for one test binary per package. Each binary links everything again, so a second one costs time in every
//! build.

use std::collections::{BTreeMap, BTreeSet};

use super::Finding;
use super::files::SourceFile;

/// The manifest of the end-to-end tests, which names their one binary.
const TESTS: &str = "tests/Cargo.toml";

pub(super) fn findings(files: &[SourceFile]) -> Vec<Finding> {
    let mut findings: Vec<Finding> =
        files.iter().filter(|file| file.path == TESTS).filter_map(unnamed).collect();
    let mut binaries: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for file in files {
        if let Some((package, binary)) = discovered(&file.path)
            && binaries.entry(package).or_default().insert(binary)
            && binaries[package].len() > 1
        {
            let message =
                format!("a second test binary in {package}: make it a module of the first");
            findings.push(Finding::new(file, 0, message));
        }
    }
    findings
}

/// The end-to-end tests switch discovery off, so that a module beside `main.rs` is no binary.
fn unnamed(file: &SourceFile) -> Option<Finding> {
    let manifest: toml::Table = file.text.parse().ok()?;
    let autotests = manifest.get("package")?.get("autotests");
    let message = "`autotests = false` is missing: each file would become a test binary";
    (autotests != Some(&toml::Value::Boolean(false))).then(|| Finding::new(file, 0, message))
}

/// Package and name of the test binary that cargo discovers at this path, if it does.
fn discovered(path: &str) -> Option<(&str, &str)> {
    let (package, file) = path.strip_prefix("crates/")?.split_once("/tests/")?;
    let binary = file.strip_suffix("/main.rs").or_else(|| file.strip_suffix(".rs"))?;
    (!package.contains('/') && !binary.contains('/')).then_some((package, binary))
}

#[cfg(test)]
mod tests {
    use super::super::files::sample;
    use super::*;

    #[test]
    fn discovery_left_on_is_found() {
        assert_eq!(findings(&sample(TESTS, "[package]\nname = \"t\"\n")).len(), 1);
        assert!(findings(&sample(TESTS, "[package]\nautotests = false\n")).is_empty());
    }

    #[test]
    fn a_second_test_binary_is_found() {
        let mut files = sample("crates/api/tests/wire.rs", "");
        assert!(findings(&files).is_empty());
        files.extend(sample("crates/api/tests/properties/model.rs", ""));
        files.extend(sample("crates/engine/tests/steps.rs", ""));
        assert!(findings(&files).is_empty());
        files.extend(sample("crates/api/tests/properties/main.rs", ""));
        assert_eq!(findings(&files)[0].path, "crates/api/tests/properties/main.rs");
    }
}
