//! Checks for one test binary per package. Each binary links everything again, so a second one costs time in every
//! build.

use super::Finding;
use super::files::SourceFile;

/// The manifest of the end-to-end tests, which names their one binary.
const TESTS: &str = "tests/Cargo.toml";

/// The comparisons of GPU kernels have a `main` of their own.
const COMPARISONS: &str = "crates/gpu/tests/cuda_kernels/main.rs";

pub(super) fn findings(files: &[SourceFile]) -> Vec<Finding> {
    let mut findings: Vec<Finding> =
        files.iter().filter(|file| file.path == TESTS).filter_map(unnamed).collect();
    for file in files {
        if let Some(package) = package_of_binary(&file.path)
            && !file.path.ends_with("/tests/all/main.rs")
            && file.path != COMPARISONS
        {
            let message =
                format!("a test binary of {package}: make it a module of tests/all/main.rs");
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

/// The package whose test binary cargo discovers at this path, if it does.
fn package_of_binary(path: &str) -> Option<&str> {
    let (package, file) = path.strip_prefix("crates/")?.split_once("/tests/")?;
    let binary = file.strip_suffix("/main.rs").or_else(|| file.strip_suffix(".rs"))?;
    (!package.contains('/') && !binary.contains('/')).then_some(package)
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
    fn other_test_binaries_are_found() {
        let mut files = sample("crates/api/tests/all/main.rs", "");
        files.extend(sample("crates/api/tests/all/model.rs", ""));
        files.extend(sample("crates/api/tests/properties/model.rs", ""));
        files.extend(sample(COMPARISONS, ""));
        assert!(findings(&files).is_empty());
        for path in ["crates/api/tests/properties/main.rs", "crates/engine/tests/all.rs"] {
            assert_eq!(findings(&sample(path, ""))[0].path, path);
        }
    }
}
