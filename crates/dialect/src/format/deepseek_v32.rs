//! DeepSeek V3.2: elements that are marked `｜DSML｜`, and say of each value whether it is a string.
//!
//! Its repository has no chat template that writes calls, so users ask for it by its name. Sources: the model's file
//! `encoding/encoding_dsv32.py`, and vLLM's parser `deepseek_v32`.

use super::xml::Marks;
use super::{Arguments, Format, Layout, LineBreaks};

const MARKS: Marks = Marks {
    open_all: "<｜DSML｜function_calls>",
    open: "<｜DSML｜invoke name=\"",
    after_name: "\">",
    before_key: "<｜DSML｜parameter name=\"",
    after_key: "\">",
    before_value: "",
    after_value: "</｜DSML｜parameter>",
    close: "</｜DSML｜invoke>",
    close_all: "</｜DSML｜function_calls>",
    on_lines: false,
    says_strings: true,
    instead: &[],
};

pub(super) const DEEPSEEK_V32: Format = Format {
    name: "deepseek_v32",
    models: "DeepSeek V3.2",
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
