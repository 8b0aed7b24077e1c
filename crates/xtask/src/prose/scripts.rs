//! Extracts comments of languages that mark them with a hash, and docstrings of Python.

use super::passage::{Kind, Passage};
use crate::tidy::files::SourceFile;

/// The comments and docstrings of a Python file.
pub(crate) fn python(file: &SourceFile, kind: &Kind) -> Vec<Passage> {
    let chars: Vec<char> = file.text.chars().collect();
    let mut comments = Comments::new(file, kind);
    let (mut at, mut line, mut is_alone) = (0, 1, true);
    while at < chars.len() {
        let len = match chars[at] {
            '#' => chars[at..].iter().position(|&c| c == '\n').unwrap_or(chars.len() - at),
            '"' | '\'' => string_len(&chars[at..]),
            _ => 1,
        };
        let text: String = chars[at..at + len].iter().collect();
        match text.chars().next() {
            Some('#') => comments.push(&text[1..], line, is_alone),
            // A string that begins a line is a docstring.
            Some('"') if is_alone && text.starts_with("\"\"\"") => {
                comments.push_docstring(text.trim_matches('"'), line);
            }
            _ => {}
        }
        line += text.matches('\n').count();
        // Only spaces may precede on the line.
        is_alone = text == "\n" || is_alone && text.trim().is_empty();
        at += len;
    }
    comments.passages
}

/// The comments on lines of their own, in shell scripts and settings.
pub(crate) fn hashed(file: &SourceFile, kind: &Kind) -> Vec<Passage> {
    let mut comments = Comments::new(file, kind);
    for (i, line) in file.text.lines().enumerate() {
        let comment = line.trim_start().strip_prefix('#');
        match comment.filter(|comment| !comment.starts_with('!') && !is_setting(comment)) {
            Some(comment) => comments.push(comment, i + 1, true),
            None => comments.follows = false,
        }
    }
    comments.passages
}

/// Whether a comment is a setting or a table that is switched off.
fn is_setting(comment: &str) -> bool {
    let of_key = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "_.-".contains(c);
    let comment = comment.trim();
    let is_assignment = comment
        .split_once(" = ")
        .is_some_and(|(key, _)| !key.is_empty() && key.chars().all(of_key));
    is_assignment || comment.starts_with('[') && comment.ends_with(']')
}

/// The length of a Python string, with its quotes.
fn string_len(rest: &[char]) -> usize {
    let quote = rest[0];
    let width = if rest.len() > 2 && rest[1] == quote && rest[2] == quote { 3 } else { 1 };
    let mut at = width;
    while at < rest.len() {
        let closes = rest[at..].iter().take_while(|&&c| c == quote).count() >= width;
        match rest[at] {
            '\\' => at += 2,
            _ if closes => return at + width,
            '\n' if width == 1 => return at,
            _ => at += 1,
        }
    }
    rest.len()
}

/// The comments so far. Consecutive lines are one passage.
struct Comments<'a> {
    file: &'a SourceFile,
    kind: &'a Kind,
    passages: Vec<Passage>,
    follows: bool,
    in_example: bool,
    after_empty: bool,
}

impl<'a> Comments<'a> {
    fn new(file: &'a SourceFile, kind: &'a Kind) -> Self {
        let (follows, in_example, after_empty) = (false, false, false);
        Self { file, kind, passages: Vec::new(), follows, in_example, after_empty }
    }

    fn push(&mut self, comment: &str, line: usize, is_alone: bool) {
        let comment = comment.strip_prefix(' ').unwrap_or(comment);
        // After an empty line, indented text is an example of a command.
        self.in_example = comment.starts_with("  ") && (self.in_example || self.after_empty);
        self.after_empty = comment.trim().is_empty();
        let comment = if self.in_example { "" } else { comment };
        let follows = self.follows && is_alone;
        let last =
            self.passages.last_mut().filter(|last| follows && last.last_line() == Some(line - 1));
        match last {
            Some(last) => last.push(comment, line),
            None => self.passages.push(Passage::of_lines(
                self.kind.clone(),
                &self.file.path,
                comment,
                line,
            )),
        }
        self.follows = is_alone;
    }

    /// A docstring is indented like the code. Text with a deeper indent is an example.
    fn push_docstring(&mut self, text: &str, line: usize) {
        let indent = |line: &str| line.len() - line.trim_start().len();
        let lines = text.lines().skip(1).filter(|line| !line.trim().is_empty());
        let common = lines.map(indent).min().unwrap_or(0);
        let lines: Vec<&str> = text.lines().map(|line| &line[common.min(indent(line))..]).collect();
        let text = lines.join("\n");
        self.passages.push(Passage::of_lines(self.kind.clone(), &self.file.path, &text, line));
        self.follows = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::files::sample;

    fn shown(passages: Vec<Passage>) -> Vec<(String, usize)> {
        passages.into_iter().map(|passage| (passage.text.clone(), passage.line_at(0))).collect()
    }

    fn expected(rows: &[(&str, usize)]) -> Vec<(String, usize)> {
        rows.iter().map(|&(text, line)| (text.to_owned(), line)).collect()
    }

    #[test]
    fn comments_and_docstrings_of_python_are_found_and_strings_are_not() {
        let source = "\"\"\"Doc.\n\n  More.\n\n      run --it\n  \"\"\"\n\nx = \"# no\"  # yes\n# One\n# two\ny = \"\"\"\n# no\n\"\"\"\n";
        let rows = [("Doc.\n\nMore.\n\n    run --it\n", 1), ("yes\n", 8), ("One\ntwo\n", 9)];
        assert_eq!(shown(python(&sample("a.py", source)[0], &Kind::Scripts)), expected(&rows));
    }

    #[test]
    fn comments_of_settings_end_where_a_setting_is_left_out() {
        let source =
            "#!/bin/sh\n# One\n# two\n# key = 1\n# three\nkey = 2\n# four\n#\n#   run --it\n";
        let rows = [("One\ntwo\n", 2), ("three\n", 5), ("four\n\n\n", 7)];
        assert_eq!(shown(hashed(&sample("a.toml", source)[0], &Kind::Config)), expected(&rows));
    }
}
