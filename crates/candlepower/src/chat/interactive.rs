//! The loop of a conversation at a terminal.

use anyhow::{Result, bail};
use candlepower_machine::{print, print_error};
use tokio::runtime::Runtime;

use super::commands::Command;
use super::conversation::Turn;
use super::editor::{Entered, LineEditor};
use super::obey::obey;
use super::session::{Ended, Session};
use super::style::clean;
use crate::failure;

/// The mark of a line for the user.
pub(super) const PROMPT: &str = ">>> ";

/// Talks until the user ends the conversation.
///
/// # Errors
/// The terminal cannot be used.
pub(super) fn run(runtime: &Runtime, session: &mut Session) -> Result<()> {
    let mut editor = LineEditor::new()?;
    session.greet();
    let mut was_interrupted = false;
    loop {
        let text = match editor.read(PROMPT)? {
            Entered::End => return Ok(()),
            Entered::Interrupt if was_interrupted => return Ok(()),
            Entered::Interrupt => {
                was_interrupted = true;
                session.screen.note("Ctrl-C again, or Ctrl-D, ends the conversation.");
                continue;
            }
            Entered::Text(text) => text,
        };
        was_interrupted = false;
        let is_message = !text.starts_with('/') || text.starts_with("/retry");
        let done = match Command::parse(&text) {
            Some(Ok(Command::Exit)) => return Ok(()),
            Some(Ok(Command::Retry)) => retry(runtime, session, &mut editor),
            Some(Ok(command)) => obey(session, command),
            Some(Err(problem)) => Err(anyhow::Error::msg(problem)),
            None if text.trim().is_empty() && session.images.is_empty() => Ok(()),
            None => {
                let images = std::mem::take(&mut session.images);
                session.conversation.ask(text, images);
                answer(runtime, session, &mut editor)
            }
        };
        if let Err(error) = done {
            print_error(format_args!("error: {}", clean(&failure::text(&error))));
            if is_message && matches!(session.conversation.turns.last(), Some(Turn::User { .. })) {
                session.screen.note(
                    "The message is kept: /retry sends it again, and another message replaces it.",
                );
            }
        }
    }
}

/// Generates an answer. The user types the results of calls.
fn answer(runtime: &Runtime, session: &mut Session, editor: &mut LineEditor) -> Result<()> {
    loop {
        let ended = runtime.block_on(session.generate());
        let calls = match (ended?, session.conversation.turns.last()) {
            (Ended::Complete, Some(Turn::Assistant { answer, .. })) => answer.calls.clone(),
            _ => Vec::new(),
        };
        if calls.is_empty() {
            print("\n");
            return Ok(());
        }
        for call in calls {
            let name = clean(&call.name);
            session.screen.note(&format!("The model calls {name} {}", call.arguments));
            match editor.read(&format!("result of {name}> "))? {
                Entered::Text(result) => {
                    session.conversation.turns.push(Turn::Tool { call, result });
                }
                Entered::Interrupt | Entered::End => {
                    session.conversation.drop_open_calls();
                    session.screen.note("The calls are dropped; /retry asks again.");
                    return Ok(());
                }
            }
        }
    }
}

fn retry(runtime: &Runtime, session: &mut Session, editor: &mut LineEditor) -> Result<()> {
    if !session.conversation.take_back() {
        bail!("there is no message to answer");
    }
    answer(runtime, session, editor)
}
