//! The layout of calls in the models' templates, for the grammars of answers.

/// `open`, then calls with `separator` between them, then `close`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Layout {
    pub(crate) open: &'static str,
    pub(crate) before_name: &'static str,
    /// The text between the name and the number of the call; `None` if calls have no number.
    pub(crate) before_number: Option<&'static str>,
    pub(crate) before_arguments: &'static str,
    pub(crate) after_arguments: &'static str,
    pub(crate) separator: &'static str,
    pub(crate) line_breaks: LineBreaks,
    pub(crate) close: &'static str,
    /// The mark with which calls begin within text; `None` if a call is the whole answer.
    pub(crate) trigger: Option<&'static str>,
    /// Whether several calls are allowed.
    pub(crate) repeats: bool,
}

impl Layout {
    /// Names and arguments without marks.
    pub(crate) const PLAIN: Self = Self {
        open: "",
        before_name: "",
        before_number: None,
        before_arguments: "",
        after_arguments: "",
        separator: "",
        line_breaks: LineBreaks::Absent,
        close: "",
        trigger: None,
        repeats: true,
    };
}

/// The line breaks around elements of arguments, and between calls if the separator is a line break.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LineBreaks {
    /// No line breaks around elements.
    Absent,
    Written,
    /// Some templates write them.
    Optional,
}

impl LineBreaks {
    /// A line break, in Lark's notation.
    pub(crate) fn lark(self) -> &'static str {
        match self {
            Self::Absent => "",
            Self::Written => r#""\n""#,
            Self::Optional => r#""\n"?"#,
        }
    }
}
