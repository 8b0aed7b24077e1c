//! The `tojson` filter: JSON exactly as Python's `json.dumps` writes it.

use std::fmt::Write;

use minijinja::value::{Kwargs, Value, ValueKind};
use minijinja::{Error, ErrorKind};

use crate::prompt::is_noncharacter;

/// Deepest nesting of values; JSON of a request is never so deep.
const MAX_DEPTH: usize = 256;

/// `value|tojson(ensure_ascii=False, indent=None, separators=None, sort_keys=False)`.
///
/// Source: `tojson` in transformers' chat_template_utils.py, `json.dumps` in Python's library.
pub(crate) fn tojson(
    value: &Value,
    ensure_ascii: Option<bool>,
    kwargs: Kwargs,
) -> Result<Value, Error> {
    let indent = match kwargs.get::<Option<Value>>("indent")? {
        None => None,
        Some(indent) if indent.is_none() => None,
        Some(indent) => Some(match indent.as_str() {
            Some(text) => text.to_owned(),
            None => {
                " ".repeat(usize::try_from(i64::try_from(indent)?.clamp(0, 64)).expect("clamped"))
            }
        }),
    };
    let separators = match kwargs.get::<Option<Value>>("separators")? {
        Some(pair) if !pair.is_none() => {
            let pair = pair
                .try_iter()?
                .map(|part| part.as_str().map(str::to_owned))
                .collect::<Option<Vec<_>>>();
            match pair.as_deref() {
                Some([item, key]) => (item.clone(), key.clone()),
                _ => return Err(invalid("tojson: separators must be two strings")),
            }
        }
        // Python leaves the space after a comma out where a line break follows.
        _ if indent.is_some() => (",".into(), ": ".into()),
        _ => (", ".into(), ": ".into()),
    };
    let mut writer = Writer {
        out: String::new(),
        ensure_ascii: match ensure_ascii {
            Some(yes) => yes,
            // transformers writes characters as they are, and Jinja2 alone would escape them.
            None => kwargs.get::<Option<bool>>("ensure_ascii")?.unwrap_or(false),
        },
        sort_keys: kwargs.get::<Option<bool>>("sort_keys")?.unwrap_or(false),
        indent,
        separators,
        depth: 0,
    };
    kwargs.assert_all_used()?;
    writer.value(value)?;
    Ok(writer.out.into())
}

/// A float as Python's `repr` writes it: the shortest digits that read back the same, with an exponent of at least two
/// digits below 1e-4 and from 1e16 on.
pub(crate) fn python_float(number: f64) -> String {
    if number.is_nan() {
        return "nan".into();
    }
    if number.is_infinite() {
        return if number > 0.0 { "inf".into() } else { "-inf".into() };
    }
    // Rust's debug form has the same thresholds and digits, but writes the exponent bare (1e16, not 1e+16).
    let text = format!("{number:?}");
    match text.split_once('e') {
        None => text,
        Some((digits, exponent)) => {
            let exponent: i32 = exponent.parse().expect("Rust writes an integer exponent");
            format!("{}e{exponent:+03}", digits.strip_suffix(".0").unwrap_or(digits))
        }
    }
}

fn invalid(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidOperation, message.into())
}

struct Writer {
    out: String,
    ensure_ascii: bool,
    sort_keys: bool,
    indent: Option<String>,
    /// Separators between items, and between key and value.
    separators: (String, String),
    depth: usize,
}

impl Writer {
    fn value(&mut self, value: &Value) -> Result<(), Error> {
        match value.kind() {
            ValueKind::None => self.out.push_str("null"),
            ValueKind::Bool => self.out.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number => self.number(value),
            ValueKind::String => self.string(value.as_str().expect("its kind is string")),
            ValueKind::Seq | ValueKind::Iterable => {
                let items = value.try_iter()?.collect::<Vec<_>>();
                self.container('[', ']', &items, |writer, item| writer.value(item))?;
            }
            ValueKind::Map => {
                let mut items = Vec::new();
                for key in value.try_iter()? {
                    items.push((self.key(&key)?, value.get_item(&key)?));
                }
                if self.sort_keys {
                    items.sort_by(|(a, _), (b, _)| a.cmp(b));
                }
                self.container('{', '}', &items, |writer, (key, item)| {
                    writer.string(key);
                    writer.out.push_str(&writer.separators.1.clone());
                    writer.value(item)
                })?;
            }
            kind => {
                return Err(invalid(format!(
                    "tojson: a value of type {kind} is not JSON serializable"
                )));
            }
        }
        Ok(())
    }

    fn container<T>(
        &mut self,
        open: char,
        close: char,
        items: &[T],
        mut write_item: impl FnMut(&mut Self, &T) -> Result<(), Error>,
    ) -> Result<(), Error> {
        if self.depth == MAX_DEPTH {
            return Err(invalid(format!("tojson: the value is nested more than {MAX_DEPTH} deep")));
        }
        self.out.push(open);
        self.depth += 1;
        for (index, item) in items.iter().enumerate() {
            if index > 0 {
                self.out.push_str(&self.separators.0);
            }
            self.line_break();
            write_item(self, item)?;
        }
        self.depth -= 1;
        if !items.is_empty() {
            self.line_break();
        }
        self.out.push(close);
        Ok(())
    }

    fn line_break(&mut self) {
        if let Some(indent) = &self.indent {
            self.out.push('\n');
            self.out.extend(std::iter::repeat_n(indent.as_str(), self.depth));
        }
    }

    fn number(&mut self, value: &Value) {
        if value.is_integer() {
            write!(self.out, "{value}").expect("writing to a string");
            return;
        }
        let number =
            f64::try_from(value.clone()).expect("a number that is not an integer is a float");
        self.out.push_str(&match python_float(number).as_str() {
            "nan" => "NaN".to_owned(),
            "inf" => "Infinity".to_owned(),
            "-inf" => "-Infinity".to_owned(),
            finite => finite.to_owned(),
        });
    }

    fn key(&self, key: &Value) -> Result<String, Error> {
        Ok(match key.kind() {
            ValueKind::String => key.as_str().expect("its kind is string").to_owned(),
            // Python's `json.dumps` turns such keys into texts.
            ValueKind::None => "null".into(),
            ValueKind::Bool => if key.is_true() { "true" } else { "false" }.into(),
            ValueKind::Number if key.is_integer() => key.to_string(),
            ValueKind::Number => python_float(f64::try_from(key.clone())?),
            kind => {
                return Err(invalid(format!(
                    "tojson: keys must be strings or numbers, not {kind}"
                )));
            }
        })
    }

    fn string(&mut self, text: &str) {
        self.out.push('"');
        for character in text.chars() {
            match character {
                '"' => self.out.push_str("\\\""),
                '\\' => self.out.push_str("\\\\"),
                '\n' => self.out.push_str("\\n"),
                '\r' => self.out.push_str("\\r"),
                '\t' => self.out.push_str("\\t"),
                '\u{8}' => self.out.push_str("\\b"),
                '\u{c}' => self.out.push_str("\\f"),
                '\0'..='\u{1f}' => self.escape(character),
                // Noncharacters may be marks of a prompt, which must not be escaped, since they are searched for
                // later.
                '\u{7f}'.. if self.ensure_ascii && !is_noncharacter(character) => {
                    self.escape(character);
                }
                _ => self.out.push(character),
            }
        }
        self.out.push('"');
    }

    fn escape(&mut self, character: char) {
        // JSON escapes characters beyond 16 bits as two surrogates.
        for unit in character.encode_utf16(&mut [0; 2]) {
            write!(self.out, "\\u{unit:04x}").expect("writing to a string");
        }
    }
}
