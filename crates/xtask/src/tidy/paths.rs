//! Checks that no path of one machine and no host of a package registry is in the project.

use super::Finding;
use super::files::SourceFile;

/// Prefixes of paths that exist on one machine only. They are composed here, so that this file contains none.
const MACHINE_PATHS: [&str; 4] =
    [concat!("/ro", "ot/"), concat!("/ho", "me/"), concat!("/Us", "ers/"), concat!("/wo", "rk/")];

/// Hosts that package managers know by default, and options that would name another.
const REGISTRIES: [&str; 8] = [
    concat!("py", "pi.org"),
    concat!("files.python", "hosted.org"),
    concat!("registry.npm", "js.org"),
    concat!("index.crates", ".io"),
    concat!("static.crates", ".io"),
    concat!("index", "-url"),
    concat!("--find", "-links"),
    concat!("\"reso", "lved\": \"http"),
];

pub(super) fn findings(files: &[SourceFile]) -> Vec<Finding> {
    files.iter().flat_map(file_findings).collect()
}

fn file_findings(file: &SourceFile) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (line, text) in file.text.lines().enumerate() {
        for path in MACHINE_PATHS.into_iter().filter(|path| holds_path(text, path)) {
            findings.push(Finding::new(
                file,
                line + 1,
                format!("`{path}` is a path of one machine"),
            ));
        }
        for registry in REGISTRIES.into_iter().filter(|registry| text.contains(registry)) {
            let message = format!("`{registry}`: which registry is used is the machine's setting");
            findings.push(Finding::new(file, line + 1, message));
        }
    }
    findings
}

/// Whether an absolute path with this prefix is in the line. `a/root/b` and `https://x/home/` do not count.
fn holds_path(line: &str, path: &str) -> bool {
    line.match_indices(path).any(|(at, _)| {
        !line[..at].ends_with(|c: char| c.is_alphanumeric() || "_-./}*~".contains(c))
    })
}

#[cfg(test)]
mod tests {
    use super::super::files::sample;
    use super::*;

    fn count(text: &str) -> usize {
        findings(&sample("README.md", text)).len()
    }

    #[test]
    fn paths_of_one_machine_are_found() {
        for path in MACHINE_PATHS {
            assert_eq!(count(&format!("cd {path}me")), 1);
            assert_eq!(count(&format!("\"{path}me\"")), 1);
        }
    }

    #[test]
    fn registries_are_found() {
        for registry in REGISTRIES {
            assert_eq!(count(&format!("pip {registry}")), 1);
        }
    }

    #[test]
    fn parts_of_other_paths_pass() {
        for path in MACHINE_PATHS {
            assert_eq!(count(&format!("see a{path}me and https://example.org{path}")), 0);
        }
    }
}
