//! Reasoning between two marks, before the content.

use crate::event::Events;
use crate::format::Thinking;
use crate::tool::len_of_beginning;

/// Reads text in pieces; reasoning becomes events, content is given back.
#[derive(Debug)]
pub(crate) struct ReasoningParser {
    open: &'static str,
    close: &'static str,
    state: State,
    held: String,
}

#[derive(Debug, PartialEq, Eq)]
enum State {
    /// Nothing but white space was seen, and the reasoning may be opened.
    Start,
    /// Behind the mark that opens; line breaks say nothing. A prompt's mark may be repeated.
    Opened {
        again: bool,
    },
    Reasoning,
    /// Behind the mark that closes; line breaks say nothing.
    Closed,
    Content,
}

impl ReasoningParser {
    pub(crate) fn new((open, close): (&'static str, &'static str), thinking: Thinking) -> Self {
        let state = match thinking {
            Thinking::Open => State::Opened { again: true },
            Thinking::Possible => State::Start,
            Thinking::Closed => State::Closed,
        };
        Self { open, close, state, held: String::new() }
    }

    /// Takes the next piece; the content in it.
    pub(crate) fn push(&mut self, text: &str, events: &mut Events) -> String {
        self.held.push_str(text);
        let mut content = String::new();
        while self.step(events, &mut content) {}
        content
    }

    /// What is held when no more text comes: an unclosed reasoning is one.
    pub(crate) fn finish(&mut self, events: &mut Events) -> String {
        let rest = std::mem::take(&mut self.held);
        match self.state {
            State::Opened { .. } | State::Reasoning => {
                events.reasoning(rest.trim_end());
                String::new()
            }
            State::Start | State::Content => rest,
            State::Closed => String::new(),
        }
    }

    /// Whether there is more to do with the text that is held.
    fn step(&mut self, events: &mut Events, content: &mut String) -> bool {
        match self.state {
            State::Start => {
                let text = self.held.trim_start();
                if text.starts_with(self.open) {
                    let taken = self.held.len() - text.len() + self.open.len();
                    return self.go(taken, State::Opened { again: false });
                }
                !self.open.starts_with(text) && self.go(0, State::Content)
            }
            State::Opened { again } => {
                let text = self.held.trim_start();
                let space = self.held.len() - text.len();
                if again && text.starts_with(self.open) {
                    return self.go(space + self.open.len(), State::Opened { again: false });
                }
                let waits = text.is_empty() || (again && self.open.starts_with(text));
                !waits && self.go(space, State::Reasoning)
            }
            State::Reasoning => self.reasoning(events),
            State::Closed => {
                let text = self.held.trim_start_matches(['\n', '\r']);
                !text.is_empty() && self.go(self.held.len() - text.len(), State::Content)
            }
            State::Content => {
                content.push_str(&self.held);
                self.held.clear();
                false
            }
        }
    }

    fn reasoning(&mut self, events: &mut Events) -> bool {
        if let Some(at) = self.held.find(self.close) {
            events.reasoning(self.held[..at].trim_end());
            return self.go(at + self.close.len(), State::Closed);
        }
        let certain = self.held.len() - len_of_beginning(&self.held, self.close);
        let certain = self.held[..certain].trim_end().len();
        events.reasoning(&self.held[..certain]);
        self.held.drain(..certain);
        false
    }

    /// Takes so many bytes and is in another state.
    fn go(&mut self, taken: usize, state: State) -> bool {
        self.held.drain(..taken);
        self.state = state;
        true
    }
}
