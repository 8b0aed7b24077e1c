//! Extracts comments and sentences in literals from Rust source, each with its kind.

use std::ops::Range;

use super::context;
use super::passage::{Kind, Passage};
use crate::tidy::code::{Blank, Scan, scan};
use crate::tidy::files::SourceFile;

/// Literals with fewer words are names and fragments.
const MIN_WORDS: usize = 4;

/// Every comment, and every literal outside tests that reads like a sentence.
pub(crate) fn passages(file: &SourceFile, of_crate: &str) -> Vec<Passage> {
    let scan = scan(&file.text);
    let mut found = comments(file, &scan, of_crate);
    if !is_test(&file.path) {
        found.extend(literals(file, &scan, of_crate));
    }
    found
}

/// Comments of a language with Rust's comment syntax, such as CUDA C++.
pub(crate) fn only_comments(file: &SourceFile, of_crate: &str) -> Vec<Passage> {
    comments(file, &scan(&file.text), of_crate)
}

fn is_test(path: &str) -> bool {
    path.starts_with("tests/") || path.contains("/tests/") || path.ends_with("/tests.rs")
}

/// The kind of a comment, by its mark.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Mark {
    /// `//!`
    Inner,
    /// `///`
    Outer,
    Plain,
}

/// Comments with the same mark on consecutive lines are one passage.
fn comments(file: &SourceFile, scan: &Scan, of_crate: &str) -> Vec<Passage> {
    let shown = ShownItems::of(&scan.code);
    let mut passages: Vec<Passage> = Vec::new();
    let mut before = None;
    for blank in &scan.blanks {
        let Some((mark, lines)) = comment(blank) else { continue };
        let line_start = scan.code[..blank.at].rfind('\n').map_or(0, |at| at + 1);
        let is_alone = scan.code[line_start..blank.at].trim().is_empty();
        let goes_on = is_alone && before == Some((mark, blank.line - 1));
        if !goes_on {
            let kind = match mark {
                Mark::Inner => Kind::Docs(of_crate.to_owned()),
                Mark::Outer => shown.kind_at(blank.at, of_crate),
                Mark::Plain => Kind::Comments(of_crate.to_owned()),
            };
            passages.push(Passage::new(kind, &file.path));
        }
        let passage = passages.last_mut().expect("one was pushed with the first comment");
        for (i, line) in lines.iter().enumerate() {
            passage.push(line, blank.line + i);
        }
        before = is_alone.then_some((mark, blank.line + lines.len() - 1));
    }
    passages
}

/// The mark of a comment, and its lines without it.
fn comment(blank: &Blank) -> Option<(Mark, Vec<&str>)> {
    let text = blank.text.trim_end();
    if let Some(inner) = text.strip_prefix("/*") {
        let inner = inner.trim_start_matches(['*', '!']).trim_end_matches("*/");
        let lines = inner.split('\n').map(|line| line.trim_start_matches([' ', '*']));
        return Some((Mark::Plain, lines.collect()));
    }
    let line = text.strip_prefix("//")?;
    let (mark, line) = match line.as_bytes() {
        [b'!', ..] => (Mark::Inner, &line[1..]),
        // Four slashes are a plain comment in Rust.
        [b'/', b'/', ..] => (Mark::Plain, line),
        [b'/', ..] => (Mark::Outer, &line[1..]),
        _ => (Mark::Plain, line),
    };
    Some((mark, vec![line.strip_prefix(' ').unwrap_or(line)]))
}

/// Parts of the code whose doc comments users see.
struct ShownItems(Vec<(Range<usize>, Kind)>);

impl ShownItems {
    fn of(code: &str) -> Self {
        let mut items = Vec::new();
        for (at, _) in code.match_indices("#[") {
            let attribute = &code[at..at + code[at..].find(']').unwrap_or(0)];
            let derives =
                |name: &str| attribute.starts_with("#[derive(") && attribute.contains(name);
            let kind = if ["Parser", "Args", "Subcommand", "ValueEnum"].into_iter().any(derives) {
                Kind::Help
            } else if derives("ToSchema") || attribute.starts_with("#[utoipa::path") {
                Kind::OpenApi
            } else {
                continue;
            };
            items.push((docs_start(code, at)..item_end(code, at, &kind, attribute), kind));
        }
        Self(items)
    }

    /// The kind of a doc comment at this byte of the code.
    fn kind_at(&self, at: usize, of_crate: &str) -> Kind {
        let shown = self.0.iter().find(|(range, _)| range.contains(&at));
        shown.map_or_else(|| Kind::Docs(of_crate.to_owned()), |(_, kind)| kind.clone())
    }
}

/// The start of the doc comments above an item, just after the code before it. Comments are blank here.
fn docs_start(code: &str, attribute: usize) -> usize {
    let mut start = attribute;
    for line in code[..attribute].split_inclusive('\n').rev() {
        let is_blank_or_attribute = line.trim().is_empty() || line.trim_start().starts_with("#[");
        if !is_blank_or_attribute {
            break;
        }
        start -= line.len();
    }
    start
}

/// A derive covers the fields of its item. The attribute of an endpoint covers only itself.
fn item_end(code: &str, at: usize, kind: &Kind, attribute: &str) -> usize {
    let is_endpoint = *kind == Kind::OpenApi && !attribute.starts_with("#[derive(");
    match is_endpoint {
        true => at + code[at..].find(" fn ").unwrap_or(0),
        false => block_end(code, at),
    }
}

/// The end of the next block in braces, or of an item without one.
fn block_end(code: &str, from: usize) -> usize {
    let mut depth = 0;
    for (i, byte) in code.bytes().enumerate().skip(from) {
        match byte {
            b'{' => depth += 1,
            b'}' if depth <= 1 => return i,
            b'}' => depth -= 1,
            b';' if depth == 0 => return i,
            _ => {}
        }
    }
    code.len()
}

fn literals(file: &SourceFile, scan: &Scan, of_crate: &str) -> Vec<Passage> {
    let tests: Vec<Range<usize>> = scan
        .code
        .match_indices("#[cfg(test)]")
        .map(|(at, found)| at..block_end(&scan.code, at + found.len()))
        .collect();
    let mut passages = Vec::new();
    for blank in &scan.blanks {
        let Some(text) = content(&blank.text) else { continue };
        if tests.iter().any(|range| range.contains(&blank.at)) || !is_prose(&text) {
            continue;
        }
        let kind = context::of_literal(&scan.code[..blank.at], of_crate);
        let mut passage = Passage::of_lines(kind, &file.path, &text, blank.line);
        passage.is_plain = true;
        passages.push(passage);
    }
    passages
}

/// The text of a string literal. Only line breaks that it spells out are kept.
fn content(literal: &str) -> Option<String> {
    if literal.starts_with(['r', 'b', 'c']) {
        let (_, inner) = literal.split_once('"')?;
        return Some(inner.rsplit_once('"')?.0.to_owned());
    }
    let inner = literal.strip_prefix('"')?.strip_suffix('"')?;
    let mut text = String::with_capacity(inner.len());
    let mut chars = inner.chars().peekable();
    while let Some(c) = chars.next() {
        match (c, chars.peek()) {
            // A backslash at the end of a line removes the line break and the white space behind it.
            ('\\', Some('\n')) => while chars.next_if(|c| c.is_whitespace()).is_some() {},
            ('\\', Some('n')) => {
                chars.next();
                text.push('\n');
            }
            ('\\', _) => text.extend(chars.next()),
            _ => text.push(c),
        }
    }
    Some(text)
}

/// Whether a literal reads like English, not like a format or code.
fn is_prose(text: &str) -> bool {
    let is_word = |word: &&str| {
        let word = word.trim_matches(|c: char| c.is_ascii_punctuation());
        !word.is_empty() && word.chars().all(|c| c.is_alphabetic() || c == '-' || c == '\'')
    };
    let code = [r"\b", "{%", "<|", "::", "();", "\":", "#include"];
    text.split_whitespace().filter(is_word).count() >= MIN_WORDS
        && !code.iter().any(|mark| text.contains(mark))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::files::sample;

    fn found(path: &str, text: &str) -> Vec<(String, String, usize)> {
        let passages = passages(&sample(path, text)[0], "api").into_iter();
        passages.map(|p| (p.kind.to_string(), p.text.clone(), p.line_at(0))).collect()
    }

    fn expected(rows: &[(&str, &str, usize)]) -> Vec<(String, String, usize)> {
        rows.iter().map(|&(kind, text, line)| (kind.to_owned(), text.to_owned(), line)).collect()
    }

    #[test]
    fn comments_are_joined_over_lines_and_kept_apart_by_kind() {
        let source =
            "//! File.\n\n/// Doc one\n/// goes on.\n// Plain.\nfn f() {} // trailing\n// next\n";
        let rows = [
            ("docs:api", "File.\n", 1),
            ("docs:api", "Doc one\ngoes on.\n", 3),
            ("comments:api", "Plain.\n", 5),
            ("comments:api", "trailing\n", 6),
            ("comments:api", "next\n", 7),
        ];
        assert_eq!(found("a/src/x.rs", source), expected(&rows));
    }

    #[test]
    fn doc_comments_that_users_see_are_of_their_kind() {
        let source = "//! File.\n/// A.\nstruct A;\n/// B.\n#[derive(Debug, Args)]\nstruct B {\n  /// C.\n  c: u8,\n}\n\
                      /// D.\n#[derive(ToSchema)]\nstruct D(u8);\n/// E.\n#[utoipa::path(get)]\nfn e() {\n  /// F.\n}\n";
        let rows = [
            ("docs:api", "File.\n", 1),
            ("docs:api", "A.\n", 2),
            ("help", "B.\n", 4),
            ("help", "C.\n", 7),
            ("openapi", "D.\n", 10),
            ("openapi", "E.\n", 13),
            ("docs:api", "F.\n", 16),
        ];
        assert_eq!(found("a/src/x.rs", source), expected(&rows));
    }

    #[test]
    fn literals_outside_tests_that_read_like_a_sentence_are_found() {
        let source = "fn f() { bail!(\"the file {} \\\n    cannot be read here\"); g(\"a, b\") }\n\
                      #[cfg(test)]\nmod tests { const A: &str = \"this is not for any user\"; }\n";
        let rows = [("errors", "the file {} cannot be read here\n", 1)];
        assert_eq!(found("a/src/x.rs", source), expected(&rows));
        assert!(found("tests/x.rs", "const A: &str = \"this is not for any user\";").is_empty());
    }
}
