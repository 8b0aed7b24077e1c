//! Limits the size of the repository. A checkout and its build should fit into what can be copied to another machine.

use std::collections::BTreeMap;

use super::Finding;

/// Limit for all files together.
const MAX_BYTES: u64 = 44 << 20;

/// Limit for one golden.
const MAX_GOLDEN_BYTES: u64 = 3 << 19;

/// The folder with the goldens, and the folders in it that contain goldens in turn.
const GOLDENS: &str = "tests/golden/";
const GROUPS: [&str; 2] = ["encoders", "on-load"];

/// Checks the path and size of every file.
pub(super) fn findings(sizes: &[(String, u64)]) -> Vec<Finding> {
    let over = |path: &str, bytes: u64, most: u64, what: &str| {
        let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
        let message = format!("{:.2} MiB{what}; at most {} MiB", mib(bytes), mib(most));
        let finding = Finding { path: path.to_owned(), line: 0, message };
        (bytes > most).then_some(finding)
    };
    let mut goldens: BTreeMap<&str, u64> = BTreeMap::new();
    for (path, bytes) in sizes {
        if let Some(golden) = golden(path) {
            *goldens.entry(golden).or_default() += bytes;
        }
    }
    let mut findings: Vec<Finding> = goldens
        .into_iter()
        .filter_map(|(golden, bytes)| over(golden, bytes, MAX_GOLDEN_BYTES, ""))
        .collect();
    let all = sizes.iter().map(|(_, bytes)| bytes).sum();
    findings.extend(over(".", all, MAX_BYTES, " in all files"));
    findings
}

/// The folder of the golden that a file belongs to, if any.
fn golden(path: &str) -> Option<&str> {
    let (first, rest) = path.strip_prefix(GOLDENS)?.split_once('/')?;
    let second = GROUPS.contains(&first).then(|| rest.split_once('/').map(|(name, _)| name));
    let len = match second {
        None => first.len(),
        Some(name) => first.len() + 1 + name?.len(),
    };
    path.get(..GOLDENS.len() + len)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn messages(sizes: &[(&str, u64)]) -> Vec<String> {
        let sizes: Vec<_> =
            sizes.iter().map(|(path, bytes)| ((*path).to_owned(), *bytes)).collect();
        findings(&sizes).iter().map(Finding::to_string).collect()
    }

    #[test]
    fn a_large_golden_is_found() {
        let half = MAX_GOLDEN_BYTES / 2;
        assert_eq!(
            messages(&[
                ("tests/golden/a/config.json", half),
                ("tests/golden/a/golden.safetensors", half + 1),
                ("tests/golden/b/golden.safetensors", 2 * half),
                ("tests/golden/encoders/c/2_Dense/model.safetensors", 4 * half),
            ]),
            [
                "tests/golden/a:0: 1.50 MiB; at most 1.5 MiB",
                "tests/golden/encoders/c:0: 3.00 MiB; at most 1.5 MiB",
            ]
        );
    }

    #[test]
    fn each_encoder_is_a_golden_of_its_own() {
        let files =
            ["a/x", "b/x", "vectors.json"].map(|name| format!("tests/golden/encoders/{name}"));
        let sizes: Vec<_> = files.iter().map(|path| (path.as_str(), MAX_GOLDEN_BYTES)).collect();
        assert_eq!(messages(&sizes), [""; 0]);
    }

    #[test]
    fn a_large_repository_is_found() {
        let sizes = [("README.md", 1), ("crates/a/src/lib.rs", MAX_BYTES)];
        assert_eq!(messages(&sizes), [".:0: 44.00 MiB in all files; at most 44 MiB"]);
        assert_eq!(messages(&sizes[1..]), [""; 0]);
    }
}
