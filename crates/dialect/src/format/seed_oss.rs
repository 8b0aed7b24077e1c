//! Seed-OSS: `<function=name><parameter=key>value</parameter></function>` in `<seed:tool_call>`.
//!
//! Sources: its published template, and vLLM's parser `seed_oss`.

use super::xml::Marks;
use super::{Arguments, Format, Layout, LineBreaks, qwen3_coder};

const MARKS: Marks = Marks {
    open_all: "<seed:tool_call>",
    close_all: "</seed:tool_call>",
    // The template writes values beside their marks, so line breaks around a value belong to it.
    on_lines: false,
    instead: &[],
    ..qwen3_coder::MARKS
};

pub(super) const SEED_OSS: Format = Format {
    name: "seed_oss",
    models: "Seed-OSS",
    marks: &["<seed:tool_call>", "</seed:tool_call>"],
    openers: &["<seed:tool_call>"],
    ends_reasoning: Some("<function=[^<>]*>"),
    head: |text, _, _| MARKS.head(text),
    arguments: Arguments::Elements(&MARKS),
    tail: |text, _| MARKS.tail(text),
    layout: Layout {
        before_name: "<seed:tool_call>\n<function=",
        before_arguments: ">",
        after_arguments: "</function>\n</seed:tool_call>",
        separator: "\n",
        line_breaks: LineBreaks::Written,
        trigger: Some("<seed:tool_call>"),
        ..Layout::PLAIN
    },
    wrote: |call| MARKS.are_around(call),
    ..Format::PLAIN
};
