//! The formats of reasoning and tool calls, and the list of formats of tool calls.
//!
//! A format of tool calls is one `const` in its own file and a line in the list here. Parser, grammars, detection and command line take
//! all data of a format from it.

/// Defines an enum of formats, so that a format is one line of a list.
macro_rules! formats {
    ($(#[$about:meta])* $list:ident of $format:ty { $($name:ident = $value:expr,)* }) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[allow(missing_docs)] // each format's `const` describes it
        pub enum $list {
            $($name,)*
        }

        impl $list {
            /// All formats, in the order of the documentation.
            pub const ALL: &[Self] = &[$(Self::$name,)*];

            /// The name in settings.
            pub fn name(self) -> &'static str {
                self.format().name
            }

            /// The description of the format.
            pub(crate) fn format(self) -> &'static $format {
                match self {
                    $(Self::$name => &$value,)*
                }
            }
        }
    };
}

mod deepseek;
mod deepseek_v32;
mod frame;
mod function_gemma;
mod functionary;
pub(crate) mod gemma4;
mod glm4;
mod glm45;
mod gpt_oss;
mod hermes;
mod kimi;
mod kimi_k3;
mod layout;
mod lfm2;
mod list;
mod llama3;
mod minimax_m2;
mod mistral;
mod object;
pub(crate) mod pythonic;
mod qwen3_coder;
mod reasoning;
mod seed_oss;
mod solar_open;
pub(crate) mod xml;

use crate::callable::Callable;
use crate::scan::{Cursor, Scan, Stop};
use crate::written_call::WrittenCall;
pub(crate) use frame::{Frame, Unframing};
pub(crate) use layout::{Layout, LineBreaks};
pub use reasoning::{ReasoningFormat, Thinking};

formats! {
    /// The formats of tool calls.
    ToolFormat of Format {
        Hermes = hermes::HERMES,
        Llama3Json = llama3::LLAMA3_JSON,
        Mistral = mistral::MISTRAL,
        MistralList = mistral::MISTRAL_LIST,
        Pythonic = pythonic::PYTHONIC,
        Lfm2 = lfm2::LFM2,
        DeepseekV3 = deepseek::DEEPSEEK_V3,
        DeepseekV31 = deepseek::DEEPSEEK_V31,
        DeepseekV32 = deepseek_v32::DEEPSEEK_V32,
        DeepseekV4 = deepseek_v32::DEEPSEEK_V4,
        Qwen3Coder = qwen3_coder::QWEN3_CODER,
        SeedOss = seed_oss::SEED_OSS,
        Glm4 = glm4::GLM4,
        Glm45 = glm45::GLM45,
        MinimaxM1 = list::MINIMAX_M1,
        MinimaxM2 = minimax_m2::MINIMAX_M2,
        KimiK2 = kimi::KIMI_K2,
        KimiK3 = kimi_k3::KIMI_K3,
        Granite = list::GRANITE,
        Phi4Mini = list::PHI4_MINI,
        Nemotron = list::NEMOTRON,
        Apriel = list::APRIEL,
        Apertus = list::APERTUS,
        Xlam = list::XLAM,
        SolarOpen = solar_open::SOLAR_OPEN,
        FunctionaryV31 = functionary::FUNCTIONARY_V31,
        FunctionaryV32 = functionary::FUNCTIONARY_V32,
        CohereCommand = list::COHERE_COMMAND,
        FunctionGemma = function_gemma::FUNCTION_GEMMA,
        Gemma4 = gemma4::GEMMA4,
        GptOss = gpt_oss::GPT_OSS,
    }
}

impl ToolFormat {
    /// The models that use the format.
    pub fn models(self) -> &'static str {
        self.format().models
    }

    /// Texts that may be special tokens, and that the parser must see.
    pub(crate) fn marks(self) -> &'static [&'static str] {
        self.format().marks
    }

    /// The marks with which calls begin, anywhere in the text.
    pub(crate) fn openers(self) -> &'static [&'static str] {
        self.format().openers
    }

    /// Whether strings are raw text without JSON's quotes.
    pub fn has_raw_texts(self) -> bool {
        matches!(self.format().arguments, Arguments::Elements(_) | Arguments::Gemma(_))
    }

    /// The ids of calls that the format's templates accept.
    pub fn call_ids(self) -> CallIds {
        self.format().call_ids
    }
}

/// The ids of calls that a template accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallIds {
    /// Any text.
    Plain,
    /// Exactly nine letters and digits.
    NineLetters,
}

/// A format of tool calls: its name, and the data to find, parse, constrain and detect calls.
#[derive(Debug)]
pub(crate) struct Format {
    pub(crate) name: &'static str,
    /// The models that use it, for the documentation.
    pub(crate) models: &'static str,
    /// Texts that may be special tokens, and that the parser must see.
    pub(crate) marks: &'static [&'static str],
    /// The marks with which calls begin, anywhere in the text.
    pub(crate) openers: &'static [&'static str],
    /// A regular expression of starts of calls that end unclosed reasoning. Grammars exclude it from reasoning.
    pub(crate) ends_reasoning: Option<&'static str>,
    /// Parses the start of a call at this position; the functions are the callable ones.
    pub(crate) head: fn(&str, Position, &[Callable]) -> Scan<Head>,
    pub(crate) arguments: Arguments,
    /// Parses the text after the arguments of a call; the flag says whether an object around the arguments is still open.
    pub(crate) tail: fn(&str, bool) -> Scan<Tail>,
    pub(crate) layout: Layout,
    /// The texts around content.
    pub(crate) frame: &'static Frame,
    pub(crate) call_ids: CallIds,
    /// Texts in prompts with tools, for the detection of templates that write no calls.
    pub(crate) offered: &'static [&'static str],
    /// Whether a template's call has this format. No two formats accept the same call, unless one of them has no trigger.
    pub(crate) wrote: fn(&WrittenCall<'_>) -> bool,
}

impl Format {
    /// Defaults of most formats; this format finds no call.
    pub(crate) const PLAIN: Self = Self {
        name: "",
        models: "",
        marks: &[],
        openers: &[],
        ends_reasoning: None,
        head: |_, _, _| Err(Stop::No),
        arguments: Arguments::Json { closer: None },
        tail: |_, _| Err(Stop::No),
        layout: Layout::PLAIN,
        frame: &Frame::NONE,
        call_ids: CallIds::Plain,
        offered: &[],
        wrote: |_| false,
    };

    /// Whether a call is the whole answer, so that it may begin the text without a mark.
    pub(crate) fn opens_at_start(&self) -> bool {
        self.layout.trigger.is_none()
    }
}

/// The form of the arguments of a call.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Arguments {
    /// A JSON object, passed on unchanged. `closer`, which ends a call, can occur only in its strings.
    Json { closer: Option<&'static str> },
    /// One element for each argument.
    Elements(&'static xml::Marks),
    /// Keyword arguments in Python, parsed with the head.
    Keywords,
    /// The notation of Gemma's models.
    Gemma(&'static gemma4::Marks),
}

/// The start of a call, up to its arguments.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Head {
    pub(crate) name: String,
    /// Position of the arguments (an object or elements), or after them if they are already known.
    pub(crate) at: usize,
    /// The arguments, if they cannot be passed on unchanged.
    pub(crate) arguments: Option<String>,
    /// Whether an object around the arguments is still open.
    pub(crate) in_object: bool,
}

/// The text after the arguments of a call.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Tail {
    /// Number of further bytes of the call.
    pub(crate) end: usize,
    /// Number of bytes of a separator after which another call may follow.
    pub(crate) separator: Option<usize>,
}

impl Tail {
    fn end(end: usize) -> Self {
        Self { end, separator: None }
    }

    /// Skips the marks that are present, in their order, because models sometimes omit marks.
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

/// The position of a possible call: in content, or directly after another call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Position {
    First,
    Next,
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_format_says_what_it_is() {
        let names = ToolFormat::ALL.iter().map(|format| format.name());
        let names = BTreeSet::from_iter(names.filter(|name| !["", "auto", "none"].contains(name)));
        assert_eq!(names.len(), ToolFormat::ALL.len(), "{names:?}");
        for format in ToolFormat::ALL {
            let Format { models, openers, layout, .. } = format.format();
            assert!(!models.is_empty(), "{format:?}");
            // Grammars of free text detect a call by its mark, or by a function's name and the text after it.
            let begins = ![layout.open, layout.before_name].concat().is_empty();
            assert!(begins || !layout.before_arguments.is_empty(), "{format:?}");
            let is_opener = |trigger| openers.contains(&trigger);
            assert!(layout.trigger.is_none_or(is_opener), "{format:?}");
        }
    }
}
