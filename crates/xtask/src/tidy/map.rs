//! The map of the sources, `docs/design/map.md`: one line a file, which is the file's opening sentence.

use regex::Regex;

use super::Finding;
use super::files::SourceFile;
use crate::pages::GENERATED;

pub(super) const PAGE: &str = "docs/design/map.md";

/// The kinds of files on the map: what begins their description.
const KINDS: [(&str, &str); 6] =
    [("rs", "//!"), ("cu", "//"), ("cuh", "//"), ("cpp", "//"), ("mjs", "//"), ("py", "\"\"\"")];

const HEAD: &str = "\
# Map of the sources

Each file below has one line: the opening sentence of the file. `cargo xtask docs` writes the page, and `cargo xtask tidy` fails if it is stale.
";

/// A page that is not what would be written, and files that have no opening sentence.
pub(super) fn findings(files: &[SourceFile]) -> Vec<Finding> {
    let mut findings: Vec<Finding> = mapped(files)
        .filter(|(file, _)| opening(file).is_none())
        .map(|(file, _)| Finding::new(file, 1, "it does not begin with a sentence about itself"))
        .collect();
    let page = files.iter().find(|file| file.path == PAGE);
    if let Some(page) = page.filter(|page| written(files) != page.text) {
        findings.push(Finding::new(page, 0, "it is not what `cargo xtask docs` writes"));
    }
    findings
}

/// The page: a table for each crate, and one for the end-to-end tests.
pub(super) fn written(files: &[SourceFile]) -> String {
    let mut page = format!("{HEAD}\n<!-- map{GENERATED}\n");
    let mut sources: Vec<(&str, &str, String)> = mapped(files)
        .map(|(file, folder)| (folder, file.path.as_str(), opening(file).unwrap_or_default()))
        .collect();
    sources.sort();
    let mut last = "";
    for (folder, path, opening) in sources {
        if folder != last {
            let line = if last.is_empty() { "" } else { "\n" };
            page += &format!("{line}## {folder}\n\n| file | contents |\n|---|---|\n");
            last = folder;
        }
        let name = path.strip_prefix(folder).unwrap_or(path).trim_start_matches('/');
        page += &format!("| [{name}](../../{path}) | {} |\n", opening.replace('|', "\\|"));
    }
    page + "<!-- map: end -->\n"
}

/// The files on the map, with their folders: `crates/NAME` or `tests`.
fn mapped(files: &[SourceFile]) -> impl Iterator<Item = (&SourceFile, &str)> {
    files.iter().filter_map(|file| {
        let (folder, rest) = match file.path.strip_prefix("crates/") {
            Some(rest) => {
                let name = rest.split('/').next()?;
                let folder = &file.path[.."crates/".len() + name.len()];
                (folder, rest.strip_prefix(name)?.strip_prefix("/src/")?)
            }
            None => ("tests", file.path.strip_prefix("tests/")?),
        };
        // Data of tests may have the extension of a source.
        let is_data = ["golden/", "fuzz/"].iter().any(|data| rest.starts_with(data));
        let is_source = KINDS.iter().any(|(extension, _)| file.has_extension(extension));
        (is_source && !is_data).then_some((file, folder))
    })
}

/// The first sentence of a file's description.
fn opening(file: &SourceFile) -> Option<String> {
    let (_, mark) = KINDS.iter().find(|(extension, _)| file.has_extension(extension))?;
    let text = if *mark == "\"\"\"" {
        let (_, text) = file.text.split_once(mark)?;
        let text = text.split(mark).next().unwrap_or_default().trim_start();
        text.split("\n\n").next().unwrap_or_default().split_whitespace().collect::<Vec<_>>()
    } else {
        // Lines such as that of the interpreter may come first.
        let lines = file.text.lines().skip_while(|line| !line.starts_with(mark));
        let lines = lines.map_while(|line| line.strip_prefix(mark)).map(str::trim);
        lines.take_while(|line| !line.is_empty()).collect()
    };
    let sentence = first_sentence(&text.join(" "));
    (!sentence.is_empty()).then(|| without_links(&sentence))
}

/// The text up to the first point that ends a sentence. Points within code do not.
fn first_sentence(text: &str) -> String {
    let chars: Vec<(usize, char)> = text.char_indices().collect();
    let mut in_code = false;
    for (i, &(at, c)) in chars.iter().enumerate() {
        in_code ^= c == '`';
        let after = |offset: usize| chars.get(i + offset).map(|&(_, c)| c);
        let begins = |c: char| c.is_uppercase() || "`[\"".contains(c);
        let ends = matches!(c, '.' | '?' | '!') && after(1).is_none_or(char::is_whitespace);
        // The point within an abbreviation is followed by no white space, so only its last one matters here.
        let is_abbreviation = ["e.g", "i.e", "etc"].iter().any(|end| text[..at].ends_with(end));
        if ends && !in_code && !is_abbreviation && after(2).is_none_or(begins) {
            return text[..=at].to_owned();
        }
    }
    text.to_owned()
}

/// A text of rustdoc without its links: `[name]` and `[name](path)` are the name.
fn without_links(text: &str) -> String {
    let link = Regex::new(r"\[(`[^`]*`)\](\([^)]*\))?").expect("the pattern is a constant");
    link.replace_all(text, "$1").into_owned()
}

#[cfg(test)]
mod tests {
    use super::super::files::sample;
    use super::*;

    fn sources() -> Vec<SourceFile> {
        let mut files = sample(
            "crates/b/src/x.rs",
            "//! Reads [`A`](crate::A) of `a. B` and\n//! a|b, e.g. C. More.\n//!\n//! And more.\n\nfn a() {}\n",
        );
        files.extend(sample("crates/a/src/y/z.cu", "// Kernels.\n// They\n\n#include <a>\n"));
        files.extend(sample("tests/t.py", "#!/usr/bin/python3\n\"\"\"Asks: once.\"\"\"\nx = 1\n"));
        files.extend(sample("tests/golden/u.rs", "fn a() {}\n"));
        files.extend(sample("crates/a/build.rs", "fn a() {}\n"));
        files
    }

    #[test]
    fn files_are_listed_with_their_opening_sentences() {
        let page = written(&sources());
        let rows = page.split_once("-->\n").unwrap().1;
        assert_eq!(
            rows,
            "## crates/a\n\n| file | contents |\n|---|---|\n\
             | [src/y/z.cu](../../crates/a/src/y/z.cu) | Kernels. |\n\
             \n## crates/b\n\n| file | contents |\n|---|---|\n\
             | [src/x.rs](../../crates/b/src/x.rs) | Reads `A` of `a. B` and a\\|b, e.g. C. |\n\
             \n## tests\n\n| file | contents |\n|---|---|\n\
             | [t.py](../../tests/t.py) | Asks: once. |\n\
             <!-- map: end -->\n"
        );
    }

    #[test]
    fn a_stale_page_and_a_file_without_a_sentence_are_found() {
        let mut files = sources();
        let page = written(&files);
        files.extend(sample(PAGE, &page));
        assert!(findings(&files).is_empty());
        files.extend(sample("crates/a/src/new.rs", "fn a() {}\n"));
        let found: Vec<String> = findings(&files).iter().map(Finding::to_string).collect();
        assert_eq!(
            found,
            [
                "crates/a/src/new.rs:1: it does not begin with a sentence about itself",
                "docs/design/map.md:0: it is not what `cargo xtask docs` writes",
            ]
        );
    }
}
