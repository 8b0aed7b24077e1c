//! Calls as JSON objects in a list after a mark, `MARK[{"name": .., "arguments": {..}}]`, of several models.
//!
//! Sources: the published templates of Granite 3.3, Nemotron Nano v2 and Command R7B, llama.cpp's of Phi-4-mini, Apertus and
//! Apriel 1.5, and vLLM's parsers `granite`, `phi4_mini_json`, `nemotron_json`, `minimax` and `xlam`.

use super::{Arguments, Format, Head, Layout, Position, Tail, object};
use crate::callable::Callable;
use crate::scan::{Cursor, Scan, Stop};
use crate::written_call::WrittenCall;

/// Fields that these formats share.
const LIST: Format = Format {
    arguments: Arguments::Json { closer: None },
    layout: Layout {
        before_name: "{\"name\": \"",
        before_arguments: "\", \"arguments\": ",
        after_arguments: "}",
        separator: ", ",
        close: "]",
        ..Layout::PLAIN
    },
    ..Format::PLAIN
};

const CALL: &str = "<|tool_call|>";
const CLOSE_CALL: &str = "<|/tool_call|>";
const FUNCTOOLS: &str = "functools";

/// `<|tool_call|>[{..}, {..}]`.
pub(super) const GRANITE: Format = Format {
    name: "granite",
    models: "Granite 3",
    marks: &[CALL],
    openers: &[CALL],
    ends_reasoning: Some(r"<\|tool_call\|>"),
    head: |text, position, _| head(text, position, &[CALL]),
    tail: |text, _| tail(text, None),
    layout: Layout { open: "<|tool_call|>[", trigger: Some(CALL), ..LIST.layout },
    // The template of Granite 3.3 writes no calls.
    offered: &["<|tool_call|> followed by a JSON list of tools used"],
    // Granite and Phi-4-mini share the opening mark. Only Phi-4-mini writes a closing one.
    wrote: |call| is_behind(call, CALL) && !call.after.contains(CLOSE_CALL),
    ..LIST
};

/// `<|tool_call|>{..}<|/tool_call|>`, or `functools[{..}]`, with which the models were trained.
pub(super) const PHI4_MINI: Format = Format {
    name: "phi4_mini_json",
    models: "Phi-4-mini",
    marks: &[CALL, CLOSE_CALL],
    // `functools` is also a module of Python. Text after it without a list of calls stays content.
    openers: &[CALL, FUNCTOOLS],
    head: |text, position, _| head(text, position, &[CALL, FUNCTOOLS]),
    tail: |text, _| tail(text, Some(CLOSE_CALL)),
    layout: Layout {
        before_name: "<|tool_call|>{\"name\": \"",
        after_arguments: "}<|/tool_call|>",
        separator: "",
        close: "",
        trigger: Some(CALL),
        ..LIST.layout
    },
    wrote: |call| is_behind(call, CALL) && call.after.contains(CLOSE_CALL),
    ..LIST
};

const TOOLCALL: &str = "<TOOLCALL>";
const CLOSE_TOOLCALL: &str = "</TOOLCALL>";

/// `<TOOLCALL>[{..}, {..}]</TOOLCALL>`.
pub(super) const NEMOTRON: Format = Format {
    name: "nemotron_json",
    models: "Nemotron Nano v2",
    marks: &[TOOLCALL, CLOSE_TOOLCALL],
    openers: &[TOOLCALL],
    ends_reasoning: Some(r"<TOOLCALL>[ \t\r\n]*[\[{]"),
    head: |text, position, _| head(text, position, &[TOOLCALL]),
    tail: |text, _| tail(text, Some(CLOSE_TOOLCALL)),
    layout: Layout {
        open: "<TOOLCALL>[",
        close: "]</TOOLCALL>",
        trigger: Some(TOOLCALL),
        ..LIST.layout
    },
    wrote: |call| is_behind(call, TOOLCALL),
    ..LIST
};

const ACTION: &str = "<|START_ACTION|>";
const CLOSE_ACTION: &str = "<|END_ACTION|>";

/// `<|START_ACTION|>[{"tool_call_id": "0", "tool_name": .., "parameters": {..}}]<|END_ACTION|>`.
pub(super) const COHERE_COMMAND: Format = Format {
    name: "cohere_command",
    models: "Command R7B and A",
    marks: &[ACTION, CLOSE_ACTION],
    openers: &[ACTION],
    ends_reasoning: Some(r"<\|START_ACTION\|>"),
    head: |text, position, _| head(text, position, &[ACTION]),
    tail: |text, _| tail(text, Some(CLOSE_ACTION)),
    layout: Layout {
        open: "<|START_ACTION|>[\n    ",
        before_name: "{\"tool_call_id\": \"0\", \"tool_name\": \"",
        before_arguments: "\", \"parameters\": ",
        // The numbers of calls in the template have no meaning for clients.
        separator: ",\n    ",
        close: "\n]<|END_ACTION|>",
        trigger: Some(ACTION),
        ..LIST.layout
    },
    wrote: |call| {
        // The template writes the id before the name, so `before_object` does not recognize this object.
        let before = call.before("\"tool_name\": \"");
        before.is_some_and(|before| before.contains(ACTION))
    },
    ..LIST
};

const CALLS: &str = "<tool_calls>";
const CLOSE_CALLS: &str = "</tool_calls>";

/// `<tool_calls>` and a line for each call.
pub(super) const MINIMAX_M1: Format = Format {
    name: "minimax_m1",
    models: "MiniMax M1",
    marks: &[CALLS, CLOSE_CALLS],
    openers: &[CALLS],
    ends_reasoning: Some(r"<tool_calls>[ \t\r\n]*[\[{]"),
    head: |text, position, _| head(text, position, &[CALLS]),
    tail: |text, _| tail(text, Some(CLOSE_CALLS)),
    layout: Layout {
        open: "<tool_calls>\n",
        separator: "\n",
        close: "\n</tool_calls>",
        trigger: Some(CALLS),
        ..LIST.layout
    },
    wrote: |call| call.before_object().is_some_and(|before| before.ends_with(CALLS)),
    ..LIST
};

/// `<tool_calls>[{..}, {..}]</tool_calls>`.
pub(super) const APRIEL: Format = Format {
    name: "apriel",
    models: "Apriel 1.5",
    layout: Layout {
        open: "<tool_calls>[",
        close: "]</tool_calls>",
        trigger: Some(CALLS),
        ..LIST.layout
    },
    wrote: |call| is_behind(call, CALLS),
    ..MINIMAX_M1
};

/// `[{..}, {..}]` as the whole answer.
pub(super) const XLAM: Format = Format {
    name: "xlam",
    models: "xLAM",
    head: |text, position, functions| bare(text, position, functions),
    tail: |text, _| tail(text, None),
    layout: Layout { open: "[", ..LIST.layout },
    wrote: |call| {
        let before = call.before_object().and_then(|before| before.strip_suffix('['));
        before.is_some_and(|before| call.begins_answer(before))
    },
    ..LIST
};

const TOOLS: &str = "<|tools_prefix|>";
const CLOSE_TOOLS: &str = "<|tools_suffix|>";

/// `<|tools_prefix|>[{"name": {..}}]<|tools_suffix|>`, with the arguments under the function's name.
pub(super) const APERTUS: Format = Format {
    name: "apertus",
    models: "Apertus",
    marks: &[TOOLS, CLOSE_TOOLS],
    openers: &[TOOLS],
    ends_reasoning: Some(r"<\|tools_prefix\|>"),
    head: |text, position, _| named(text, position),
    tail: |text, _| tail(text, Some(CLOSE_TOOLS)),
    layout: Layout {
        open: "<|tools_prefix|>[",
        before_name: "{\"",
        before_arguments: "\": ",
        close: "]<|tools_suffix|>",
        trigger: Some(TOOLS),
        ..LIST.layout
    },
    wrote: |call| call.is_between("<|tools_prefix|>[{\"", "\":"),
    ..LIST
};

/// An object whose only key is the function's name.
fn named(text: &str, position: Position) -> Scan<Head> {
    let mut cursor = Cursor::new(text);
    if position == Position::First {
        cursor.expect(TOOLS)?;
        cursor.white_space();
        cursor.expect("[")?;
        cursor.white_space();
    }
    cursor.expect("{")?;
    cursor.white_space();
    let name = cursor.json_string()?;
    cursor.white_space();
    cursor.expect(":")?;
    cursor.white_space();
    match cursor.peek()? {
        // The arguments are the value of the only key, so the outer object is still open after them.
        b'{' => Ok(Head { name, at: cursor.at(), arguments: None, in_object: true }),
        _ => Err(Stop::No),
    }
}

/// An object of a list without a mark. It must have the name of a callable function, because another list may be a JSON answer.
fn bare(text: &str, position: Position, functions: &[Callable]) -> Scan<Head> {
    let mut cursor = Cursor::new(text);
    if position == Position::First {
        cursor.expect("[")?;
        cursor.white_space();
    }
    object::head(&mut cursor, Some(functions))
}

/// Whether the call is an object after a mark, perhaps in a list.
fn is_behind(call: &WrittenCall<'_>, mark: &str) -> bool {
    call.before_object().is_some_and(|before| {
        let before = before.strip_suffix('[').unwrap_or(before).trim_end();
        before.ends_with(mark)
    })
}

/// An object after one of some marks, perhaps in a list, or the next object.
fn head(text: &str, position: Position, marks: &[&str]) -> Scan<Head> {
    let mut cursor = Cursor::new(text);
    if position == Position::First {
        let mut is_open = false;
        for mark in marks {
            is_open = is_open || cursor.accept(mark)?;
        }
        if !is_open {
            return Err(Stop::No);
        }
        cursor.white_space();
        if cursor.accept("[")? {
            cursor.white_space();
        }
    }
    object::head(&mut cursor, None)
}

/// The rest of the object, then another one, or the end of the list and its mark, which models sometimes omit.
fn tail(text: &str, close: Option<&str>) -> Scan<Tail> {
    let mut cursor = Cursor::new(text);
    object::tail(&mut cursor)?;
    let mut end = cursor.at();
    if object::next(&mut cursor, &[","])? {
        return Ok(Tail { end, separator: Some(cursor.at() - end) });
    }
    if cursor.accept("]")? {
        end = cursor.at();
        cursor.white_space();
    }
    if let Some(close) = close
        && cursor.accept(close)?
    {
        end = cursor.at();
    }
    Ok(Tail::end(end))
}
