//! Links of pages lead to files and headings that exist, each page is in the index, and pages for developers name files that exist.

use std::collections::{HashMap, HashSet};

use super::Finding;
use super::files::SourceFile;
use crate::pages::{Page, resolved};

/// The list of pages.
pub(crate) const INDEX: &str = "docs/index.md";

/// Pages in whose inline code a path has to exist: those for developers.
const NAMING: [&str; 3] = ["ARCHITECTURE.md", "CONTRIBUTING.md", "docs/design/"];

/// Extensions of sources.
const SOURCES: [&str; 7] = ["rs", "cu", "cuh", "cpp", "py", "sh", "mjs"];

/// Folders whose pages need no line in the index.
const UNLISTED: [&str; 1] = ["docs/log/"];

pub(crate) fn findings(files: &[SourceFile]) -> Vec<Finding> {
    let pages: HashMap<&str, (&SourceFile, Page)> = files
        .iter()
        .filter(|file| file.has_extension("md"))
        .map(|file| (file.path.as_str(), (file, Page::read(&file.text))))
        .collect();
    let known = known(files);
    let mut findings: Vec<Finding> = pages
        .values()
        .flat_map(|(file, page)| {
            let dead = page.links.iter().filter_map(|link| {
                let message = dead(file, &link.text, &known, &pages)?;
                Some(Finding::new(file, link.line, message))
            });
            let naming = NAMING.iter().any(|prefix| file.path.starts_with(prefix));
            let named = page.code.iter().filter(|code| naming && is_path(&code.text));
            let missing = named.filter(|code| !is_end_of_any(&code.text, files)).map(|code| {
                Finding::new(file, code.line, format!("there is no file `{}`", code.text))
            });
            dead.chain(missing).collect::<Vec<_>>()
        })
        .collect();
    findings.extend(unlisted(&pages));
    // The pages come from a map, which has no order.
    findings.sort_by(|a, b| (&a.path, a.line).cmp(&(&b.path, b.line)));
    findings
}

/// Every file, and every folder that has one.
fn known(files: &[SourceFile]) -> HashSet<&str> {
    let paths = files.iter().map(|file| file.path.as_str());
    paths
        .flat_map(|path| {
            let folders = path.match_indices('/').map(move |(at, _)| &path[..at]);
            folders.chain(std::iter::once(path))
        })
        .collect()
}

fn dead(
    file: &SourceFile,
    link: &str,
    known: &HashSet<&str>,
    pages: &HashMap<&str, (&SourceFile, Page)>,
) -> Option<String> {
    let (path, anchor) = resolved(&file.path, link)?;
    if !known.contains(path.as_str()) {
        return Some(format!("the link `{link}` leads to no file"));
    }
    // A link into a source file, such as `x.rs#L5`, has no headings to check.
    let (anchor, (_, page)) = (anchor?, pages.get(path.as_str())?);
    let is_there = page.anchors.iter().any(|found| found == anchor);
    (!is_there).then(|| format!("the link `{link}` leads to no heading"))
}

fn unlisted(pages: &HashMap<&str, (&SourceFile, Page)>) -> Vec<Finding> {
    let Some((index, list)) = pages.get(INDEX) else { return Vec::new() };
    let listed: HashSet<String> =
        list.links.iter().filter_map(|link| Some(resolved(INDEX, &link.text)?.0)).collect();
    let needs_line = |path: &str| {
        path.starts_with("docs/")
            && path != INDEX
            && !UNLISTED.iter().any(|folder| path.starts_with(folder))
    };
    let missing = pages.keys().filter(|path| needs_line(path) && !listed.contains(**path));
    missing.map(|path| Finding::new(index, 0, format!("it has no line for {path}"))).collect()
}

/// Whether a piece of inline code is the path of a source. Capitals stand for names to be filled in.
fn is_path(code: &str) -> bool {
    let is_plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "_-./".contains(c);
    code.chars().all(is_plain)
        && !code.starts_with('.')
        && code.rsplit_once('.').is_some_and(|(_, extension)| SOURCES.contains(&extension))
}

fn is_end_of_any(code: &str, files: &[SourceFile]) -> bool {
    files.iter().any(|file| {
        file.path.strip_suffix(code).is_some_and(|rest| rest.is_empty() || rest.ends_with('/'))
    })
}

#[cfg(test)]
mod tests {
    use super::super::files::sample;
    use super::*;

    /// The findings of a page beside others.
    fn messages(path: &str, text: &str) -> Vec<String> {
        let mut files = sample(path, text);
        files.extend(sample("docs/other.md", "# Head\n"));
        files.extend(sample("crates/a/src/main.rs", "//! Main.\n"));
        findings(&files).iter().map(Finding::to_string).collect()
    }

    #[test]
    fn links_lead_to_files_folders_and_headings() {
        for link in ["other.md", "other.md#head", "../crates/a/src", "#own", "https://a.b/c.md#d"] {
            let text = format!("# Own\n\n[x]({link})\n");
            assert!(messages("docs/a.md", &text).is_empty(), "{link}");
        }
        for link in ["none.md", "other.md#none", "#none", "/docs/other.md"] {
            let text = format!("# Own\n\n[x]({link})\n");
            let found = messages("docs/a.md", &text);
            assert_eq!(found.len(), 1, "{link}");
            assert!(found[0].starts_with("docs/a.md:3: the link"), "{found:?}");
        }
    }

    #[test]
    fn pages_for_developers_name_files_that_exist() {
        let text = "`src/main.rs`, `crates/a/src/main.rs`, `a/NAME.rs`, `*.rs`, `x main.rs`, `.rs`";
        assert!(messages("docs/design/a.md", text).is_empty());
        let found = messages("docs/design/a.md", "`src/none.rs` and `ain.rs`");
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(messages("docs/a.md", "`src/none.rs`").is_empty());
    }

    #[test]
    fn each_page_has_a_line_in_the_index() {
        assert!(messages(INDEX, "[x](other.md)").is_empty());
        assert_eq!(messages(INDEX, ""), ["docs/index.md:0: it has no line for docs/other.md"]);
    }
}
