//! Calls within content: what is no call after all is given back as the content it is.

use std::sync::Arc;

use serde_json::Value;

use crate::callable::Callable;
use crate::event::Events;
use crate::format::xml::{Element, Marks};
use crate::format::{Arguments, Format, Position, Tail, gemma4};
use crate::scan::{Reached, Stop, ValueScanner, len_of_beginning};
use crate::schema::Types;

/// A call's name stands within so many bytes. Beyond, what begins like a call is content: text is not held back forever. An
/// argument has no such limit, as it can be nothing else behind the call's name, and files are written as one.
const MAX_HELD_BYTES: usize = 64 << 10;

/// Reads content in pieces and finds calls in it.
#[derive(Debug)]
pub(crate) struct ToolParser {
    format: &'static Format,
    /// The functions that there are.
    functions: Arc<[Callable]>,
    /// Text that is not told yet.
    held: String,
    state: State,
    num_calls: usize,
    has_content: bool,
    /// Whether no more text comes.
    ended: bool,
}

#[derive(Debug)]
enum State {
    /// In content.
    Content,
    /// At the beginning of a call, behind so many bytes that are content if it is none.
    Head { skipped: usize, position: Position },
    /// In the arguments of a call, which are JSON. It does not hold `closer`.
    Arguments { scanner: ValueScanner, closer: Option<&'static str>, in_object: bool },
    /// In the arguments of a call of this function, which become JSON.
    Translated { function: Option<usize>, arguments: gemma4::Arguments },
    /// Before an argument of a call of this function, or its end. So many bytes of its value hold no mark.
    Elements { marks: &'static Marks, function: Option<usize>, is_first: bool, searched: usize },
    /// Behind the arguments of a call.
    Tail { in_object: bool },
    /// Behind a call, where white space says nothing.
    Space,
}

/// Whether there is more to do with the text that is held.
#[derive(PartialEq, Eq)]
enum Step {
    Again,
    Enough,
}

impl ToolParser {
    pub(crate) fn new(format: &'static Format, functions: Arc<[Callable]>) -> Self {
        Self {
            format,
            functions,
            held: String::new(),
            state: State::Content,
            num_calls: 0,
            has_content: false,
            ended: false,
        }
    }

    /// Takes the next piece of content.
    pub(crate) fn push(&mut self, text: &str, events: &mut Events) {
        self.held.push_str(text);
        while self.step(events) == Step::Again {}
    }

    /// Tells what is held when no more content comes.
    pub(crate) fn finish(&mut self, events: &mut Events) {
        self.ended = true;
        while self.step(events) == Step::Again {}
    }

    fn step(&mut self, events: &mut Events) -> Step {
        match self.state {
            State::Content => self.content(events),
            State::Head { skipped, position } => self.head(skipped, position, events),
            State::Arguments { .. } => self.arguments(events),
            State::Translated { .. } => self.translated(events),
            State::Elements { .. } => self.element(events),
            State::Tail { in_object } => self.tail(in_object),
            State::Space => {
                let text = self.held.trim_start();
                if text.is_empty() {
                    self.held.clear();
                    return Step::Enough;
                }
                self.held.drain(..self.held.len() - text.len());
                self.state = State::Content;
                Step::Again
            }
        }
    }

    fn content(&mut self, events: &mut Events) -> Step {
        let (certain, opened) = self.find_opener();
        self.tell_content(certain, events);
        match opened {
            None => Step::Enough,
            Some(skipped) => {
                self.state = State::Head { skipped, position: Position::First };
                Step::Again
            }
        }
    }

    /// So many bytes are content for certain. Behind them, and behind so many more of white space, a call may begin.
    fn find_opener(&self) -> (usize, Option<usize>) {
        let text = self.held.as_str();
        let length = text.len();
        if self.format.opens_at_start() && !self.has_content {
            let space = length - text.trim_start().len();
            return match (space == length, self.ended) {
                (true, true) => (length, None),
                (true, false) => (0, None),
                (false, _) => (0, Some(space)),
            };
        }
        let openers = self.format.openers;
        if let Some(at) = openers.iter().filter_map(|opener| text.find(opener)).min() {
            let certain = text[..at].trim_end().len();
            return (certain, Some(at - certain));
        }
        if self.ended {
            return (length, None);
        }
        let begun = openers.iter().map(|opener| len_of_beginning(text, opener)).max().unwrap_or(0);
        (text[..length - begun].trim_end().len(), None)
    }

    fn head(&mut self, skipped: usize, position: Position, events: &mut Events) -> Step {
        let text = self.held[skipped..].trim_start();
        let skipped = self.held.len() - text.len();
        let text = &text[..text.floor_char_boundary(MAX_HELD_BYTES)];
        let head = match (self.format.head)(text, position, &self.functions) {
            Ok(head) => head,
            Err(Stop::Wait) if !self.ended && self.held.len() - skipped < MAX_HELD_BYTES => {
                return Step::Enough;
            }
            Err(_) => {
                let first = text.chars().next().map_or(0, char::len_utf8);
                self.tell_content(skipped + first, events);
                self.state = State::Content;
                return Step::Again;
            }
        };
        let function = self.functions.iter().position(|function| function.name == head.name);
        events.call_start(self.num_calls, head.name);
        self.held.drain(..skipped + head.at);
        self.state = match head.arguments {
            Some(arguments) => {
                events.call_arguments(self.num_calls, &arguments);
                self.end_call(head.in_object, events)
            }
            None => self.begin_arguments(function, head.in_object),
        };
        Step::Again
    }

    /// Before the arguments of a call of this function, of which none was read yet.
    fn begin_arguments(&self, function: Option<usize>, in_object: bool) -> State {
        match self.format.arguments {
            Arguments::Elements(marks) => {
                State::Elements { marks, function, is_first: true, searched: 0 }
            }
            Arguments::Gemma4 => {
                State::Translated { function, arguments: gemma4::Arguments::default() }
            }
            Arguments::Json { closer } => {
                State::Arguments { scanner: ValueScanner::default(), closer, in_object }
            }
            Arguments::Keywords => {
                State::Arguments { scanner: ValueScanner::default(), closer: None, in_object }
            }
        }
    }

    fn arguments(&mut self, events: &mut Events) -> Step {
        let State::Arguments { scanner, closer, in_object } = &mut self.state else {
            return Step::Enough;
        };
        let mark = closer.filter(|_| !self.ended);
        let (reached, in_object) = (scanner.push_before(&self.held, mark), *in_object);
        let (Reached::End(taken) | Reached::Mark(taken) | Reached::Text(taken)) = reached;
        events.call_arguments(self.num_calls, &self.held[..taken]);
        self.held.drain(..taken);
        self.state = match reached {
            Reached::Text(_) => return Step::Enough,
            Reached::End(_) => self.end_call(in_object, events),
            // The arguments break off, and the call with them.
            Reached::Mark(_) => {
                self.break_off();
                State::Tail { in_object }
            }
        };
        Step::Again
    }

    /// Tells what there is of arguments that are not written as JSON.
    fn translated(&mut self, events: &mut Events) -> Step {
        let State::Translated { function, arguments } = &mut self.state else {
            return Step::Enough;
        };
        let function = function.and_then(|place| self.functions.get(place));
        let schema = function.and_then(|function| function.parameters.as_ref());
        let mut json = String::new();
        let types = |key: &str| Types::of_property(key, schema);
        let (taken, result) = arguments.read(&self.held, self.ended, &mut json, types);
        self.held.drain(..taken);
        events.call_arguments(self.num_calls, &json);
        self.state = match result {
            Ok(()) => self.end_call(false, events),
            Err(Stop::Wait) => return Step::Enough,
            Err(Stop::No) => self.break_off(),
        };
        Step::Again
    }

    /// Tells one argument, whose type the function's schema says, or the end of the call.
    fn element(&mut self, events: &mut Events) -> Step {
        let State::Elements { marks, function, is_first, searched } = &mut self.state else {
            return Step::Enough;
        };
        let function = function.and_then(|place| self.functions.get(place));
        let schema = function.and_then(|function| function.parameters.as_ref());
        let types = |key: &str| Types::of_property(key, schema);
        let ended = self.ended;
        if ended {
            *searched = 0;
        }
        // A string of JSON that never ends was none.
        let json = |key: &str| !ended && !types(key).have_string();
        match marks.element(&self.held, searched, json) {
            Ok(Element::Argument { key, value, end }) => {
                let value = types(key).argument(value);
                let before = if *is_first { "{" } else { ", " };
                let argument = format!("{before}{}: {value}", Value::from(key));
                events.call_arguments(self.num_calls, &argument);
                (*is_first, *searched) = (false, 0);
                self.held.drain(..end);
            }
            Ok(Element::End(end)) => {
                let rest = if *is_first { "{}" } else { "}" };
                events.call_arguments(self.num_calls, rest);
                self.held.drain(..end);
                self.state = self.end_call(false, events);
            }
            Err(Stop::Wait) => return Step::Enough,
            Err(Stop::No) => self.state = self.break_off(),
        }
        Step::Again
    }

    /// What is damaged is content, and the call has no end.
    fn break_off(&mut self) -> State {
        self.num_calls += 1;
        self.has_content = true;
        State::Space
    }

    fn end_call(&mut self, in_object: bool, events: &mut Events) -> State {
        events.call_end(self.num_calls);
        self.num_calls += 1;
        self.has_content = true;
        State::Tail { in_object }
    }

    fn tail(&mut self, in_object: bool) -> Step {
        let text = &self.held[..self.held.floor_char_boundary(MAX_HELD_BYTES)];
        match (self.format.tail)(text, in_object) {
            Ok(Tail { end, separator }) => {
                self.held.drain(..end);
                if let Some(skipped) = separator {
                    self.state = State::Head { skipped, position: Position::Next };
                    return Step::Again;
                }
            }
            // The beginning of what ends a call is no content.
            Err(Stop::Wait) if self.ended => self.held.clear(),
            Err(Stop::Wait) if self.held.len() < MAX_HELD_BYTES => return Step::Enough,
            Err(_) => {}
        }
        self.state = State::Space;
        Step::Again
    }

    fn tell_content(&mut self, num_bytes: usize, events: &mut Events) {
        events.content(&self.held[..num_bytes]);
        self.held.drain(..num_bytes);
        self.has_content |= num_bytes > 0;
    }
}
