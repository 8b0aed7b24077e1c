//! The trace context of a request: the headers `traceparent` and `tracestate`.
//!
//! Source: W3C Trace Context, <https://www.w3.org/TR/trace-context/>.

use std::sync::Arc;

use axum::http::HeaderMap;
use uuid::Uuid;

/// Maximum length of `tracestate`, in bytes. A longer one is left out, as the standard allows.
const MAX_STATE: usize = 512;
/// The flag of a sampled trace.
const SAMPLED: u8 = 1;

/// The place of a request's span in a trace.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct TraceContext {
    pub(super) trace_id: [u8; 16],
    pub(super) span_id: [u8; 8],
    /// The span of the client.
    pub(super) parent: Option<[u8; 8]>,
    /// The client's `tracestate`, which goes on unchanged.
    pub(super) state: Option<Arc<str>>,
    flags: u8,
}

impl TraceContext {
    /// A new span in the client's trace, or in a new one if there is none or its header is invalid.
    pub(super) fn of(headers: &HeaderMap) -> Self {
        let span_id = Self::new_span_id();
        let mut values = headers.get_all("traceparent").iter();
        let given = match (values.next(), values.next()) {
            (Some(value), None) => value.to_str().ok().and_then(parse),
            _ => None,
        };
        match given {
            Some((trace_id, parent, flags)) => {
                Self { trace_id, span_id, parent: Some(parent), state: state(headers), flags }
            }
            None => Self {
                trace_id: Uuid::new_v4().into_bytes(),
                span_id,
                parent: None,
                state: None,
                flags: SAMPLED,
            },
        }
    }

    /// A random id of a span. It is never zero, which would be invalid.
    pub(super) fn new_span_id() -> [u8; 8] {
        let (_, id) = Uuid::new_v4().as_u64_pair();
        // The variant of a UUID, which is never zero, is in this half.
        id.to_be_bytes()
    }

    /// Whether spans are sent. A client that does not sample its trace would get parts of it otherwise.
    pub(super) fn is_sampled(&self) -> bool {
        self.flags & SAMPLED != 0
    }

    /// The header that names this span.
    pub(super) fn traceparent(&self) -> String {
        let (trace, span) = (u128::from_be_bytes(self.trace_id), u64::from_be_bytes(self.span_id));
        format!("00-{trace:032x}-{span:016x}-{:02x}", self.flags & SAMPLED)
    }
}

/// Trace, span and flags of a `traceparent`.
fn parse(text: &str) -> Option<([u8; 16], [u8; 8], u8)> {
    let (version, rest) = text.split_at_checked(2)?;
    let version = u8::try_from(hexadecimal(version)?).ok().filter(|version| *version != 0xff)?;
    let (ids, rest) = rest.split_at_checked("-".len() + 32 + "-".len() + 16 + "-".len() + 2)?;
    // Later versions may append parts.
    if !rest.is_empty() && (version == 0 || !rest.starts_with('-')) {
        return None;
    }
    let mut parts = ids.split('-');
    let mut part = |length: usize| {
        let part = parts.next().filter(|part| part.len() == length)?;
        hexadecimal(part)
    };
    part(0);
    let (trace, span, flags) = (part(32)?, part(16)?, part(2)?);
    let (span, flags) = (u64::try_from(span).ok()?, u8::try_from(flags).ok()?);
    (trace != 0 && span != 0).then_some((trace.to_be_bytes(), span.to_be_bytes(), flags))
}

/// A number in lower-case hexadecimal digits. An empty text is 0.
fn hexadecimal(text: &str) -> Option<u128> {
    let is_digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    if text.is_empty() {
        return Some(0);
    }
    text.bytes().all(is_digit).then(|| u128::from_str_radix(text, 16).ok()).flatten()
}

fn state(headers: &HeaderMap) -> Option<Arc<str>> {
    let values = headers.get_all("tracestate").iter();
    let texts: Vec<&str> = values.map(|value| value.to_str()).collect::<Result<_, _>>().ok()?;
    let text = texts.join(",");
    (!text.is_empty() && text.len() <= MAX_STATE).then(|| text.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
    const SPAN: &str = "00f067aa0ba902b7";

    fn of(values: &[String]) -> TraceContext {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append("traceparent", value.parse().unwrap());
        }
        headers.append("tracestate", "a=1".parse().unwrap());
        headers.append("tracestate", "b=2".parse().unwrap());
        TraceContext::of(&headers)
    }

    #[test]
    fn a_trace_goes_on_in_a_new_span() {
        let context = of(&[format!("00-{TRACE}-{SPAN}-01")]);
        assert_eq!(context.parent, Some(0x00f0_67aa_0ba9_02b7_u64.to_be_bytes()));
        assert_eq!(context.state.as_deref(), Some("a=1,b=2"));
        assert!(context.is_sampled());
        let out = context.traceparent();
        assert!(out.starts_with(&format!("00-{TRACE}-")) && out.ends_with("-01"), "{out}");
        assert!(!out.contains(SPAN));
        assert!(parse(&out).is_some());
    }

    #[test]
    fn a_trace_that_is_not_sampled_stays_so() {
        let context = of(&[format!("00-{TRACE}-{SPAN}-00")]);
        assert!(!context.is_sampled() && context.traceparent().ends_with("-00"));
    }

    #[test]
    fn later_versions_may_be_longer() {
        for (text, is_valid) in [
            (format!("cc-{TRACE}-{SPAN}-01"), true),
            (format!("cc-{TRACE}-{SPAN}-01-what"), true),
            (format!("cc-{TRACE}-{SPAN}-01.what"), false),
            (format!("00-{TRACE}-{SPAN}-01-what"), false),
            (format!("ff-{TRACE}-{SPAN}-01"), false),
        ] {
            assert_eq!(parse(&text).is_some(), is_valid, "{text}");
        }
    }

    #[test]
    fn an_invalid_header_begins_a_new_trace() {
        let zero = |count| "0".repeat(count);
        for text in [
            String::new(),
            "00".into(),
            format!("00-{TRACE}-{SPAN}"),
            format!("00-{}-{SPAN}-01", TRACE.to_uppercase()),
            format!("00-{}-{SPAN}-01", zero(32)),
            format!("00-{TRACE}-{}-01", zero(16)),
            format!("00-{TRACE}-{SPAN}-0x"),
            format!("00_{TRACE}-{SPAN}-01"),
            format!("00-{TRACE}{SPAN}--01"),
            format!("+0-{TRACE}-{SPAN}-01"),
            format!("00-+{}-{SPAN}-01", &TRACE[1..]),
        ] {
            let context = of(std::slice::from_ref(&text));
            assert!(context.parent.is_none() && context.is_sampled(), "{text}");
            assert_eq!(context.state, None);
        }
        // Two headers are no header.
        let twice = format!("00-{TRACE}-{SPAN}-01");
        assert_eq!(of(&[twice.clone(), twice]).parent, None);
    }

    #[test]
    fn ids_of_spans_differ_and_are_not_zero() {
        let ids: std::collections::HashSet<_> =
            (0..1000).map(|_| TraceContext::new_span_id()).collect();
        assert!(ids.len() == 1000 && !ids.contains(&[0; 8]));
    }
}
