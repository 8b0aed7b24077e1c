//! A span, before it is encoded.

/// Maximum length of a text in an attribute, in bytes. Clients choose some of them.
const MAX_TEXT: usize = 256;

/// A part of a trace.
#[derive(Debug)]
pub(super) struct Span {
    pub(super) id: [u8; 8],
    pub(super) parent: Option<[u8; 8]>,
    pub(super) name: String,
    pub(super) kind: Kind,
    /// Nanoseconds since 1970.
    pub(super) start_ns: u64,
    pub(super) end_ns: u64,
    pub(super) attributes: Vec<(&'static str, Value)>,
    /// Set if it failed.
    pub(super) error: Option<String>,
}

/// The kind of a span, with its number in OTLP.
#[derive(Clone, Copy, Debug)]
pub(super) enum Kind {
    Internal = 1,
    Server = 2,
}

/// The value of an attribute.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Value {
    Text(String),
    Int(i64),
    Float(f64),
    List(Vec<&'static str>),
}

impl Value {
    pub(crate) fn text(text: &str) -> Self {
        Self::Text(text[..text.floor_char_boundary(MAX_TEXT)].to_owned())
    }

    pub(crate) fn int(number: usize) -> Self {
        Self::Int(i64::try_from(number).unwrap_or(i64::MAX))
    }

    pub(crate) fn float(number: f32) -> Self {
        // The shortest text of an f32 is what the client sent; its bits as f64 would show 0.699999988.
        Self::Float(number.to_string().parse().unwrap_or(f64::from(number)))
    }
}
