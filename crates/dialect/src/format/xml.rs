//! Calls with an element for each argument, like `<parameter=key>value</parameter>`: Qwen3-Coder, GLM and MiniMax.
//!
//! Values that are strings are raw text; which ones are, only the function's schema says.

use super::{Head, Tail};
use crate::probe::KEY;
use crate::scan::{Cursor, Scan, Stop, ValueScanner};
use crate::written_call::WrittenCall;

/// Longest key of an argument.
const MAX_KEY_BYTES: usize = 4 << 10;

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
    /// What ends a value whose mark the model forgot.
    pub(crate) instead: &'static [&'static str],
}

/// What stands in a call behind its name.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Element<'a> {
    Argument {
        key: &'a str,
        value: &'a str,
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

    /// The next element. `searched` bytes of its value are known to have no mark that ends it, and values of keys that are
    /// `json` do not end within their strings.
    pub(crate) fn element<'a>(
        &self,
        text: &'a str,
        searched: &mut usize,
        json: impl Fn(&str) -> bool,
    ) -> Scan<Element<'a>> {
        let mut cursor = Cursor::new(text);
        cursor.white_space();
        if let Some(end) = self.end(cursor)? {
            return Ok(Element::End(end));
        }
        cursor.expect(self.before_key)?;
        let rest = cursor.rest();
        let length = rest[..rest.floor_char_boundary(MAX_KEY_BYTES)].find(self.after_key);
        let length =
            length.ok_or(if rest.len() < MAX_KEY_BYTES { Stop::Wait } else { Stop::No })?;
        let key = rest[..length].trim();
        cursor.advance(length + self.after_key.len());
        if !self.before_value.is_empty() {
            cursor.white_space();
            cursor.expect(self.before_value)?;
        }
        let rest = cursor.rest();
        let Some((length, taken)) = self.value(rest, *searched, || json(key)) else {
            *searched = rest.floor_char_boundary(rest.len().saturating_sub(self.longest_end()));
            return Err(Stop::Wait);
        };
        let mut value = &rest[..length];
        if self.on_lines {
            value = value.strip_prefix('\n').unwrap_or(value);
            value = value.strip_suffix('\n').unwrap_or(value);
        }
        cursor.advance(taken);
        Ok(Element::Argument { key, value, end: cursor.at() })
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
        mut searched: usize,
        is_json: impl Fn() -> bool,
    ) -> Option<(usize, usize)> {
        loop {
            let find = |mark: &str| text[searched..].find(mark).map(|at| searched + at);
            let ended = find(self.after_value).map(|at| (at, at + self.after_value.len()));
            let instead = self.instead.iter().filter_map(|mark| find(mark)).map(|at| (at, at));
            let (end, taken) = ended.into_iter().chain(instead).min()?;
            if !is_json() || !ends_in_string(&text[..end]) {
                return Some((end, taken));
            }
            searched = end + 1;
        }
    }

    fn longest_end(&self) -> usize {
        let marks = self.instead.iter().chain([&self.after_value]);
        marks.map(|mark| mark.len()).max().unwrap_or(0)
    }
}

/// Whether the JSON ends before a string in it does.
fn ends_in_string(json: &str) -> bool {
    let mut scanner = ValueScanner::default();
    scanner.push(json.trim_start()).is_none() && scanner.is_in_string()
}
