//! A conversation with a model: the state, and the generation of answers.

use anyhow::{Result, anyhow};
use candlepower_machine::print;
use serde_json::{Map, Value};
use tokio::signal::unix::{SignalKind, signal};

use super::answer::{Answer, Piece, Reader};
use super::conversation::Conversation;
use super::local::LocalServer;
use super::printer::Printer;
use super::settings::Settings;
use super::style::Screen;
use super::target::Target;
use super::tools::Tool;
use crate::api::Api;

/// A conversation and its model.
pub(super) struct Session {
    pub(super) api: Api,
    pub(super) target: Target,
    pub(super) screen: Screen,
    pub(super) conversation: Conversation,
    pub(super) settings: Settings,
    pub(super) tools: Vec<Tool>,
    /// Images for the next message.
    pub(super) images: Vec<String>,
    /// The server, if it ends with the conversation.
    pub(super) local: Option<LocalServer>,
}

/// The end of an answer without a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ended {
    Complete,
    /// The user has stopped it, or nobody reads it any more.
    Stopped,
}

impl Session {
    /// The fields of a request for the next answer.
    fn body(&self) -> Value {
        let mut body: Map<String, Value> = self.settings.values.clone().into_iter().collect();
        let has_limit =
            ["max_tokens", "max_completion_tokens"].iter().any(|name| body.contains_key(*name));
        if let Some(limit) = self.target.limit().filter(|_| !has_limit) {
            body.insert("max_tokens".into(), limit.into());
        }
        if !self.tools.is_empty() {
            body.insert("tools".into(), self.tools.iter().map(Tool::to_json).collect());
        }
        body.insert("model".into(), self.target.model.as_str().into());
        body.insert("messages".into(), self.conversation.messages().into());
        body.insert("stream".into(), true.into());
        body.into()
    }

    /// Generates an answer to the conversation, shows it, and adds it. Ctrl-C stops it.
    ///
    /// # Errors
    /// The server refuses the request, cannot be reached or breaks off. The conversation is kept, with the part of the answer that
    /// has arrived.
    pub(super) async fn generate(&mut self) -> Result<Ended> {
        let mut printer = Printer::new(self.screen);
        let mut reader = Reader::default();
        let ended = self.stream(&mut reader, &mut printer).await;
        printer.finish();
        let mut answer = reader.answer;
        if !matches!(ended, Ok(Ended::Complete)) {
            // A call that is cut off cannot be answered.
            answer.calls.clear();
        }
        match &ended {
            Ok(Ended::Complete) => self.note_end(&answer),
            Ok(Ended::Stopped) => self.screen.note("(stopped)"),
            Err(_) => {}
        }
        self.conversation.answer(answer, !matches!(ended, Ok(Ended::Complete)));
        // The reason of a server that has died is better than that of a broken connection.
        ended.map_err(|error| match self.local.as_mut().map(LocalServer::check) {
            Some(Err(reason)) => reason,
            _ => error,
        })
    }

    async fn stream(&self, reader: &mut Reader, printer: &mut Printer) -> Result<Ended> {
        // A listener of its own hears only interrupts from now on.
        let mut interrupt = signal(SignalKind::interrupt())?;
        let body = serde_json::to_vec(&self.body())?;
        // Dropping the request closes the connection, and the server stops its work.
        let mut response = tokio::select! {
            response = self.api.open("/v1/chat/completions", body) => response?,
            _ = interrupt.recv() => return Ok(Ended::Stopped),
        };
        if let Some(left_out) = response.headers().get("x-candlepower-not-held") {
            let left_out = String::from_utf8_lossy(left_out.as_bytes()).into_owned();
            self.screen.note(&format!("The server leaves out: {left_out}"));
        }
        loop {
            let bytes = tokio::select! {
                bytes = response.chunk() => bytes.map_err(|error| self.api.failure(&error))?,
                _ = interrupt.recv() => return Ok(Ended::Stopped),
            };
            let Some(bytes) = bytes else {
                return Err(anyhow!("{}: the answer ended before it was complete", self.api.shown));
            };
            let mut is_read = true;
            let is_complete =
                reader.take(&bytes, &mut |piece: Piece<'_>| is_read &= printer.show(piece))?;
            match (is_complete, is_read) {
                (_, false) => return Ok(Ended::Stopped),
                (true, true) => return Ok(Ended::Complete),
                (false, true) => {}
            }
        }
    }

    fn note_end(&self, answer: &Answer) {
        if answer.finish.as_deref() == Some("length") {
            let note = "(the limit of tokens ended this answer)";
            match self.screen.is_interactive {
                true => self.screen.note(note),
                false => candlepower_machine::print_error(note),
            }
        }
    }

    /// Shows the model and the keys at the beginning.
    pub(super) fn greet(&self) {
        let context = match self.target.context {
            Some(tokens) => format!(", context of {tokens} tokens"),
            None => String::new(),
        };
        let place =
            if self.local.is_some() { String::new() } else { format!(" at {}", self.api.shown) };
        self.screen.note(&format!(
            "{}{place}{context}. /help lists commands, Ctrl-D ends.",
            self.target.model
        ));
        for warning in self.local.iter().flat_map(LocalServer::warnings) {
            self.screen.note(&format!("warning: {warning}"));
        }
        if self.screen.is_interactive {
            print("\n");
        }
    }
}
