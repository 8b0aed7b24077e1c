//! Counts the reasoning tokens of an answer, for budgets that close reasoning.

use crate::format::{ReasoningFormat, Thinking};

/// The marks around reasoning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReasoningMarks {
    /// The opening mark.
    pub open: &'static str,
    /// The closing mark.
    pub close: &'static str,
    /// The text that closes reasoning, in the models' form.
    pub ending: &'static str,
    /// The text that begins the content of an answer behind [`Self::ending`]; empty if there is none.
    pub content: &'static str,
    /// Whether an answer may open reasoning again.
    pub repeats: bool,
}

impl ReasoningMarks {
    /// The marks of a format.
    pub fn of(format: ReasoningFormat) -> Self {
        let once = |open, close, ending| Self { open, close, ending, content: "", repeats: false };
        match format.marks() {
            // Source: Qwen3's and DeepSeek's chat templates.
            Some((open, "</think>")) => once(open, "</think>", "\n</think>\n\n"),
            // Source: the published template of Solar Open, which begins another message behind reasoning.
            Some((open, "<|end|>")) => once(open, "<|end|>", "<|end|><|begin|>assistant"),
            Some((open, close)) => once(open, close, close),
            // Source: OpenAI's harmony format, whose next message is more reasoning, the answer or a call.
            None => Self {
                open: "<|channel|>analysis<|message|>",
                close: "<|end|>",
                ending: "<|end|><|start|>assistant",
                content: "<|channel|>final<|message|>",
                repeats: true,
            },
        }
    }
}

/// A counter of reasoning tokens in the text of an answer.
#[derive(Clone, Debug)]
pub struct ReasoningMeter {
    marks: ReasoningMarks,
    state: State,
}

#[derive(Clone, Debug)]
enum State {
    /// Only a prefix of the opening mark was seen.
    Before { seen: String },
    /// In the reasoning. `tail` is the end of the text, in which the closing mark may begin.
    Within { num_tokens: usize, tail: String },
    /// After the reasoning. `tail` is the end of the text, in which an opening mark may begin again.
    Over { num_tokens: usize, tail: String },
}

impl State {
    /// After a number of reasoning tokens.
    fn over(num_tokens: usize) -> Self {
        Self::Over { num_tokens, tail: String::new() }
    }
}

impl ReasoningMeter {
    /// A counter for an answer that begins at `thinking`.
    pub fn new(marks: ReasoningMarks, thinking: Thinking) -> Self {
        let state = match thinking {
            Thinking::Open => State::Within { num_tokens: 0, tail: String::new() },
            Thinking::Possible => State::Before { seen: String::new() },
            Thinking::Closed => State::over(0),
        };
        Self { marks, state }
    }

    /// Adds the text of the next token, which may be empty. Returns the number of reasoning tokens; `None` outside of reasoning.
    pub fn push(&mut self, text: &str) -> Option<usize> {
        match &mut self.state {
            State::Over { .. } if !self.marks.repeats => None,
            State::Over { num_tokens, tail } => {
                tail.push_str(text);
                if let Some(at) = tail.find(self.marks.open) {
                    let tail = tail.split_off(at + self.marks.open.len());
                    self.state = State::Within { num_tokens: *num_tokens, tail };
                } else {
                    shorten(tail, self.marks.open.len());
                }
                None
            }
            State::Before { seen } => {
                seen.push_str(text);
                let begun = seen.trim_start();
                if let Some(rest) = begun.strip_prefix(self.marks.open) {
                    let tail = rest.to_owned();
                    self.state = State::Within { num_tokens: 0, tail };
                } else if !self.marks.open.starts_with(begun) {
                    self.state = State::Over { num_tokens: 0, tail: std::mem::take(seen) };
                }
                None
            }
            State::Within { num_tokens, tail } => {
                // A mark may be cut into several tokens, and those of its beginning count as reasoning.
                tail.push_str(text);
                if tail.contains(self.marks.close) {
                    self.state = State::over(*num_tokens);
                    return None;
                }
                shorten(tail, self.marks.close.len());
                *num_tokens += 1;
                Some(*num_tokens)
            }
        }
    }

    /// Notes that the server has closed the reasoning.
    pub fn close(&mut self) {
        let num_tokens = match self.state {
            State::Before { .. } => 0,
            State::Within { num_tokens, .. } | State::Over { num_tokens, .. } => num_tokens,
        };
        self.state = State::over(num_tokens);
    }
}

/// Keeps about the last `most` bytes. One byte less would suffice for a mark of this length. Without a limit, the whole text would be
/// searched with each token.
fn shorten(tail: &mut String, most: usize) {
    let cut = tail.floor_char_boundary(tail.len().saturating_sub(most));
    tail.drain(..cut);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(format: ReasoningFormat, thinking: Thinking, pieces: &[&str]) -> Vec<Option<usize>> {
        let mut meter = ReasoningMeter::new(ReasoningMarks::of(format), thinking);
        pieces.iter().map(|piece| meter.push(piece)).collect()
    }

    #[test]
    fn tokens_of_reasoning_are_counted() {
        let qwen = ReasoningFormat::Qwen3;
        assert_eq!(
            counts(qwen, Thinking::Open, &["a", "", "b</th", "ink>", "c"]),
            [Some(1), Some(2), Some(3), None, None]
        );
        assert_eq!(
            counts(qwen, Thinking::Possible, &["\n", "<th", "ink>", "\n", "é", "</think>", "x"]),
            [None, None, None, Some(1), Some(2), None, None]
        );
        assert_eq!(counts(qwen, Thinking::Possible, &["Hi", "<think>", "x"]), [None; 3]);
        assert_eq!(counts(qwen, Thinking::Closed, &["a"]), [None]);
        let harmony = ["<|channel|>", "analysis", "<|message|>", "a", "<|end|>", "b"];
        assert_eq!(
            counts(ReasoningFormat::GptOss, Thinking::Possible, &harmony),
            [None, None, None, Some(1), None, None]
        );
    }

    #[test]
    fn reasoning_of_several_messages_is_counted_together() {
        let pieces = [
            "<|channel|>analysis<|message|>",
            "a",
            "b",
            "<|end|>",
            "<|start|>assistant",
            "<|channel|>",
            "analysis",
            "<|message|>",
            "c",
            "<|end|>",
            "<|start|>assistant<|channel|>final<|message|>",
            "d",
        ];
        let mut expected = [None; 12];
        (expected[1], expected[2], expected[8]) = (Some(1), Some(2), Some(3));
        assert_eq!(counts(ReasoningFormat::GptOss, Thinking::Possible, &pieces), expected);
        // A preamble comes first.
        let pieces = [
            "<|channel|>",
            "commentary<|message|>x<|end|><|start|>assistant",
            "<|channel|>analysis<|message|>",
            "a",
        ];
        let expected = [None, None, None, Some(1)];
        assert_eq!(counts(ReasoningFormat::GptOss, Thinking::Possible, &pieces), expected);
        // Other formats have reasoning once.
        let pieces = ["<think>", "a", "</think>", "<think>", "b"];
        let expected = [None, Some(1), None, None, None];
        assert_eq!(counts(ReasoningFormat::Qwen3, Thinking::Possible, &pieces), expected);
    }
}
