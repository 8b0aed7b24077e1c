//! Clap's errors for numbers, in words that say what is needed.

use std::error::Error;
use std::num::{IntErrorKind, ParseFloatError, ParseIntError};

use clap::error::{ContextKind, ContextValue};

/// The message for a value that is no number, or too large a number; `None` for other errors. Clap would repeat the standard library's
/// words, such as `invalid digit found in string`.
#[must_use]
pub fn number_error(error: &clap::Error) -> Option<String> {
    let text = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => Some(text),
        _ => None,
    };
    let (value, flag) = (text(ContextKind::InvalidValue)?, text(ContextKind::InvalidArg)?);
    let source = error.source()?;
    let needed = match source.downcast_ref::<ParseIntError>().map(ParseIntError::kind) {
        Some(IntErrorKind::PosOverflow) => "it is too large",
        Some(_) if value.parse::<i128>().is_ok() => "it is below 0",
        Some(_) => "a whole number is needed",
        None if source.is::<ParseFloatError>() => "a number is needed",
        None => return None,
    };
    Some(format!("invalid value '{value}' for '{flag}': {needed}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::{Arg, Command, value_parser};

    #[test]
    fn a_number_error_says_what_is_needed() {
        let flag = |name| Arg::new(name).long(name).value_name("N");
        let command = Command::new("serve")
            .arg(flag("port").value_parser(value_parser!(u16)))
            .arg(flag("seed").value_parser(value_parser!(u64)))
            .arg(flag("timeout").value_parser(value_parser!(u64).range(1..)))
            .arg(flag("part").value_parser(value_parser!(f64)))
            .arg(flag("kind").value_parser(["a", "b"]));
        let message = |flag: &str| {
            let argv = ["serve", flag];
            number_error(&command.clone().try_get_matches_from(argv).unwrap_err())
        };
        let whole = "a whole number is needed";
        for (flag, needed) in [
            ("--port=x", whole),
            ("--port=", whole),
            ("--seed=-1", "it is below 0"),
            ("--seed=1.5", whole),
            ("--timeout=1s", whole),
            ("--seed=99999999999999999999", "it is too large"),
            ("--part=half", "a number is needed"),
        ] {
            let (name, value) = flag.split_once('=').unwrap();
            let expected = format!("invalid value '{value}' for '{name} <N>': {needed}");
            assert_eq!(message(flag), Some(expected));
        }
        assert_eq!(message("--port=65536"), None, "clap names the range itself");
        assert_eq!(message("--timeout=0"), None);
        assert_eq!(message("--kind=c"), None);
    }
}
