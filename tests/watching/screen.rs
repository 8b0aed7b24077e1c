//! A program that draws pictures on the whole terminal.

use std::process::{Command, ExitStatus};

use rustix::termios::Termios;

use crate::support::{Terminal, program, wait_for_or, without_escapes};

/// The beginning of a picture.
const HOME: &str = "\x1b[H";
/// Its end, which clears the rest of the screen.
const CLEAR: &str = "\x1b[J";

pub(super) struct Screen(Terminal);

impl Screen {
    /// Starts candlepower with these arguments, on a screen of columns and rows.
    pub(super) fn start(args: &[&str], columns: u16, rows: u16) -> Self {
        let mut command = program();
        command.args(args).env("TERM", "xterm-256color");
        let this = Self(Terminal::start(command));
        this.resize(columns, rows);
        this
    }

    pub(super) fn resize(&self, columns: u16, rows: u16) {
        self.0.resize(rows, columns);
    }

    pub(super) fn press(&self, keys: &str) {
        self.0.type_in(keys);
    }

    /// All output so far, with its escape sequences.
    pub(super) fn raw(&self) -> String {
        self.0.raw()
    }

    /// The last whole picture, without escape sequences.
    fn picture(&self) -> Option<String> {
        let raw = self.0.raw();
        let (before, _) = raw.rsplit_once(CLEAR)?;
        let (_, picture) = before.rsplit_once(HOME)?;
        Some(without_escapes(picture))
    }

    /// Waits for a picture.
    #[track_caller]
    pub(super) fn wait_for(&self, what: &str, is_it: impl Fn(&str) -> bool) -> String {
        wait_for_or(
            || self.picture().filter(|picture| is_it(picture)),
            || format!("{what}; the terminal has {:?}", self.picture()),
        )
    }

    #[track_caller]
    pub(super) fn wait_for_exit(&mut self) -> ExitStatus {
        self.0.wait_for_exit()
    }

    /// The settings of the terminal, which programs change.
    pub(super) fn settings(&self) -> Termios {
        self.0.settings()
    }

    /// Sends a signal, by its name.
    pub(super) fn signal(&self, name: &str) {
        let command = format!("kill -{name} {}", self.0.pid());
        assert!(Command::new("sh").args(["-c", &command]).status().unwrap().success());
    }
}
