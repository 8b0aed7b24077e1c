//! How calls are laid out as the templates of the models write them, for the grammars of answers.

/// `open`, then calls with `separator` between them, then `close`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Layout {
    pub(crate) open: &'static str,
    pub(crate) before_name: &'static str,
    /// Whether a number follows the name.
    pub(crate) numbered: bool,
    pub(crate) before_arguments: &'static str,
    pub(crate) after_arguments: &'static str,
    pub(crate) separator: &'static str,
    pub(crate) line_breaks: LineBreaks,
    pub(crate) close: &'static str,
    /// The mark that calls begin with in the middle of text; without it they are the whole answer.
    pub(crate) trigger: Option<&'static str>,
    /// Whether there may be several calls.
    pub(crate) repeats: bool,
}

impl Layout {
    /// Names and arguments with nothing around them.
    pub(crate) const PLAIN: Self = Self {
        open: "",
        before_name: "",
        numbered: false,
        before_arguments: "",
        after_arguments: "",
        separator: "",
        line_breaks: LineBreaks::Absent,
        close: "",
        trigger: None,
        repeats: true,
    };
}

/// The line breaks around elements of arguments, and between calls where the separator is one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LineBreaks {
    /// There are none around elements.
    Absent,
    Written,
    /// Not all templates write them.
    Optional,
}

impl LineBreaks {
    /// One of them, in Lark's notation.
    pub(crate) fn lark(self) -> &'static str {
        match self {
            Self::Absent => "",
            Self::Written => r#""\n""#,
            Self::Optional => r#""\n"?"#,
        }
    }
}
