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
        let (folder, _) = file.path.strip_prefix(source)?.split_once(['/', '.'])?;
        Some((*folders, folders.iter().position(|known| *known == folder)?))
    });
    let Some((folders, own)) = placed else { return Vec::new() };
    // Tests may import from the top: they load a model to pass it to the code below.
    if file.path.contains("/tests/") || file.path.ends_with("/tests.rs") {
        return Vec::new();
    }
    let code = only_code(&file.text);
    let code = code.split_once("#[cfg(test)]").map_or(code.as_str(), |(before, _)| before);
    let mut findings = Vec::new();
    for (line, text) in code.lines().enumerate() {
        // A line may import from several folders.
        for (_, rest) in
            text.match_indices("crate::").map(|(at, word)| text.split_at(at + word.len()))
        {
            let above = folders[..own].iter().find(|folder| {
                rest.strip_prefix(**folder).is_some_and(|after| !after.starts_with(is_word))
            });
            if let Some(above) = above {
                let message = format!(
                    "`{}` may import only from folders below it ({}), not `{above}`",
                    folders[own],
                    folders[own + 1..].join(", ")
                );
                findings.push(Finding::new(file, line + 1, message));
            }
        }
    }
    findings
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
