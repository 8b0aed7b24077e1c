//! Words that must not stay in the code, and the opening sentence of each file.

use super::Finding;
use super::code::{has_word, only_code};
use super::files::SourceFile;

/// Code that is refused, and the alternative.
const FORBIDDEN: [(&str, &str); 5] = [
    ("todo!", "write it, or leave it out"),
    ("unimplemented!", "write it, or return an error"),
    ("dbg!", "use tracing"),
    (
        IGNORED,
        "a test that does not run proves nothing; say what it `needs`, and run it where that is",
    ),
    ("clippy::too_many_arguments", "past four parameters take a struct"),
];

/// Composed here, so that this file does not contain it.
const IGNORED: &str = concat!("#[", "ignore");

/// Notes to oneself in comments. They are composed here, so that this file does not contain them.
const NOTES: [&str; 2] = [concat!("TO", "DO"), concat!("FIX", "ME")];

pub(super) fn findings(files: &[SourceFile]) -> Vec<Finding> {
    files.iter().filter(|file| file.is_rust()).flat_map(file_findings).collect()
}

fn file_findings(file: &SourceFile) -> Vec<Finding> {
    let mut findings = Vec::new();
    if !file.text.starts_with("//! ") {
        findings.push(Finding::new(
            file,
            1,
            "does not open with a `//!` sentence: what is it for?",
        ));
    }
    let code = only_code(&file.text);
    for (line, (code, source)) in code.lines().zip(file.text.lines()).enumerate() {
        for (word, instead) in FORBIDDEN {
            let says_what_it_needs =
                word == IGNORED && source.contains(&format!("{IGNORED} = \"needs "));
            if holds(code, word) && !says_what_it_needs {
                findings.push(Finding::new(file, line + 1, format!("`{word}`: {instead}")));
            }
        }
        for note in NOTES.into_iter().filter(|note| has_word(source, note)) {
            findings.push(Finding::new(
                file,
                line + 1,
                format!("`{note}`: do it, or open an issue"),
            ));
        }
    }
    findings
}

/// Whether the word is in the line and is not part of a longer word.
fn holds(line: &str, word: &str) -> bool {
    line.match_indices(word).any(|(at, _)| {
        !line[..at].ends_with(|before: char| before.is_alphanumeric() || before == '_')
    })
}

#[cfg(test)]
mod tests {
    use super::super::files::sample;
    use super::*;

    fn found(text: &str) -> Vec<String> {
        findings(&sample("crates/api/src/lib.rs", text)).iter().map(Finding::to_string).collect()
    }

    #[test]
    fn each_forbidden_word_is_found() {
        for (word, _) in FORBIDDEN {
            let found = found(&format!("//! A file.\n  {word}\n"));
            assert_eq!(found.len(), 1, "{word}");
            assert!(found[0].starts_with("crates/api/src/lib.rs:2: "), "{}", found[0]);
        }
    }

    #[test]
    fn a_test_may_be_left_out_where_something_it_needs_is_not() {
        assert!(found(&format!("//! A file.\n{IGNORED} = \"needs a GPU\"]\n")).is_empty());
        assert_eq!(found(&format!("//! A file.\n{IGNORED} = \"slow\"]\n")).len(), 1);
    }

    #[test]
    fn notes_in_comments_are_found() {
        for note in NOTES {
            assert_eq!(found(&format!("//! A file.\n// {note}: later\n")).len(), 1);
        }
    }

    #[test]
    fn a_file_without_its_sentence_is_found() {
        assert_eq!(found("use std::fmt;\n").len(), 1);
        assert_eq!(found("//!\n").len(), 1);
        assert_eq!(found("").len(), 1);
    }

    #[test]
    fn longer_words_comments_and_strings_pass() {
        assert!(
            found("//! A file.\n// todo! and dbg!\nlet s = \"todo!\"; my_todo!();\n").is_empty()
        );
    }
}
