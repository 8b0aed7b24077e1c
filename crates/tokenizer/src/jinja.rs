//! The template engine, configured such that its output equals that of transformers' Jinja2.

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, ValueKind};
use minijinja::{AutoEscape, Environment, Error, ErrorKind, Output, State, Value};

use crate::json::python_float;
use crate::metered::{add_filters, charge_written};
use crate::methods::call_method;

/// An environment without templates, with at most `max_steps` instructions for a rendering.
///
/// Source: `_cached_compile_jinja_template` in transformers' chat_template_utils.py.
pub(crate) fn environment(max_steps: u64) -> Environment<'static> {
    let mut environment = Environment::new();
    environment.set_syntax(
        SyntaxConfig::builder()
            .trim_blocks(true)
            .lstrip_blocks(true)
            .build()
            .expect("the default delimiters are valid"),
    );
    // The engine escapes HTML by the template's name. A prompt is no HTML.
    environment.set_auto_escape_callback(|_| AutoEscape::None);
    environment.set_fuel(Some(max_steps));
    environment.set_formatter(format_value);
    environment.set_unknown_method_callback(call_method);
    add_filters(&mut environment);
    environment.add_filter("length", length);
    environment.add_filter("count", length);
    environment.add_test("iterable", is_iterable);
    environment.add_test("sequence", is_sequence);
    environment.add_function("raise_exception", raise_exception);
    environment
}

/// `{% generation %} .. {% endgeneration %}` marks the model's own text, for training. Here it is only a scope, so it
/// becomes a `with` block.
pub(crate) fn without_generation_tags(source: &str) -> String {
    let mut result = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(at) = rest.find("{%") {
        let (before, tag) = rest.split_at(at + 2);
        result.push_str(before);
        rest = tag;
        let Some(end) = tag.find("%}") else { break };
        let name = tag[..end].trim_matches(|c: char| c.is_whitespace() || c == '-' || c == '+');
        let replacement = match name {
            "generation" => "with",
            "endgeneration" => "endwith",
            _ => continue,
        };
        let start = tag.find(name).expect("it was trimmed from there");
        result.push_str(&tag[..start]);
        result.push_str(if start == 0 { " " } else { "" });
        result.push_str(replacement);
        rest = &tag[start + name.len()..];
    }
    result.push_str(rest);
    result
}

/// The template's own refusal, a type of its own to distinguish it from an error in the template.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{0}")]
pub(crate) struct RaisedException(pub(crate) String);

fn raise_exception(message: &Value) -> Result<Value, Error> {
    let message = message.to_string();
    Err(Error::new(ErrorKind::InvalidOperation, message.clone())
        .with_source(RaisedException(message)))
}

/// `text|indent(width=4, first=False, blank=False)`, which keeps a line break at the end.
///
/// Source: `do_indent` in Jinja2's filters.py.
pub(crate) fn indent(
    text: &str,
    width: Option<Value>,
    first: Option<bool>,
    blank: Option<bool>,
    kwargs: Kwargs,
) -> Result<String, Error> {
    let width = width.map_or_else(|| kwargs.get::<Option<Value>>("width"), |width| Ok(Some(width)));
    let first = first.map_or_else(|| kwargs.get::<Option<bool>>("first"), |first| Ok(Some(first)));
    let blank = blank.map_or_else(|| kwargs.get::<Option<bool>>("blank"), |blank| Ok(Some(blank)));
    let (first, blank) = (first?.unwrap_or(false), blank?.unwrap_or(false));
    kwargs.assert_all_used()?;
    let indention = match width? {
        None => " ".repeat(4),
        Some(width) => match width.as_str() {
            Some(text) => text.to_owned(),
            None => " ".repeat(usize::try_from(i64::try_from(width)?.clamp(0, 256)).unwrap_or(0)),
        },
    };
    let mut indented = String::with_capacity(text.len() + 16);
    // A line break at the end is followed by an empty line.
    for (index, line) in text.replace("\r\n", "\n").split(is_line_end).enumerate() {
        indented.push_str(if index > 0 { "\n" } else { "" });
        let is_indented = if index == 0 { first } else { blank || !line.is_empty() };
        indented.push_str(if is_indented { &indention } else { "" });
        indented.push_str(line);
    }
    Ok(indented)
}

/// Whether Python's `splitlines` splits at this character.
fn is_line_end(character: char) -> bool {
    matches!(
        character,
        '\n' | '\r' | '\u{b}' | '\u{c}' | '\u{1c}'..='\u{1e}' | '\u{85}' | '\u{2028}' | '\u{2029}'
    )
}

/// Jinja2's undefined value has the length 0.
fn length(value: &Value) -> Result<usize, Error> {
    if value.is_undefined() { Ok(0) } else { minijinja::filters::length(value) }
}

/// Python's `None` cannot be iterated over, unlike the engine's.
fn is_iterable(value: &Value) -> bool {
    !value.is_none() && value.try_iter().is_ok()
}

/// Whether a value has a length and can be subscripted. In Python strings and dictionaries can, too.
fn is_sequence(value: &Value) -> bool {
    matches!(
        value.kind(),
        ValueKind::Seq | ValueKind::String | ValueKind::Map | ValueKind::Undefined
    )
}

/// Writes values, with floats as Python writes them.
fn format_value(out: &mut Output, state: &mut State, value: &Value) -> Result<(), Error> {
    charge_written(value)?;
    match float(value) {
        Some(number) => out.write_str(&python_float(number)).map_err(Error::from),
        None => minijinja::escape_formatter(out, state, value),
    }
}

pub(crate) fn string(state: &State, value: &Value) -> Result<Value, Error> {
    match float(value) {
        Some(number) => Ok(python_float(number).into()),
        None => minijinja::filters::string(state, value),
    }
}

fn float(value: &Value) -> Option<f64> {
    let is_float = value.kind() == ValueKind::Number && !value.is_integer();
    if is_float { f64::try_from(value.clone()).ok() } else { None }
}
