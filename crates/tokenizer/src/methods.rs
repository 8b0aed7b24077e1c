//! Methods of Python's strings that chat templates call and that the template engine's Python layer does not have.

use minijinja::value::from_args;
use minijinja::{Error, ErrorKind, State, Value};
use minijinja_contrib::pycompat::unknown_method_callback;

use crate::metered::metered_method;

/// Methods whose result is a text, or a list of texts.
const BUILDING: [&str; 17] = [
    "capitalize",
    "format",
    "join",
    "lower",
    "lstrip",
    "partition",
    "removeprefix",
    "removesuffix",
    "replace",
    "rpartition",
    "rsplit",
    "rstrip",
    "split",
    "splitlines",
    "strip",
    "title",
    "upper",
];

/// Calls a method that the value's type does not have in the engine itself.
pub(crate) fn call_method(
    state: &mut State,
    value: &Value,
    method: &str,
    args: &[Value],
) -> Result<Value, Error> {
    if BUILDING.contains(&method) {
        // The text itself comes first, as for a filter, so that both are charged by the same rules.
        let all = [std::slice::from_ref(value), args].concat();
        return metered_method(method, &all, || call_any(state, value, method, args));
    }
    call_any(state, value, method, args)
}

fn call_any(
    state: &mut State,
    value: &Value,
    method: &str,
    args: &[Value],
) -> Result<Value, Error> {
    match value.as_str().map(|text| string_method(text, method, args)) {
        Some(Ok(Some(result))) => Ok(result),
        Some(Err(error)) => Err(error),
        Some(Ok(None)) | None => unknown_method_callback(state, value, method, args),
    }
}

/// Returns `None` for a method that is not implemented here.
fn string_method(text: &str, method: &str, args: &[Value]) -> Result<Option<Value>, Error> {
    Ok(Some(match method {
        "removeprefix" => {
            let (prefix,): (&str,) = from_args(args)?;
            text.strip_prefix(prefix).unwrap_or(text).into()
        }
        "removesuffix" => {
            let (suffix,): (&str,) = from_args(args)?;
            text.strip_suffix(suffix).unwrap_or(text).into()
        }
        "partition" => {
            let (before, after) = text.split_once(separator(args)?).unwrap_or((text, ""));
            parts(text, before, after)
        }
        "rpartition" => {
            let (before, after) = text.rsplit_once(separator(args)?).unwrap_or(("", text));
            parts(text, before, after)
        }
        "rsplit" => rsplit(text, args)?,
        _ => return Ok(None),
    }))
}

fn separator(args: &[Value]) -> Result<&str, Error> {
    let (separator,): (&str,) = from_args(args)?;
    if separator.is_empty() {
        return Err(Error::new(ErrorKind::InvalidOperation, "empty separator"));
    }
    Ok(separator)
}

/// The text before the separator, the separator (empty if there is none), and the text after it.
fn parts(text: &str, before: &str, after: &str) -> Value {
    let between = &text[before.len()..text.len() - after.len()];
    [before, between, after].into_iter().map(Value::from).collect()
}

/// `text.rsplit(sep=None, maxsplit=-1)`
fn rsplit(text: &str, args: &[Value]) -> Result<Value, Error> {
    let (wanted, most): (Option<Value>, Option<i64>) = from_args(args)?;
    let most = most.and_then(|most| usize::try_from(most).ok()).unwrap_or(usize::MAX);
    let most_parts = most.saturating_add(1);
    let mut found: Vec<&str> = match wanted.as_ref().filter(|wanted| !wanted.is_none()) {
        Some(wanted) => {
            let separator = separator(std::slice::from_ref(wanted))?;
            text.rsplitn(most_parts, separator).collect()
        }
        None => {
            let mut rest = text.trim_end();
            let mut words = Vec::new();
            while !rest.is_empty() {
                // After the last split, everything that is left is one part, as in Python.
                let end = if words.len() == most { None } else { rest.rfind(char::is_whitespace) };
                let start = end.map_or(0, |at| rest.len() - last_word(rest, at).len());
                words.push(&rest[start..]);
                rest = rest[..start].trim_end();
            }
            words
        }
    };
    found.reverse();
    Ok(found.into_iter().map(Value::from).collect())
}

/// The text after the white space at `at`.
fn last_word(text: &str, at: usize) -> &str {
    text[at..].trim_start()
}
