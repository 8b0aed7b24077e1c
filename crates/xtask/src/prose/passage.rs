//! A passage is one run of text in a file, such as a document or a comment of several lines.

use std::fmt;

/// The kind of a text. The figures are computed for each kind separately.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    /// A Markdown file, by its path.
    Document(String),
    /// Doc comments of a crate.
    Docs(String),
    /// Plain comments of a crate.
    Comments(String),
    /// Texts of `--help`: doc comments of clap's items, and their attributes.
    Help,
    /// The help texts of `/metrics`.
    Metrics,
    /// Descriptions that `/openapi.json` shows.
    OpenApi,
    /// Messages of errors.
    Errors,
    /// Lines of the log.
    Logs,
    /// Messages of a failed assertion or an `expect`.
    Panics,
    /// All other literals that read like a sentence.
    Texts,
    /// Comments of settings: TOML, YAML and the Dockerfile.
    Config,
    /// Comments and docstrings of scripts.
    Scripts,
    /// Comments and docstrings of the Python package.
    Python,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self {
            Self::Document(path) => return f.write_str(path),
            Self::Docs(name) => return write!(f, "docs:{name}"),
            Self::Comments(name) => return write!(f, "comments:{name}"),
            Self::Help => "help",
            Self::Metrics => "metrics",
            Self::OpenApi => "openapi",
            Self::Errors => "errors",
            Self::Logs => "logs",
            Self::Panics => "panics",
            Self::Texts => "texts",
            Self::Config => "config",
            Self::Scripts => "scripts",
            Self::Python => "python",
        };
        f.write_str(name)
    }
}

/// A run of text of one kind.
#[derive(Debug)]
pub(crate) struct Passage {
    pub(crate) kind: Kind,
    pub(crate) path: String,
    pub(crate) text: String,
    /// The start of each line in `text`, with its number in the file.
    lines: Vec<(usize, usize)>,
    /// Whether each line is a block of its own, as in a message. Otherwise the text is Markdown.
    pub(crate) is_plain: bool,
}

impl Passage {
    /// A passage of Markdown without any line.
    pub(crate) fn new(kind: Kind, path: &str) -> Self {
        let (text, lines) = (String::new(), Vec::new());
        Self { kind, path: path.to_owned(), text, lines, is_plain: false }
    }

    /// A passage of Markdown that begins at a line of its file.
    pub(crate) fn of_lines(kind: Kind, path: &str, text: &str, first_line: usize) -> Self {
        let mut passage = Self::new(kind, path);
        for (i, line) in text.lines().enumerate() {
            passage.push(line, first_line + i);
        }
        passage
    }

    pub(crate) fn push(&mut self, text: &str, line: usize) {
        self.lines.push((self.text.len(), line));
        self.text.push_str(text);
        self.text.push('\n');
    }

    /// The file's line of the line that was pushed last.
    pub(crate) fn last_line(&self) -> Option<usize> {
        self.lines.last().map(|&(_, line)| line)
    }

    /// The file's line of a byte of `text`.
    pub(crate) fn line_at(&self, offset: usize) -> usize {
        let after = self.lines.partition_point(|&(start, _)| start <= offset);
        after.checked_sub(1).map_or(1, |i| self.lines[i].1)
    }
}
