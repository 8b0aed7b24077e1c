//! Programs in a pseudo-terminal, driven as a person would.

use std::io::{Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitStatus};
use std::sync::{Arc, Mutex};

use pty_process::Size;
use pty_process::blocking::{Pty, open};
use rustix::termios::{Termios, tcgetattr};

use super::wait_for_or;

/// A program in a terminal of its own. It is killed when dropped.
pub(crate) struct Terminal {
    pty: Arc<Pty>,
    child: Child,
    /// All output so far.
    output: Arc<Mutex<Vec<u8>>>,
    /// Length of the text without escape sequences that a test has seen.
    seen: usize,
}

impl Terminal {
    /// Starts a command in a terminal of 24 lines and 80 columns.
    #[track_caller]
    pub(crate) fn start(command: Command) -> Self {
        let (pty, inner) = open().unwrap();
        pty.resize(Size::new(24, 80)).unwrap();
        let child = pty_process::blocking::Command::from(command).spawn(inner).unwrap();
        let (pty, output) = (Arc::new(pty), Arc::new(Mutex::new(Vec::new())));
        let (reader, written) = (Arc::clone(&pty), Arc::clone(&output));
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            // The terminal reports an error once no program has it open.
            while let Ok(count @ 1..) = (&*reader).read(&mut bytes) {
                written.lock().unwrap().extend(&bytes[..count]);
            }
        });
        Self { pty, child, output, seen: 0 }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Types text. Enter is `\r`.
    #[track_caller]
    pub(crate) fn type_in(&self, text: &str) {
        (&*self.pty).write_all(text.as_bytes()).unwrap();
    }

    /// Types a line behind the next prompt.
    #[track_caller]
    pub(crate) fn enter(&mut self, line: &str) {
        self.expect(">>> ");
        self.type_in(&format!("{line}\r"));
    }

    pub(crate) fn resize(&self, lines: u16, columns: u16) {
        self.pty.resize(Size::new(lines, columns)).unwrap();
    }

    /// The settings of the terminal, which programs change.
    pub(crate) fn settings(&self) -> Termios {
        tcgetattr(&*self.pty).unwrap()
    }

    /// All output, with its escape sequences.
    pub(crate) fn raw(&self) -> String {
        String::from_utf8_lossy(&self.output.lock().unwrap()).into_owned()
    }

    /// All output as text.
    pub(crate) fn text(&self) -> String {
        without_escapes(&self.raw())
    }

    /// Waits until a text is shown behind what was expected before. Returns the text up to it.
    #[track_caller]
    pub(crate) fn expect(&mut self, part: &str) -> String {
        let seen = self.seen;
        let (text, at) = wait_for_or(
            || {
                let text = self.text();
                let at = text.get(seen..)?.find(part)?;
                Some((text, seen + at))
            },
            || format!("`{part}` on the terminal:\n{}", self.text()),
        );
        self.seen = at + part.len();
        text[seen..at].to_owned()
    }

    /// Waits until the program has ended.
    #[track_caller]
    pub(crate) fn wait_for_exit(&mut self) -> ExitStatus {
        let text = self.text();
        let child = &mut self.child;
        wait_for_or(|| child.try_wait().unwrap(), || format!("the end of the program:\n{text}"))
    }

    /// Waits for its end, which must have this exit status.
    #[track_caller]
    pub(crate) fn ends_with(&mut self, code: i32) {
        let status = self.wait_for_exit();
        assert_eq!((status.code(), status.signal()), (Some(code), None), "{}", self.text());
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!("--- terminal\n{}", self.text());
        }
    }
}

/// Text without control sequences (`ESC [ .. letter`) and carriage returns.
pub(crate) fn without_escapes(raw: &str) -> String {
    let mut text = String::with_capacity(raw.len());
    let mut rest = raw.chars().peekable();
    while let Some(c) = rest.next() {
        match c {
            '\x1b' if rest.peek() == Some(&'[') => {
                rest.next();
                // The last character of a sequence is a letter or one of a few marks.
                while rest.next().is_some_and(|c| !('@'..='~').contains(&c)) {}
            }
            '\r' => {}
            c => text.push(c),
        }
    }
    text
}

#[test]
fn escapes_are_no_text() {
    assert_eq!(without_escapes("\x1b[?2004h\x1b[2mfaint\x1b[0m\r\nx\x1b[4C"), "faint\nx");
}
