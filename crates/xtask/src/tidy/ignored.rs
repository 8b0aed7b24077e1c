//! Checks that ignored tests run somewhere. `cargo xtask emulated` runs each by name, and fails if one did not run.
//! Tests that it cannot run belong to scripts/gpu-check.sh, `cargo xtask soak` or `cargo xtask deep agents`.

use super::Finding;
use super::files::SourceFile;

/// The files with the names, and the text after each name.
const RUNNERS: [(&str, &str); 4] = [
    ("crates/xtask/src/agents.rs", "\""),
    ("crates/xtask/src/emulated.rs", "\""),
    ("scripts/gpu-check.sh", " "),
    ("crates/xtask/src/soak.rs", "\""),
];

pub(super) fn findings(files: &[SourceFile]) -> Vec<Finding> {
    let starts = |name: &str| {
        RUNNERS.iter().any(|(path, end)| {
            let runner = files.iter().find(|file| file.path == *path);
            runner.is_some_and(|file| file.text.contains(&format!("::{name}{end}")))
        })
    };
    files.iter().filter(|file| file.is_rust()).flat_map(|file| forgotten(file, &starts)).collect()
}

fn forgotten<'a>(
    file: &'a SourceFile,
    starts: &'a impl Fn(&str) -> bool,
) -> impl Iterator<Item = Finding> + 'a {
    let lines = file.text.lines().enumerate();
    let ignored = lines.filter(|(_, line)| line.trim_start().starts_with("#[ignore"));
    ignored.filter_map(move |(index, _)| {
        let name = file.text.lines().skip(index + 1).find_map(name_of_test);
        let message = "an ignored test that none of `cargo xtask emulated`, `cargo xtask soak`, `cargo xtask deep agents` and gpu-check.sh names: nothing runs it".to_owned();
        (!name.is_some_and(starts)).then(|| Finding::new(file, index + 1, message))
    })
}

/// The name of the function that begins in this line.
fn name_of_test(line: &str) -> Option<&str> {
    let (_, rest) = line.split_once("fn ")?;
    Some(rest.split_once('(')?.0)
}

#[cfg(test)]
mod tests {
    use super::super::files::sample;
    use super::*;

    #[test]
    fn an_ignored_test_that_nothing_runs_is_found() {
        let test = "#[test]\n#[ignore = \"needs a GPU\"]\nfn sums() {}\n";
        let mut files = sample("crates/models/tests/all/device.rs", test);
        let found = findings(&files);
        assert_eq!((found.len(), found[0].line), (1, 2));
        let said = found[0].to_string();
        for (path, _) in RUNNERS {
            // The name of the file is the last word of the command.
            let name = path.rsplit('/').next().unwrap().trim_end_matches(".rs");
            assert!(said.contains(name), "{name}: {said}");
        }
        files.extend(sample(RUNNERS[1].0, "names: &[\"device::all_sums\"],"));
        assert_eq!(findings(&files).len(), 1);
        files.extend(sample("crates/models/src/lib.rs", "#[test]\nfn runs_always() {}\n"));
        files[1].text = "names: &[\"device::sums\"],".to_owned();
        assert!(findings(&files).is_empty());
        files[1].text.clear();
        files.extend(sample(RUNNERS[2].0, "goldens --exact device::sums --nocapture"));
        assert!(findings(&files).is_empty());
    }
}
