//! Parsing of text that may be incomplete.

/// The reason to stop without a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stop {
    /// The text is incomplete; more text may lead to a result.
    Wait,
    /// No continuation of this text leads to a result.
    No,
}

/// Result of parsing text that may continue.
pub(crate) type Scan<T> = Result<T, Stop>;

/// A position in a text.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cursor<'a> {
    text: &'a str,
    at: usize,
}

impl<'a> Cursor<'a> {
    pub(crate) fn new(text: &'a str) -> Self {
        Self { text, at: 0 }
    }

    /// Number of consumed bytes.
    pub(crate) fn at(&self) -> usize {
        self.at
    }

    /// The rest of the text.
    pub(crate) fn rest(&self) -> &'a str {
        &self.text[self.at..]
    }

    pub(crate) fn advance(&mut self, num_bytes: usize) {
        self.at += num_bytes;
    }

    /// The next byte, which is not consumed.
    pub(crate) fn peek(&self) -> Scan<u8> {
        self.rest().bytes().next().ok_or(Stop::Wait)
    }

    pub(crate) fn white_space(&mut self) {
        self.at += self.rest().len() - self.rest().trim_start().len();
    }

    pub(crate) fn expect(&mut self, literal: &str) -> Scan<()> {
        let rest = self.rest();
        if rest.starts_with(literal) {
            self.at += literal.len();
            return Ok(());
        }
        // At the end of the text `rest` is empty, and every literal starts with it: that waits, too.
        Err(if literal.starts_with(rest) { Stop::Wait } else { Stop::No })
    }

    /// Consumes `literal` if it follows.
    pub(crate) fn accept(&mut self, literal: &str) -> Scan<bool> {
        match self.expect(literal) {
            Ok(()) => Ok(true),
            Err(Stop::No) => Ok(false),
            Err(Stop::Wait) => Err(Stop::Wait),
        }
    }

    /// The text up to `end`, which is consumed too.
    pub(crate) fn until(&mut self, end: &str) -> Scan<&'a str> {
        let found = self.rest().find(end).ok_or(Stop::Wait)?;
        let text = &self.rest()[..found];
        self.at += found + end.len();
        Ok(text)
    }

    /// The longest text of `allowed` characters; complete only if another character follows.
    pub(crate) fn word(&mut self, allowed: impl Fn(char) -> bool) -> Scan<&'a str> {
        let rest = self.rest();
        let end = rest.find(|character| !allowed(character)).ok_or(Stop::Wait)?;
        self.at += end;
        Ok(&rest[..end])
    }

    /// A string of JSON.
    pub(crate) fn json_string(&mut self) -> Scan<String> {
        let raw = match self.peek()? {
            b'"' => self.json_value()?,
            _ => return Err(Stop::No),
        };
        serde_json::from_str(raw).map_err(|_| Stop::No)
    }

    /// The text of a JSON value, whose inside is not checked.
    pub(crate) fn json_value(&mut self) -> Scan<&'a str> {
        let rest = self.rest();
        let end = match self.peek()? {
            b'{' | b'[' | b'"' => ValueScanner::default().push(rest).ok_or(Stop::Wait)?,
            _ => rest
                .find(|c: char| c.is_whitespace() || matches!(c, ',' | '}' | ']'))
                .ok_or(Stop::Wait)?,
        };
        if end == 0 {
            return Err(Stop::No);
        }
        self.at += end;
        Ok(&rest[..end])
    }
}

/// The extent of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reached {
    /// It ends after this number of bytes.
    End(usize),
    /// A mark follows after this number of bytes.
    Mark(usize),
    /// This number of bytes belongs to it; a mark may begin after them.
    Text(usize),
}

/// Finds the end of a JSON object, list or string in text that arrives in pieces.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ValueScanner {
    depth: usize,
    in_string: bool,
    escaped: bool,
}

impl ValueScanner {
    /// The bytes of `text` up to the end of the value, if it ends there. The first text begins with the value.
    pub(crate) fn push(&mut self, text: &str) -> Option<usize> {
        match self.push_before(text, None) {
            Reached::End(end) => Some(end),
            Reached::Mark(_) | Reached::Text(_) => None,
        }
    }

    /// Continues to the end of the value, or to `mark` outside of its strings, which is not valid JSON.
    pub(crate) fn push_before(&mut self, text: &str, mark: Option<&str>) -> Reached {
        // All structure of JSON is ASCII, and no byte of a longer UTF-8 sequence is. So bytes suffice.
        for (at, byte) in text.bytes().enumerate() {
            if !self.in_string
                && let Some(mark) = mark.filter(|mark| mark.as_bytes()[0] == byte)
            {
                match Cursor::new(&text[at..]).expect(mark) {
                    Ok(()) => return Reached::Mark(at),
                    // The caller keeps the text from here, so the scanner's state must not include it.
                    Err(Stop::Wait) => return Reached::Text(at),
                    Err(Stop::No) => {}
                }
            }
            if self.in_string {
                match byte {
                    _ if self.escaped => self.escaped = false,
                    b'\\' => self.escaped = true,
                    b'"' => self.in_string = false,
                    _ => {}
                }
            } else {
                match byte {
                    b'"' => self.in_string = true,
                    b'{' | b'[' => self.depth += 1,
                    // Brackets are not matched with each other: damaged JSON only needs an end.
                    b'}' | b']' => self.depth = self.depth.saturating_sub(1),
                    _ => {}
                }
            }
            if self.depth == 0 && !self.in_string {
                return Reached::End(at + 1);
            }
        }
        Reached::Text(text.len())
    }

    /// Whether the text so far ends within a string.
    pub(crate) fn is_in_string(&self) -> bool {
        self.in_string
    }
}

/// Length of the longest end of `text` that is a proper prefix of `mark`.
pub(crate) fn len_of_beginning(text: &str, mark: &str) -> usize {
    // A whole mark is no beginning: the callers have searched for it before.
    let most = text.len().min(mark.len() - 1);
    let begins = |length: &usize| {
        let at = text.len() - length;
        text.is_char_boundary(at) && mark.starts_with(&text[at..])
    };
    (1..=most).rev().find(begins).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_end_where_json_ends_them() {
        for (text, value) in [
            (r#"{"a": "}\"{", "b": [1, {}]} x"#, r#"{"a": "}\"{", "b": [1, {}]}"#),
            (r#""a\\" x"#, r#""a\\""#),
            ("[[], [1]],", "[[], [1]]"),
            ("-1.5e3}", "-1.5e3"),
            ("null ", "null"),
        ] {
            assert_eq!(Cursor::new(text).json_value(), Ok(value));
            for end in 0..value.len() {
                assert_eq!(Cursor::new(&text[..end]).json_value(), Err(Stop::Wait), "{text} {end}");
            }
        }
        assert_eq!(Cursor::new("}").json_value(), Err(Stop::No));
    }

    #[test]
    fn literals_are_waited_for_as_long_as_they_may_come() {
        let expect = |text| Cursor::new(text).expect("<call>");
        assert_eq!(expect("<call>x"), Ok(()));
        assert_eq!(expect(""), Err(Stop::Wait));
        assert_eq!(expect("<cal"), Err(Stop::Wait));
        assert_eq!(expect("<cat"), Err(Stop::No));
        assert_eq!(Cursor::new("a<").accept("b"), Ok(false));
        assert_eq!(Cursor::new("\"\\u00e9\" ").json_string(), Ok("é".into()));
        assert_eq!(Cursor::new("\"a\nb\" ").json_string(), Err(Stop::No));
        assert_eq!(Cursor::new("f_1(").word(|c| c.is_alphanumeric() || c == '_'), Ok("f_1"));
    }
}
