//! gpt-oss: a call is a message to `functions.NAME`. `harmony.rs` parses all messages, with reasoning and text.

use super::{Format, Layout};
use crate::harmony::MARKS;

pub(super) const GPT_OSS: Format = Format {
    name: "gpt_oss",
    models: "gpt-oss",
    marks: &MARKS,
    layout: Layout {
        before_name: "<|channel|>commentary to=functions.",
        before_arguments: " <|constrain|>json<|message|>",
        // The token after a call ends the answer.
        repeats: false,
        ..Layout::PLAIN
    },
    wrote: |call| call.is_between("to=functions.", "") && call.after.contains("<|message|>"),
    ..Format::PLAIN
};
