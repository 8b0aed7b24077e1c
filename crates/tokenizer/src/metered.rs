//! Bounds on the text that a chat template builds, and on the items that it processes, in one rendering.
//!
//! The engine counts instructions, but one instruction may build any amount of text. So filters and methods that
//! build text are charged here before they run. The engine's operators (`~`, `+`, `*`) cannot be charged, since the
//! engine has no hook for them.

use std::cell::Cell;

use minijinja::value::{Kwargs, Rest, ValueKind};
use minijinja::{Environment, Error, ErrorKind, State, Value, filters};

use crate::jinja::{indent, string};
use crate::json::tojson;

/// Limits of one rendering.
#[derive(Clone, Copy)]
pub(crate) struct Limits {
    /// Bytes of the texts that filters and methods build.
    pub(crate) built_bytes: usize,
    /// Bytes of the values that are written, to the prompt or into a variable.
    pub(crate) written_bytes: usize,
    /// Items of lists that filters process.
    pub(crate) items: u64,
}

/// The limits of one rendering, and the amounts that are left.
#[derive(Clone, Copy)]
struct Left {
    limits: Limits,
    left: Limits,
}

const NO_LIMITS: Limits =
    Limits { built_bytes: usize::MAX, written_bytes: usize::MAX, items: u64::MAX };

thread_local! {
    // The engine passes no data of the caller to filters and to the formatter. A rendering stays on one thread.
    static LEFT: Cell<Left> = const { Cell::new(Left { limits: NO_LIMITS, left: NO_LIMITS }) };
}

/// The template built or wrote more text than it may.
#[derive(Debug, Clone, Copy, thiserror::Error)]
pub(crate) enum TooMuchText {
    #[error("it builds more than {max_bytes} bytes of text")]
    Built { max_bytes: usize },
    #[error("it writes more than {max_bytes} bytes of text")]
    Written { max_bytes: usize },
}

/// Runs `work`, whose templates keep the limits.
pub(crate) fn bounded<T>(limits: Limits, work: impl FnOnce() -> T) -> T {
    /// Restores the earlier limits, even after a panic.
    struct Restored(Left);
    impl Drop for Restored {
        fn drop(&mut self) {
            LEFT.set(self.0);
        }
    }
    let _restored = Restored(LEFT.replace(Left { limits, left: limits }));
    work()
}

/// Charges text that is about to be built.
fn charge(bytes: usize) -> Result<(), Error> {
    let Left { limits, mut left } = LEFT.get();
    let Some(built_bytes) = left.built_bytes.checked_sub(bytes) else {
        return Err(too_much(TooMuchText::Built { max_bytes: limits.built_bytes }));
    };
    left.built_bytes = built_bytes;
    LEFT.set(Left { limits, left });
    Ok(())
}

/// Charges a value that is about to be written.
pub(crate) fn charge_written(value: &Value) -> Result<(), Error> {
    let Left { limits, mut left } = LEFT.get();
    let bytes = value.as_str().map_or(0, str::len);
    let Some(written_bytes) = left.written_bytes.checked_sub(bytes) else {
        return Err(too_much(TooMuchText::Written { max_bytes: limits.written_bytes }));
    };
    left.written_bytes = written_bytes;
    LEFT.set(Left { limits, left });
    Ok(())
}

fn charge_items(items: u64) -> Result<(), Error> {
    let Left { limits, mut left } = LEFT.get();
    // The same error as for too many instructions: both bound time.
    left.items = left.items.checked_sub(items).ok_or_else(|| Error::from(ErrorKind::OutOfFuel))?;
    LEFT.set(Left { limits, left });
    Ok(())
}

fn too_much(error: TooMuchText) -> Error {
    Error::new(ErrorKind::InvalidOperation, error.to_string()).with_source(error)
}

/// Replaces the filters that build text or process all items of a list by charged ones.
pub(crate) fn add_filters(environment: &mut Environment<'static>) {
    macro_rules! add {
        ($charge:ident: $($name:literal => $filter:path,)*) => {$(
            // A name that no template can contain.
            let own = concat!("own ", $name);
            environment.add_filter(own, $filter);
            environment.add_filter(
                $name,
                move |state: &mut State, args: Rest<Value>, named: Kwargs| {
                    let mut args = args.0;
                    if named.args().next().is_some() {
                        args.push(named.into());
                    }
                    metered($charge, $name, &args, || state.apply_filter(own, &args))
                },
            );
        )*};
    }
    add! { charge_call:
        "capitalize" => filters::capitalize,
        "format" => filters::format,
        "indent" => indent,
        "join" => filters::join,
        "lines" => filters::lines,
        "lower" => filters::lower,
        "pprint" => filters::pprint,
        "replace" => filters::replace,
        "split" => filters::split,
        "string" => string,
        "title" => filters::title,
        "tojson" => tojson,
        "trim" => filters::trim,
        "upper" => filters::upper,
    }
    add! { charge_list:
        "batch" => filters::batch,
        "dictsort" => filters::dictsort,
        "groupby" => filters::groupby,
        "items" => filters::items,
        "list" => filters::list,
        "map" => filters::map,
        "max" => filters::max,
        "min" => filters::min,
        "reject" => filters::reject,
        "rejectattr" => filters::rejectattr,
        "reverse" => filters::reverse,
        "select" => filters::select,
        "selectattr" => filters::selectattr,
        "slice" => filters::slice,
        "sort" => filters::sort,
        "sum" => filters::sum,
        "unique" => filters::unique,
    }
}

/// Calls a filter or method that was charged before. If escapes made its text longer, the rest is charged.
fn metered(
    charge_before: fn(&str, &[Value]) -> Result<(), Error>,
    name: &str,
    args: &[Value],
    call: impl FnOnce() -> Result<Value, Error>,
) -> Result<Value, Error> {
    let before = LEFT.get().left.built_bytes;
    charge_before(name, args)?;
    let charged = before - LEFT.get().left.built_bytes;
    let result = call()?;
    charge(result.as_str().map_or(0, |text| text.len().saturating_sub(charged)))?;
    Ok(result)
}

/// Calls a method that builds text.
pub(crate) fn metered_method(
    name: &str,
    args: &[Value],
    call: impl FnOnce() -> Result<Value, Error>,
) -> Result<Value, Error> {
    metered(charge_call, name, args, call)
}

/// Charges a filter or method that builds text, by an estimate of its result's bytes.
fn charge_call(name: &str, args: &[Value]) -> Result<(), Error> {
    let text = args.first().and_then(Value::as_str);
    let argument = |index: usize| args.get(index).and_then(Value::as_str);
    match (name, text) {
        ("replace", Some(text)) => {
            let (from, to) = (argument(1).unwrap_or_default(), argument(2).unwrap_or_default());
            let count = text.matches(from).count();
            charge(text.len().saturating_add(count.saturating_mul(to.len())))
        }
        ("indent", Some(text)) => {
            let named = |value: &Value| value.get_attr("width").ok().map(|width| text_len(&width));
            let widths =
                args[1..].iter().map(|value| text_len(value).max(named(value).unwrap_or(0)));
            let width = widths.fold(WIDEST_INDENT, usize::max);
            let lines = text.matches(['\n', '\r', '\u{85}', '\u{2028}', '\u{2029}']).count() + 1;
            charge(text.len().saturating_add(lines.saturating_mul(width)))
        }
        ("split" | "rsplit" | "splitlines" | "lines", Some(text)) => {
            let separators = match argument(1).filter(|separator| !separator.is_empty()) {
                Some(separator) => text.matches(separator).count(),
                None => text.matches(char::is_whitespace).count(),
            };
            charge(text.len())?;
            charge_items(separators as u64 + 1)
        }
        ("format", Some(text)) => {
            // Each directive may write any of the values, and a width is written in digits.
            let directives = text.matches(['%', '{']).count();
            let longest = args[1..].iter().map(|value| size(value, 0)).max().unwrap_or(0);
            charge(text.len().saturating_add(directives.saturating_mul(longest)))?;
            charge(widths(text))
        }
        ("join", _) => {
            // The first argument of a method is the separator.
            let is_method = text.is_some() && args.len() > 1 && argument(1).is_none();
            let (list, separator) = if is_method { (1, 0) } else { (0, 1) };
            let separator = argument(separator).map_or(0, str::len);
            let Some(list) = args.get(list) else { return Ok(()) };
            for item in list.try_iter().into_iter().flatten() {
                charge_items(1)?;
                charge(size(&item, 0).saturating_add(separator))?;
            }
            Ok(())
        }
        // Upper and lower case, trimming and JSON return about as much text as they get. Longer results are charged
        // afterwards.
        _ => args.iter().try_for_each(|value| charge(size(value, 0))),
    }
}

/// Charges a filter that processes all items of a list.
fn charge_list(name: &str, args: &[Value]) -> Result<(), Error> {
    let items = args.first().and_then(Value::len).unwrap_or(0) as u64;
    // A sort compares each item with several others.
    let comparisons =
        if matches!(name, "sort" | "dictsort" | "groupby") { items.max(2).ilog2() } else { 1 };
    // These filters make as many lists or items as their argument says, even from a short list.
    let made = match name {
        "batch" | "slice" => args.get(1).and_then(Value::as_usize).unwrap_or(0),
        _ => 0,
    };
    charge_items(items.saturating_mul(comparisons.into()).saturating_add(made as u64))
}

/// Largest number of spaces of an indentation that is a number.
const WIDEST_INDENT: usize = 256;

fn text_len(value: &Value) -> usize {
    value.as_str().map_or(0, str::len)
}

/// The sum of all widths in a format.
fn widths(format: &str) -> usize {
    let numbers = format.split(|c: char| !c.is_ascii_digit()).filter(|digits| !digits.is_empty());
    numbers.map(|digits| digits.parse().unwrap_or(usize::MAX)).fold(0, usize::saturating_add)
}

/// Deepest nesting of values, the same as for JSON.
const MAX_DEPTH: usize = 256;

/// Estimate of a value's bytes as text. It stops once the estimate exceeds the amount that is left.
fn size(value: &Value, depth: usize) -> usize {
    // Numbers, brackets and separators: most are shorter.
    const OF_ANY: usize = 16;
    let most = LEFT.get().left.built_bytes;
    match value.kind() {
        ValueKind::String => value.as_str().map_or(0, str::len),
        ValueKind::Seq | ValueKind::Iterable | ValueKind::Map if depth < MAX_DEPTH => {
            let is_map = value.kind() == ValueKind::Map;
            let mut total = OF_ANY;
            for item in value.try_iter().into_iter().flatten() {
                total = total.saturating_add(size(&item, depth + 1));
                if is_map && let Ok(field) = value.get_item(&item) {
                    total = total.saturating_add(size(&field, depth + 1));
                }
                if total > most {
                    break;
                }
            }
            total
        }
        _ => OF_ANY,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::jinja::environment;

    fn render(source: &str, most_bytes: usize) -> Result<String, Error> {
        let environment = environment(1_000_000);
        let template = environment.template_from_str(source).unwrap();
        let limits = Limits { built_bytes: most_bytes, written_bytes: 64 << 20, items: 1_000_000 };
        bounded(limits, || template.render(()))
    }

    fn is_too_much(result: &Result<String, Error>) -> bool {
        let Err(error) = result else { return false };
        let source = std::error::Error::source(error);
        source.is_some_and(|source| source.downcast_ref::<TooMuchText>().is_some())
            || error.kind() == ErrorKind::OutOfFuel
    }

    #[test]
    fn what_would_build_much_text_is_refused_before_it_does() {
        for expression in [
            "('a'*1000000).replace('a', 'b'*100000)",
            "('a'*1000000)|replace('a', 'b'*100000)",
            "('a'*1000000)|replace('', 'b'*100000)",
            "('a,'*10000000).split(',')|length",
            "('a,'*10000000)|split(',')|length",
            "('a '*10000000).split()|length",
            "('a '*10000000).rsplit()|length",
            "('a\\n'*10000000).splitlines()|length",
            "('a\\n'*10000000)|lines|length",
            "'%1000000000d'|format(1)",
            "'%1000000000d'.format(1)",
            "'{:1000000000d}'.format(1)",
            "('{0}'*10000).format('a'*100000)",
            "('%s'*10000)|format('a'*100000)",
            "('\\n'*1000000)|indent('a'*100000)",
            "('\\n'*1000000)|indent(width='a'*100000)",
            "(['a'*100000]*1000000)|join",
            "(['a']*1000000)|join('b'*100000)",
            "('b'*100000).join(['a']*1000000)",
            "(['a'*100000]*1000000)|tojson",
            "(['a'*100000]*1000000)|string",
            "(['a'*100000]*1000000)|pprint",
            "('a'*100000000)|upper",
            "('a'*100000000).strip()",
            "('a'*100000000)|trim|length",
            "('a'*100000000)",
            "[1]|slice(1000000000)|list|length",
            "[1]|batch(1000000000)|list|length",
            "[1]|batch(1000000000, 0)|list|length",
        ] {
            let begun = std::time::Instant::now();
            let result = render(&format!("{{{{ {expression} }}}}"), 1 << 20);
            assert!(is_too_much(&result), "{expression}: {:?}", result.map(|text| text.len()));
            assert!(begun.elapsed().as_secs() < 5, "{expression}: {:?}", begun.elapsed());
        }
    }

    #[test]
    fn what_is_done_again_and_again_adds_up() {
        for statement in [
            "{% for i in range(1000) %}{% set c = ('b' * 10000).replace('b', 'c') %}{% endfor %}",
            "{% set n = namespace(a='b') %}{% for i in range(40) %}{% set n.a %}{{ n.a }}{{ n.a }}{% endset %}{% endfor %}",
            "{% set n = namespace(a='b') %}{% for i in range(40) %}{% set n.a = [n.a, n.a]|join %}{% endfor %}",
            "{% for i in range(1000) %}{% set a = range(10000)|sort %}{% endfor %}",
            "{% macro m(a) %}{{ a }}{{ a }}{% endmacro %}{% set n = namespace(a='b') %}{% for i in range(40) %}{% set n.a = m(n.a) %}{% endfor %}",
        ] {
            assert!(is_too_much(&render(statement, 1 << 20)), "{statement}");
        }
    }

    proptest! {
        /// A rendering that passes has built no more than its limit, for any combination of calls.
        #[test]
        fn no_result_is_longer_than_what_was_charged(
            calls in prop::collection::vec(prop::sample::select(&[
                ".upper()", "|replace('a', 'bcd')", ".replace('', '-')", "|indent(7)", "|indent('ab', true)",
                ".split('a')|join('xyz')", "|list|join(', ')", "|tojson", "|string", ".title()", "|split|join('ab')",
                "|lines|join('ab')", ".splitlines()|join", "|capitalize|trim", ".rsplit('b')|join('a')", "|pprint",
            ][..]), 0..7),
            text in "[ab \n\"é]{0,20}",
        ) {
            let text = text.replace('"', "\\\"");
            let nested = calls.iter().fold(format!("\"{text}\""), |inner, call| format!("({inner}){call}"));
            let source = format!("{{{{ {nested} }}}}");
            for most_bytes in [0, 10, 100, 1000] {
                if let Ok(text) = render(&source, most_bytes) && !calls.is_empty() {
                    prop_assert!(text.len() <= most_bytes, "{} gave {}", source, text.len());
                }
            }
            prop_assert!(render(&source, 1 << 24).is_ok(), "{}", source);
        }
    }
}
