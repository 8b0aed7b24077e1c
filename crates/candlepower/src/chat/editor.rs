//! Reads lines from the terminal: editing, history, messages of several lines.

use anyhow::Result;
use rustyline::completion::Completer;
use rustyline::error::ReadlineError;
use rustyline::highlight::Highlighter;
use rustyline::hint::Hinter;
use rustyline::history::MemHistory;
use rustyline::validate::{ValidationContext, ValidationResult, Validator};
use rustyline::{ColorMode, Config, Context, Editor, Helper};

use super::commands::COMMANDS;
use super::history::{HistoryFile, MAX_LINES};

/// The mark around a message of several lines.
const BLOCK: &str = "\"\"\"";

/// A user's input.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Entered {
    Text(String),
    /// Ctrl-C.
    Interrupt,
    /// Ctrl-D in an empty line.
    End,
}

/// An editor of lines.
pub(super) struct LineEditor {
    editor: Editor<Rules, MemHistory>,
    file: HistoryFile,
}

impl LineEditor {
    /// # Errors
    /// The terminal cannot be used.
    pub(super) fn new() -> Result<Self> {
        let config = Config::builder()
            .max_history_size(MAX_LINES)?
            .color_mode(ColorMode::Disabled)
            .auto_add_history(false)
            .build();
        let history = MemHistory::with_config(&config);
        let mut editor = Editor::with_history(config, history)?;
        editor.set_helper(Some(Rules));
        let file = HistoryFile::of_user();
        for line in file.read() {
            editor.add_history_entry(line)?;
        }
        Ok(Self { editor, file })
    }

    /// Reads a line, or several.
    ///
    /// # Errors
    /// The terminal cannot be read.
    pub(super) fn read(&mut self, prompt: &str) -> Result<Entered> {
        match self.editor.readline(prompt) {
            Ok(text) => {
                if !text.trim().is_empty() {
                    self.editor.add_history_entry(text.as_str())?;
                    self.file.add(&text);
                }
                Ok(Entered::Text(message(&text)))
            }
            Err(ReadlineError::Interrupted) => Ok(Entered::Interrupt),
            Err(ReadlineError::Eof) => Ok(Entered::End),
            Err(error) => Err(error.into()),
        }
    }
}

/// Whether a message continues with the next line.
fn is_open(text: &str) -> bool {
    match text.trim_start().strip_prefix(BLOCK) {
        Some(rest) => !rest.trim_end().ends_with(BLOCK),
        None => text.ends_with('\\'),
    }
}

/// The message in a text: without the marks of several lines.
fn message(text: &str) -> String {
    match text.trim_start().strip_prefix(BLOCK) {
        Some(rest) => rest.trim_end().trim_end_matches(BLOCK).trim_matches('\n').to_owned(),
        None => text.replace("\\\n", "\n"),
    }
}

/// Rules of the editor: the end of a message, and completion of commands.
struct Rules;

impl Validator for Rules {
    fn validate(&self, context: &mut ValidationContext<'_>) -> rustyline::Result<ValidationResult> {
        Ok(match is_open(context.input()) {
            true => ValidationResult::Incomplete,
            false => ValidationResult::Valid(None),
        })
    }
}

impl Completer for Rules {
    type Candidate = String;

    fn complete(
        &self,
        line: &str,
        position: usize,
        _: &Context<'_>,
    ) -> rustyline::Result<(usize, Vec<String>)> {
        let typed = &line[..position];
        let names = COMMANDS.iter().map(|command| command.name);
        let fitting = names.filter(|name| typed.starts_with('/') && name.starts_with(typed));
        Ok((0, fitting.map(|name| format!("{name} ")).collect()))
    }
}

impl Hinter for Rules {
    type Hint = String;
}

impl Highlighter for Rules {}

impl Helper for Rules {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_may_have_several_lines() {
        for (text, expected) in [
            ("a", "a"),
            ("a\\\nb", "a\nb"),
            ("\"\"\"a\nb\"\"\"", "a\nb"),
            ("\"\"\"\na\n\"\"\" ", "a"),
            ("", ""),
        ] {
            assert!(!is_open(text), "{text}");
            assert_eq!(message(text), expected);
        }
        for open in ["a\\", "\"\"\"", "\"\"\"a\n\""] {
            assert!(is_open(open), "{open}");
        }
    }
}
