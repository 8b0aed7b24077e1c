//! Carries out the commands of a conversation that generate nothing.

use std::path::Path;

use anyhow::{Context, Result, bail};
use candlepower_machine::print;
use serde_json::Value;

use super::commands::{Command, help};
use super::conversation::{Conversation, Turn};
use super::file::Saved;
use super::images::data_url;
use super::interactive::PROMPT;
use super::session::Session;
use super::style::clean;
use super::tools;

/// Carries out a command that generates nothing.
pub(super) fn obey(session: &mut Session, command: Command) -> Result<()> {
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
