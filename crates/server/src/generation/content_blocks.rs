//! An answer as a list of blocks: reasoning, texts and tool calls, in the order in which the model wrote them.

use std::collections::BTreeSet;

use candlepower_api::{ChatMessage, Content, FinishReason, PastToolCall, Role};
use candlepower_dialect::OutputEvent;
use candlepower_engine::TokenLogprobs;

use crate::generation::chat_output::{Answer, AnswerPart};
use crate::generation::stream::Delta;

/// A part of an answer of one kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Block {
    /// Reasoning.
    Reasoning(String),
    /// Content.
    Text(String),
    /// A tool call.
    Call {
        /// Id of the call, which the tool's result repeats.
        id: String,
        /// Name of the function.
        name: String,
        /// Arguments as JSON text, as the model wrote it.
        arguments: String,
    },
}

/// A change of a block. Blocks are numbered from 0, and each ends before the next begins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum BlockEvent {
    Start(usize),
    /// Text or arguments to append.
    Delta(usize, String),
    End(usize),
}

/// The blocks of one answer while it is generated.
#[derive(Debug)]
pub(crate) struct Blocks {
    answer: Answer,
    blocks: Vec<Block>,
    /// The incomplete calls.
    open_calls: BTreeSet<usize>,
    /// Log-probabilities of tokens whose text is not sent yet.
    waiting: Vec<TokenLogprobs>,
}

/// Log-probabilities of the tokens of an addition to a text, with the index of its block.
pub(crate) type TextLogprobs = (usize, Vec<TokenLogprobs>);

impl Block {
    /// An empty block of this kind.
    fn begun(&self) -> Self {
        match self {
            Self::Reasoning(_) => Self::Reasoning(String::new()),
            Self::Text(_) => Self::Text(String::new()),
            Self::Call { id, name, .. } => {
                Self::Call { id: id.clone(), name: name.clone(), arguments: String::new() }
            }
        }
    }

    fn body_mut(&mut self) -> &mut String {
        match self {
            Self::Reasoning(text) | Self::Text(text) | Self::Call { arguments: text, .. } => text,
        }
    }
}

impl Blocks {
    pub(crate) fn new(answer: Answer) -> Self {
        Self { answer, blocks: Vec::new(), open_calls: BTreeSet::new(), waiting: Vec::new() }
    }

    /// All blocks so far; at least one after the last piece.
    pub(crate) fn list(&self) -> &[Block] {
        &self.blocks
    }

    /// A block as it was at its start.
    pub(crate) fn begun(&self, index: usize) -> Block {
        self.blocks[index].begun()
    }

    /// The events of the next piece of an answer, and the log-probabilities of its text. Tokens are reported with the first text that they
    /// produced; tokens of reasoning and calls are not reported.
    pub(crate) fn push_delta(&mut self, delta: Delta) -> (Vec<BlockEvent>, Option<TextLogprobs>) {
        let events = self.push(delta.parts, delta.finish.map(|finish| finish.reason));
        self.waiting.extend(delta.logprobs);
        let added = events.iter().rev().find_map(|event| match event {
            BlockEvent::Delta(index, _) => Some(*index),
            _ => None,
        });
        let Some(index) = added else { return (events, None) };
        let logprobs = std::mem::take(&mut self.waiting);
        let is_text = matches!(self.blocks[index], Block::Text(_)) && !logprobs.is_empty();
        (events, is_text.then_some((index, logprobs)))
    }

    /// Adds the next piece; `finish` comes with the last one.
    pub(crate) fn push(
        &mut self,
        piece: Vec<OutputEvent>,
        finish: Option<FinishReason>,
    ) -> Vec<BlockEvent> {
        let mut events = Vec::new();
        for part in self.answer.push(piece) {
            match part {
                AnswerPart::CallStart { id, name, .. } => {
                    self.open_calls.insert(self.blocks.len());
                    self.begin(Block::Call { id, name, arguments: String::new() }, &mut events);
                }
                AnswerPart::CallArguments { fragment, .. } => self.append(fragment, &mut events),
                AnswerPart::CallEnd => {
                    self.open_calls.pop_last();
                }
                AnswerPart::Text(text) => {
                    self.extend(Block::Text(String::new()), text, &mut events);
                }
                AnswerPart::Reasoning(text) => {
                    self.extend(Block::Reasoning(String::new()), text, &mut events);
                }
            }
        }
        if finish.is_some() {
            if self.blocks.is_empty() {
                self.begin(Block::Text(String::new()), &mut events);
            }
            events.push(BlockEvent::End(self.blocks.len() - 1));
        }
        events
    }

    /// The finish reason of the answer, from that of its text.
    pub(crate) fn finish_reason(&self, reason: FinishReason) -> FinishReason {
        self.answer.finish_reason(reason)
    }

    /// Whether the answer is incomplete, given the finish reason of its text.
    pub(crate) fn is_cut(&self, reason: FinishReason) -> bool {
        self.answer.is_cut(reason)
    }

    /// Whether a block is incomplete. `reason` is the finish reason of the text, if it has ended.
    pub(crate) fn is_cut_at(&self, index: usize, reason: Option<FinishReason>) -> bool {
        let is_last = index + 1 == self.blocks.len();
        let breaks_off = reason.is_some_and(|reason| reason != FinishReason::Stop);
        self.open_calls.contains(&index) || (is_last && breaks_off)
    }

    fn begin(&mut self, block: Block, events: &mut Vec<BlockEvent>) {
        let index = self.blocks.len();
        if index > 0 {
            events.push(BlockEvent::End(index - 1));
        }
        self.blocks.push(block);
        events.push(BlockEvent::Start(index));
    }

    /// Appends to the last block if it has the kind of `begun`, otherwise begins that block.
    fn extend(&mut self, begun: Block, mut text: String, events: &mut Vec<BlockEvent>) {
        let kind = std::mem::discriminant(&begun);
        if self.blocks.last().map(std::mem::discriminant) != Some(kind) {
            // Line breaks between blocks have no meaning.
            if self.blocks.iter().any(|block| std::mem::discriminant(block) == kind) {
                text = text.trim_start_matches('\n').to_owned();
            }
            self.begin(begun, events);
        }
        self.append(text, events);
    }

    fn append(&mut self, text: String, events: &mut Vec<BlockEvent>) {
        if let Some(last) = self.blocks.last_mut() {
            last.body_mut().push_str(&text);
            events.push(BlockEvent::Delta(self.blocks.len() - 1, text));
        }
    }
}

/// The assistant message with these blocks.
pub(crate) fn turn(blocks: &[Block]) -> ChatMessage {
    let (mut content, mut reasoning, mut calls) = (String::new(), String::new(), Vec::new());
    for block in blocks {
        match block {
            Block::Reasoning(text) => reasoning.push_str(text),
            Block::Text(text) => content.push_str(text),
            Block::Call { id, name, arguments } => {
                calls.push(PastToolCall::new(id, name, arguments.as_str().into()));
            }
        }
    }
    let says_nothing = content.is_empty() && !calls.is_empty();
    ChatMessage {
        content: (!says_nothing).then_some(Content::Text(content)),
        reasoning_content: (!reasoning.is_empty()).then_some(reasoning),
        tool_calls: (!calls.is_empty()).then_some(calls),
        ..ChatMessage::text(Role::Assistant, String::new())
    }
}

#[cfg(test)]
mod tests {
    use candlepower_dialect::{Callable, Dialect, ReasoningFormat, Thinking, ToolFormat};

    use super::*;
    use crate::generation::chat_output::AnswerFormat;

    fn format() -> AnswerFormat {
        let dialect =
            Dialect { tools: Some(ToolFormat::Hermes), reasoning: Some(ReasoningFormat::Qwen3) };
        let functions = Some([Callable { name: "f".into(), parameters: None }].into());
        AnswerFormat { dialect, thinking: Thinking::Possible, functions, are_calls: false }
    }

    const ANSWER: &str = "<think>\nHm.\n</think>\n\nI look.\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}\n</tool_call>\n\
        <tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>";

    #[test]
    fn blocks_come_one_after_another_however_the_text_is_cut() {
        for pieces in [vec![ANSWER], ANSWER.split_inclusive(|_| true).collect()] {
            let (mut blocks, mut parser) = (Blocks::new(format().answer()), format().parser());
            let mut events = Vec::new();
            for piece in pieces {
                events.extend(blocks.push(parser.push(piece), None));
            }
            events.extend(blocks.push(parser.finish(), Some(FinishReason::Stop)));
            let mut bodies = Vec::new();
            let mut open = None;
            for event in events {
                match event {
                    BlockEvent::Start(index) => {
                        assert_eq!((open, index), (None, bodies.len()));
                        bodies.push(String::new());
                        open = Some(index);
                    }
                    BlockEvent::Delta(index, text) => {
                        assert_eq!(open, Some(index));
                        bodies[index].push_str(&text);
                    }
                    BlockEvent::End(index) => assert_eq!(open.take(), Some(index)),
                }
            }
            assert_eq!(open, None);
            assert_eq!(bodies, ["Hm.", "I look.", "{\"a\": 1}", "{}"]);
            assert_eq!(blocks.finish_reason(FinishReason::Stop), FinishReason::ToolCalls);
            let turn = turn(blocks.list());
            assert_eq!(turn.reasoning_content.as_deref(), Some("Hm."));
            assert_eq!(turn.content, Some(Content::Text("I look.".to_owned())));
            let calls = turn.tool_calls.unwrap();
            assert_eq!(calls.len(), 2);
            assert_eq!(calls[0].0["function"]["arguments"], "{\"a\": 1}");
        }
    }

    #[test]
    fn a_call_that_breaks_off_is_not_complete() {
        let (mut blocks, mut parser) = (Blocks::new(format().answer()), format().parser());
        let call = "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": </tool_call>";
        let whole = "<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>";
        blocks.push(parser.push(&format!("{call}{whole}Done.")), None);
        let stop = Some(FinishReason::Stop);
        blocks.push(parser.finish(), stop);
        let are_cut = |reason| [0, 1, 2].map(|index| blocks.is_cut_at(index, reason));
        assert_eq!(are_cut(stop), [true, false, false]);
        assert_eq!(are_cut(Some(FinishReason::Length)), [true, false, true]);
        assert!(blocks.is_cut(FinishReason::Stop));
        assert_eq!(blocks.finish_reason(FinishReason::Stop), FinishReason::Stop);
    }

    #[test]
    fn an_empty_answer_is_an_empty_text() {
        let mut blocks = Blocks::new(format().answer());
        let events = blocks.push(Vec::new(), Some(FinishReason::Length));
        assert_eq!(events, [BlockEvent::Start(0), BlockEvent::End(0)]);
        assert_eq!(blocks.list(), [Block::Text(String::new())]);
        assert_eq!(turn(blocks.list()).content, Some(Content::Text(String::new())));
    }
}
