//! Splits Markdown into blocks: paragraphs, list items, table cells and headings, without code and markup.

use pulldown_cmark::{Event, Options, Parser, Tag, TagEnd};

use super::passage::Passage;

/// Replaces inline code, placeholders and addresses. It counts as one word, and renaming an identifier changes no
/// digest.
pub(crate) const CODE: char = '`';

/// The kind of a block, which decides the rules for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// A paragraph or a list item.
    Running,
    /// A cell of a table. All rules apply, but it is not counted, since most cells are no sentences.
    Cell,
    /// A heading. Only its words are checked.
    Heading,
}

/// A block of text on one line, with the lines that it came from.
#[derive(Debug)]
pub(crate) struct Block {
    pub(crate) place: Place,
    pub(crate) text: String,
    /// Positions in `text`, with the file's lines that begin there.
    lines: Vec<(usize, usize)>,
}

impl Block {
    fn new(place: Place) -> Self {
        Self { place, text: String::new(), lines: Vec::new() }
    }

    fn push(&mut self, text: &str, line: usize) {
        self.lines.push((self.text.len(), line));
        self.text.push_str(text);
    }

    /// The file's line of a byte of `text`.
    pub(crate) fn line_at(&self, offset: usize) -> usize {
        let after = self.lines.partition_point(|&(start, _)| start <= offset);
        after.checked_sub(1).map_or(1, |i| self.lines[i].1)
    }
}

/// The blocks of a passage.
pub(crate) fn blocks(passage: &Passage) -> Vec<Block> {
    match passage.is_plain {
        true => plain_blocks(passage),
        false => markdown_blocks(passage),
    }
}

fn markdown_blocks(passage: &Passage) -> Vec<Block> {
    let (mut blocks, mut block) = (Vec::new(), Block::new(Place::Running));
    let mut in_code = false;
    let events = Parser::new_ext(&passage.text, Options::ENABLE_TABLES).into_offset_iter();
    for (event, range) in events {
        let line = passage.line_at(range.start);
        match event {
            Event::Text(text) if !in_code => block.push(&text, line),
            Event::Code(_) => block.push(&CODE.to_string(), line),
            Event::SoftBreak | Event::HardBreak => block.push(" ", line),
            Event::Start(tag) if is_block(&tag) => {
                in_code |= matches!(tag, Tag::CodeBlock(_));
                let place = match tag {
                    Tag::Heading { .. } => Place::Heading,
                    Tag::TableCell => Place::Cell,
                    _ => Place::Running,
                };
                blocks.push(std::mem::replace(&mut block, Block::new(place)));
            }
            Event::End(end) if ends_block(end) => {
                in_code &= end != TagEnd::CodeBlock;
                blocks.push(std::mem::replace(&mut block, Block::new(Place::Running)));
            }
            _ => {}
        }
    }
    blocks.push(block);
    blocks.retain(|block| !block.text.trim().is_empty());
    blocks
}

fn is_block(tag: &Tag<'_>) -> bool {
    // An image ends a paragraph here: its alternative text is no part of the sentence.
    !matches!(tag, Tag::Emphasis | Tag::Strong | Tag::Strikethrough | Tag::Link { .. })
}

fn ends_block(end: TagEnd) -> bool {
    !matches!(end, TagEnd::Emphasis | TagEnd::Strong | TagEnd::Strikethrough | TagEnd::Link)
}

/// One block for each line. Text between backticks or braces is code.
fn plain_blocks(passage: &Passage) -> Vec<Block> {
    let mut blocks = Vec::new();
    let mut offset = 0;
    for line in passage.text.split_inclusive('\n') {
        let mut block = Block::new(Place::Running);
        block.push(&without_code(line.trim_end()), passage.line_at(offset));
        offset += line.len();
        // An indented line of a help text is an example.
        if !block.text.trim().is_empty() && !block.text.starts_with("  ") {
            blocks.push(block);
        }
    }
    blocks
}

fn without_code(line: &str) -> String {
    let mut text = String::with_capacity(line.len());
    let mut rest = line;
    while let Some(at) = rest.find(['`', '{']) {
        let close = if rest[at..].starts_with('`') { '`' } else { '}' };
        // A mark without its partner stays, since it is no code.
        let Some(len) = rest[at + 1..].find(close) else { break };
        text.push_str(&rest[..at]);
        text.push(CODE);
        rest = &rest[at + 1 + len + 1..];
    }
    text + rest
}

#[cfg(test)]
mod tests {
    use super::super::passage::Kind;
    use super::*;

    fn shown(text: &str, is_plain: bool) -> Vec<(Place, String, usize)> {
        let mut passage = Passage::of_lines(Kind::Help, "a.md", text, 1);
        passage.is_plain = is_plain;
        let blocks = blocks(&passage).into_iter();
        blocks.map(|block| (block.place, block.text.clone(), block.line_at(0))).collect()
    }

    #[test]
    fn paragraphs_items_cells_and_headings_are_blocks_and_code_is_none() {
        let text = "# Head\n\nOne *two*\nthree [link](x.md).\n\n```sh\ncode\n```\n- item\n  goes on\n  - inner\n\n\
                    | a | b |\n|---|---|\n| c | `d` e |\n";
        let expected = [
            (Place::Heading, "Head", 1),
            (Place::Running, "One two three link.", 3),
            (Place::Running, "item goes on", 9),
            (Place::Running, "inner", 11),
            (Place::Cell, "a", 13),
            (Place::Cell, "b", 13),
            (Place::Cell, "c", 15),
            (Place::Cell, "` e", 15),
        ];
        let expected = expected.map(|(place, text, line)| (place, text.to_owned(), line));
        assert_eq!(shown(text, false), expected);
    }

    #[test]
    fn a_message_has_a_block_a_line_and_no_examples() {
        let text = "The `file` {name} is *odd*.\nExamples:\n  run --it\n";
        let expected = [(Place::Running, "The ` ` is *odd*.", 1), (Place::Running, "Examples:", 2)];
        let expected = expected.map(|(place, text, line)| (place, text.to_owned(), line));
        assert_eq!(shown(text, true), expected);
    }
}
