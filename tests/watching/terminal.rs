//! A program in a pseudo-terminal, which is its controlling terminal.

use std::fs::File;
use std::io::{Read, Write};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};

use rustix::fs::{Mode, OFlags, open};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Termios, Winsize, tcgetattr, tcsetwinsize};

use crate::support::{binary, wait_for, wait_for_or, without_settings};

/// The beginning of a picture.
const HOME: &str = "\x1b[H";

pub(super) struct Terminal {
    controller: File,
    /// The other end, so that the terminal outlives the program.
    user: File,
    child: Child,
    output: Arc<Mutex<Vec<u8>>>,
}

impl Terminal {
    /// Starts candlepower with these arguments, in a terminal of columns and rows.
    pub(super) fn start(args: &[&str], columns: u16, rows: u16) -> Self {
        let controller = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&controller).unwrap();
        unlockpt(&controller).unwrap();
        let name = ptsname(&controller, Vec::new()).unwrap();
        let user: File = open(&name, OFlags::RDWR | OFlags::NOCTTY, Mode::empty()).unwrap().into();
        let controller: File = controller.into();
        let end = || Stdio::from(user.try_clone().unwrap());
        // It makes standard input the controlling terminal, which has the signals for a new size.
        let child = without_settings(Command::new("setsid"))
            .arg("--ctty")
            .arg(binary())
            .args(args)
            .env("TERM", "xterm-256color")
            .stdin(end())
            .stdout(end())
            .stderr(end())
            .spawn()
            .unwrap();
        let output = Arc::<Mutex<Vec<u8>>>::default();
        let (mut reader, written) = (controller.try_clone().unwrap(), Arc::clone(&output));
        std::thread::spawn(move || {
            let mut part = [0; 4096];
            while let Ok(length @ 1..) = reader.read(&mut part) {
                written.lock().unwrap().extend_from_slice(&part[..length]);
            }
        });
        let this = Self { controller, user, child, output };
        this.resize(columns, rows);
        this
    }

    pub(super) fn resize(&self, columns: u16, rows: u16) {
        let size = Winsize { ws_col: columns, ws_row: rows, ws_xpixel: 0, ws_ypixel: 0 };
        tcsetwinsize(&self.controller, size).unwrap();
    }

    pub(super) fn press(&mut self, keys: &str) {
        self.controller.write_all(keys.as_bytes()).unwrap();
    }

    /// All output so far.
    pub(super) fn text(&self) -> String {
        String::from_utf8_lossy(&self.output.lock().unwrap()).into_owned()
    }

    /// The last whole picture, without escape sequences.
    fn picture(&self) -> Option<String> {
        let text = self.text();
        let (before, _) = text.rsplit_once("\x1b[J")?;
        let (_, picture) = before.rsplit_once(HOME)?;
        let mut plain = String::new();
        let mut characters = picture.chars();
        while let Some(character) = characters.next() {
            match character {
                '\x1b' => while characters.next().is_some_and(|c| !c.is_ascii_alphabetic()) {},
                '\r' => {}
                other => plain.push(other),
            }
        }
        Some(plain)
    }

    /// Waits for a picture.
    #[track_caller]
    pub(super) fn wait_for(&self, what: &str, is_it: impl Fn(&str) -> bool) -> String {
        wait_for_or(
            || self.picture().filter(|picture| is_it(picture)),
            || format!("{what}; the terminal has {:?}", self.picture()),
        )
    }

    pub(super) fn wait_for_exit(&mut self) -> ExitStatus {
        wait_for("the program to end", || self.child.try_wait().unwrap())
    }

    /// The settings of the terminal, which programs change.
    pub(super) fn settings(&self) -> Termios {
        tcgetattr(&self.user).unwrap()
    }

    /// Sends a signal, by its name.
    pub(super) fn signal(&self, name: &str) {
        let command = format!("kill -{name} {}", self.child.id());
        assert!(Command::new("sh").args(["-c", &command]).status().unwrap().success());
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
