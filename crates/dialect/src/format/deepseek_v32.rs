//! DeepSeek V3.2 and V4: elements marked `｜DSML｜`, with an attribute for each value that shows whether it is a string.
//!
//! Their repositories have no chat template that writes calls, so users ask for them by name. Sources: the models' files
//! `encoding/encoding_dsv32.py` and `encoding/encoding_dsv4.py`, and vLLM's parsers `deepseek_v32` and `deepseek_v4`.

use super::xml::{Attribute, Marks};
use super::{Arguments, Format, Layout, LineBreaks};

const MARKS: Marks = Marks {
    open_all: "<｜DSML｜function_calls>",
    open: "<｜DSML｜invoke name=\"",
    after_name: "\">",
    after_attributes: "",
    before_key: "<｜DSML｜parameter name=\"",
    after_key: "\">",
    before_value: "",
    after_value: "</｜DSML｜parameter>",
    close: "</｜DSML｜invoke>",
    close_all: "</｜DSML｜function_calls>",
    on_lines: false,
    attribute: Attribute::IsString,
    instead: &[],
};

pub(super) const DEEPSEEK_V32: Format = Format {
    name: "deepseek_v32",
    models: "DeepSeek V3.2",
    // One special token stands within all marks. The text around it is plain.
    marks: &["｜DSML｜"],
    openers: &["<｜DSML｜function_calls>", "<｜DSML｜invoke name=\""],
    ends_reasoning: Some("<｜DSML｜(function_calls|invoke)"),
    head: |text, _, _| MARKS.head(text),
    arguments: Arguments::Elements(&MARKS),
    tail: |text, _| MARKS.tail(text),
    layout: Layout {
        open: "<｜DSML｜function_calls>\n",
        before_name: "<｜DSML｜invoke name=\"",
        before_arguments: "\">",
        after_arguments: "</｜DSML｜invoke>\n",
        line_breaks: LineBreaks::Written,
        close: "</｜DSML｜function_calls>",
        trigger: Some("<｜DSML｜function_calls>"),
        ..Layout::PLAIN
    },
    wrote: |call| MARKS.are_around(call),
    ..Format::PLAIN
};

const MARKS_V4: Marks =
    Marks { open_all: "<｜DSML｜tool_calls>", close_all: "</｜DSML｜tool_calls>", ..MARKS };

pub(super) const DEEPSEEK_V4: Format = Format {
    name: "deepseek_v4",
    models: "DeepSeek V4",
    openers: &["<｜DSML｜tool_calls>", "<｜DSML｜invoke name=\""],
    ends_reasoning: Some("<｜DSML｜(tool_calls|invoke)"),
    head: |text, _, _| MARKS_V4.head(text),
    arguments: Arguments::Elements(&MARKS_V4),
    tail: |text, _| MARKS_V4.tail(text),
    layout: Layout {
        open: "<｜DSML｜tool_calls>\n",
        close: "</｜DSML｜tool_calls>",
        trigger: Some("<｜DSML｜tool_calls>"),
        ..DEEPSEEK_V32.layout
    },
    wrote: |call| MARKS_V4.are_around(call),
    ..DEEPSEEK_V32
};
