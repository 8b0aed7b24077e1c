//! The loop of a conversation at a terminal.

use std::path::Path;

use anyhow::{Context, Result, bail};
use candlepower_machine::{print, print_error};
use serde_json::Value;
use tokio::runtime::Runtime;

use super::commands::{Command, help};
use super::conversation::{Conversation, Turn};
use super::editor::{Entered, LineEditor};
use super::file::Saved;
use super::images::data_url;
use super::session::{Ended, Session};
use super::style::clean;
use super::tools;

const PROMPT: &str = ">>> ";

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
            print_error(format_args!("error: {}", clean(&format!("{error:#}"))));
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

/// Carries out a command that generates nothing.
fn obey(session: &mut Session, command: Command) -> Result<()> {
    match command {
        Command::Help => {
            print(&help());
        }
        Command::System(text) => {
            session.screen.note(if text.is_some() {
                "The system prompt is set."
            } else {
                "There is no system prompt now."
            });
            session.conversation.system = text;
        }
        Command::Settings => {
            print(&clean(&session.settings.describe(session.target.limit().is_some())));
        }
        Command::Set(name, value) => {
            session.settings.set(&name, &value)?;
            session.screen.note(&format!("{name} is {value}"));
        }
        Command::Image(path) => {
            attach(session, &path)?;
            session.screen.note(&format!("{} goes with the next message.", path.display()));
        }
        Command::Tools(None) => {
            session.tools.clear();
            session.screen.note("No tools are offered now.");
        }
        Command::Tools(Some(path)) => {
            let shown = path.display();
            let text = std::fs::read_to_string(&path)
                .with_context(|| format!("{shown} cannot be read"))?;
            let json: Value =
                serde_json::from_str(&text).with_context(|| format!("{shown} is no JSON"))?;
            session.tools = tools::parse(&json).with_context(|| format!("{shown}"))?;
            let names: Vec<&str> = session.tools.iter().map(|tool| tool.name.as_str()).collect();
            session.screen.note(&format!("Offered tools: {}", names.join(", ")));
        }
        Command::Undo => match session.conversation.undo() {
            true => session.screen.note("The last message is removed."),
            false => bail!("there is no message to remove"),
        },
        Command::Clear => {
            session.conversation.turns.clear();
            session.images.clear();
            session.screen.note("All messages are removed.");
        }
        Command::Save(path) => {
            let saved = Saved {
                model: session.target.model.clone(),
                conversation: session.conversation.clone(),
                settings: session.settings.values.clone().into_iter().collect(),
                tools: session.tools.clone(),
            };
            saved.write(&path)?;
            session.screen.note(&format!("The conversation is saved as {}.", path.display()));
        }
        Command::Load(path) => load(session, Saved::read(&path)?),
        Command::Retry | Command::Exit => {}
    }
    Ok(())
}

/// Continues a saved conversation. Settings that this server does not take are left out, and named.
fn load(session: &mut Session, saved: Saved) {
    session.settings.values.clear();
    for (name, value) in saved.settings {
        if let Err(error) = session.settings.set(&name, &value.to_string()) {
            session.screen.note(&format!("left out: {error}"));
        }
    }
    session.conversation = saved.conversation;
    session.tools = saved.tools;
    session.images.clear();
    show(session, &session.conversation);
}

/// Shows a conversation that was loaded.
fn show(session: &Session, conversation: &Conversation) {
    for turn in &conversation.turns {
        match turn {
            Turn::User { text, .. } => print(&format!("{PROMPT}{}\n", clean(text))),
            Turn::Assistant { answer, .. } => print(&format!("{}\n\n", clean(&answer.content))),
            Turn::Tool { call, result } => {
                session.screen.note(&format!("result of {}: {result}", call.name));
                true
            }
        };
    }
}

/// Attaches an image to the next message.
///
/// # Errors
/// The model takes no images, or the file is none.
pub(super) fn attach(session: &mut Session, path: &Path) -> Result<()> {
    if session.target.takes_images == Some(false) {
        bail!("{} takes no images", session.target.model);
    }
    session.images.push(data_url(path)?);
    Ok(())
}
