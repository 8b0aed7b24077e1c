//! FunctionGemma: `<start_function_call>call:name{key:<escape>text<escape>}<end_function_call>`, the notation of Gemma 4 with other
//! marks.
//!
//! Sources: the publisher's page "FunctionGemma formatting and best practices", and vLLM's parser `functiongemma`.

use super::gemma4::{Marks, head, tail};
use super::{Arguments, Format, Layout};

const OPEN: &str = "<start_function_call>";
const CLOSE: &str = "<end_function_call>";
const QUOTE: &str = "<escape>";
const BEGIN: &str = "<start_function_call>call:";
const MARKS: Marks = Marks { begin: BEGIN, close: CLOSE, quote: QUOTE, all: [OPEN, CLOSE, QUOTE] };

pub(super) const FUNCTION_GEMMA: Format = Format {
    name: "functiongemma",
    models: "FunctionGemma",
    marks: &MARKS.all,
    openers: &[OPEN],
    ends_reasoning: Some("<start_function_call>call:"),
    head: |text, _, _| head(text, &MARKS),
    arguments: Arguments::Gemma(&MARKS),
    tail: |text, _| tail(text, &MARKS),
    layout: Layout {
        before_name: BEGIN,
        after_arguments: CLOSE,
        trigger: Some(OPEN),
        ..Layout::PLAIN
    },
    wrote: |call| call.is_between(BEGIN, "{"),
    ..Format::PLAIN
};
