//! Finds stop strings in streamed text, across the borders of its pieces.

use crate::{Error, Result};

/// Whether the text that a client sees ends before the stop string or with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StopStringInOutput {
    /// The stop string is cut off.
    Exclude,
    /// The stop string is the end of the text.
    Include,
}

/// Result of one piece of text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StopOutcome {
    /// Text that may be sent now. No part of it can still become part of a stop string.
    pub text: String,
    /// Index of the stop string that was found. The text has then ended, and no more pieces may be pushed.
    pub matched: Option<usize>,
}

/// Searches a stream of text for stop strings in linear time, and holds back only text that may be the prefix of one.
///
/// The match is the one that is complete first in the text. Among several that are complete at the same place it is
/// the longest, and among equals the first in the list. So the result is the same for any division of the text into
/// pieces.
#[derive(Debug, Clone)]
pub struct StopMatcher {
    patterns: Vec<Pattern>,
    in_output: StopStringInOutput,
    /// The end of the text so far that was not returned yet.
    held: String,
    stopped: bool,
}

impl StopMatcher {
    /// A matcher for these stop strings. There may be none.
    ///
    /// # Errors
    /// [`Error::EmptyStopString`].
    pub fn new<S: AsRef<str>>(stop_strings: &[S], in_output: StopStringInOutput) -> Result<Self> {
        let patterns = stop_strings
            .iter()
            .enumerate()
            .map(|(index, text)| match text.as_ref() {
                "" => Err(Error::EmptyStopString { index }),
                text => Ok(Pattern::new(text)),
            })
            .collect::<Result<_>>()?;
        Ok(Self { patterns, in_output, held: String::new(), stopped: false })
    }

    /// Takes the next piece of text. Pieces after a match are dropped.
    pub fn push(&mut self, piece: &str) -> StopOutcome {
        if self.stopped {
            return StopOutcome { text: String::new(), matched: None };
        }
        let searched = self.held.len();
        self.held.push_str(piece);
        // Bytes suffice: a pattern of whole characters can only match at their borders.
        for (offset, byte) in piece.bytes().enumerate() {
            if let Some(index) = self.step(byte) {
                let end = searched + offset + 1;
                return self.stop(index, end);
            }
        }
        StopOutcome { text: self.release(), matched: None }
    }

    /// Takes a piece of text in which stop strings are ignored, though one may begin in it. Returns the text that may
    /// be sent.
    pub fn pass(&mut self, piece: &str) -> String {
        if self.stopped {
            return String::new();
        }
        self.held.push_str(piece);
        for byte in piece.bytes() {
            for pattern in &mut self.patterns {
                if pattern.step(byte) {
                    // The whole pattern was seen and is ignored. Its longest border may still begin another match.
                    pattern.matched = pattern.border[pattern.bytes.len() - 1];
                }
            }
        }
        self.release()
    }

    /// Returns held text that can no longer be part of a stop string.
    fn release(&mut self) -> String {
        let may_begin = self.patterns.iter().map(|pattern| pattern.matched).max().unwrap_or(0);
        // A partial match starts with a pattern's first byte, so the cut is between two characters.
        let rest = self.held.split_off(self.held.len() - may_begin);
        std::mem::replace(&mut self.held, rest)
    }

    /// Returns the text that was held back, when something else comes in between. No stop string continues after it.
    pub fn interrupt(&mut self) -> String {
        for pattern in &mut self.patterns {
            pattern.matched = 0;
        }
        std::mem::take(&mut self.held)
    }

    /// Returns the text that was held back, when the stream ends without a stop string.
    pub fn finish(&mut self) -> String {
        self.stopped = true;
        std::mem::take(&mut self.held)
    }

    /// Moves every pattern on by one byte. Returns the index of the longest that is now complete.
    fn step(&mut self, byte: u8) -> Option<usize> {
        let mut found: Option<usize> = None;
        for index in 0..self.patterns.len() {
            let complete = self.patterns[index].step(byte);
            let length = self.patterns[index].bytes.len();
            // All patterns move on, also after one is complete, because a longer one may be complete at the same
            // byte.
            if complete && found.is_none_or(|best| length > self.patterns[best].bytes.len()) {
                found = Some(index);
            }
        }
        found
    }

    fn stop(&mut self, index: usize, end: usize) -> StopOutcome {
        self.stopped = true;
        let mut text = std::mem::take(&mut self.held);
        text.truncate(match self.in_output {
            StopStringInOutput::Exclude => end - self.patterns[index].bytes.len(),
            StopStringInOutput::Include => end,
        });
        StopOutcome { text, matched: Some(index) }
    }
}

/// One stop string with its failure function.
///
/// Source: Knuth, Morris and Pratt, "Fast pattern matching in strings" (1977).
#[derive(Debug, Clone)]
struct Pattern {
    bytes: Box<[u8]>,
    /// `border[i]`: length of the longest proper prefix of `bytes[..=i]` that is also its suffix.
    border: Box<[usize]>,
    /// Number of its first bytes with which the text ends now.
    matched: usize,
}

impl Pattern {
    fn new(text: &str) -> Self {
        let bytes: Box<[u8]> = text.as_bytes().into();
        let mut border = vec![0; bytes.len()];
        for i in 1..bytes.len() {
            let mut length = border[i - 1];
            while length > 0 && bytes[i] != bytes[length] {
                length = border[length - 1];
            }
            border[i] = length + usize::from(bytes[i] == bytes[length]);
        }
        Self { bytes, border: border.into(), matched: 0 }
    }

    /// Appends a byte to the text. Returns true if the text now ends with the whole pattern. It is not called again
    /// after that.
    fn step(&mut self, byte: u8) -> bool {
        while self.matched > 0 && self.bytes[self.matched] != byte {
            self.matched = self.border[self.matched - 1];
        }
        self.matched += usize::from(self.bytes[self.matched] == byte);
        self.matched == self.bytes.len()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The text that a client gets and the match, by a search in the whole text.
    fn naive(
        stops: &[String],
        text: &str,
        in_output: StopStringInOutput,
    ) -> (String, Option<usize>) {
        for end in (0..=text.len()).filter(|&end| text.is_char_boundary(end)) {
            let complete =
                stops.iter().enumerate().filter(|(_, stop)| text[..end].ends_with(stop.as_str()));
            if let Some((index, stop)) =
                complete.max_by_key(|(index, stop)| (stop.len(), usize::MAX - index))
            {
                let cut = match in_output {
                    StopStringInOutput::Exclude => end - stop.len(),
                    StopStringInOutput::Include => end,
                };
                return (text[..cut].to_owned(), Some(index));
            }
        }
        (text.to_owned(), None)
    }

    fn stream(
        stops: &[String],
        pieces: &[String],
        in_output: StopStringInOutput,
    ) -> (String, Option<usize>) {
        let mut matcher = StopMatcher::new(stops, in_output).unwrap();
        let mut text = String::new();
        for piece in pieces {
            let outcome = matcher.push(piece);
            text.push_str(&outcome.text);
            if outcome.matched.is_some() {
                assert_eq!(
                    matcher.push("more"),
                    StopOutcome { text: String::new(), matched: None }
                );
                return (text, outcome.matched);
            }
        }
        text.push_str(&matcher.finish());
        (text, None)
    }

    #[test]
    fn holds_back_only_what_may_begin_a_stop_string() {
        let mut matcher =
            StopMatcher::new(&["</s>", "\n\nUser:"], StopStringInOutput::Exclude).unwrap();
        assert_eq!(matcher.push("Hello <").text, "Hello ");
        assert_eq!(matcher.push("/b>\n").text, "</b>");
        assert_eq!(matcher.push("\nUs").text, "");
        assert_eq!(matcher.push("eful\n\nUser").text, "\n\nUseful");
        assert_eq!(matcher.push(": x"), StopOutcome { text: String::new(), matched: Some(1) });
        assert_eq!(matcher.finish(), "");
    }

    #[test]
    fn no_stop_string_goes_on_behind_an_interruption() {
        let mut matcher = StopMatcher::new(&["abc", "c"], StopStringInOutput::Exclude).unwrap();
        assert_eq!(matcher.push("xab").text, "x");
        assert_eq!(matcher.interrupt(), "ab");
        assert_eq!(matcher.push("abd").text, "abd");
        assert_eq!(matcher.push("ab").text, "");
        assert_eq!(matcher.interrupt(), "ab");
        assert_eq!(matcher.push("c"), StopOutcome { text: String::new(), matched: Some(1) });
        assert_eq!(matcher.interrupt(), "");
    }

    #[test]
    fn no_stop_string_holds_nothing_back() {
        let mut matcher = StopMatcher::new::<&str>(&[], StopStringInOutput::Exclude).unwrap();
        assert_eq!(matcher.push("é"), StopOutcome { text: "é".into(), matched: None });
    }

    #[test]
    fn an_empty_stop_string_is_refused() {
        let error = StopMatcher::new(&["a", ""], StopStringInOutput::Exclude).unwrap_err();
        assert!(matches!(error, Error::EmptyStopString { index: 1 }));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]
        #[test]
        fn equals_a_search_of_the_whole_text(
            stops in prop::collection::vec("[abé🎈]{1,4}", 0..5),
            pieces in prop::collection::vec("[abcé🎈]{0,6}", 0..12),
            include in any::<bool>(),
        ) {
            let in_output = if include { StopStringInOutput::Include } else { StopStringInOutput::Exclude };
            let expected = naive(&stops, &pieces.concat(), in_output);
            prop_assert_eq!(stream(&stops, &pieces, in_output), expected);
        }

        #[test]
        fn what_is_passed_may_begin_a_stop_string_and_ends_none(
            stops in prop::collection::vec("[abé🎈]{1,4}", 0..5),
            passed in prop::collection::vec("[abcé🎈]{0,6}", 0..4),
            pushed in prop::collection::vec("[abcé🎈]{0,6}", 0..6),
        ) {
            let mut matcher = StopMatcher::new(&stops, StopStringInOutput::Exclude).unwrap();
            let mut text: String = passed.iter().map(|piece| matcher.pass(piece)).collect();
            let mut matched = None;
            for piece in &pushed {
                let outcome = matcher.push(piece);
                text.push_str(&outcome.text);
                matched = matched.or(outcome.matched);
            }
            text.push_str(&matcher.finish());
            let (before, whole) = (passed.concat().len(), [passed, pushed].concat().concat());
            let whole = whole.as_str();
            let ends = (before + 1..=whole.len()).filter(|&end| whole.is_char_boundary(end));
            let longest = |end: usize| {
                let complete = stops.iter().filter(move |stop| whole[..end].ends_with(stop.as_str()));
                complete.map(|stop| stop.len()).max()
            };
            let found = ends.into_iter().find_map(|end| Some((end, longest(end)?)));
            prop_assert_eq!(matched.is_some(), found.is_some());
            let cut = found.map_or(whole.len(), |(end, len)| end - len);
            prop_assert_eq!(text, &whole[..cut]);
        }

        #[test]
        fn held_text_is_the_longest_that_may_begin_a_stop_string(
            stops in prop::collection::vec("[abé]{1,4}", 1..4),
            text in "[abcé]{0,12}",
        ) {
            let mut matcher = StopMatcher::new(&stops, StopStringInOutput::Exclude).unwrap();
            let outcome = matcher.push(&text);
            if outcome.matched.is_some() {
                return Ok(());
            }
            let longest = (0..=text.len())
                .filter(|&at| text.is_char_boundary(at))
                .find(|&at| stops.iter().any(|stop| stop.starts_with(&text[at..])))
                .expect("the empty suffix begins every stop string");
            prop_assert_eq!(outcome.text, &text[..longest]);
            prop_assert_eq!(matcher.finish(), &text[longest..]);
        }
    }
}
