//! The terminal: its size, its keys, and what is drawn on it. Its former state comes back at the end, whatever ends the program.

use std::io::{self, Read, Write};

use anyhow::{Context, Result};
use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc;

/// The alternate screen without a cursor, and back.
const OPEN: &str = "\x1b[?1049h\x1b[?25l\x1b[2J";
const CLOSE: &str = "\x1b[?25h\x1b[?1049l";
/// Size of a terminal that does not know its own.
const SIZE: (usize, usize) = (80, 24);
const CTRL_C: u8 = 3;
const CTRL_D: u8 = 4;
/// Keys that end the program.
const ENDS: [u8; 4] = [b'q', b'Q', CTRL_C, CTRL_D];

/// Something that happened on the terminal.
pub(super) enum Event {
    End,
    Resized,
}

/// The terminal while the program has it.
pub(super) struct Screen {
    before: Termios,
    keys: mpsc::Receiver<u8>,
    resized: Signal,
    ended: [Signal; 3],
}

impl Screen {
    /// Takes the terminal of standard input and output.
    pub(super) fn open() -> Result<Self> {
        let catch = |kind| signal(kind).context("cannot wait for signals");
        let resized = catch(SignalKind::window_change())?;
        let ended = [
            catch(SignalKind::interrupt())?,
            catch(SignalKind::terminate())?,
            catch(SignalKind::hangup())?,
        ];
        let before = tcgetattr(io::stdin()).context("cannot read the terminal's settings")?;
        let mut raw = before.clone();
        // Keys arrive at once, and are not shown. Ctrl-C is a key too.
        raw.local_modes -= LocalModes::ICANON | LocalModes::ECHO | LocalModes::ISIG;
        tcsetattr(io::stdin(), OptionalActions::Now, &raw)
            .context("cannot change the terminal's settings")?;
        let (sender, keys) = mpsc::channel(16);
        std::thread::spawn(move || {
            let mut input = io::stdin().lock();
            loop {
                let mut key = [CTRL_D];
                // The end of the input, and of the terminal, is that of the program.
                let has_ended = !matches!(input.read(&mut key), Ok(1));
                if sender.blocking_send(key[0]).is_err() || has_ended {
                    return;
                }
            }
        });
        let screen = Self { before, keys, resized, ended };
        write(OPEN)?;
        Ok(screen)
    }

    /// Columns and rows.
    pub(super) fn size(&self) -> (usize, usize) {
        match tcgetwinsize(io::stdout()) {
            Ok(size) if size.ws_col > 0 && size.ws_row > 0 => {
                (size.ws_col.into(), size.ws_row.into())
            }
            _ => SIZE,
        }
    }

    /// The next key that means something, or signal.
    pub(super) async fn event(&mut self) -> Event {
        let [interrupted, terminated, hung_up] = &mut self.ended;
        loop {
            tokio::select! {
                key = self.keys.recv() => match key {
                    Some(key) if !ENDS.contains(&key) => {}
                    _ => return Event::End,
                },
                _ = self.resized.recv() => return Event::Resized,
                _ = interrupted.recv() => return Event::End,
                _ = terminated.recv() => return Event::End,
                _ = hung_up.recv() => return Event::End,
            }
        }
    }

    /// Replaces the contents. The text has no more lines than the screen.
    pub(super) fn draw(&mut self, text: &str) -> Result<()> {
        // Each line is written over the old one, so that nothing flickers.
        let lines: Vec<String> = text.lines().map(|line| format!("{line}\x1b[K")).collect();
        write(&format!("\x1b[H{}\x1b[J", lines.join("\r\n")))
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        // A terminal that is gone has no state to bring back.
        let _ = write(CLOSE);
        let _ = tcsetattr(io::stdin(), OptionalActions::Now, &self.before);
    }
}

fn write(text: &str) -> Result<()> {
    let mut output = io::stdout().lock();
    output
        .write_all(text.as_bytes())
        .and_then(|()| output.flush())
        .context("the terminal cannot be written")
}
