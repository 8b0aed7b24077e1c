//! Calls with an element for each argument, like `<parameter=key>value</parameter>`: Qwen3-Coder, GLM and MiniMax.
//!
//! Values that are strings are raw text; which ones are, only the function's schema says.

use super::{Head, Tail};
use crate::probe::KEY;
use crate::scan::{Cursor, Scan, Stop, ValueScanner};
use crate::written_call::WrittenCall;

/// Longest key of an argument.
const MAX_KEY_BYTES: usize = 4 << 10;

/// Most white space between two marks of a call.
const MAX_SPACE_BYTES: usize = 1 << 10;

/// The marks of a format, in the order in which they are written.
#[derive(Debug)]
pub(crate) struct Marks {
    /// Around one call or several; may be empty, and models forget them.
    pub(crate) open_all: &'static str,
    pub(crate) open: &'static str,
    pub(crate) after_name: &'static str,
    pub(crate) before_key: &'static str,
    pub(crate) after_key: &'static str,
    /// Behind the key; may be empty.
    pub(crate) before_value: &'static str,
    pub(crate) after_value: &'static str,
    pub(crate) close: &'static str,
    pub(crate) close_all: &'static str,
    /// Whether a value stands on lines of its own, whose first and last line break are not its.
    pub(crate) on_lines: bool,
    /// Whether `" string="true` or `" string="false` may stand behind a key.
    pub(crate) says_strings: bool,
    /// What ends a value whose mark the model forgot.
    pub(crate) instead: &'static [&'static str],
}

/// Facts that the text of a call does not say.
pub(crate) struct Known<'a> {
    /// Whether no more text comes.
    pub(crate) ended: bool,
    /// Whether the value of this key is JSON and no text.
    pub(crate) is_json: &'a dyn Fn(&str) -> bool,
    /// Whether an argument of this name may come next, so that its mark ends a value whose own mark is missing.
    pub(crate) may_follow: &'a dyn Fn(&str) -> bool,
}

/// A mark that may end a value: where the value ends, and where the text behind the mark begins.
type End = (usize, usize);

/// What stands in a call behind its name.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Element<'a> {
    Argument {
        key: &'a str,
        value: &'a str,
        /// Whether it is a string, where the element says so.
        is_string: Option<bool>,
        /// It has so many bytes.
        end: usize,
    },
    /// The end of the call, which is behind so many bytes.
    End(usize),
}

impl Marks {
    /// Whether they stand around the call's name and its first key.
    pub(super) fn are_around(&self, call: &WrittenCall<'_>) -> bool {
        let before = call.before(self.open);
        let opens = before.is_some_and(|before| before.trim_end().ends_with(self.open_all));
        let argument = call.after.strip_prefix(self.after_name).map(str::trim_start);
        let key = argument.and_then(|argument| argument.strip_prefix(self.before_key));
        opens && key.is_some_and(|key| key.starts_with(KEY))
    }

    /// The call up to its first element.
    pub(super) fn head(&self, text: &str) -> Scan<Head> {
        let mut cursor = Cursor::new(text);
        if cursor.accept(self.open_all)? {
            cursor.white_space();
        }
        cursor.expect(self.open)?;
        cursor.white_space();
        let name = cursor.word(|c| c.is_alphanumeric() || matches!(c, '_' | '-' | '.'))?;
        cursor.expect(self.after_name)?;
        cursor.white_space();
        let at = cursor.at();
        if name.is_empty() || (self.end(cursor)?.is_none() && !cursor.accept(self.before_key)?) {
            return Err(Stop::No);
        }
        Ok(Head { name: name.to_owned(), at, arguments: None, in_object: false })
    }

    /// The next element. `searched` bytes of its value are known to have no mark that ends it.
    ///
    /// A mark ends a value only where what follows is what follows values: the next argument, or the end of the call. Values
    /// that are JSON end at the first mark outside of their strings.
    pub(crate) fn element<'a>(
        &self,
        text: &'a str,
        searched: &mut usize,
        known: &Known<'_>,
    ) -> Scan<Element<'a>> {
        let mut cursor = Cursor::new(text);
        cursor.white_space();
        if let Some(end) = self.end(cursor)? {
            return Ok(Element::End(end));
        }
        cursor.expect(self.before_key)?;
        let (key, is_string) = self.said(self.key(&mut cursor)?);
        if !self.before_value.is_empty() {
            cursor.white_space();
            // Models forget it.
            cursor.accept(self.before_value)?;
        }
        let rest = cursor.rest();
        let is_json = is_string.map_or_else(|| (known.is_json)(key), |is_string| !is_string);
        let is_json = is_json && !known.ended;
        let (length, taken) = self.value(rest, searched, is_json, known)?;
        let mut value = &rest[..length];
        if self.on_lines {
            value = value.strip_prefix('\n').unwrap_or(value);
            value = value.strip_suffix('\n').unwrap_or(value);
        }
        cursor.advance(taken);
        Ok(Element::Argument { key, value, is_string, end: cursor.at() })
    }

    /// A key, and whether it says that its value is a string.
    fn said<'a>(&self, key: &'a str) -> (&'a str, Option<bool>) {
        match key.split_once("\" string=\"").filter(|_| self.says_strings) {
            Some((key, said)) => (key, Some(said == "true")),
            None => (key, None),
        }
    }

    /// A key up to the mark behind it, which is taken.
    fn key<'a>(&self, cursor: &mut Cursor<'a>) -> Scan<&'a str> {
        let rest = cursor.rest();
        let length = rest[..rest.floor_char_boundary(MAX_KEY_BYTES)].find(self.after_key);
        let length =
            length.ok_or(if rest.len() < MAX_KEY_BYTES { Stop::Wait } else { Stop::No })?;
        cursor.advance(length + self.after_key.len());
        Ok(rest[..length].trim())
    }

    /// What follows a call.
    pub(super) fn tail(&self, text: &str) -> Scan<Tail> {
        let mut cursor = Cursor::new(text);
        if self.close_all.is_empty() {
            return Ok(Tail::end(0));
        }
        cursor.white_space();
        Ok(Tail::end(if cursor.accept(self.close_all)? { cursor.at() } else { 0 }))
    }

    /// Where the call is behind, if it ends here. Models forget the mark before the last one, which stays.
    fn end(&self, mut cursor: Cursor<'_>) -> Scan<Option<usize>> {
        let before = cursor.at();
        if cursor.accept(self.close)? {
            return Ok(Some(cursor.at()));
        }
        let ends = !self.close_all.is_empty() && cursor.accept(self.close_all)?;
        Ok(ends.then_some(before))
    }

    /// The bytes of a value, and with the mark that ends it.
    fn value(
        &self,
        text: &str,
        searched: &mut usize,
        is_json: bool,
        known: &Known<'_>,
    ) -> Scan<End> {
        while let Some(end) = self.next_mark(text, *searched) {
            let is_end = match is_json {
                true => Ok(!ends_in_string(&text[..end.0])),
                false => self.is_end(text, end, known),
            };
            match is_end {
                Ok(true) => return Ok(end),
                // The mark is looked at again when there is more text behind it.
                Err(Stop::Wait) => {
                    *searched = end.0;
                    return Err(Stop::Wait);
                }
                Ok(false) | Err(Stop::No) => *searched = end.0 + 1,
            }
        }
        if known.ended {
            return self.last_resort(text).ok_or(Stop::Wait);
        }
        let unsearched = text.len().saturating_sub(self.longest_end());
        *searched = text.floor_char_boundary(unsearched.max(*searched));
        Err(Stop::Wait)
    }

    /// The first mark behind so many bytes that may end a value.
    fn next_mark(&self, text: &str, searched: usize) -> Option<End> {
        let text_behind = &text[text.floor_char_boundary(searched)..];
        let find =
            |mark: &str| text_behind.find(mark).map(|at| text.len() - text_behind.len() + at);
        let closed = find(self.after_value).map(|at| (at, at + self.after_value.len()));
        let instead = self.instead.iter().filter_map(|mark| find(mark)).map(|at| (at, at));
        closed.into_iter().chain(instead).min()
    }

    /// Whether what is behind a mark is what stands behind a value.
    fn is_end(&self, text: &str, (at, taken): End, known: &Known<'_>) -> Scan<bool> {
        let mut cursor = Cursor::new(&text[taken..]);
        let fits = match at == taken {
            true => self.fits_unclosed(&mut cursor, known),
            false => self.fits_closed(&mut cursor),
        };
        match fits {
            Ok(()) => Ok(true),
            Err(Stop::No) => Ok(false),
            // The text breaks off where nothing contradicts.
            Err(Stop::Wait) if known.ended => Ok(true),
            Err(Stop::Wait) => Err(Stop::Wait),
        }
    }

    /// Behind the mark of a value: another argument, or the end of the call.
    fn fits_closed(&self, cursor: &mut Cursor<'_>) -> Scan<()> {
        space(cursor)?;
        if cursor.accept(self.before_key)? {
            return Ok(());
        }
        self.fits_end(cursor)
    }

    /// Where the mark of a value is missing: an argument that the function has and that was not given, or the end of the call.
    fn fits_unclosed(&self, cursor: &mut Cursor<'_>, known: &Known<'_>) -> Scan<()> {
        space(cursor)?;
        if !cursor.accept(self.before_key)? {
            return self.fits_end(cursor);
        }
        let key = self.key(cursor);
        let on_line = cursor.rest().starts_with('\n') || !self.on_lines;
        match key {
            Err(Stop::Wait) if known.ended => Err(Stop::No),
            Err(stop) => Err(stop),
            Ok(_) if cursor.rest().is_empty() && self.on_lines && !known.ended => Err(Stop::Wait),
            Ok(key) if on_line && (known.may_follow)(self.said(key).0) => Ok(()),
            Ok(_) => Err(Stop::No),
        }
    }

    /// The end of a call, with what stands behind calls: the end of all of them, or another one.
    fn fits_end(&self, cursor: &mut Cursor<'_>) -> Scan<()> {
        if !cursor.accept(self.close)? {
            let is_section = !self.close_all.is_empty();
            return if is_section { cursor.expect(self.close_all) } else { Err(Stop::No) };
        }
        if self.close_all.is_empty() {
            return Ok(());
        }
        space(cursor)?;
        for mark in [self.close_all, self.open_all] {
            if cursor.accept(mark)? {
                return Ok(());
            }
        }
        cursor.expect(self.open)
    }

    /// The end of a value behind which nothing fits: the first mark at the end of its line.
    fn last_resort(&self, text: &str) -> Option<End> {
        let mut marks =
            text.match_indices(self.after_value).map(|(at, mark)| (at, at + mark.len()));
        marks.find(|(_, taken)| {
            let behind = text[*taken..].trim_start_matches([' ', '\t', '\r']);
            behind.is_empty() || behind.starts_with('\n')
        })
    }

    fn longest_end(&self) -> usize {
        let marks = self.instead.iter().chain([&self.after_value]);
        marks.map(|mark| mark.len()).max().unwrap_or(0)
    }
}

/// White space between two marks.
fn space(cursor: &mut Cursor<'_>) -> Scan<()> {
    let before = cursor.at();
    cursor.white_space();
    match cursor.at() - before {
        0..=MAX_SPACE_BYTES => Ok(()),
        _ => Err(Stop::No),
    }
}

/// Whether the JSON ends before a string in it does.
fn ends_in_string(json: &str) -> bool {
    let mut scanner = ValueScanner::default();
    scanner.push(json.trim_start()).is_none() && scanner.is_in_string()
}
