//! Counts the reasoning tokens of an answer, for budgets that close reasoning.

use crate::format::{ReasoningFormat, Thinking};

/// The marks around reasoning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ThoughtMarks {
    /// The opening mark.
    pub open: &'static str,
    /// The closing mark.
    pub close: &'static str,
    /// The text that closes reasoning, in the models' form.
    pub ending: &'static str,
}

impl ThoughtMarks {
    /// The marks of a format.
    pub fn of(format: ReasoningFormat) -> Self {
        match format.marks() {
            // Source: Qwen3's and DeepSeek's chat templates.
            Some((open, "</think>")) => Self { open, close: "</think>", ending: "\n</think>\n\n" },
            // Source: the published template of Solar Open, which begins another message behind reasoning.
            Some((open, "<|end|>")) => {
                Self { open, close: "<|end|>", ending: "<|end|><|begin|>assistant" }
            }
            Some((open, close)) => Self { open, close, ending: close },
            // Source: OpenAI's harmony format, whose next message is the answer or a call.
            None => Self {
                open: "<|channel|>analysis<|message|>",
                close: "<|end|>",
                ending: "<|end|><|start|>assistant",
            },
        }
    }
}

/// A counter of reasoning tokens in the text of an answer.
#[derive(Clone, Debug)]
pub struct ThoughtMeter {
    marks: ThoughtMarks,
    state: State,
}

#[derive(Clone, Debug)]
enum State {
    /// Only a prefix of the opening mark was seen.
    Before {
        seen: String,
    },
    /// In the reasoning. `tail` is the end of the text, in which the closing mark may begin.
    Within {
        num_tokens: usize,
        tail: String,
    },
    Over,
}

impl ThoughtMeter {
    /// A counter for an answer that begins at `thinking`.
    pub fn new(marks: ThoughtMarks, thinking: Thinking) -> Self {
        let state = match thinking {
            Thinking::Open => State::Within { num_tokens: 0, tail: String::new() },
            Thinking::Possible => State::Before { seen: String::new() },
            Thinking::Closed => State::Over,
        };
        Self { marks, state }
    }

    /// Adds the text of the next token, which may be empty. Returns the number of reasoning tokens; `None` outside of reasoning.
    pub fn push(&mut self, text: &str) -> Option<usize> {
        match &mut self.state {
            State::Over => None,
            State::Before { seen } => {
                seen.push_str(text);
                let begun = seen.trim_start();
                if let Some(rest) = begun.strip_prefix(self.marks.open) {
                    let tail = rest.to_owned();
                    self.state = State::Within { num_tokens: 0, tail };
                } else if !self.marks.open.starts_with(begun) {
                    self.state = State::Over;
                }
                None
            }
            State::Within { num_tokens, tail } => {
                // A mark may be cut into several tokens, and those of its beginning count as reasoning.
                tail.push_str(text);
                if tail.contains(self.marks.close) {
                    self.state = State::Over;
                    return None;
                }
                // One byte less would suffice. The tail has a limit, because the whole reasoning would be searched
                // with each token.
                let most = self.marks.close.len();
                let cut = tail.floor_char_boundary(tail.len().saturating_sub(most));
                tail.drain(..cut);
                *num_tokens += 1;
                Some(*num_tokens)
            }
        }
    }

    /// Notes that the server has closed the reasoning.
    pub fn close(&mut self) {
        self.state = State::Over;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(format: ReasoningFormat, thinking: Thinking, pieces: &[&str]) -> Vec<Option<usize>> {
        let mut meter = ThoughtMeter::new(ThoughtMarks::of(format), thinking);
        pieces.iter().map(|piece| meter.push(piece)).collect()
    }

    #[test]
    fn tokens_of_a_thought_are_counted() {
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
}
