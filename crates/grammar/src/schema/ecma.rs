//! Translation of ECMA-262 patterns, which JSON Schema uses, to Rust's regular expressions. Constructs that Rust reads in
//! another way are rewritten, and constructs that are not ECMA-262 are refused.
//!
//! The translation of a translated pattern is the same. Source: ECMA-262, "RegExp (Regular Expression) Objects" and annex B.1.2.

use std::iter::Peekable;
use std::str::Chars;

use serde_json::{Map, Value};

use super::{LITERAL, NAMED};
use crate::{Error, Result};

/// White space and line terminators, for use in a class. Unicode's White_Space has U+0085 and lacks U+FEFF.
const SPACE: &str =
    r"\t-\r \u{a0}\u{1680}\u{2000}-\u{200a}\u{2028}\u{2029}\u{202f}\u{205f}\u{3000}\u{feff}";
/// All other characters, for use in a class.
const NO_SPACE: &str = concat!(
    r"\u{0}-\u{8}\u{e}-\u{1f}!-\u{9f}\u{a1}-\u{167f}\u{1681}-\u{1fff}\u{200b}-\u{2027}\u{202a}-\u{202e}\u{2030}-\u{205e}",
    r"\u{2060}-\u{2fff}\u{3001}-\u{fefe}\u{ff00}-\u{10ffff}"
);
/// The characters of `.` without the flag `s`.
const NO_LINE_END: &str = r"[^\n\r\u{2028}\u{2029}]";

/// Maximum characters of a property's name or a count.
const MAX_AHEAD: usize = 64;

/// The pattern for Rust; an invalid one stays unchanged.
pub(super) fn translated(pattern: &str) -> String {
    translate(pattern).unwrap_or_else(|_| pattern.to_owned())
}

/// The pattern for Rust.
///
/// # Errors
/// The construct that is not ECMA-262, with the correct form.
pub(super) fn translate(pattern: &str) -> std::result::Result<String, String> {
    let mut translation = Translation {
        left: pattern.chars().peekable(),
        written: String::with_capacity(pattern.len()),
        dots_are_any: vec![false],
    };
    translation.pattern()?;
    Ok(translation.written)
}

/// Refuses a schema with a pattern that is not ECMA-262.
///
/// # Errors
/// [`Error::Constraint`] with the construct.
pub(crate) fn check_patterns(schema: &Value) -> Result<()> {
    let check = |keyword: &str, pattern: &str| {
        let refused = |reason| Error::Constraint(format!("`{keyword}`: {reason}"));
        translate(pattern).map(drop).map_err(refused)
    };
    let object: &Map<String, Value> = match schema {
        Value::Object(object) => object,
        Value::Array(schemas) => return schemas.iter().try_for_each(check_patterns),
        _ => return Ok(()),
    };
    for (keyword, value) in object {
        match value {
            Value::String(pattern) if keyword == "pattern" => check(keyword, pattern)?,
            Value::Object(named) if NAMED.contains(&keyword.as_str()) => {
                if keyword == "patternProperties" {
                    named.keys().try_for_each(|pattern| check(keyword, pattern))?;
                }
                named.values().try_for_each(check_patterns)?;
            }
            _ if LITERAL.contains(&keyword.as_str()) => {}
            other => check_patterns(other)?,
        }
    }
    Ok(())
}

struct Translation<'a> {
    left: Peekable<Chars<'a>>,
    written: String,
    /// Whether `.` matches any character, for each enclosing group.
    dots_are_any: Vec<bool>,
}

/// The quantifier before the current position, if any.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Repeated {
    No,
    Yes,
    /// A quantifier with a question mark.
    Lazily,
}

fn check_repeated(before: Repeated, count: &dyn std::fmt::Display) -> Step {
    match before {
        Repeated::No => Ok(()),
        _ => Err(format!(
            "`{count}` follows another quantifier: put a group around the repeated part"
        )),
    }
}

type Step<T = ()> = std::result::Result<T, String>;

impl Translation<'_> {
    fn pattern(&mut self) -> Step {
        let mut repeated = Repeated::No;
        while let Some(character) = self.left.next() {
            let before = std::mem::replace(&mut repeated, Repeated::No);
            match character {
                '\\' => self.escape()?,
                '[' => self.class()?,
                '(' => self.group()?,
                ')' => {
                    self.dots_are_any.pop();
                    self.written.push(')');
                }
                '.' => match self.dots_are_any.last() {
                    Some(true) => self.written.push('.'),
                    _ => self.written.push_str(NO_LINE_END),
                },
                '?' if before == Repeated::Yes => {
                    self.written.push('?');
                    repeated = Repeated::Lazily;
                }
                '*' | '+' | '?' => {
                    check_repeated(before, &character)?;
                    self.written.push(character);
                    repeated = Repeated::Yes;
                }
                '{' => repeated = self.brace(before)?,
                other => self.written.push(other),
            }
        }
        Ok(())
    }

    /// A count in braces, or a literal brace.
    fn brace(&mut self, before: Repeated) -> Step<Repeated> {
        let ahead = self.ahead();
        let (rest, is_closed) = ahead.split_once('}').map_or(("", false), |(rest, _)| (rest, true));
        let (least, most) = rest.split_once(',').unwrap_or((rest, ""));
        let is_number = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
        let is_count = is_closed && is_number(least) && (most.is_empty() || is_number(most));
        if is_closed && least.trim().is_empty() && is_number(most.trim()) {
            return Err(format!("`{{{rest}}}` has no minimum: write {{0,{}}}", most.trim()));
        }
        // Otherwise it is a literal brace, which Rust would refuse.
        if !is_count {
            self.written.push_str(r"\{");
            return Ok(Repeated::No);
        }
        check_repeated(before, &format_args!("{{{rest}}}"))?;
        self.written.push('{');
        self.written.extend(self.left.by_ref().take(rest.len() + 1));
        Ok(Repeated::Yes)
    }

    /// The next characters, up to the maximum for a name or a count.
    fn ahead(&self) -> String {
        self.left.clone().take(MAX_AHEAD).collect()
    }

    /// A group after its opening parenthesis.
    fn group(&mut self) -> Step {
        self.written.push('(');
        let mut dots_are_any = self.dots_are_any.last().copied().unwrap_or(false);
        let ahead = self.ahead();
        if let Some(inside) = ahead.strip_prefix('?') {
            let flags: String =
                inside.chars().take_while(|c| c.is_ascii_alphabetic() || *c == '-').collect();
            let end = inside[flags.len()..].chars().next();
            let (on, off) = flags.split_once('-').unwrap_or((&flags, ""));
            // Python's form of a named group, which Rust reads, too. Schemas from Python may contain it.
            let is_named = inside.starts_with("P<");
            if !flags.is_empty() && !is_named {
                let all_known = on.chars().chain(off.chars()).all(|flag| "ims".contains(flag));
                if end != Some(':') || !all_known {
                    return Err(format!(
                        "`(?{flags}` is not a group: write flags (i, m, s) before a group's colon, as in (?i:..)"
                    ));
                }
                dots_are_any = (dots_are_any || on.contains('s')) && !off.contains('s');
            }
        }
        self.dots_are_any.push(dots_are_any);
        Ok(())
    }

    /// An escape outside a class.
    fn escape(&mut self) -> Step {
        match self.left.next() {
            Some('s') => self.written.push_str(&format!("[{SPACE}]")),
            Some('S') => self.written.push_str(&format!("[{NO_SPACE}]")),
            Some(class @ ('d' | 'D' | 'w' | 'W' | 'b' | 'B')) => self.written.extend(['\\', class]),
            Some(property @ ('p' | 'P')) => self.property(property)?,
            None => self.written.push('\\'),
            Some(other) => {
                let character = self.character(other)?;
                push_literal(&mut self.written, character);
            }
        }
        Ok(())
    }

    /// `\p{..}`, in a class or outside.
    fn property(&mut self, letter: char) -> Step {
        let ahead = self.ahead();
        let name = ahead.strip_prefix('{').and_then(|rest| Some(rest.split_once('}')?.0));
        let is_name = |name: &str| {
            !name.is_empty()
                && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"_=".contains(&b))
        };
        let Some(name) = name.filter(|name| is_name(name)) else {
            return Err(format!("`\\{letter}` needs a property's name in braces, as in \\p{{L}}"));
        };
        self.written.extend(['\\', letter]);
        self.written.extend(self.left.by_ref().take(name.len() + 2));
        Ok(())
    }

    /// The character of an escape; `first` is the first character after the backslash.
    fn character(&mut self, first: char) -> Step<char> {
        let control = |code: u32| char::from_u32(code).ok_or_else(String::new);
        match first {
            't' => Ok('\t'),
            'n' => Ok('\n'),
            'r' => Ok('\r'),
            'f' => control(0xc),
            'v' => control(0xb),
            '0' if !self.left.peek().is_some_and(char::is_ascii_digit) => Ok('\0'),
            '0'..='9' => Err(format!(
                "`\\{first}` (a back reference or an octal escape) is not supported: write the text itself"
            )),
            'c' => match self.left.next() {
                Some(letter) if letter.is_ascii_alphabetic() => control(u32::from(letter) % 32),
                _ => Err("`\\c` needs a letter after it".to_owned()),
            },
            'x' => self.hex(2).ok_or_else(|| {
                "`\\x` needs two hexadecimal digits after it: write \\u{..} for other characters".to_owned()
            }),
            'u' => self.unicode(),
            letter if letter.is_ascii_alphabetic() => Err(format!(
                "`\\{letter}` is not an escape in ECMA-262, the syntax of patterns in JSON Schema{}",
                match letter {
                    'A' => ": write ^ for the start of the text",
                    'z' | 'Z' => ": write $ for the end of the text",
                    _ => "",
                }
            )),
            other => Ok(other),
        }
    }

    /// A number of `count` hexadecimal digits.
    fn hex(&mut self, count: usize) -> Option<char> {
        char::from_u32(self.code(count)?)
    }

    fn code(&mut self, count: usize) -> Option<u32> {
        let digits: String = self.left.clone().take(count).collect();
        let is_whole = digits.len() == count && digits.bytes().all(|b| b.is_ascii_hexdigit());
        let code = u32::from_str_radix(&digits, 16).ok().filter(|_| is_whole)?;
        self.left.nth(count - 1);
        Some(code)
    }

    /// The rest of `\u`: four digits, twice for a surrogate pair, or a number in braces.
    fn unicode(&mut self) -> Step<char> {
        let wrong = || {
            "`\\u` needs four hexadecimal digits, or a number in braces, after it, and no lone surrogate".to_owned()
        };
        if self.left.peek() == Some(&'{') {
            let digits: String =
                self.left.clone().skip(1).take(9).take_while(|c| *c != '}').collect();
            self.left
                .nth(digits.chars().count() + 1)
                .filter(|end| *end == '}')
                .ok_or_else(wrong)?;
            let is_number = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_hexdigit());
            let code = u32::from_str_radix(&digits, 16).ok().filter(|_| is_number);
            return code.and_then(char::from_u32).ok_or_else(wrong);
        }
        let first = self.code(4).ok_or_else(wrong)?;
        if let 0xd800..=0xdbff = first {
            let mut behind = self.left.clone();
            if (behind.next(), behind.next()) == (Some('\\'), Some('u')) {
                self.left = behind;
                if let Some(second @ 0xdc00..=0xdfff) = self.code(4) {
                    // Each half of a surrogate pair has ten bits.
                    let code = 0x1_0000 + ((first - 0xd800) << 10) + (second - 0xdc00);
                    return char::from_u32(code).ok_or_else(wrong);
                }
            }
        }
        char::from_u32(first).ok_or_else(wrong)
    }

    /// A class after its opening bracket.
    fn class(&mut self) -> Step {
        let is_negated = self.left.next_if_eq(&'^').is_some();
        if self.left.peek() == Some(&']') {
            self.left.next();
            if is_negated {
                self.written.push_str(r"[\u{0}-\u{10ffff}]");
                return Ok(());
            }
            return Err("`[]` is an empty class, which matches no text".to_owned());
        }
        self.written.push_str(if is_negated { "[^" } else { "[" });
        loop {
            match self.left.next() {
                // An unclosed class: Rust's error says so.
                None => return Ok(()),
                Some(']') => {
                    self.written.push(']');
                    return Ok(());
                }
                Some('[') if self.is_posix_name() => {
                    return Err(
                        "classes such as `[:alpha:]` are not in ECMA-262: write the characters, as in a-zA-Z"
                            .to_owned(),
                    );
                }
                Some(first) => self.class_item(first)?,
            }
        }
    }

    /// Whether a class such as `[:alpha:]` follows, after its first bracket.
    fn is_posix_name(&self) -> bool {
        let mut ahead = self.left.clone().take(MAX_AHEAD);
        ahead.next() == Some(':')
            && ahead.find(|c| !c.is_ascii_alphabetic() && *c != '^') == Some(':')
            && ahead.next() == Some(']')
    }

    /// A character, a range, or the characters of an escape.
    fn class_item(&mut self, first: char) -> Step {
        let Some(least) = self.class_atom(first)? else { return Ok(()) };
        let mut ahead = self.left.clone();
        let is_range = ahead.next() == Some('-') && !matches!(ahead.next(), None | Some(']'));
        if !is_range {
            push_in_class(&mut self.written, least);
            return Ok(());
        }
        self.left.next();
        let end = self.left.next().unwrap_or_default();
        let at = self.written.len();
        match self.class_atom(end)? {
            Some(most) => {
                push_in_class(&mut self.written, least);
                self.written.push('-');
                push_in_class(&mut self.written, most);
            }
            // A hyphen before a class escape is a literal hyphen.
            None => {
                let mut characters = String::new();
                push_in_class(&mut characters, least);
                push_in_class(&mut characters, '-');
                self.written.insert_str(at, &characters);
            }
        }
        Ok(())
    }

    /// One character; `None` if more characters were written.
    fn class_atom(&mut self, first: char) -> Step<Option<char>> {
        if first != '\\' {
            return Ok(Some(first));
        }
        match self.left.next() {
            Some('s') => self.written.push_str(SPACE),
            Some('S') => self.written.push_str(NO_SPACE),
            Some(class @ ('d' | 'D' | 'w' | 'W')) => self.written.extend(['\\', class]),
            Some(property @ ('p' | 'P')) => self.property(property)?,
            // In a class, `\b` is a backspace.
            Some('b') => return Ok(Some('\u{8}')),
            Some('-') => return Ok(Some('-')),
            None => self.written.push('\\'),
            Some(other) => return self.character(other).map(Some),
        }
        Ok(None)
    }
}

/// Writes a literal character.
fn push_literal(written: &mut String, character: char) {
    match character {
        '\0'..='\x1f' | '\x7f'.. => push_number(written, character),
        other if regex_syntax::is_meta_character(other) || other == '/' => {
            written.extend(['\\', other]);
        }
        other => written.push(other),
    }
}

/// Writes a character of a class.
fn push_in_class(written: &mut String, character: char) {
    match character {
        '\0'..='\x1f' | '\x7f'.. => push_number(written, character),
        // Rust reads `&&`, `--` and `~~` in a class as set operations.
        '[' | ']' | '^' | '-' | '&' | '~' | '\\' => written.extend(['\\', character]),
        other => written.push(other),
    }
}

fn push_number(written: &mut String, character: char) {
    match character {
        '\t' => written.push_str(r"\t"),
        '\n' => written.push_str(r"\n"),
        '\r' => written.push_str(r"\r"),
        other => written.push_str(&format!(r"\u{{{:x}}}", u32::from(other))),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_both_read_alike_stays() {
        for pattern in [
            r"^[a-z0-9_-]{3,16}$",
            r"^(\d{3})-(?:\w+|x)?$",
            r"^\p{Lu}[\p{L}\p{Script=Greek}]*?$",
            r"^a{2}b{2,}c{2,3}?$",
            r"\/\.\$\(",
            r"(?i:a)(?<name>b)(?P<other>c)",
            r"(?s:.)",
            "é日",
            r"\b\B",
        ] {
            let got = translate(pattern).unwrap();
            // A hyphen at an end is a literal hyphen.
            assert_eq!(got.replace(r"\-]", "-]"), pattern);
        }
    }

    #[test]
    fn what_rust_reads_otherwise_is_written_as_ecma_means_it() {
        for (pattern, want) in [
            (".", r"[^\n\r\u{2028}\u{2029}]"),
            ("(?s:.)(?-s:.)", r"(?s:.)(?-s:[^\n\r\u{2028}\u{2029}])"),
            ("(?s:(?-s:.).).", r"(?s:(?-s:[^\n\r\u{2028}\u{2029}]).)[^\n\r\u{2028}\u{2029}]"),
            (r"\<\>\_\%\é", r"<>_%\u{e9}"),
            (r"\0\cA\v\f", r"\u{0}\u{1}\u{b}\u{c}"),
            (r"\ud83d\ude00\u{1F600}\x41", r"\u{1f600}\u{1f600}A"),
            ("^{a}$", r"^\{a}$"),
            ("x{,y}{", r"x\{,y}\{"),
            ("[[a]", r"[\[a]"),
            ("[a&&b~~c]", r"[a\&\&b\~\~c]"),
            ("[a-z--b]", r"[a-z\--b]"),
            ("[^]x[^^]", r"[\u{0}-\u{10ffff}]x[^\^]"),
            (r"[\w-.]", r"[\w\-.]"),
            (r"[.-\w]", r"[.\-\w]"),
            (r"[\b\-\]]", r"[\u{8}\-\]]"),
            (r"[\x20-\u007e]", r"[ -\~]"),
        ] {
            let got = translate(pattern).unwrap();
            assert_eq!(got, want, "{pattern}");
            assert_eq!(translate(&got).unwrap(), got, "{pattern} twice");
            regex_syntax::Parser::new().parse(&got).unwrap();
        }
    }

    #[test]
    fn white_space_is_that_of_ecma() {
        for (pattern, is_space) in [
            (r"\s", true),
            (r"[\s]", true),
            (r"[^\S]", true),
            (r"\S", false),
            (r"[\S]", false),
            (r"[^\s]", false),
        ] {
            let got = format!("^{}$", translate(pattern).unwrap());
            for text in ["\t", "\u{b}", " ", "\u{a0}", "\u{2029}", "\u{feff}"] {
                assert_eq!(is_match(&got, text), is_space, "{pattern} {text:?}");
            }
            for text in ["\u{85}", "\u{200b}", "a", "\u{10ffff}"] {
                assert_eq!(is_match(&got, text), !is_space, "{pattern} {text:?}");
            }
        }
    }

    fn is_match(pattern: &str, text: &str) -> bool {
        let mut builder = llguidance::derivre::RegexBuilder::new();
        let search = llguidance::derivre::RegexAst::SearchRegex(pattern.to_owned());
        let search = builder.mk(&search).unwrap();
        builder.to_regex_limited(search, 100_000).unwrap().is_match(text)
    }

    #[test]
    fn what_ecma_has_no_reading_for_is_refused_by_name() {
        for (pattern, named) in [
            (r"^a\z", r"\z"),
            (r"\Aa", r"\A"),
            (r"a\Z", r"\Z"),
            (r"\h+", r"\h"),
            (r"\Qa\E", r"\Q"),
            (r"\a", r"\a"),
            (r"[\e]", r"\e"),
            (r"^[[:alpha:]]+$", "[:"),
            ("[x[:^digit:]]", "[:"),
            ("(?i)abc", "(?i"),
            ("a(?x: b)", "(?x"),
            ("(?U:a+)", "(?U"),
            ("(?i-x:a)", "(?i-x"),
            ("a{,3}", "{,3}"),
            ("a{ ,3}", "{ ,3}"),
            ("a++", "+"),
            ("a{2}{3}", "{3}"),
            ("a*?*", "*"),
            (r"(a)\1", r"\1"),
            (r"\01", r"\0"),
            (r"\pL", r"\p"),
            (r"\p{^L}", r"\p"),
            (r"[\p{sc!=Greek}]", r"\p"),
            (r"\x4", r"\x"),
            (r"\x{41}", r"\x"),
            (r"\u12", r"\u"),
            (r"\ud83d", r"\u"),
            (r"\ud83d\u0041", r"\u"),
            (r"\u{110000}", r"\u"),
            (r"\c1", r"\c"),
            ("a[]b", "[]"),
        ] {
            let refused = translate(pattern).unwrap_err();
            assert!(refused.contains(named), "{pattern}: {refused}");
            let of = |schema: Value| check_patterns(&schema).unwrap_err().to_string();
            let said = of(json!({"properties": {"a": {"items": [{"pattern": pattern}]}}}));
            assert!(said.contains("`pattern`") && said.contains(named), "{said}");
            let said = of(json!({"anyOf": [{"patternProperties": {pattern: true}}]}));
            assert!(said.contains("`patternProperties`"), "{said}");
            let literal = json!({"const": {"pattern": pattern}, "properties": {"pattern": {"enum": [pattern]}}});
            check_patterns(&literal).unwrap();
        }
    }

    #[test]
    fn nothing_panics_where_a_pattern_is_cut() {
        let pattern = r"^(?s:a.)[^\b\x41-\u{1f600}\ud83d\ude00]{2,3}\p{L}\cA(?<n>x)$";
        for (end, _) in pattern.char_indices() {
            let _ = translate(&pattern[..end]);
        }
    }
}
