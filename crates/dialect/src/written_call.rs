//! The tool call in a rendered chat template, split so that each format can check whether it matches.

use crate::probe::{FUNCTION, QUESTION};

/// The probe's call in a rendered conversation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WrittenCall<'a> {
    /// Text between the question and the function's name.
    before: &'a str,
    /// Text after the name.
    pub(crate) after: &'a str,
    /// Text that the template writes between the question and an answer.
    opening: &'a str,
}

impl<'a> WrittenCall<'a> {
    /// The call in `rendered`; `asked` is the rendered conversation up to the call.
    pub(crate) fn find(asked: &'a str, rendered: &'a str) -> Option<Self> {
        let turn = &rendered[rendered.find(QUESTION)? + QUESTION.len()..];
        let (before, after) = turn.split_once(FUNCTION)?;
        // The last occurrence, because a template may repeat the question.
        let opening = asked.rsplit(QUESTION).next().unwrap_or_default().trim_end();
        Some(Self { before, after, opening })
    }

    /// Whether the name is between these texts.
    pub(crate) fn is_between(&self, before: &str, after: &str) -> bool {
        self.before.ends_with(before) && self.after.starts_with(after)
    }

    /// The text before the name, without `mark` at its end.
    pub(crate) fn before(&self, mark: &str) -> Option<&'a str> {
        self.before.strip_suffix(mark)
    }

    /// The text before an object that begins with the name.
    pub(crate) fn before_object(&self) -> Option<&'a str> {
        // Templates differ in their white space: `tojson` and hand-written JSON are both accepted.
        let before = self.before.strip_suffix('"')?.trim_end().strip_suffix(':')?.trim_end();
        Some(before.strip_suffix("\"name\"")?.trim_end().strip_suffix('{')?.trim_end())
    }

    /// Whether the assistant's message has no text before the call; `before` is the text before the call.
    pub(crate) fn begins_answer(&self, before: &str) -> bool {
        before.trim_end().ends_with(self.opening)
    }
}
