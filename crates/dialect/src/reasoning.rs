//! Parses reasoning between two marks, before the content. A tool call ends it too, because models often call without closing their
//! reasoning first, and the call would be lost in it. Only the complete start of a call of a callable function counts.

use std::sync::Arc;

use crate::callable::Callable;
use crate::event::Events;
use crate::format::{Format, Position, ReasoningFormat, Thinking};
use crate::scan::{Stop, len_of_beginning};
use crate::tool::MAX_SPACE_BYTES;

/// Maximum bytes of the start of a call within reasoning.
const MAX_HEAD_BYTES: usize = 64 << 10;

/// A parser of text in pieces. It emits reasoning as events and returns content.
#[derive(Debug)]
pub(crate) struct ReasoningParser {
    open: &'static str,
    close: &'static str,
    /// The title line after the opening mark, which is not part of the reasoning.
    title: &'static str,
    /// The format of calls and the callable functions.
    calls: Option<(&'static Format, Arc<[Callable]>)>,
    state: State,
    held: String,
    /// Whether a call has ended the reasoning.
    ended_by_call: bool,
}

/// The end of reasoning, or a possible end.
enum Found {
    /// The closing mark, at this position.
    Closed(usize),
    /// A call that begins at this position.
    Call(usize),
    /// Text at this position that may become one of them.
    Maybe(usize),
}

#[derive(Debug, PartialEq, Eq)]
enum State {
    /// Only white space was seen, and reasoning may be opened.
    Start,
    /// After the opening mark, where line breaks are ignored. The answer may repeat a prompt's mark.
    Opened {
        again: bool,
        titled: bool,
    },
    Reasoning,
    /// After the closing mark, where line breaks are ignored.
    Closed,
    Content,
}

impl ReasoningParser {
    /// A parser for an answer that begins at `thinking`; `None` if the format has no marks. The start of a call of a callable function
    /// ends reasoning too.
    pub(crate) fn new(
        format: ReasoningFormat,
        thinking: Thinking,
        calls: Option<(&'static Format, Arc<[Callable]>)>,
    ) -> Option<Self> {
        let (open, close) = format.marks()?;
        let title = format.title();
        let state = match thinking {
            Thinking::Open => State::Opened { again: true, titled: title.is_empty() },
            Thinking::Possible => State::Start,
            // Models write line breaks between the prompt's closing mark and the answer, which are no content.
            Thinking::Closed => State::Closed,
        };
        // Calls without marks are the whole answer, so that they do not occur in reasoning.
        let calls = calls.filter(|(format, _)| !format.opens_at_start());
        Some(Self { open, close, title, calls, state, held: String::new(), ended_by_call: false })
    }

    /// The closing mark, if a call has ended the reasoning: it may still follow, and is then dropped.
    pub(crate) fn take_unclosed(&mut self) -> Option<&'static str> {
        std::mem::take(&mut self.ended_by_call).then_some(self.close)
    }

    /// Parses the next piece; returns its content.
    pub(crate) fn push(&mut self, text: &str, events: &mut Events) -> String {
        self.held.push_str(text);
        let mut content = String::new();
        while self.step(events, &mut content) {}
        content
    }

    /// Returns the held content at the end. Unclosed reasoning stays reasoning.
    pub(crate) fn finish(&mut self, events: &mut Events) -> String {
        let rest = std::mem::take(&mut self.held);
        match self.state {
            // The answer ended within the title, which is not reasoning.
            State::Opened { titled: false, .. } if self.title.starts_with(rest.trim()) => {
                String::new()
            }
            State::Opened { .. } | State::Reasoning => {
                events.reasoning(rest.trim_end());
                String::new()
            }
            // An answer that ended within a possible mark is content, white space included.
            State::Start | State::Content => rest,
            State::Closed => rest.trim_start_matches(['\n', '\r']).to_owned(),
        }
    }

    /// Processes held text; returns whether it may be called again.
    fn step(&mut self, events: &mut Events, content: &mut String) -> bool {
        match self.state {
            State::Start => {
                let text = self.held.trim_start();
                if self.held.len() - text.len() > MAX_SPACE_BYTES {
                    return self.go(0, State::Content);
                }
                if text.starts_with(self.open) {
                    return self.open(self.held.len() - text.len());
                }
                // The white space goes with the content: without reasoning, nothing is removed.
                !self.open.starts_with(text) && self.go(0, State::Content)
            }
            State::Opened { again, titled } => self.opened(again, titled),
            State::Reasoning => self.reasoning(events),
            State::Closed => self.closed(),
            State::Content => {
                content.push_str(&self.held);
                self.held.clear();
                false
            }
        }
    }

    /// Consumes the opening mark after `skipped` bytes.
    fn open(&mut self, skipped: usize) -> bool {
        let titled = self.title.is_empty();
        self.go(skipped + self.open.len(), State::Opened { again: false, titled })
    }

    fn opened(&mut self, again: bool, titled: bool) -> bool {
        let text = self.held.trim_start();
        let space = self.held.len() - text.len();
        if again && text.starts_with(self.open) {
            return self.open(space);
        }
        if text.is_empty() || (again && self.open.starts_with(text)) {
            return false;
        }
        if !titled && self.title.starts_with(text) {
            return false;
        }
        let behind = text.strip_prefix(self.title).filter(|_| !titled);
        let is_line =
            |behind: &str| behind.starts_with(['\n', '\r']) || behind.starts_with(self.close);
        match behind {
            Some(behind) if is_line(behind) => {
                self.go(space + self.title.len(), State::Opened { again: false, titled: true })
            }
            // Text may go on with the closing mark, or the title is only the beginning of a word.
            Some(behind) if self.close.starts_with(behind) => false,
            _ => self.go(space, State::Reasoning),
        }
    }

    fn reasoning(&mut self, events: &mut Events) -> bool {
        match self.find_end() {
            Found::Closed(at) => {
                events.reasoning(self.held[..at].trim_end());
                self.go(at + self.close.len(), State::Closed)
            }
            Found::Call(at) => {
                events.reasoning(self.held[..at].trim_end());
                self.ended_by_call = true;
                self.go(at, State::Content)
            }
            Found::Maybe(at) => {
                // White space is kept back until more text shows that it is not the end of the reasoning.
                let certain = self.held[..at].trim_end().len();
                events.reasoning(&self.held[..certain]);
                self.held.drain(..certain);
                false
            }
        }
    }

    /// The first end of the reasoning.
    fn find_end(&self) -> Found {
        let text = self.held.as_str();
        let closed = text.find(self.close);
        // Text after the closing mark is not reasoning.
        let reasoning = &text[..closed.unwrap_or(text.len())];
        let openers = self.calls.as_ref().map_or(&[][..], |(format, _)| format.openers);
        let mut from = 0;
        while let Some((format, functions)) = &self.calls {
            let found = openers.iter().filter_map(|opener| reasoning[from..].find(opener)).min();
            let Some(at) = found.map(|at| from + at) else { break };
            // The head is parsed again with each piece, so its length is limited.
            let near = reasoning[at..].floor_char_boundary(MAX_HEAD_BYTES);
            let head = (format.head)(&reasoning[at..at + near], Position::First, functions);
            let is_known = |name: &str| functions.iter().any(|function| function.name == name);
            match head {
                Ok(head) if is_known(&head.name) => return Found::Call(at),
                // With the closing mark behind it, no more text can complete the call.
                Err(Stop::Wait) if closed.is_none() && near < MAX_HEAD_BYTES => {
                    return Found::Maybe(at);
                }
                _ => from = at + reasoning[at..].chars().next().map_or(1, char::len_utf8),
            }
        }
        if let Some(at) = closed {
            return Found::Closed(at);
        }
        let marks = openers.iter().copied().chain([self.close]);
        let begun = marks.map(|mark| len_of_beginning(text, mark)).max().unwrap_or(0);
        Found::Maybe(text.len() - begun)
    }

    /// Handles empty reasoning of models with titles, which open and close it immediately.
    fn closed(&mut self) -> bool {
        // Gemma 4 may open and close empty reasoning several times before its answer.
        if !self.title.is_empty() {
            let text = self.held.trim_start();
            let space = self.held.len() - text.len();
            if text.starts_with(self.open) {
                return self.open(space);
            }
            if text.starts_with(self.close) {
                return self.go(space + self.close.len(), State::Closed);
            }
            if self.open.starts_with(text) || self.close.starts_with(text) {
                return false;
            }
        }
        let text = self.held.trim_start_matches(['\n', '\r']);
        let breaks = self.held.len() - text.len();
        let is_over = !text.is_empty() || breaks > MAX_SPACE_BYTES;
        is_over && self.go(breaks.min(MAX_SPACE_BYTES), State::Content)
    }

    /// Consumes this number of bytes and changes the state.
    fn go(&mut self, taken: usize, state: State) -> bool {
        self.held.drain(..taken);
        self.state = state;
        true
    }
}
