//! `<tool_call>name<arg_key>key</arg_key><arg_value>value</arg_value></tool_call>`.

use super::xml::{Attribute, Marks};
use super::{Arguments, Format, Layout, LineBreaks};

const MARKS: Marks = Marks {
    open_all: "",
    open: "<tool_call>",
    after_name: "",
    after_attributes: "",
    before_key: "<arg_key>",
    after_key: "</arg_key>",
    before_value: "<arg_value>",
    after_value: "</arg_value>",
    close: "</tool_call>",
    close_all: "",
    on_lines: false,
    attribute: Attribute::Absent,
    instead: &[],
};

pub(super) const GLM45: Format = Format {
    name: "glm45",
    models: "GLM 4.5 to 4.7",
    marks: &[
        "<tool_call>",
        "</tool_call>",
        "<arg_key>",
        "</arg_key>",
        "<arg_value>",
        "</arg_value>",
    ],
    openers: &["<tool_call>"],
    // The mark alone occurs in reasoning about calls. A call goes on with a key, or ends at once.
    ends_reasoning: Some(r"<tool_call>[^<]*<\/?(arg_key|tool_call)>"),
    head: |text, _, _| MARKS.head(text),
    arguments: Arguments::Elements(&MARKS),
    tail: |text, _| MARKS.tail(text),
    layout: Layout {
        before_name: "<tool_call>",
        after_arguments: "</tool_call>",
        separator: "\n",
        line_breaks: LineBreaks::Optional,
        trigger: Some("<tool_call>"),
        ..Layout::PLAIN
    },
    wrote: |call| MARKS.are_around(call),
    ..Format::PLAIN
};
