//! `<|tool_call>call:name{key:<|"|>text<|"|>,other:[1,true]}<tool_call|>`: keys are bare, and strings are between marks, without
//! escapes.
//!
//! Arguments are converted to JSON while they arrive. The models often deviate from their template: they omit the first mark of a
//! string, use quotes of JSON or Python, or write `=` after a key. The parser accepts these forms; a word that is not a literal is a
//! string.

mod words;

use super::{Format, Head, Layout, Tail};
use crate::scan::{Cursor, Scan, Stop, len_of_beginning};
use crate::schema::Types;
use words::{bare, key, quoted};
pub(crate) use words::{is_key, written};

/// The marks of a model that uses this notation.
#[derive(Debug)]
pub(crate) struct Marks {
    /// The mark and the word with which a call begins.
    pub(super) begin: &'static str,
    pub(crate) close: &'static str,
    /// The mark around a string.
    pub(crate) quote: &'static str,
    /// All special tokens.
    pub(super) all: [&'static str; 3],
}

const OPEN: &str = "<|tool_call>";
const CLOSE: &str = "<tool_call|>";
const QUOTE: &str = "<|\"|>";
const BEGIN: &str = "<|tool_call>call:";
const MARKS: Marks = Marks { begin: BEGIN, close: CLOSE, quote: QUOTE, all: [OPEN, CLOSE, QUOTE] };

pub(super) const GEMMA4: Format = Format {
    name: "gemma4",
    models: "Gemma 4",
    marks: &MARKS.all,
    openers: &[OPEN],
    ends_reasoning: Some(r"<\|tool_call>call:"),
    head: |text, _, _| head(text, &MARKS),
    arguments: super::Arguments::Gemma(&MARKS),
    tail: |text, _| tail(text, &MARKS),
    layout: Layout {
        before_name: BEGIN,
        after_arguments: CLOSE,
        trigger: Some(OPEN),
        ..Layout::PLAIN
    },
    wrote: |call| call.is_between(BEGIN, "{"),
    ..Format::PLAIN
};

/// Maximum nesting of values.
const MAX_DEPTH: usize = 64;

pub(super) fn head(text: &str, marks: &Marks) -> Scan<Head> {
    let mut cursor = Cursor::new(text);
    cursor.expect(marks.begin)?;
    cursor.white_space();
    let path = cursor.word(|c| c.is_alphanumeric() || matches!(c, '_' | '-' | '.' | ':'))?;
    // Models sometimes put the name of a server before the function's.
    let name = path.rsplit(':').next().unwrap_or_default().to_owned();
    cursor.white_space();
    let at = cursor.at();
    cursor.expect("{")?;
    cursor.white_space();
    if name.is_empty() {
        return Err(Stop::No);
    }
    // A whole key is required, because text about calls may contain a name and a brace. Once the head is accepted,
    // the client has seen the name.
    if cursor.peek()? != b'}' {
        key(cursor.rest(), marks)?;
    }
    Ok(Head { name, at, arguments: None, in_object: false })
}

/// The end of a call. Models sometimes omit the mark.
pub(super) fn tail(text: &str, marks: &Marks) -> Scan<Tail> {
    let mut cursor = Cursor::new(text);
    cursor.white_space();
    Ok(Tail::end(if cursor.accept(marks.close)? { cursor.at() } else { 0 }))
}

/// Maximum white space between a mark and the text that shows whether the mark ends a string.
const MAX_SPACE_BYTES: usize = 1 << 10;

/// Facts that the text of a call does not contain.
pub(crate) struct Known<'a> {
    /// Whether no more text follows.
    pub(crate) ended: bool,
    /// The types of the argument of this name.
    pub(crate) types: &'a dyn Fn(&str) -> Types,
    /// Whether the function's schema declares an argument of this name.
    pub(crate) declares: &'a dyn Fn(&str) -> bool,
}

/// The state of parsing a call's arguments, which begin with `{`.
#[derive(Debug)]
pub(crate) struct Arguments {
    marks: &'static Marks,
    /// The closing brackets of open objects and lists.
    ends: Vec<char>,
    next: Next,
    /// The last top-level key, which the function's schema may contain.
    key: String,
}

/// The expected next part.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Next {
    #[default]
    Value,
    /// A key, an item, or a closing bracket.
    Member { is_first: bool },
    /// The rest of a string.
    Text,
    /// The text after a value.
    Behind { is_text: bool },
    /// Nothing.
    End,
}

impl Arguments {
    pub(crate) fn new(marks: &'static Marks) -> Self {
        Self { marks, ends: Vec::new(), next: Next::default(), key: String::new() }
    }

    /// Parses as much of `text` as possible and appends it to `json`. Returns the number of bytes, and the reason to stop.
    pub(crate) fn read(
        &mut self,
        text: &str,
        json: &mut String,
        known: &Known<'_>,
    ) -> (usize, Scan<()>) {
        let mut cursor = Cursor::new(text);
        while self.next != Next::End {
            let before = cursor;
            if let Err(stop) = self.step(&mut cursor, json, known) {
                // The certain part of a string was taken.
                // Any other step is repeated as a whole when more text comes, so none of its text may be consumed.
                let at = if self.next == Next::Text { cursor.at() } else { before.at() };
                return (at, Err(stop));
            }
        }
        (cursor.at(), Ok(()))
    }

    fn step(&mut self, cursor: &mut Cursor<'_>, json: &mut String, known: &Known<'_>) -> Scan<()> {
        if self.next == Next::Text {
            return self.text(cursor, json, known);
        }
        cursor.white_space();
        self.next = match self.next {
            Next::Value => self.value(cursor, json, known)?,
            // A closing bracket after a comma is accepted here, too: models write trailing commas.
            Next::Member { is_first } => {
                if self.ends_here(cursor)? {
                    self.end(cursor, json)
                } else {
                    self.member(cursor, json, is_first)?
                }
            }
            Next::Behind { .. } if self.ends_here(cursor)? => self.end(cursor, json),
            Next::Behind { .. } if cursor.accept(",")? => Next::Member { is_first: false },
            // Models sometimes omit the comma after a string.
            // After another value, a missing comma would make two values one word, so the call is damaged there.
            Next::Behind { is_text: true } => Next::Member { is_first: false },
            Next::Behind { is_text: false } | Next::Text | Next::End => return Err(Stop::No),
        };
        Ok(())
    }

    /// Whether the innermost bracket closes here, or all of them, because models sometimes omit brackets before the mark.
    fn ends_here(&self, cursor: &Cursor<'_>) -> Scan<bool> {
        let mut cursor = *cursor;
        let is_end = self.ends.last().is_some_and(|end| cursor.rest().starts_with(*end));
        Ok(is_end || cursor.accept(self.marks.close)?)
    }

    /// Closes it. The mark is left for the text after the arguments.
    fn end(&mut self, cursor: &mut Cursor<'_>, json: &mut String) -> Next {
        if cursor.rest().starts_with(self.marks.close) {
            // The innermost bracket is last in the list, and it closes first.
            json.extend(self.ends.drain(..).rev());
        } else {
            json.extend(self.ends.pop());
            cursor.advance(1);
        }
        if self.ends.is_empty() { Next::End } else { Next::Behind { is_text: false } }
    }

    fn member(&mut self, cursor: &mut Cursor<'_>, json: &mut String, is_first: bool) -> Scan<Next> {
        let before = if is_first { "" } else { ", " };
        if self.ends.last() == Some(&']') {
            json.push_str(before);
            return Ok(Next::Value);
        }
        let (key, length) = key(cursor.rest(), self.marks)?;
        cursor.advance(length);
        json.push_str(&format!("{before}{}: ", quoted(&key)));
        // The schema describes top-level keys only. Keys within nested objects would overwrite the one that is
        // needed.
        if self.ends.len() == 1 {
            self.key = key;
        }
        Ok(Next::Value)
    }

    fn value(
        &mut self,
        cursor: &mut Cursor<'_>,
        json: &mut String,
        known: &Known<'_>,
    ) -> Scan<Next> {
        if cursor.accept(self.marks.quote)? {
            json.push('"');
            return Ok(Next::Text);
        }
        let first = cursor.peek()?;
        if matches!(first, b'{' | b'[') {
            if self.ends.len() == MAX_DEPTH {
                return Err(Stop::No);
            }
            cursor.advance(1);
            json.push(char::from(first));
            self.ends.push(if first == b'{' { '}' } else { ']' });
            return Ok(Next::Member { is_first: true });
        }
        // A phone number or a version without marks is a string if the schema says so.
        let wants_text = self.ends.len() == 1 && (known.types)(&self.key).are_text();
        let (value, is_text) = bare(cursor, known.ended, wants_text, self.marks)?;
        json.push_str(&value);
        Ok(Next::Behind { is_text })
    }

    /// More of a string; `Wait` after its certain part.
    fn text(&mut self, cursor: &mut Cursor<'_>, json: &mut String, known: &Known<'_>) -> Scan<()> {
        let rest = cursor.rest();
        let quote = self.marks.quote;
        let mut searched = 0;
        let end = loop {
            let Some(at) = rest[searched..].find(quote).map(|at| searched + at) else { break None };
            match self.fits_behind(&rest[at + quote.len()..], known) {
                Ok(()) => break Some(at),
                // The text ends here, and nothing contradicts the mark.
                Err(Stop::Wait) if known.ended => break Some(at),
                // The mark is checked again when more text follows it.
                Err(Stop::Wait) => {
                    self.add(&rest[..at], json);
                    cursor.advance(at);
                    return Err(Stop::Wait);
                }
                Err(Stop::No) => searched = at + quote.len(),
            }
        };
        // A possible start of the mark at the end stays in the held text.
        let length = end.unwrap_or(rest.len() - len_of_beginning(&rest[searched..], quote));
        self.add(&rest[..length], json);
        cursor.advance(length);
        if end.is_none() {
            return Err(Stop::Wait);
        }
        cursor.advance(quote.len());
        json.push('"');
        self.next = Next::Behind { is_text: true };
        Ok(())
    }

    /// Adds a part of a string to the JSON. Escapes of JSON work character by character, so parts can be escaped one by one.
    fn add(&self, text: &str, json: &mut String) {
        json.push_str(inner(&quoted(text)));
    }

    /// Whether a text may follow a string. Otherwise the mark before it is a part of the string, which may be a text about calls.
    fn fits_behind(&self, text: &str, known: &Known<'_>) -> Scan<()> {
        let mut cursor = Cursor::new(text);
        let mut ends = self.ends.as_slice();
        // Whether a comma precedes. It also may precede a closing bracket.
        let mut is_next = false;
        loop {
            let before = cursor.at();
            cursor.white_space();
            if cursor.at() - before > MAX_SPACE_BYTES {
                return Err(Stop::No);
            }
            if cursor.accept(self.marks.close)? {
                return Ok(());
            }
            let Some((end, outer)) = ends.split_last() else {
                // Models sometimes omit the mark of the call's end before the next call.
                return cursor.expect(self.marks.begin);
            };
            let next = cursor.peek()?;
            if char::from(next) == *end {
                cursor.advance(1);
                (ends, is_next) = (outer, false);
            } else if next == b',' && !is_next {
                cursor.advance(1);
                is_next = true;
            } else if *end == ']' {
                return self.fits_item(cursor, is_next);
            } else {
                return self.fits_member(cursor, is_next, known);
            }
        }
    }

    /// An item of a list.
    fn fits_item(&self, mut cursor: Cursor<'_>, is_next: bool) -> Scan<()> {
        let begins_value =
            is_next && (cursor.accept(self.marks.quote)? || self.begins_value(cursor)?);
        if begins_value { Ok(()) } else { Err(Stop::No) }
    }

    /// A member of an object. A key without a comma before it or without a declaration may be a part of the text, so a value must follow
    /// that is certainly none.
    fn fits_member(&self, mut cursor: Cursor<'_>, is_next: bool, known: &Known<'_>) -> Scan<()> {
        let text = cursor;
        let is_quoted = cursor.accept(self.marks.quote)? || matches!(cursor.peek()?, b'"' | b'\'');
        if is_quoted && !is_next {
            return Err(Stop::No);
        }
        let (key, length) = key(text.rest(), self.marks)?;
        let is_declared = self.ends.len() == 1 && (known.declares)(&key);
        if is_declared && is_next {
            return Ok(());
        }
        cursor = text;
        cursor.advance(length);
        cursor.white_space();
        let begins_value = cursor.accept(self.marks.quote)?
            || (is_declared || is_next) && self.begins_value(cursor)?;
        if begins_value { Ok(()) } else { Err(Stop::No) }
    }

    /// Whether a value without the marks of a string begins here.
    fn begins_value(&self, mut cursor: Cursor<'_>) -> Scan<bool> {
        if matches!(cursor.peek()?, b'{' | b'[' | b'"' | b'\'' | b'-' | b'0'..=b'9') {
            return Ok(true);
        }
        for literal in ["true", "false", "null", "True", "False", "None"] {
            if cursor.accept(literal)? {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

/// The text between the quotes of a JSON string.
fn inner(string: &str) -> &str {
    &string[1..string.len() - 1]
}
