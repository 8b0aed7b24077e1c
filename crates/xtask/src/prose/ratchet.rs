//! The list of sentences that break a rule today. It may only get shorter.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;

use anyhow::{Context, Result};

use super::rules::Breach;
use super::{Judged, judge};
use crate::tidy::Finding;
use crate::tidy::files::SourceFile;

/// The list has a line for each breach: the rule, and the sentence's digest.
const LIST: &str = ".prose.txt";

const HEAD: &str = "\
# Sentences that break a rule of prose, by their digests: `cargo xtask prose` names the rules.
# A new breach is mended, not added. `cargo xtask prose --tighten` removes what no longer occurs.
";

/// The lines of a list, each with its number of occurrences.
type Entries = BTreeMap<String, usize>;

/// Breaches that are not in the list, and entries that are no longer breaches.
pub(crate) fn findings(files: &[SourceFile]) -> Vec<Finding> {
    let list = files.iter().find(|file| file.path == LIST);
    let judged = judge(files);
    let mut findings = Vec::new();
    let mut left = entries(list.map_or("", |list| &list.text));
    for (entry, judged, breach) in breaches(&judged) {
        match left.get_mut(&entry).filter(|left| **left > 0) {
            Some(left) => *left -= 1,
            None => findings.push(Finding {
                path: judged.path.clone(),
                line: judged.sentence.line,
                message: judged.message(breach),
            }),
        }
    }
    // Leftover entries are findings too, or a sentence that was corrected could come back unnoticed.
    findings.extend(list.and_then(|list| stale(list, &left)));
    findings
}

/// One finding for all entries that are left over.
fn stale(list: &SourceFile, left: &Entries) -> Option<Finding> {
    let count: usize = left.values().sum();
    let first = left.iter().find(|&(_, &left)| left > 0)?.0;
    let line = list.text.lines().position(|line| line == first).map_or(0, |at| at + 1);
    let message = format!(
        "{count} of the entries no longer occur: run `cargo xtask prose --tighten`, which removes them"
    );
    Some(Finding { path: list.path.clone(), line, message })
}

/// Removes entries that no longer occur. It adds nothing.
pub(super) fn tighten(root: &Path, judged: &[Judged]) -> Result<String> {
    let path = root.join(LIST);
    let text = std::fs::read_to_string(&path).with_context(|| format!("cannot read {LIST}"))?;
    let (text, removed) = tightened(&text, judged);
    std::fs::write(&path, text).with_context(|| format!("cannot write {LIST}"))?;
    Ok(format!("{removed} entries removed"))
}

fn tightened(text: &str, judged: &[Judged]) -> (String, usize) {
    let mut found = found(judged);
    let mut listed = entries(text);
    let before: usize = listed.values().sum();
    for (entry, count) in &mut listed {
        *count = (*count).min(found.remove(entry).unwrap_or(0));
    }
    let after: usize = listed.values().sum();
    (written(&listed), before - after)
}

fn breaches(judged: &[Judged]) -> impl Iterator<Item = (String, &Judged, &Breach)> {
    let digests = judged.iter().filter(|judged| !judged.breaches.is_empty());
    digests.flat_map(|judged| {
        let digest = judged.sentence.digest();
        judged
            .breaches
            .iter()
            .map(move |breach| (format!("{} {digest}", breach.rule), judged, breach))
    })
}

fn found(judged: &[Judged]) -> Entries {
    let mut found = Entries::new();
    for (entry, ..) in breaches(judged) {
        *found.entry(entry).or_default() += 1;
    }
    found
}

fn entries(text: &str) -> Entries {
    let mut entries = Entries::new();
    for line in text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        *entries.entry(line.to_owned()).or_default() += 1;
    }
    entries
}

fn written(entries: &Entries) -> String {
    let mut text = HEAD.to_owned();
    for (entry, &count) in entries {
        for _ in 0..count {
            writeln!(text, "{entry}").expect("a string takes everything");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::super::sample;
    use super::*;
    use crate::tidy::files;

    const OPENING: &str = "Of all rows the `first` is read.";

    /// A document, and a list beside it.
    fn project(text: &str, list: &str) -> Vec<SourceFile> {
        let mut files = files::sample("docs/a.md", text);
        files.extend(files::sample(LIST, list));
        files
    }

    fn found_in(text: &str, list: &str) -> Vec<String> {
        findings(&project(text, list)).iter().map(Finding::to_string).collect()
    }

    fn list_of(text: &str) -> String {
        written(&found(&sample("docs/a.md", text)))
    }

    #[test]
    fn a_breach_that_is_not_listed_fails_with_its_line_and_what_to_write() {
        let found = found_in(&format!("Fine.\n\n{OPENING}"), HEAD);
        let expected = "docs/a.md:3: a sentence that begins with `of`: put the subject first, as a noun: \
                        \"Of all rows the ` is read.\"";
        assert_eq!(found, [expected]);
    }

    #[test]
    fn a_listed_sentence_may_move_and_be_wrapped_but_not_edited_or_copied() {
        let list = list_of(OPENING);
        for text in [OPENING, "- Fine.\n- Of all rows\n  the `second`\n  is read."] {
            assert!(found_in(text, &list).is_empty(), "{text}");
        }
        let comment = files::sample("crates/api/src/lib.rs", &format!("//! {OPENING}\n"));
        let list_alone = files::sample(LIST, &list);
        assert!(
            findings(&[comment, list_alone].into_iter().flatten().collect::<Vec<_>>()).is_empty()
        );
        assert_eq!(found_in(&format!("{OPENING} {OPENING}"), &list).len(), 1);
        // The edited sentence is new, and the listed one is gone.
        assert_eq!(found_in("Of all rows the `first` is written.", &list).len(), 2);
    }

    #[test]
    fn an_entry_that_no_longer_occurs_fails_and_names_the_command() {
        let list = list_of(OPENING);
        let found = found_in("The first row is read.", &list);
        let line = list.lines().count();
        let expected = format!(
            "{LIST}:{line}: 1 of the entries no longer occur: run `cargo xtask prose --tighten`, which removes them"
        );
        assert_eq!(found, [expected]);
    }

    #[test]
    fn tightening_only_removes() {
        let list = list_of(&format!("{OPENING} {OPENING} As a rule it is."));
        let now = sample("docs/a.md", &format!("{OPENING} What is new is not added."));
        let (text, removed) = tightened(&list, &now);
        assert_eq!(removed, 2);
        assert_eq!(text, list_of(OPENING));
    }
}
