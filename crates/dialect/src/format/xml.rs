//! Calls with an element for each argument, like `<parameter=key>value</parameter>`: Qwen3-Coder, GLM and MiniMax.
//!
//! String values are raw text. Only the function's schema shows which values are strings.

use super::{Head, Tail};
use crate::probe::KEY;
use crate::scan::{Cursor, Scan, Stop, ValueScanner};
use crate::schema::Types;
use crate::written_call::WrittenCall;

/// Maximum bytes of an argument's key.
const MAX_KEY_BYTES: usize = 4 << 10;

/// Maximum white space between two marks of a call.
const MAX_SPACE_BYTES: usize = 1 << 10;

/// The marks of a format, in the order in which they are written.
#[derive(Debug)]
pub(crate) struct Marks {
    /// Marks around one or several calls; may be empty, and models sometimes omit them.
    pub(crate) open_all: &'static str,
    pub(crate) open: &'static str,
    pub(crate) after_name: &'static str,
    /// The end of attributes behind the name; empty if there are none.
    pub(crate) after_attributes: &'static str,
    pub(crate) before_key: &'static str,
    pub(crate) after_key: &'static str,
    /// Text after the key; may be empty.
    pub(crate) before_value: &'static str,
    pub(crate) after_value: &'static str,
    pub(crate) close: &'static str,
    pub(crate) close_all: &'static str,
    /// Whether a value has its own lines. Its first and last line break are then not part of it.
    pub(crate) on_lines: bool,
    /// The attribute that may follow a key.
    pub(crate) attribute: Attribute,
    /// Marks that end a value whose own mark the model omitted.
    pub(crate) instead: &'static [&'static str],
}

/// An attribute of an argument, from which the parser knows whether the value is a string.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Attribute {
    Absent,
    /// `string="true"` or `string="false"`.
    IsString,
    /// `type="string"`, or another type of JSON.
    Type,
}

impl Attribute {
    /// The text between the key and the attribute's value.
    pub(crate) fn before_value(self) -> Option<&'static str> {
        match self {
            Self::Absent => None,
            Self::IsString => Some("\" string=\""),
            Self::Type => Some("\" type=\""),
        }
    }

    /// The value for strings.
    pub(crate) fn of_strings(self) -> &'static str {
        if self == Self::Type { "string" } else { "true" }
    }

    /// The values for those of `types` that are no strings.
    pub(crate) fn of_others(self, types: Types) -> Vec<&'static str> {
        const TYPES: [(&str, Types); 5] = [
            ("number", Types::NUMBER),
            ("boolean", Types::BOOLEAN),
            ("null", Types::NULL),
            ("object", Types::OBJECT),
            ("array", Types::ARRAY),
        ];
        match self {
            Self::Absent => Vec::new(),
            Self::IsString => vec!["false"],
            Self::Type => {
                let allowed = TYPES.iter().filter(|(_, of)| types.have(*of));
                allowed.map(|(name, _)| *name).collect()
            }
        }
    }
}

/// Facts that the text of a call does not contain.
pub(crate) struct Known<'a> {
    /// Whether no more text follows.
    pub(crate) ended: bool,
    /// Whether the value of this key is JSON, not raw text.
    pub(crate) is_json: &'a dyn Fn(&str) -> bool,
    /// Whether an argument of this name may come next, so that its mark ends a value whose own mark is missing.
    pub(crate) may_follow: &'a dyn Fn(&str) -> bool,
}

/// A mark that may end a value: the end of the value, and the start of the text after the mark.
type End = (usize, usize);

/// A part of a call after its name.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Element<'a> {
    Argument {
        key: &'a str,
        value: &'a str,
        /// Whether it is a string, if the element has that attribute.
        is_string: Option<bool>,
        /// Its number of bytes.
        end: usize,
    },
    /// The end of the call, after this number of bytes.
    End(usize),
}

impl Marks {
    /// Whether these marks are around the call's name and its first key.
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
        if !self.after_attributes.is_empty() {
            cursor.until(self.after_attributes)?;
        }
        cursor.white_space();
        let at = cursor.at();
        // Text about calls may contain the opening mark and a word. A call goes on with an argument, or ends.
        if name.is_empty() || (self.end(cursor)?.is_none() && !cursor.accept(self.before_key)?) {
            return Err(Stop::No);
        }
        Ok(Head { name: name.to_owned(), at, arguments: None, in_object: false })
    }

    /// The next element. The first `searched` bytes of its value contain no mark that ends it.
    ///
    /// A mark ends a raw text only if the next argument or the end of the call follows it. Agents write XML, tests and documentation that
    /// contain `</parameter>`, and the first mark would cut such values silently. JSON values end at the first mark outside of strings.
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
            // Models sometimes omit it.
            cursor.accept(self.before_value)?;
        }
        let rest = cursor.rest();
        let is_json = is_string.map_or_else(|| (known.is_json)(key), |is_string| !is_string);
        // A string of JSON that never ends would swallow all later marks. At the end of the answer the value is
        // searched again as raw text.
        let is_json = is_json && !known.ended;
        let (length, taken) = self.value(rest, searched, is_json, known)?;
        let mut value = &rest[..length];
        if self.on_lines {
            // One line break at each end belongs to the template. Further ones are part of the value.
            value = value.strip_prefix('\n').unwrap_or(value);
            value = value.strip_suffix('\n').unwrap_or(value);
        }
        cursor.advance(taken);
        Ok(Element::Argument { key, value, is_string, end: cursor.at() })
    }

    /// A key, and its attribute for strings.
    fn said<'a>(&self, key: &'a str) -> (&'a str, Option<bool>) {
        let before = self.attribute.before_value();
        match before.and_then(|before| key.split_once(before)) {
            Some((key, said)) => (key, Some(said == self.attribute.of_strings())),
            None => (key, None),
        }
    }

    /// A key up to the next mark, which is consumed.
    fn key<'a>(&self, cursor: &mut Cursor<'a>) -> Scan<&'a str> {
        let rest = cursor.rest();
        let length = rest[..rest.floor_char_boundary(MAX_KEY_BYTES)].find(self.after_key);
        let length =
            length.ok_or(if rest.len() < MAX_KEY_BYTES { Stop::Wait } else { Stop::No })?;
        cursor.advance(length + self.after_key.len());
        Ok(rest[..length].trim())
    }

    /// The text after a call.
    pub(super) fn tail(&self, text: &str) -> Scan<Tail> {
        let mut cursor = Cursor::new(text);
        if self.close_all.is_empty() {
            return Ok(Tail::end(0));
        }
        cursor.white_space();
        Ok(Tail::end(if cursor.accept(self.close_all)? { cursor.at() } else { 0 }))
    }

    /// The position after the call, if it ends here. Models sometimes omit the mark before the last one.
    fn end(&self, mut cursor: Cursor<'_>) -> Scan<Option<usize>> {
        let before = cursor.at();
        if cursor.accept(self.close)? {
            return Ok(Some(cursor.at()));
        }
        let ends = !self.close_all.is_empty() && cursor.accept(self.close_all)?;
        Ok(ends.then_some(before))
    }

    /// The number of bytes of a value, without and with the mark that ends it.
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
                // The mark is checked again when more text follows it.
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
        // A mark may have begun at the end of the text. Without `searched`, each piece of a long value would search
        // all of it again.
        let unsearched = text.len().saturating_sub(self.longest_end());
        *searched = text.floor_char_boundary(unsearched.max(*searched));
        Err(Stop::Wait)
    }

    /// The first mark after `searched` bytes that may end a value.
    fn next_mark(&self, text: &str, searched: usize) -> Option<End> {
        let text_behind = &text[text.floor_char_boundary(searched)..];
        let find =
            |mark: &str| text_behind.find(mark).map(|at| text.len() - text_behind.len() + at);
        let closed = find(self.after_value).map(|at| (at, at + self.after_value.len()));
        let instead = self.instead.iter().filter_map(|mark| find(mark)).map(|at| (at, at));
        closed.into_iter().chain(instead).min()
    }

    /// Whether the text after a mark may follow a value.
    fn is_end(&self, text: &str, (at, taken): End, known: &Known<'_>) -> Scan<bool> {
        let mut cursor = Cursor::new(&text[taken..]);
        let fits = match at == taken {
            true => self.fits_unclosed(&mut cursor, known),
            false => self.fits_closed(&mut cursor),
        };
        match fits {
            Ok(()) => Ok(true),
            Err(Stop::No) => Ok(false),
            // The text ends here, and nothing contradicts the mark.
            Err(Stop::Wait) if known.ended => Ok(true),
            Err(Stop::Wait) => Err(Stop::Wait),
        }
    }

    /// After the mark of a value: another argument, or the end of the call.
    fn fits_closed(&self, cursor: &mut Cursor<'_>) -> Scan<()> {
        space(cursor)?;
        if cursor.accept(self.before_key)? {
            return Ok(());
        }
        self.fits_end(cursor)
    }

    /// If the mark of a value is missing: an argument of the function that was not given before, or the end of the call.
    fn fits_unclosed(&self, cursor: &mut Cursor<'_>, known: &Known<'_>) -> Scan<()> {
        space(cursor)?;
        if !cursor.accept(self.before_key)? {
            return self.fits_end(cursor);
        }
        let key = self.key(cursor);
        // A key without its line break is a mention within a text, such as `use <parameter=x> and`.
        let on_line = cursor.rest().starts_with('\n') || !self.on_lines;
        match key {
            Err(Stop::Wait) if known.ended => Err(Stop::No),
            Err(stop) => Err(stop),
            // The line break that decides may be in the next piece.
            Ok(_) if cursor.rest().is_empty() && self.on_lines && !known.ended => Err(Stop::Wait),
            Ok(key) if on_line && (known.may_follow)(self.said(key).0) => Ok(()),
            Ok(_) => Err(Stop::No),
        }
    }

    /// The end of a call, followed by the end of all calls or by another call.
    fn fits_end(&self, cursor: &mut Cursor<'_>) -> Scan<()> {
        if !cursor.accept(self.close)? {
            let is_section = !self.close_all.is_empty();
            return if is_section { cursor.expect(self.close_all) } else { Err(Stop::No) };
        }
        if self.close_all.is_empty() {
            return Ok(());
        }
        space(cursor)?;
        // Models sometimes begin the next call without closing all calls first.
        for mark in [self.close_all, self.open_all] {
            if cursor.accept(mark)? {
                return Ok(());
            }
        }
        cursor.expect(self.open)
    }

    /// The end of a value if no mark fits: the first mark at the end of a line.
    fn last_resort(&self, text: &str) -> Option<End> {
        let mut marks =
            text.match_indices(self.after_value).map(|(at, mark)| (at, at + mark.len()));
        marks.find(|(_, taken)| {
            let behind = text[*taken..].trim_start_matches([' ', '\t', '\r']);
            // At the end of the answer, nothing behind a mark can confirm it. A mark at the end of a line is the
            // likeliest end of the value.
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
