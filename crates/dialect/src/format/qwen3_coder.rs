//! `<tool_call><function=name><parameter=key>value</parameter></function></tool_call>`.

use super::xml::{Attribute, Marks};
use super::{Arguments, Format, Layout, LineBreaks};

/// The marks of calls. Seed-OSS has the same, with its own marks around calls.
pub(super) const MARKS: Marks = Marks {
    open_all: "<tool_call>",
    open: "<function=",
    after_name: ">",
    after_attributes: "",
    before_key: "<parameter=",
    after_key: ">",
    before_value: "",
    after_value: "</parameter>",
    close: "</function>",
    close_all: "</tool_call>",
    on_lines: true,
    attribute: Attribute::Absent,
    instead: &["\n<parameter=", "\n</function>"],
};

pub(super) const QWEN3_CODER: Format = Format {
    name: "qwen3_coder",
    models: "Qwen3-Coder, Qwen3.5",
    marks: &["<tool_call>", "</tool_call>"],
    openers: &["<tool_call>", "<function="],
    ends_reasoning: Some("<function=[^<>]*>"),
    head: |text, _, _| MARKS.head(text),
    arguments: Arguments::Elements(&MARKS),
    tail: |text, _| MARKS.tail(text),
    layout: Layout {
        before_name: "<tool_call>\n<function=",
        before_arguments: ">",
        after_arguments: "</function>\n</tool_call>",
        separator: "\n",
        line_breaks: LineBreaks::Written,
        trigger: Some("<tool_call>"),
        ..Layout::PLAIN
    },
    wrote: |call| MARKS.are_around(call),
    ..Format::PLAIN
};
