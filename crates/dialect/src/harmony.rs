//! Harmony, the format of gpt-oss: an answer is a sequence of messages, each with a channel and perhaps a recipient.
//!
//! `<|channel|>analysis<|message|>..<|end|><|start|>assistant<|channel|>final<|message|>..`; the prompt ends with
//! `<|start|>assistant`, and `<|return|>` or `<|call|>`, an end-of-sequence token, ends the answer.
//! Source: the guide "OpenAI Harmony Response Format".

use std::sync::Arc;

use crate::callable::Callable;
use crate::event::Events;
use crate::scan::{ValueScanner, len_of_beginning};
use crate::tool::{MAX_SPACE_BYTES, MAX_UNKNOWN};

const START: &str = "<|start|>";
const CHANNEL: &str = "<|channel|>";
const CONSTRAIN: &str = "<|constrain|>";
const MESSAGE: &str = "<|message|>";
const RECIPIENT: &str = "to=";
/// The prefix of a function's name in a recipient.
const FUNCTIONS: &str = "functions.";
// Models sometimes omit the end of a message. So the start of the next message ends a body, too.
/// The marks that end a body.
const ENDS: [&str; 5] = ["<|end|>", "<|call|>", "<|return|>", START, CHANNEL];
pub(crate) const MARKS: [&str; 7] =
    [START, CHANNEL, CONSTRAIN, MESSAGE, "<|end|>", "<|call|>", "<|return|>"];

/// Maximum bytes of a header; a longer one is content.
const MAX_HEADER_BYTES: usize = 4 << 10;

/// A parser of an answer in pieces.
#[derive(Debug)]
pub(crate) struct HarmonyParser {
    state: State,
    held: String,
    /// The callable functions.
    functions: Option<Arc<[Callable]>>,
    num_calls: usize,
    arguments: Arguments,
    /// Unknown functions that were called.
    unknown: Vec<String>,
    /// The kinds of messages that were not empty.
    said: Vec<Body>,
    /// Whether the current message is still empty.
    is_new: bool,
}

/// The state of the last call's arguments.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
enum Arguments {
    /// No arguments yet.
    #[default]
    Empty,
    Open(ValueScanner),
    Complete,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Before a message; white space is ignored.
    Between,
    /// In a header.
    Header,
    Body(Body),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Body {
    Content,
    Reasoning,
    Call,
}

impl Arguments {
    fn with(self, text: &str) -> Self {
        let (mut scanner, text) = match self {
            // White space alone is no value, and for the scanner it would be a complete one.
            Self::Empty if text.trim().is_empty() => return Self::Empty,
            Self::Empty => (ValueScanner::default(), text.trim_start()),
            Self::Open(scanner) => (scanner, text),
            Self::Complete => return Self::Complete,
        };
        match scanner.push(text) {
            Some(_) => Self::Complete,
            None => Self::Open(scanner),
        }
    }

    /// Whether they end within a string.
    fn is_in_string(&self) -> bool {
        matches!(self, Self::Open(scanner) if scanner.is_in_string())
    }
}

impl HarmonyParser {
    /// The mark that ends a body, and its position. Within a string of a call's arguments, a mark is a part of the string: agents write
    /// texts about this format.
    fn end_of(&self, body: Body) -> Option<(usize, &'static str)> {
        let mut searched = 0;
        loop {
            let text = &self.held[searched..];
            let found = ENDS.iter().filter_map(|mark| Some((searched + text.find(mark)?, *mark)));
            let (at, mark) = found.min()?;
            if body != Body::Call || !self.arguments.clone().with(&self.held[..at]).is_in_string() {
                return Some((at, mark));
            }
            // All marks begin with an ASCII character.
            searched = at + 1;
        }
    }

    pub(crate) fn new(functions: Option<Arc<[Callable]>>) -> Self {
        Self {
            state: State::Between,
            held: String::new(),
            functions,
            num_calls: 0,
            arguments: Arguments::Empty,
            unknown: Vec::new(),
            said: Vec::new(),
            is_new: true,
        }
    }

    /// Parses the next piece.
    pub(crate) fn push(&mut self, text: &str, events: &mut Events) {
        self.held.push_str(text);
        while self.step(events) {}
    }

    /// Emits the held text at the end, or where the answer `is_cut`. A header without a body is dropped.
    pub(crate) fn finish(&mut self, is_cut: bool, events: &mut Events) {
        let rest = std::mem::take(&mut self.held);
        match self.state {
            State::Body(body) => {
                let least = rest.floor_char_boundary(rest.len().saturating_sub(MAX_SPACE_BYTES));
                // White space at the end is dropped, up to the same limit as while the answer arrives. So the result
                // does not depend on the pieces.
                self.emit(body, &rest[..rest.trim_end().len().max(least)], events);
            }
            State::Between | State::Header => {}
        }
        if self.state != State::Body(Body::Call) {
            return;
        }
        let are_missing = self.arguments == Arguments::Empty;
        if are_missing {
            events.call_arguments(self.num_calls, "{}");
        }
        // The token that ends a call may also have ended the answer.
        if self.arguments == Arguments::Complete || (are_missing && !is_cut) {
            events.call_end(self.num_calls);
        }
    }

    /// Processes held text; returns whether it may be called again.
    fn step(&mut self, events: &mut Events) -> bool {
        match self.state {
            State::Between => {
                let text = self.held.trim_start();
                // The prompt ends within a header, `<|start|>assistant`. So an answer may begin with any other part
                // of it.
                let begins = [START, CHANNEL, RECIPIENT, CONSTRAIN, MESSAGE];
                if begins.iter().any(|mark| text.starts_with(mark)) {
                    return self.go(0, State::Header);
                }
                let waits = begins.iter().any(|mark| mark.starts_with(text));
                !waits && self.go(0, State::Body(Body::Content))
            }
            State::Header => self.header(events),
            State::Body(body) => self.body(body, events),
        }
    }

    fn header(&mut self, events: &mut Events) -> bool {
        match self.held.find(MESSAGE) {
            // The position of the mark decides, not the length of the held text: the result must not depend on the
            // pieces.
            Some(end) if end <= MAX_HEADER_BYTES => {
                let body = self.body_of(end, events);
                self.go(end + MESSAGE.len(), State::Body(body))
            }
            None if self.held.len() < MAX_HEADER_BYTES + MESSAGE.len() => false,
            _ => {
                // The first mark is emitted as text too, so that it does not begin a header again.
                let first = self.held.chars().next().map_or(0, char::len_utf8);
                events.content(&self.held[..first]);
                self.go(first, State::Body(Body::Content))
            }
        }
    }

    /// The kind of the body, from its header, which ends at `end`.
    fn body_of(&mut self, end: usize, events: &mut Events) -> Body {
        let header = &self.held[..end];
        let word = |mark: &str| {
            let rest = &header[header.find(mark)? + mark.len()..];
            // The next mark ends a word also without white space, as in `to=functions.f<|constrain|>json`.
            let end = rest.find(|c: char| c.is_whitespace() || c == '<').unwrap_or(rest.len());
            Some(&rest[..end])
        };
        self.is_new = true;
        let Some(recipient) = word(RECIPIENT) else {
            // Commentary without a recipient is a preamble for the user, and an unknown channel must not lose text.
            // So both are content.
            let is_analysis = word(CHANNEL) == Some("analysis");
            return if is_analysis { Body::Reasoning } else { Body::Content };
        };
        // The channel of a call does not matter: the recipient decides.
        if let Some(name) = self.function(recipient) {
            events.call_start(self.num_calls, name);
            self.arguments = Arguments::Empty;
            return Body::Call;
        }
        match recipient.strip_prefix(FUNCTIONS) {
            Some(name) => {
                if self.functions.is_some() && self.unknown.len() < MAX_UNKNOWN {
                    self.unknown.push(name.to_owned());
                }
                Body::Content
            }
            // Calls of gpt-oss's built-in tools, which the request does not have, are reasoning.
            None => Body::Reasoning,
        }
    }

    /// Unknown functions that were called. Their calls are content.
    pub(crate) fn unknown(&self) -> &[String] {
        &self.unknown
    }

    /// The function of a recipient. Models sometimes omit the prefix of its name, or the next mark.
    fn function(&self, recipient: &str) -> Option<String> {
        let functions = self.functions.as_ref()?;
        let name = recipient.strip_prefix(FUNCTIONS).unwrap_or(recipient);
        // Without the mark `<|constrain|>`, its word `json` follows the name directly. A function whose own name ends
        // so is found first.
        let names = [name, name.strip_suffix("json").unwrap_or(name)];
        let is_known = |name: &&str| functions.iter().any(|function| function.name == *name);
        names.into_iter().find(is_known).map(str::to_owned)
    }

    fn body(&mut self, body: Body, events: &mut Events) -> bool {
        let Some((at, mark)) = self.end_of(body) else {
            let begun = ENDS.iter().map(|mark| len_of_beginning(&self.held, mark)).max();
            let certain = self.held.len() - begun.unwrap_or(0);
            // White space at the end is dropped, but not held back without limit.
            let least = self.held.floor_char_boundary(certain.saturating_sub(MAX_SPACE_BYTES));
            let certain = self.held[..certain].trim_end().len().max(least);
            let text: String = self.held.drain(..certain).collect();
            self.emit(body, &text, events);
            return false;
        };
        let least = self.held.floor_char_boundary(at.saturating_sub(MAX_SPACE_BYTES));
        let text = self.held[..self.held[..at].trim_end().len().max(least)].to_owned();
        self.emit(body, &text, events);
        if body == Body::Call {
            if self.arguments == Arguments::Empty {
                events.call_arguments(self.num_calls, "{}");
            }
            events.call_end(self.num_calls);
            self.num_calls += 1;
        }
        // These two marks belong to the next header.
        let taken = if mark == START || mark == CHANNEL { at } else { at + mark.len() };
        self.go(taken, State::Between)
    }

    fn emit(&mut self, body: Body, text: &str, events: &mut Events) {
        // Clients concatenate messages of a kind, so that they need a separator.
        let before = if self.is_new && self.said.contains(&body) { "\n\n" } else { "" };
        let before = if text.is_empty() { "" } else { before };
        // An empty message leaves no trace, so it needs no separator from the next one.
        if !text.is_empty() && std::mem::take(&mut self.is_new) && before.is_empty() {
            self.said.push(body);
        }
        match body {
            Body::Content => events.content(&[before, text].concat()),
            Body::Reasoning => events.reasoning(&[before, text].concat()),
            Body::Call => {
                events.call_arguments(self.num_calls, text);
                self.arguments = std::mem::take(&mut self.arguments).with(text);
            }
        }
    }

    /// Consumes this number of bytes and changes the state.
    fn go(&mut self, taken: usize, state: State) -> bool {
        self.held.drain(..taken);
        self.state = state;
        true
    }
}
