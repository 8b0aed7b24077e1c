//! Reasoning between two marks, before the content.

use crate::event::Events;
use crate::format::{ReasoningFormat, Thinking};
use crate::scan::len_of_beginning;

/// Reads text in pieces; reasoning becomes events, content is given back.
#[derive(Debug)]
pub(crate) struct ReasoningParser {
    open: &'static str,
    close: &'static str,
    /// What the line behind the mark that opens may say, which is no reasoning.
    title: &'static str,
    /// What content begins with that may follow without a mark that closes.
    ended_by: Option<&'static str>,
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
        titled: bool,
    },
    Reasoning,
    /// Behind the mark that closes; line breaks say nothing.
    Closed,
    Content,
}

impl ReasoningParser {
    /// For an answer that stands at `thinking`; none where the format has no marks. Reasoning also ends before `ended_by`.
    pub(crate) fn new(
        format: ReasoningFormat,
        thinking: Thinking,
        ended_by: Option<&'static str>,
    ) -> Option<Self> {
        let (open, close) = format.marks()?;
        let title = format.title();
        let state = match thinking {
            Thinking::Open => State::Opened { again: true, titled: title.is_empty() },
            Thinking::Possible => State::Start,
            Thinking::Closed => State::Closed,
        };
        Some(Self { open, close, title, ended_by, state, held: String::new() })
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
            State::Opened { titled: false, .. } if self.title.starts_with(rest.trim()) => {
                String::new()
            }
            State::Opened { .. } | State::Reasoning => {
                events.reasoning(rest.trim_end());
                String::new()
            }
            State::Start | State::Content => rest,
            State::Closed => rest.trim_start_matches(['\n', '\r']).to_owned(),
        }
    }

    /// Whether there is more to do with the text that is held.
    fn step(&mut self, events: &mut Events, content: &mut String) -> bool {
        match self.state {
            State::Start => {
                let text = self.held.trim_start();
                if text.starts_with(self.open) {
                    return self.open(self.held.len() - text.len());
                }
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

    /// Takes the mark that opens, behind so many bytes.
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
            Some(behind) if self.close.starts_with(behind) => false,
            _ => self.go(space, State::Reasoning),
        }
    }

    fn reasoning(&mut self, events: &mut Events) -> bool {
        let find = |mark: &str| self.held.find(mark);
        let closed = find(self.close).map(|at| (at, self.close.len(), State::Closed));
        let ended = self.ended_by.and_then(find).map(|at| (at, 0, State::Content));
        if let Some((at, length, state)) = closed.into_iter().chain(ended).min_by_key(|end| end.0) {
            events.reasoning(self.held[..at].trim_end());
            return self.go(at + length, state);
        }
        let marks = self.ended_by.into_iter().chain([self.close]);
        let begun = marks.map(|mark| len_of_beginning(&self.held, mark)).max().unwrap_or(0);
        let certain = self.held[..self.held.len() - begun].trim_end().len();
        events.reasoning(&self.held[..certain]);
        self.held.drain(..certain);
        false
    }

    /// Models that title their reasoning open and close it again without a thought.
    fn closed(&mut self) -> bool {
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
        !text.is_empty() && self.go(self.held.len() - text.len(), State::Content)
    }

    /// Takes so many bytes and is in another state.
    fn go(&mut self, taken: usize, state: State) -> bool {
        self.held.drain(..taken);
        self.state = state;
        true
    }
}
