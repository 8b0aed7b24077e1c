//! The formats of tool calls and of reasoning, one file per format of calls.

mod deepseek;
pub(crate) mod gemma4;
mod hermes;
mod kimi;
mod lfm2;
mod llama3;
mod mistral;
mod object;
mod pythonic;
pub(crate) mod xml;

use crate::parser::Callable;
use crate::scan::{Cursor, Scan, Stop};

/// How calls are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ToolFormat {
    /// `<tool_call>{"name": .., "arguments": ..}</tool_call>`: Hermes, Qwen, Granite and many more.
    Hermes,
    /// `{"name": .., "parameters": ..}` as the whole answer: Llama 3.1 and later.
    Llama3Json,
    /// `[TOOL_CALLS]name[ARGS]{..}`: Mistral from its tokenizer's version 11 on.
    Mistral,
    /// `[TOOL_CALLS][{"name": .., "arguments": ..}]`: Mistral before.
    MistralList,
    /// `[name(key='value')]` as the whole answer: Llama 3.2 and 4, ToolACE.
    Pythonic,
    /// `<|tool_call_start|>[name(key='value')]<|tool_call_end|>`: LFM2.
    Lfm2,
    /// DeepSeek V3 and R1, whose arguments stand in a fenced block.
    DeepseekV3,
    /// DeepSeek V3.1.
    DeepseekV31,
    /// `<tool_call><function=name><parameter=key>value</parameter></function></tool_call>`: Qwen3-Coder, Qwen3.5.
    Qwen3Coder,
    /// `<tool_call>name<arg_key>key</arg_key><arg_value>value</arg_value></tool_call>`: GLM 4.5 to 4.7.
    Glm45,
    /// `<invoke name="name"><parameter name="key">value</parameter></invoke>` in `<minimax:tool_call>`: MiniMax-M2.
    MinimaxM2,
    /// `<|tool_call>call:name{key:<|"|>text<|"|>}<tool_call|>`: Gemma 4.
    Gemma4,
    /// `<|tool_call_begin|>functions.name:0<|tool_call_argument_begin|>{..}<|tool_call_end|>` in a section: Kimi K2.
    KimiK2,
    /// Harmony: a call is a message to `functions.name`.
    GptOss,
}

/// How reasoning is set apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReasoningFormat {
    /// `<think>..</think>`, always there, also where neither prompt nor answer opens it.
    DeepseekR1,
    /// `<think>..</think>`, if the prompt or the answer opens it.
    Qwen3,
    /// `[THINK]..[/THINK]`, if the prompt or the answer opens it.
    Mistral,
    /// `<|channel>thought\n..<channel|>`, if the prompt or the answer opens it.
    Gemma4,
    /// Harmony: the channel `analysis`.
    GptOss,
}

/// Where an answer stands before its first character.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Thinking {
    /// The prompt has opened the reasoning, or it is never opened.
    Open,
    /// The answer may open it.
    Possible,
    /// The prompt has closed it.
    Closed,
}

impl ReasoningFormat {
    /// The marks around reasoning; none in harmony, where it is a message of its own.
    pub(crate) fn marks(self) -> Option<(&'static str, &'static str)> {
        match self {
            Self::DeepseekR1 | Self::Qwen3 => Some(("<think>", "</think>")),
            Self::Mistral => Some(("[THINK]", "[/THINK]")),
            Self::Gemma4 => Some(("<|channel>", "<channel|>")),
            Self::GptOss => None,
        }
    }

    /// What stands on a line of its own behind the mark that opens, and is no reasoning; empty where nothing does.
    pub(crate) fn title(self) -> &'static str {
        match self {
            Self::Gemma4 => "thought",
            Self::DeepseekR1 | Self::Qwen3 | Self::Mistral | Self::GptOss => "",
        }
    }

    /// Where an answer to this prompt, as the template wrote it, stands before its first character.
    pub fn after_prompt(self, prompt: &str) -> Thinking {
        let Some((open, close)) = self.marks() else { return Thinking::Possible };
        let end = prompt.trim_end();
        let title = self.title();
        if end.ends_with(close) {
            Thinking::Closed
        } else if end.strip_suffix(title).unwrap_or(end).ends_with(open) || self == Self::DeepseekR1
        {
            Thinking::Open
        } else {
            Thinking::Possible
        }
    }
}

/// The beginning of a call, up to where its arguments begin.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Head {
    pub(crate) name: String,
    /// Where the arguments, an object or elements, begin; behind them if they are known already.
    pub(crate) at: usize,
    /// The arguments, where they cannot be passed on as they come.
    pub(crate) arguments: Option<String>,
    /// Whether the arguments are a value of an object that is still open.
    pub(crate) in_object: bool,
}

/// What follows the arguments of a call.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Tail {
    /// The call has so many more bytes.
    pub(crate) end: usize,
    /// Behind so many bytes of a separator, another call may come.
    pub(crate) separator: Option<usize>,
}

impl Tail {
    fn end(end: usize) -> Self {
        Self { end, separator: None }
    }

    /// Behind those of some marks that are there, in their order: models forget marks.
    fn behind(text: &str, marks: &[&str]) -> Scan<Self> {
        let mut cursor = Cursor::new(text);
        let mut end = 0;
        for mark in marks {
            cursor.white_space();
            if cursor.accept(mark)? {
                end = cursor.at();
            }
        }
        Ok(Self::end(end))
    }
}

/// Whether a call is looked for in content or right behind another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Position {
    First,
    Next,
}

impl ToolFormat {
    /// The marks of calls with an element for each argument.
    pub(crate) fn xml(self) -> Option<&'static xml::Marks> {
        match self {
            Self::Qwen3Coder => Some(&xml::QWEN3_CODER),
            Self::Glm45 => Some(&xml::GLM45),
            Self::MinimaxM2 => Some(&xml::MINIMAX_M2),
            _ => None,
        }
    }

    /// What calls begin with, anywhere in the text.
    pub(crate) fn openers(self) -> &'static [&'static str] {
        match self {
            Self::Hermes => &[hermes::OPEN],
            Self::Llama3Json => &[llama3::OPEN],
            Self::Mistral | Self::MistralList => &[mistral::OPEN],
            Self::DeepseekV3 | Self::DeepseekV31 => &[deepseek::OPEN_ALL, deepseek::OPEN],
            Self::Gemma4 => &[gemma4::OPEN],
            Self::KimiK2 => &[kimi::OPEN_ALL, kimi::OPEN],
            Self::Lfm2 => &[lfm2::OPEN],
            Self::Qwen3Coder | Self::Glm45 | Self::MinimaxM2 => {
                self.xml().map_or(&[], |marks| marks.openers)
            }
            Self::Pythonic | Self::GptOss => &[],
        }
    }

    /// What ends a call whose arguments are JSON, which cannot hold it but in a string.
    pub(crate) fn closer(self) -> Option<&'static str> {
        match self {
            Self::Hermes => Some(hermes::CLOSE),
            Self::DeepseekV3 | Self::DeepseekV31 => Some(deepseek::CLOSE),
            Self::KimiK2 => Some(kimi::CLOSE),
            _ => None,
        }
    }

    /// What ends reasoning that is not closed, because a call begins with it.
    pub(crate) fn ends_reasoning(self) -> Option<&'static str> {
        (self == Self::Gemma4).then_some(gemma4::BEGIN)
    }

    /// Whether a call without any mark may be the beginning of the text.
    pub(crate) fn opens_at_start(self) -> bool {
        matches!(self, Self::Llama3Json | Self::Pythonic)
    }

    /// Texts that may be special tokens of the tokenizer and have to be seen.
    pub(crate) fn marks(self) -> &'static [&'static str] {
        match self {
            Self::Hermes => &[hermes::OPEN, hermes::CLOSE],
            Self::Llama3Json => &[llama3::OPEN],
            Self::Mistral | Self::MistralList => &[mistral::OPEN, mistral::ARGS, mistral::CALL_ID],
            Self::DeepseekV3 | Self::DeepseekV31 => &deepseek::MARKS,
            Self::Qwen3Coder | Self::Glm45 | Self::MinimaxM2 => {
                self.xml().map_or(&[], |marks| marks.special)
            }
            Self::Pythonic => &[],
            Self::Gemma4 => &gemma4::MARKS,
            Self::KimiK2 => &kimi::MARKS,
            Self::Lfm2 => &lfm2::MARKS,
            Self::GptOss => &crate::harmony::MARKS,
        }
    }

    /// The beginning of a call, if the text is one. `functions` are those that there are.
    pub(crate) fn head(self, text: &str, position: Position, functions: &[Callable]) -> Scan<Head> {
        match self {
            Self::Hermes => hermes::head(text),
            Self::Llama3Json => llama3::head(text, functions),
            Self::Mistral | Self::MistralList => mistral::head(text, position),
            Self::Pythonic => pythonic::head(text, position, functions),
            Self::DeepseekV3 | Self::DeepseekV31 => deepseek::head(text),
            Self::Qwen3Coder | Self::Glm45 | Self::MinimaxM2 => {
                self.xml().map_or(Err(Stop::No), |marks| marks.head(text))
            }
            Self::Gemma4 => gemma4::head(text),
            Self::KimiK2 => kimi::head(text),
            Self::Lfm2 => lfm2::head(text, position, functions),
            Self::GptOss => Err(Stop::No),
        }
    }

    /// What follows the arguments of a call.
    pub(crate) fn tail(self, text: &str, in_object: bool) -> Scan<Tail> {
        match self {
            Self::Hermes => hermes::tail(text),
            Self::Llama3Json => llama3::tail(text),
            Self::Mistral | Self::MistralList if in_object => mistral::tail(text),
            Self::Pythonic => pythonic::tail(text),
            Self::DeepseekV3 | Self::DeepseekV31 => deepseek::tail(text),
            Self::Qwen3Coder | Self::Glm45 | Self::MinimaxM2 => {
                self.xml().map_or(Err(Stop::No), |marks| marks.tail(text))
            }
            Self::Gemma4 => gemma4::tail(text),
            Self::KimiK2 => kimi::tail(text),
            Self::Lfm2 => lfm2::tail(text),
            Self::Mistral | Self::MistralList | Self::GptOss => Err(Stop::No),
        }
    }
}
