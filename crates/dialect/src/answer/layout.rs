//! How the calls of each format are laid out, as the templates of its models write them.

use crate::format::ToolFormat;

/// `open`, then calls with `separator` between them, then `close`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Layout {
    pub(super) format: ToolFormat,
    pub(super) open: &'static str,
    pub(super) before_name: &'static str,
    /// Whether a number follows the name.
    pub(super) numbered: bool,
    pub(super) before_arguments: &'static str,
    pub(super) after_arguments: &'static str,
    pub(super) separator: &'static str,
    /// The line break around elements of arguments, in Lark's notation.
    pub(super) line: &'static str,
    pub(super) close: &'static str,
    /// What calls begin with in the middle of text; without it they are the whole answer.
    pub(super) trigger: Option<&'static str>,
    /// Whether there may be several calls.
    pub(super) repeats: bool,
}

impl Layout {
    pub(super) fn of(format: ToolFormat) -> Self {
        let plain = Self {
            format,
            open: "",
            before_name: "",
            numbered: false,
            before_arguments: "",
            after_arguments: "",
            separator: "",
            line: "",
            close: "",
            trigger: None,
            repeats: true,
        };
        match format {
            ToolFormat::Hermes => Self {
                before_name: "<tool_call>\n{\"name\": \"",
                before_arguments: "\", \"arguments\": ",
                after_arguments: "}\n</tool_call>",
                separator: "\n",
                trigger: Some("<tool_call>"),
                ..plain
            },
            // The templates of these models refuse several calls.
            ToolFormat::Llama3Json => Self {
                before_name: "{\"name\": \"",
                before_arguments: "\", \"parameters\": ",
                after_arguments: "}",
                repeats: false,
                ..plain
            },
            ToolFormat::Mistral => Self {
                before_name: "[TOOL_CALLS]",
                before_arguments: "[ARGS]",
                trigger: Some("[TOOL_CALLS]"),
                ..plain
            },
            ToolFormat::MistralList => Self {
                open: "[TOOL_CALLS][",
                before_name: "{\"name\": \"",
                before_arguments: "\", \"arguments\": ",
                after_arguments: "}",
                separator: ", ",
                close: "]",
                trigger: Some("[TOOL_CALLS]"),
                ..plain
            },
            ToolFormat::Pythonic => Self {
                open: "[",
                before_arguments: "(",
                after_arguments: ")",
                separator: ", ",
                close: "]",
                ..plain
            },
            ToolFormat::Lfm2 => Self {
                open: "<|tool_call_start|>[",
                before_arguments: "(",
                after_arguments: ")",
                separator: ", ",
                close: "]<|tool_call_end|>",
                trigger: Some("<|tool_call_start|>"),
                ..plain
            },
            ToolFormat::DeepseekV3 => Self {
                open: "<｜tool▁calls▁begin｜>",
                before_name: "<｜tool▁call▁begin｜>function<｜tool▁sep｜>",
                before_arguments: "\n```json\n",
                after_arguments: "\n```<｜tool▁call▁end｜>",
                separator: "\n",
                close: "<｜tool▁calls▁end｜>",
                trigger: Some("<｜tool▁calls▁begin｜>"),
                ..plain
            },
            ToolFormat::DeepseekV31 => Self {
                open: "<｜tool▁calls▁begin｜>",
                before_name: "<｜tool▁call▁begin｜>",
                before_arguments: "<｜tool▁sep｜>",
                after_arguments: "<｜tool▁call▁end｜>",
                close: "<｜tool▁calls▁end｜>",
                trigger: Some("<｜tool▁calls▁begin｜>"),
                ..plain
            },
            ToolFormat::Qwen3Coder => Self {
                before_name: "<tool_call>\n<function=",
                before_arguments: ">",
                after_arguments: "</function>\n</tool_call>",
                separator: "\n",
                line: r#""\n""#,
                trigger: Some("<tool_call>"),
                ..plain
            },
            // Not all of these templates write line breaks.
            ToolFormat::Glm45 => Self {
                before_name: "<tool_call>",
                after_arguments: "</tool_call>",
                line: r#""\n"?"#,
                trigger: Some("<tool_call>"),
                ..plain
            },
            ToolFormat::MinimaxM2 => Self {
                open: "<minimax:tool_call>\n",
                before_name: "<invoke name=\"",
                before_arguments: "\">",
                after_arguments: "</invoke>\n",
                line: r#""\n""#,
                close: "</minimax:tool_call>",
                trigger: Some("<minimax:tool_call>"),
                ..plain
            },
            ToolFormat::Gemma4 => Self {
                before_name: "<|tool_call>call:",
                after_arguments: "<tool_call|>",
                trigger: Some("<|tool_call>"),
                ..plain
            },
            ToolFormat::KimiK2 => Self {
                open: "<|tool_calls_section_begin|>",
                before_name: "<|tool_call_begin|>functions.",
                numbered: true,
                before_arguments: "<|tool_call_argument_begin|>",
                after_arguments: "<|tool_call_end|>",
                close: "<|tool_calls_section_end|>",
                trigger: Some("<|tool_calls_section_begin|>"),
                ..plain
            },
            // The token behind a call ends the answer.
            ToolFormat::GptOss => Self {
                before_name: "<|channel|>commentary to=functions.",
                before_arguments: " <|constrain|>json<|message|>",
                repeats: false,
                ..plain
            },
        }
    }
}
