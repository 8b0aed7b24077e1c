//! Texts that models write around the content of an answer, and that are not part of it.

use crate::event::OutputEvent;
use crate::scan::len_of_beginning;

/// The texts around content. Each of them may be missing.
#[derive(Debug)]
pub(crate) struct Frame {
    /// Texts of which the special tokens must be seen by the parser.
    pub(crate) marks: &'static [&'static str],
    /// Texts before the content, in their order.
    pub(crate) before_text: &'static [&'static str],
    /// Texts after the content.
    pub(crate) after_text: &'static [&'static str],
    /// Texts before calls that follow no content.
    pub(crate) before_calls: &'static [&'static str],
    /// A text that is dropped at the start of content; may be empty.
    pub(super) first: &'static str,
    /// Texts that are dropped anywhere in content.
    pub(super) dropped: &'static [&'static str],
}

impl Frame {
    /// No texts around content.
    pub(crate) const NONE: Self = Self {
        marks: &[],
        before_text: &[],
        after_text: &[],
        before_calls: &[],
        first: "",
        dropped: &[],
    };

    pub(crate) fn is_empty(&self) -> bool {
        self.dropped.is_empty()
    }
}

/// Drops the texts around content from the events of an answer.
#[derive(Debug)]
pub(crate) struct Unframing {
    frame: &'static Frame,
    /// Content in which such a text may begin.
    held: String,
    /// Whether there was no content yet.
    is_start: bool,
}

impl Unframing {
    pub(crate) fn new(frame: &'static Frame) -> Self {
        Self { frame, held: String::new(), is_start: !frame.first.is_empty() }
    }

    /// The events without these texts. Content that may go on with one is kept for the next call, unless the answer has `ended`.
    pub(crate) fn events(&mut self, events: Vec<OutputEvent>, ended: bool) -> Vec<OutputEvent> {
        let mut all = Vec::with_capacity(events.len());
        for event in events {
            match event {
                OutputEvent::Content(text) => {
                    self.held.push_str(&text);
                    self.content(false, &mut all);
                }
                // Text before another part of the answer cannot go on.
                other => {
                    self.content(true, &mut all);
                    other.add_to(&mut all);
                }
            }
        }
        if ended {
            self.content(true, &mut all);
        }
        all
    }

    fn content(&mut self, is_whole: bool, events: &mut Vec<OutputEvent>) {
        if self.is_start && !self.held.is_empty() {
            match self.held.strip_prefix(self.frame.first) {
                Some(rest) => self.held = rest.to_owned(),
                None if !is_whole && self.frame.first.starts_with(&self.held) => return,
                None => {}
            }
            self.is_start = false;
        }
        let mut emit = |text: &str| {
            if !text.is_empty() {
                OutputEvent::Content(text.to_owned()).add_to(events);
            }
        };
        let mut rest = self.held.as_str();
        while let Some((at, mark)) = first_of(rest, self.frame.dropped) {
            emit(&rest[..at]);
            rest = &rest[at + mark.len()..];
        }
        let begun = self.frame.dropped.iter().map(|mark| len_of_beginning(rest, mark)).max();
        let kept = if is_whole { 0 } else { begun.unwrap_or(0) };
        let (certain, kept) = rest.split_at(rest.len() - kept);
        emit(certain);
        self.held = kept.to_owned();
    }
}

/// The first of these texts, and the longest one at its position.
fn first_of(text: &str, marks: &[&'static str]) -> Option<(usize, &'static str)> {
    let found = marks.iter().filter_map(|mark| Some((text.find(mark)?, *mark)));
    found.min_by_key(|(at, mark)| (*at, std::cmp::Reverse(mark.len())))
}
