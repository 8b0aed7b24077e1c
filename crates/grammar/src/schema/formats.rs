//! Formats and patterns that the library takes too loosely.

use serde_json::{Value, json};

/// Seconds without the leap second, which only some days have, and the offset from UTC.
const TIME: &str =
    r"([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\.[0-9]+)?([zZ]|[+-]([01][0-9]|2[0-3]):[0-5][0-9])";
/// Days that are there in every year, and the 29th of February of those that have it.
const DATE: &str = concat!(
    r"([0-9]{4}-((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|30)|02-(0[1-9]|1[0-9]|2[0-8]))",
    r"|([0-9]{2}(0[48]|[2468][048]|[13579][26])|([02468][048]|[13579][26])00)-02-29)"
);
/// Labels without two hyphens at the third place, which mark an encoding that would have to be decoded.
const HOSTNAME: &str =
    r"^([^.]{1,3}|[^.]{2}([^.-][^.]|-[^.-])[^.]*)(\.([^.]{1,3}|[^.]{2}([^.-][^.]|-[^.-])[^.]*))*$";
/// The longest name of a host.
const MAX_HOSTNAME: usize = 253;

/// A pointer within JSON.
const POINTER: &str = "(/([^/~]|~[01])*)*";

/// A format that the library knows, each string of which is of the one that it does not.
pub(super) fn narrower(format: &str) -> Option<&'static str> {
    Some(match format {
        "idn-email" => "email",
        "idn-hostname" => "hostname",
        "iri" | "uri-reference" | "iri-reference" => "uri",
        _ => return None,
    })
}

/// A format that the library does not know, as a pattern.
pub(super) fn pattern(format: &str) -> Option<String> {
    Some(match format {
        "json-pointer" => format!("^{POINTER}$"),
        "relative-json-pointer" => format!("^(0|[1-9][0-9]*)(#|{POINTER})$"),
        _ => return None,
    })
}

/// What a string of a format must be besides what the library asks of it.
pub(super) fn stricter(format: &str) -> Option<Value> {
    Some(match format {
        "time" => json!({"pattern": format!("^{TIME}$")}),
        "date" => json!({"pattern": format!("^{DATE}$")}),
        "date-time" => json!({"pattern": format!("^{DATE}[tT]{TIME}$")}),
        "hostname" => json!({"pattern": HOSTNAME, "maxLength": MAX_HOSTNAME}),
        _ => return None,
    })
}

/// A regular expression of ECMA-262, whose white space is one character more than Unicode's.
pub(super) fn ecma(pattern: &str) -> String {
    let mut written = String::with_capacity(pattern.len());
    let mut characters = pattern.chars();
    let mut in_class = false;
    while let Some(character) = characters.next() {
        match character {
            '\\' => match characters.next() {
                Some('s') if in_class => written.push_str(r"\s\x{feff}"),
                Some('s') => written.push_str(r"[\s\x{feff}]"),
                Some('S') => written.push_str(r"[^\s\x{feff}]"),
                Some(escaped) => written.extend(['\\', escaped]),
                None => written.push('\\'),
            },
            other => {
                in_class = (in_class || other == '[') && other != ']';
                written.push(other);
            }
        }
    }
    written
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn white_space_is_that_of_ecma() {
        assert_eq!(ecma(r"^\S+[\s,]\\s\d$"), r"^[^\s\x{feff}]+[\s\x{feff},]\\s\d$");
        assert_eq!(ecma(r"[\S]\"), r"[[^\s\x{feff}]]\");
    }
}
