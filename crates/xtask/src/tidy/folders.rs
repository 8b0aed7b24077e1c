//! Order of folders. In a crate that has folders, code imports only from its own folder and those below it.

use super::Finding;
use super::code::only_code;
use super::files::SourceFile;

/// A crate's sources, and its folders from top to bottom.
const CRATES: [(&str, &[&str]); 1] =
    [("crates/server/src/", &["lifecycle", "http", "endpoints", "generation", "model", "config"])];

pub(super) fn findings(files: &[SourceFile]) -> Vec<Finding> {
    files.iter().filter(|file| file.is_rust()).flat_map(file_findings).collect()
}

fn file_findings(file: &SourceFile) -> Vec<Finding> {
    let placed = CRATES.iter().find_map(|(source, folders)| {
        let path = file.path.strip_prefix(source)?;
        let (folder, _) = path.split_once(['/', '.'])?;
        let own = folders.iter().position(|known| *known == folder)?;
        // The top of the crate is one parent up from a file at the top, and one more from each folder.
        let to_top = "super::".repeat(path.matches('/').count() + 1);
        Some((*folders, own, to_top))
    });
    let Some((folders, own, to_top)) = placed else { return Vec::new() };
    // Tests may import from the top: they load a model to pass it to the code below.
    if file.path.contains("/tests/") || file.path.ends_with("/tests.rs") {
        return Vec::new();
    }
    let code = only_code(&file.text);
    let code = code.split_once("#[cfg(test)]").map_or(code.as_str(), |(before, _)| before);
    let from_top = ["crate::", &to_top].into_iter().flat_map(|top| code.match_indices(top));
    let mut found: Vec<(usize, &str)> = from_top
        // `super::super::` within a longer chain of parents leads elsewhere.
        .filter(|(at, top)| *top == "crate::" || !code[..*at].ends_with("super::"))
        .flat_map(|(at, top)| names(code, at + top.len()))
        .filter(|(_, name)| folders[..own].contains(name))
        .collect();
    found.sort_unstable();
    let finding = |(at, above): (usize, &str)| {
        let message = format!(
            "`{}` may import only from folders below it ({}), not `{above}`",
            folders[own],
            folders[own + 1..].join(", ")
        );
        Finding::new(file, code[..at].matches('\n').count() + 1, message)
    };
    found.into_iter().map(finding).collect()
}

/// The first names of the paths that continue at `start`, with their places: one name, or those of a group in braces.
fn names(code: &str, start: usize) -> Vec<(usize, &str)> {
    let Some(group) = code[start..].strip_prefix('{') else {
        return vec![(start, name_at(code, start))];
    };
    let (mut names, mut depth, mut is_first) = (Vec::new(), 0, true);
    for (at, character) in group.char_indices() {
        match character {
            '}' if depth == 0 => break,
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => is_first = true,
            _ if depth == 0 && is_first && is_word(character) => {
                let at = start + 1 + at;
                names.push((at, name_at(code, at)));
                is_first = false;
            }
            _ => {}
        }
    }
    names
}

fn name_at(code: &str, at: usize) -> &str {
    let rest = &code[at..];
    &rest[..rest.find(|character| !is_word(character)).unwrap_or(rest.len())]
}

fn is_word(character: char) -> bool {
    character.is_alphanumeric() || character == '_'
}

#[cfg(test)]
mod tests {
    use super::super::files::sample;
    use super::*;

    fn found(path: &str, text: &str) -> Vec<String> {
        findings(&sample(path, text)).iter().map(Finding::to_string).collect()
    }

    #[test]
    fn an_import_from_a_folder_above_is_found() {
        let text = "//! A file.\nuse crate::endpoints::chat;\nuse crate::model::state;\n";
        let expected = "crates/server/src/generation/sse.rs:2: `generation` may import only from folders below it (model, config), not `endpoints`";
        assert_eq!(found("crates/server/src/generation/sse.rs", text), [expected]);
        assert_eq!(found("crates/server/src/config.rs", text).len(), 2);
    }

    #[test]
    fn imports_in_groups_are_found() {
        let path = "crates/server/src/generation/sse.rs";
        let lines = |text: &str| -> Vec<usize> {
            findings(&sample(path, text)).iter().map(|finding| finding.line).collect()
        };
        assert_eq!(lines("//! A file.\nuse crate::{model::state, endpoints::chat};\n"), [2]);
        let long = "//! A file.\nuse crate::{\n    config::{endpoints, Config},\n    endpoints::{\n        chat,\n    },\n    http,\n};\n";
        assert_eq!(lines(long), [4, 7]);
        assert_eq!(lines("use {crate::http::host, std::fmt};\n"), [1]);
    }

    #[test]
    fn imports_by_way_of_parents_are_found() {
        let text = "use super::super::endpoints::chat;\nuse super::super::{model, http::host};\nuse super::endpoints;\n";
        let lines: Vec<usize> = findings(&sample("crates/server/src/generation/sse.rs", text))
            .iter()
            .map(|finding| finding.line)
            .collect();
        assert_eq!(lines, [1, 2]);
        assert_eq!(
            found("crates/server/src/generation.rs", "use super::endpoints::chat;\n").len(),
            1
        );
    }

    #[test]
    fn imports_from_below_and_longer_names_pass() {
        let text =
            "use crate::endpoints::chat;\nuse crate::lifecycle_of::x;\n// crate::lifecycle\n";
        assert!(found("crates/server/src/http/router.rs", text).is_empty());
        assert!(found("crates/engine/src/http.rs", "use crate::lifecycle::x;\n").is_empty());
    }

    #[test]
    fn tests_may_import_from_above() {
        let test = "//! A file.\n#[cfg(test)]\nmod tests {\n    use crate::lifecycle::demo;\n}\n";
        assert!(found("crates/server/src/model/sessions.rs", test).is_empty());
        assert!(
            found("crates/server/src/http/router/tests.rs", "use crate::lifecycle::x;").is_empty()
        );
    }
}
