//! Formats and patterns for which the library allows too much.

use serde_json::{Map, Value, json};

/// A time without the leap second, which only some days have, and with the offset from UTC.
const TIME: &str =
    r"([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\.[0-9]+)?([zZ]|[+-]([01][0-9]|2[0-3]):[0-5][0-9])";
/// The days of all years, and the 29th of February of leap years.
const DATE: &str = concat!(
    r"([0-9]{4}-((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|30)|02-(0[1-9]|1[0-9]|2[0-8]))",
    r"|([0-9]{2}(0[48]|[2468][048]|[13579][26])|([02468][048]|[13579][26])00)-02-29)"
);
/// Labels without two hyphens at the third position, which mark an encoding that would have to be decoded.
const HOSTNAME: &str =
    r"^([^.]{1,3}|[^.]{2}([^.-][^.]|-[^.-])[^.]*)(\.([^.]{1,3}|[^.]{2}([^.-][^.]|-[^.-])[^.]*))*$";
/// Source: RFC 1123, section 2.1.
const LABELS: &str =
    r"[a-zA-Z0-9]([a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?(\.[a-zA-Z0-9]([a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?)*";
/// Source: RFC 3339, appendix A.
const DURATION: &str = concat!(
    r"P((([0-9]+Y([0-9]+M([0-9]+D)?)?)|([0-9]+M([0-9]+D)?)|([0-9]+D))(T(([0-9]+H([0-9]+M([0-9]+S)?)?)|([0-9]+M([0-9]+S)?)|([0-9]+S)))?",
    r"|T(([0-9]+H([0-9]+M([0-9]+S)?)?)|([0-9]+M([0-9]+S)?)|([0-9]+S))|[0-9]+W)"
);
/// Maximum characters of a host name.
const MAX_HOSTNAME: usize = 253;

/// A JSON pointer.
const POINTER: &str = "(/([^/~]|~[01])*)*";

/// Formats that the library enforces under the same names.
const OF_LIBRARY: [&str; 8] =
    ["date-time", "date", "time", "duration", "hostname", "ipv4", "uuid", "uri"];

/// The enforcement of a format: its name in the library, if that knows it, and further schemas.
pub(super) fn enforced(format: &str) -> (Option<&str>, Vec<Value>) {
    let by_pattern = |pattern: String| (None, vec![json!({"pattern": format!("^({pattern})$")})]);
    match format {
        // No regular expression matches exactly all regular expressions, so this format is only an annotation.
        "regex" => (None, Vec::new()),
        "json-pointer" => by_pattern(POINTER.to_owned()),
        "relative-json-pointer" => by_pattern(format!("(0|[1-9][0-9]*)(#|{POINTER})")),
        "ipv6" => by_pattern(ipv6()),
        "email" => by_pattern(mailbox(Alphabet::Ascii)),
        "idn-email" => by_pattern(mailbox(Alphabet::Unicode)),
        "iri" => by_pattern(uri(Alphabet::Unicode)),
        "uri-reference" => by_pattern(reference(Alphabet::Ascii)),
        "iri-reference" => by_pattern(reference(Alphabet::Unicode)),
        "uri-template" => by_pattern(uri_template()),
        // Every `hostname` is an `idn-hostname` too.
        "idn-hostname" => (Some("hostname"), stricter("hostname")),
        known if OF_LIBRARY.contains(&known) => (Some(known), stricter(known)),
        // Unknown formats are only annotations, and schemas from pydantic and zod have many of them: refusing would break them.
        // Source: JSON Schema Validation 2020-12, section 7.2.2.
        _ => (None, Vec::new()),
    }
}

/// A format expressed in other keywords for strings.
pub(super) fn of_text(format: &str) -> Vec<Map<String, Value>> {
    let (known, mut all) = enforced(format);
    // The library enforces these formats itself in JSON strings. In raw text there is no such string, so a pattern
    // has to do it.
    let whole = match known {
        Some("duration") => DURATION.to_owned(),
        Some("ipv4") => format!(r"({OCTET}\.){{3}}{OCTET}"),
        Some("uuid") => "[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}".to_owned(),
        Some("uri") => uri(Alphabet::Ascii),
        Some("hostname") => LABELS.to_owned(),
        _ => String::new(),
    };
    if !whole.is_empty() {
        all.push(json!({"pattern": format!("^({whole})$")}));
    }
    all.into_iter().filter_map(|said| said.as_object().cloned()).collect()
}

/// Requirements of a format that the library does not enforce.
fn stricter(format: &str) -> Vec<Value> {
    let stricter = match format {
        "time" => json!({"pattern": format!("^{TIME}$")}),
        // The library also allows days that a month does not have.
        "date" => json!({"pattern": format!("^{DATE}$")}),
        "date-time" => json!({"pattern": format!("^{DATE}[tT]{TIME}$")}),
        "hostname" => json!({"pattern": HOSTNAME, "maxLength": MAX_HOSTNAME}),
        _ => return Vec::new(),
    };
    vec![stricter]
}

/// The characters of an identifier or a mailbox.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Alphabet {
    Ascii,
    Unicode,
}

/// `ucschar` of RFC 3987, for use in a class.
const UCS: &str = concat!(
    r"\u{a0}-\u{d7ff}\u{f900}-\u{fdcf}\u{fdf0}-\u{ffef}\u{10000}-\u{1fffd}\u{20000}-\u{2fffd}\u{30000}-\u{3fffd}",
    r"\u{40000}-\u{4fffd}\u{50000}-\u{5fffd}\u{60000}-\u{6fffd}\u{70000}-\u{7fffd}\u{80000}-\u{8fffd}\u{90000}-\u{9fffd}",
    r"\u{a0000}-\u{afffd}\u{b0000}-\u{bfffd}\u{c0000}-\u{cfffd}\u{d0000}-\u{dfffd}\u{e1000}-\u{efffd}",
);
/// `iprivate` of RFC 3987, for use in a class.
const PRIVATE: &str = r"\u{e000}-\u{f8ff}\u{f0000}-\u{ffffd}\u{100000}-\u{10fffd}";
/// A percent-encoded byte.
const ENCODED: &str = "%[0-9a-fA-F]{2}";
const OCTET: &str = "(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])";

/// Source: RFC 3986, section 3.2.2, which is the text form of RFC 4291.
fn ipv6() -> String {
    let h16 = "[0-9a-fA-F]{1,4}";
    let ls32 = format!(r"({h16}:{h16}|({OCTET}\.){{3}}{OCTET})");
    let full = format!("({h16}:){{6}}{ls32}");
    let short = (0..=5).map(|after: usize| {
        // At most `5 - after` groups before the two colons, and `after` groups and the last two after them.
        let before = match 5 - after {
            0 => String::new(),
            1 => format!("({h16})?"),
            most => format!("(({h16}:){{0,{}}}{h16})?", most - 1),
        };
        format!("{before}::({h16}:){{{after}}}{ls32}")
    });
    let ends = [format!("(({h16}:){{0,5}}{h16})?::{h16}"), format!("(({h16}:){{0,6}}{h16})?::")];
    let all: Vec<String> = std::iter::once(full).chain(short).chain(ends).collect();
    all.join("|")
}

/// The parts of RFC 3986, with the characters of RFC 3987.
struct Parts {
    /// `"//" authority path-abempty / path-absolute / path-empty`
    rooted: String,
    /// `path-rootless`
    rootless: String,
    /// `path-noscheme`
    no_scheme: String,
    /// `[ "?" query ] [ "#" fragment ]`
    end: String,
}

fn parts(alphabet: Alphabet) -> Parts {
    let (more, private) = if alphabet == Alphabet::Unicode { (UCS, PRIVATE) } else { ("", "") };
    let plain = format!(r"A-Za-z0-9._~!$&'()*+,;=\-{more}");
    let pchar = format!("([{plain}:@]|{ENCODED})");
    let user = format!("(([{plain}:]|{ENCODED})*@)?");
    let future = r"v[0-9a-fA-F]+\.[A-Za-z0-9._~!$&'()*+,;=:\-]+";
    let host = format!(r"(\[({}|{future})\]|([{plain}]|{ENCODED})*)", ipv6());
    let abempty = format!("(/{pchar}*)*");
    let query = format!("([{plain}:@/?{private}]|{ENCODED})*");
    let fragment = format!("([{plain}:@/?]|{ENCODED})*");
    Parts {
        rooted: format!("//{user}{host}(:[0-9]*)?{abempty}|/({pchar}+{abempty})?|"),
        rootless: format!("{pchar}+{abempty}"),
        // Without a colon: otherwise the first segment would be read as a scheme.
        no_scheme: format!("([{plain}@]|{ENCODED})+{abempty}"),
        end: format!(r"(\?{query})?(#{fragment})?"),
    }
}

/// Source: RFC 3986 and RFC 3987, `URI` and `IRI`.
fn uri(alphabet: Alphabet) -> String {
    let Parts { rooted, rootless, end, .. } = parts(alphabet);
    format!(r"[A-Za-z][A-Za-z0-9+.\-]*:({rootless}|{rooted}){end}")
}

/// Source: RFC 3986 and RFC 3987, `URI-reference` and `IRI-reference`.
fn reference(alphabet: Alphabet) -> String {
    let Parts { rooted, no_scheme, end, .. } = parts(alphabet);
    format!("{}|({no_scheme}|{rooted}){end}", uri(alphabet))
}

/// Source: RFC 6570, `URI-Template`.
fn uri_template() -> String {
    let literal = format!(r"[!#$&(-;=?-\[\]_a-z~{UCS}{PRIVATE}]");
    let character = format!("([A-Za-z0-9_]|{ENCODED})");
    let variable = format!(r"{character}(\.?{character})*(:[1-9][0-9]{{0,3}}|\*)?");
    format!(r"({literal}|{ENCODED}|\{{[+#./;?&=,!@|]?{variable}(,{variable})*\}})*")
}

/// Source: RFC 5321, `Mailbox`, with the local parts of RFC 6531. Domains that are not ASCII are allowed if their labels are
/// short and have only letters that RFC 5892 allows everywhere: Latin, Greek, Cyrillic, Kana, Han and Hangul.
fn mailbox(alphabet: Alphabet) -> String {
    let (more, label) = match alphabet {
        Alphabet::Ascii => ("", ""),
        Alphabet::Unicode => (
            r"\u{80}-\u{d7ff}\u{e000}-\u{10ffff}",
            r"|[a-z0-9\u{df}-\u{f6}\u{f8}-\u{ff}\u{3ac}-\u{3ce}\u{430}-\u{44f}\u{3041}-\u{3096}\u{30a1}-\u{30fa}\u{4e00}-\u{9fa5}\u{ac00}-\u{d7a3}]{1,12}",
        ),
    };
    let atom = format!(r"[A-Za-z0-9!#$%&'*+/=?\^_`{{|}}~{more}\-]+");
    let quoted = format!(r#""([ !#-\[\]-~{more}]|\\[ -~])*""#);
    let label = format!("([a-zA-Z0-9]([a-zA-Z0-9-]*[a-zA-Z0-9])?{label})");
    let h16 = "[0-9a-fA-F]{1,4}";
    // At most six groups besides the two colons.
    let some = format!("({h16}(:{h16}){{0,2}})?");
    let address =
        format!(r"\[(({OCTET}\.){{3}}{OCTET}|IPv6:(({h16}:){{7}}{h16}|{some}::{some}))\]");
    format!(r"({atom}(\.{atom})*|{quoted})@({label}(\.{label})*|{address})")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_format_is_held_by_a_name_or_by_a_pattern() {
        assert_eq!(enforced("regex"), (None, vec![]));
        assert_eq!(enforced("uuid"), (Some("uuid"), vec![]));
        assert_eq!(enforced("nothing known"), (None, vec![]));
        assert_eq!(enforced("idn-hostname"), enforced("hostname"));
        let (name, schemas) = enforced("relative-json-pointer");
        let pattern = "^((0|[1-9][0-9]*)(#|(/([^/~]|~[01])*)*))$";
        assert_eq!((name, schemas), (None, vec![json!({"pattern": pattern})]));
    }
}
