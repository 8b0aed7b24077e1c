//! `<invoke name="name"><parameter name="key">value</parameter></invoke>` in `<minimax:tool_call>`.

use super::xml::{Attribute, Marks};
use super::{Arguments, Format, Layout, LineBreaks};

const MARKS: Marks = Marks {
    open_all: "<minimax:tool_call>",
    open: "<invoke name=\"",
    after_name: "\">",
    after_attributes: "",
    before_key: "<parameter name=\"",
    after_key: "\">",
    before_value: "",
    after_value: "</parameter>",
    close: "</invoke>",
    close_all: "</minimax:tool_call>",
    on_lines: false,
    attribute: Attribute::Absent,
    instead: &[],
};

pub(super) const MINIMAX_M2: Format = Format {
    name: "minimax_m2",
    models: "MiniMax-M2",
    marks: &["<minimax:tool_call>", "</minimax:tool_call>"],
    openers: &["<minimax:tool_call>", "<invoke name=\""],
    ends_reasoning: Some("<invoke name=\""),
    head: |text, _, _| MARKS.head(text),
    arguments: Arguments::Elements(&MARKS),
    tail: |text, _| MARKS.tail(text),
    layout: Layout {
        open: "<minimax:tool_call>\n",
        before_name: "<invoke name=\"",
        before_arguments: "\">",
        after_arguments: "</invoke>\n",
        line_breaks: LineBreaks::Written,
        close: "</minimax:tool_call>",
        trigger: Some("<minimax:tool_call>"),
        ..Layout::PLAIN
    },
    wrote: |call| MARKS.are_around(call),
    ..Format::PLAIN
};
