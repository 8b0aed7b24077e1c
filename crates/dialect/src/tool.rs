//! Parses tool calls within content. Text that turns out not to be a call is returned as content.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde_json::{Map, Value};

use crate::callable::Callable;
use crate::event::Events;
use crate::format::xml::{Element, Known, Marks};
use crate::format::{Arguments, Format, Position, Tail, gemma4, pythonic};
use crate::scan::{Reached, Stop, ValueScanner, len_of_beginning};
use crate::schema::{Types, has_text};

/// Maximum bytes of a call up to its name. Longer text is content, so that text is not held back without limit. Arguments have no limit:
/// after the name, the text can only be a call, and agents write whole files as one argument.
const MAX_HELD_BYTES: usize = 64 << 10;

/// White space before a call is dropped up to this number of bytes. More is content, so that white space is not held back without limit.
pub(crate) const MAX_SPACE_BYTES: usize = 256;

/// A parser of content in pieces that finds calls.
#[derive(Debug)]
pub(crate) struct ToolParser {
    format: &'static Format,
    /// The callable functions.
    functions: Arc<[Callable]>,
    /// Whether the answer consists of calls only, so that the start of a call is not content.
    are_required: bool,
    /// A mark without effect, which is dropped when it comes.
    stray: Option<&'static str>,
    /// Whether the last call has arguments, or a piece of them.
    has_arguments: bool,
    /// Unknown functions that were called.
    unknown: Vec<String>,
    /// Text that is not emitted yet.
    held: String,
    state: State,
    num_calls: usize,
    has_content: bool,
    /// Whether no more text follows.
    ended: bool,
}

#[derive(Debug)]
enum State {
    /// In content.
    Content,
    /// At a possible start of a call, after `skipped` bytes that are content if it is not a call.
    Head { skipped: usize, position: Position },
    /// In the arguments of a call, which are JSON without `closer`.
    Arguments { scanner: ValueScanner, closer: Option<&'static str>, in_object: bool },
    /// In the arguments of a call of this function, which are converted to JSON.
    Translated { function: usize, arguments: gemma4::Arguments },
    /// Before an argument of a call of this function, or the call's end. `searched` bytes of the value contain no mark.
    Elements {
        marks: &'static Marks,
        function: usize,
        /// Names of the arguments so far.
        emitted: BTreeSet<String>,
        searched: usize,
    },
    /// After the arguments of a call.
    Tail { in_object: bool },
    /// After a call, where white space is ignored.
    Space,
}

/// Maximum number of unknown functions that are noted.
pub(crate) const MAX_UNKNOWN: usize = 8;

/// Whether held text can be processed further.
#[derive(PartialEq, Eq)]
enum Step {
    Again,
    Enough,
}

impl ToolParser {
    pub(crate) fn new(
        format: &'static Format,
        functions: Arc<[Callable]>,
        are_required: bool,
    ) -> Self {
        Self {
            format,
            functions,
            are_required,
            stray: None,
            has_arguments: false,
            unknown: Vec::new(),
            held: String::new(),
            state: State::Content,
            num_calls: 0,
            has_content: false,
            ended: false,
        }
    }

    /// Parses the next piece of content.
    pub(crate) fn push(&mut self, text: &str, events: &mut Events) {
        self.held.push_str(text);
        while self.step(events) == Step::Again {}
    }

    /// Drops this mark when it comes: it closes reasoning that has already ended.
    pub(crate) fn leave_out(&mut self, mark: &'static str) {
        self.stray = Some(mark);
    }

    /// Unknown functions that were called, at most [`MAX_UNKNOWN`]. Their calls are content.
    pub(crate) fn unknown(&self) -> &[String] {
        &self.unknown
    }

    /// Emits the held text at the end. If the answer `is_cut`, the start of a call is not content.
    pub(crate) fn finish(&mut self, is_cut: bool, events: &mut Events) {
        self.ended = true;
        if let State::Head { skipped, .. } = self.state
            // Bare formats have no mark, so a text that is cut could as well be an answer in JSON. It stays content.
            && (self.are_required || is_cut && self.is_marked(skipped))
        {
            // White space before the call goes with it.
            self.held.clear();
            self.state = State::Content;
        }
        while self.step(events) == Step::Again {}
        // A call that is cut before its arguments has no arguments.
        let in_arguments = matches!(
            self.state,
            State::Arguments { .. } | State::Translated { .. } | State::Elements { .. }
        );
        if in_arguments && !self.has_arguments {
            events.call_arguments(self.num_calls, "{}");
        }
    }

    /// Whether a mark of calls follows after `skipped` bytes.
    fn is_marked(&self, skipped: usize) -> bool {
        let text = self.held[skipped..].trim_start();
        self.format.openers.iter().any(|opener| text.starts_with(opener))
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
        let at_start = self.format.opens_at_start() && !self.has_content;
        let (certain, opened) = self.find_opener();
        if let Some(mark) = self.stray {
            // The mark counts only before the next call: one within a call's arguments is text.
            let before = certain + opened.unwrap_or(self.held.len() - certain);
            if let Some(at) = self.held[..before].find(mark) {
                self.emit_content(at, events);
                self.held.drain(..mark.len());
                (self.stray, self.state) = (None, State::Space);
                return Step::Again;
            }
        }
        self.emit_content(certain, events);
        match opened {
            // After this much white space, a call needs a mark.
            None if at_start && self.has_content && !self.held.is_empty() => Step::Again,
            None if self.ended => {
                self.held.clear();
                Step::Enough
            }
            None => Step::Enough,
            Some(skipped) => {
                self.state = State::Head { skipped, position: Position::First };
                Step::Again
            }
        }
    }

    /// The number of bytes that are certainly content, and of white space after which a call may begin.
    fn find_opener(&self) -> (usize, Option<usize>) {
        let text = self.held.as_str();
        let length = text.len();
        // White space is held back, but not without limit.
        let before = |end: usize| {
            let least = text.floor_char_boundary(end.saturating_sub(MAX_SPACE_BYTES));
            text[..end].trim_end().len().max(least)
        };
        if self.format.opens_at_start() && !self.has_content {
            let space = length - text.trim_start().len();
            let emitted = before(space);
            return match (space == length, self.ended) {
                (true, true) => (length, None),
                (true, false) => (emitted, None),
                (false, _) if emitted > 0 => (emitted, None),
                (false, _) => (0, Some(space)),
            };
        }
        let openers = self.format.openers;
        if let Some(at) = openers.iter().filter_map(|opener| text.find(opener)).min() {
            let certain = before(at);
            return (certain, Some(at - certain));
        }
        let marks = openers.iter().copied().chain(self.stray);
        let begun = marks.map(|mark| len_of_beginning(text, mark)).max().unwrap_or(0);
        match (self.ended, self.are_required) {
            (true, false) => (length, None),
            (true, true) => (length - begun, None),
            (false, _) => (before(length - begun), None),
        }
    }

    fn head(&mut self, skipped: usize, position: Position, events: &mut Events) -> Step {
        let text = self.held[skipped..].trim_start();
        let skipped = self.held.len() - text.len();
        let text = &text[..text.floor_char_boundary(MAX_HELD_BYTES)];
        let found = (self.format.head)(text, position, &self.functions);
        let known = |name: &str| self.functions.iter().position(|function| function.name == name);
        let (head, function) = match found {
            Ok(head) => match known(&head.name) {
                Some(function) => (head, function),
                // The client cannot run an unknown function, so the call is content.
                None => {
                    // The text after the head is parsed again as content, in which the next call may begin.
                    let emitted = skipped + head.at;
                    self.note_unknown(head.name);
                    return self.no_call(emitted, events);
                }
            },
            Err(Stop::Wait) if !self.ended && self.held.len() - skipped < MAX_HELD_BYTES => {
                return Step::Enough;
            }
            Err(_) => {
                // Only the first character is certain: the next mark may begin with the second one, as in
                // `<<tool_call>`.
                let first = text.chars().next().map_or(0, char::len_utf8);
                return self.no_call(skipped + first, events);
            }
        };
        events.call_start(self.num_calls, head.name);
        self.has_arguments = false;
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

    /// Emits text that looked like the start of a call as content.
    fn no_call(&mut self, num_bytes: usize, events: &mut Events) -> Step {
        self.emit_content(num_bytes, events);
        self.state = State::Content;
        Step::Again
    }

    fn note_unknown(&mut self, name: String) {
        if self.unknown.len() < MAX_UNKNOWN && !self.unknown.contains(&name) {
            self.unknown.push(name);
        }
    }

    /// The state before the first argument of a call of this function.
    fn begin_arguments(&self, function: usize, in_object: bool) -> State {
        match self.format.arguments {
            Arguments::Elements(marks) => {
                State::Elements { marks, function, emitted: BTreeSet::new(), searched: 0 }
            }
            Arguments::Gemma(marks) => {
                State::Translated { function, arguments: gemma4::Arguments::new(marks) }
            }
            Arguments::Json { closer } => {
                State::Arguments { scanner: ValueScanner::default(), closer, in_object }
            }
            Arguments::Keywords => {
                // Keyword arguments come complete with the head. This state is for objects that LFM2 writes in its
                // list.
                State::Arguments { scanner: ValueScanner::default(), closer: None, in_object }
            }
        }
    }

    fn arguments(&mut self, events: &mut Events) -> Step {
        let State::Arguments { scanner, closer, in_object } = &mut self.state else {
            return Step::Enough;
        };
        // At the end of the answer a part of the mark must not be kept back.
        let mark = closer.filter(|_| !self.ended);
        let (reached, in_object) = (scanner.push_before(&self.held, mark), *in_object);
        let (Reached::End(taken) | Reached::Mark(taken) | Reached::Text(taken)) = reached;
        events.call_arguments(self.num_calls, &self.held[..taken]);
        self.has_arguments |= taken > 0;
        self.held.drain(..taken);
        self.state = match reached {
            Reached::Text(_) => return Step::Enough,
            Reached::End(_) => self.end_call(in_object, events),
            // The arguments are cut, and the call with them.
            Reached::Mark(_) => {
                self.break_off(events);
                State::Tail { in_object }
            }
        };
        Step::Again
    }

    /// Emits the parsed part of arguments that are not written as JSON.
    fn translated(&mut self, events: &mut Events) -> Step {
        let State::Translated { function, arguments } = &mut self.state else {
            return Step::Enough;
        };
        let schema = self.functions[*function].parameters.as_ref();
        let mut json = String::new();
        let types = |key: &str| Types::of_property(key, schema);
        let properties = schema.and_then(|schema| schema.get("properties")?.as_object());
        let declares =
            |key: &str| properties.is_some_and(|properties| properties.contains_key(key));
        let known = gemma4::Known { ended: self.ended, types: &types, declares: &declares };
        let (taken, result) = arguments.read(&self.held, &mut json, &known);
        self.held.drain(..taken);
        events.call_arguments(self.num_calls, &json);
        self.has_arguments |= !json.is_empty();
        self.state = match result {
            Ok(()) => self.end_call(false, events),
            Err(Stop::Wait) => return Step::Enough,
            Err(Stop::No) => self.break_off(events),
        };
        Step::Again
    }

    /// Emits one argument, whose type is in the function's schema, or the end of the call.
    fn element(&mut self, events: &mut Events) -> Step {
        let State::Elements { marks, function, emitted, searched } = &mut self.state else {
            return Step::Enough;
        };
        let schema = self.functions[*function].parameters.as_ref();
        let ended = self.ended;
        // At the end, marks are judged by other rules, so those that were passed over are looked at again.
        if ended {
            *searched = 0;
        }
        // A JSON string that never ends is not a string.
        let is_json = |key: &str| !Types::of_property(key, schema).have_string();
        let may_follow = |key: &str| !emitted.contains(key) && is_property(key, schema);
        let known = Known { ended, is_json: &is_json, may_follow: &may_follow };
        match marks.element(&self.held, searched, &known) {
            Ok(Element::Argument { key, value, is_string, end }) => {
                let value = match is_string {
                    Some(true) => Value::from(value).to_string(),
                    _ => argument(key, value, schema),
                };
                let before = if emitted.is_empty() { "{" } else { ", " };
                let argument = format!("{before}{}: {value}", Value::from(key));
                events.call_arguments(self.num_calls, &argument);
                emitted.insert(key.to_owned());
                *searched = 0;
                self.has_arguments = true;
                self.held.drain(..end);
            }
            Ok(Element::End(end)) => {
                let rest = if emitted.is_empty() { "{}" } else { "}" };
                events.call_arguments(self.num_calls, rest);
                self.held.drain(..end);
                self.state = self.end_call(false, events);
            }
            Err(Stop::Wait) => return Step::Enough,
            Err(Stop::No) => self.state = self.break_off(events),
        }
        Step::Again
    }

    /// Ends a damaged call: the text is content, and the call stays incomplete.
    fn break_off(&mut self, events: &mut Events) -> State {
        if !self.has_arguments {
            events.call_arguments(self.num_calls, "{}");
        }
        self.num_calls += 1;
        self.has_content = true;
        // The call has no end event, from which the server knows that it is incomplete.
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
            // A prefix of the text that ends a call is not content.
            Err(Stop::Wait) if self.ended => self.held.clear(),
            Err(Stop::Wait) if self.held.len() < MAX_HELD_BYTES => return Step::Enough,
            // A damaged end loses nothing: the text becomes content.
            Err(_) => {}
        }
        self.state = State::Space;
        Step::Again
    }

    fn emit_content(&mut self, num_bytes: usize, events: &mut Events) {
        events.content(&self.held[..num_bytes]);
        self.held.drain(..num_bytes);
        self.has_content |= num_bytes > 0;
    }
}

/// Whether the function's schema allows an argument of this name.
fn is_property(key: &str, schema: Option<&Map<String, Value>>) -> bool {
    let properties = schema.and_then(|schema| schema.get("properties")?.as_object());
    properties.is_none_or(|properties| properties.contains_key(key))
}

/// The argument `key` with the text `text`, as JSON. Models also write Python's literals.
fn argument(key: &str, text: &str, schema: Option<&Map<String, Value>>) -> String {
    let types = Types::of_property(key, schema);
    // JSON has priority, because text such as `[1, "a"]` is valid in both notations.
    let is_json = serde_json::from_str::<Value>(text).is_ok();
    let literal = if is_json { None } else { pythonic::literal(text.trim()) };
    let fits = |json: &String| {
        let value = serde_json::from_str::<Value>(json);
        value.is_ok_and(|value| types.allow(&value) && (value.is_null() || !types.have_string()))
    };
    // `None` stands for null, unless the schema has this string, as among the values of an `enum`.
    let is_said = || schema.is_some_and(|schema| has_text("None", key, schema));
    match literal.filter(fits) {
        Some(json) if json != "null" || !is_said() => json,
        _ => types.argument(text),
    }
}
