//! The formats of tool calls and of reasoning, and the list of formats of calls.
//!
//! A format of calls is one `const` in a file of its own, and a line in the list here. Reading, grammars, detection and the
//! command line take all that they know of a format from there.

/// Makes an enum of formats, so that a format is one line of a list.
macro_rules! formats {
    ($(#[$about:meta])* $list:ident of $format:ty { $($name:ident = $value:expr,)* }) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[allow(missing_docs)] // each format's `const` describes it
        pub enum $list {
            $($name,)*
        }

        impl $list {
            /// All of them, in the order in which users read their names.
            pub const ALL: &[Self] = &[$(Self::$name,)*];

            /// The name under which users ask for it.
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
mod functionary;
pub(crate) mod gemma4;
mod glm4;
mod glm45;
mod gpt_oss;
mod hermes;
mod kimi;
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
pub(crate) use layout::{Layout, LineBreaks};
pub use reasoning::{ReasoningFormat, Thinking};

formats! {
    /// How calls are written.
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
        Granite = list::GRANITE,
        Phi4Mini = list::PHI4_MINI,
        Nemotron = list::NEMOTRON,
        Apriel = list::APRIEL,
        Apertus = list::APERTUS,
        Xlam = list::XLAM,
        SolarOpen = solar_open::SOLAR_OPEN,
        FunctionaryV31 = functionary::FUNCTIONARY_V31,
        CohereCommand = list::COHERE_COMMAND,
        Gemma4 = gemma4::GEMMA4,
        GptOss = gpt_oss::GPT_OSS,
    }
}

impl ToolFormat {
    /// The models that write it.
    pub fn models(self) -> &'static str {
        self.format().models
    }

    /// Texts that may be special tokens of the tokenizer and have to be seen.
    pub(crate) fn marks(self) -> &'static [&'static str] {
        self.format().marks
    }

    /// The marks that calls begin with, anywhere in the text.
    pub(crate) fn openers(self) -> &'static [&'static str] {
        self.format().openers
    }

    /// Whether it writes strings without the quotes of JSON.
    pub fn has_raw_texts(self) -> bool {
        matches!(self.format().arguments, Arguments::Elements(_) | Arguments::Gemma4)
    }

    /// The ids of calls that its templates take.
    pub fn call_ids(self) -> CallIds {
        self.format().call_ids
    }
}

/// The ids of calls that a template takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallIds {
    /// Any text.
    Plain,
    /// Nine letters and digits, and nothing else.
    NineLetters,
}

/// A format of calls: under which name users ask for it, how its calls are found in text, read, written and recognized.
#[derive(Debug)]
pub(crate) struct Format {
    pub(crate) name: &'static str,
    /// The models that write it, for people.
    pub(crate) models: &'static str,
    /// Texts that may be special tokens of the tokenizer and have to be seen.
    pub(crate) marks: &'static [&'static str],
    /// The marks that calls begin with, anywhere in the text.
    pub(crate) openers: &'static [&'static str],
    /// A regular expression of what calls begin with in reasoning that is not closed. Grammars keep it out of reasoning.
    pub(crate) ends_reasoning: Option<&'static str>,
    /// The beginning of a call, if the text is one, looked for at this position. The functions are those that there are.
    pub(crate) head: fn(&str, Position, &[Callable]) -> Scan<Head>,
    pub(crate) arguments: Arguments,
    /// The text that follows the arguments of a call, which may be a value of an object that is still open.
    pub(crate) tail: fn(&str, bool) -> Scan<Tail>,
    pub(crate) layout: Layout,
    pub(crate) call_ids: CallIds,
    /// A text of prompts that offer functions, by which it is known where the template writes no calls.
    pub(crate) offered: Option<&'static str>,
    /// Whether a template's call is written in it. No two formats take the same call, unless one of them has no trigger.
    pub(crate) wrote: fn(&WrittenCall<'_>) -> bool,
}

impl Format {
    /// The fields that most formats have in common; it finds no call.
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
        call_ids: CallIds::Plain,
        offered: None,
        wrote: |_| false,
    };

    /// Whether calls are the whole answer, so that one without any mark may be the beginning of the text.
    pub(crate) fn opens_at_start(&self) -> bool {
        self.layout.trigger.is_none()
    }
}

/// How the arguments of a call are written.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Arguments {
    /// A JSON object, passed on as it comes. Only its strings can hold `closer`, which ends a call.
    Json { closer: Option<&'static str> },
    /// An element for each.
    Elements(&'static xml::Marks),
    /// Keyword arguments in Python, which the head reads.
    Keywords,
    /// The notation of Gemma 4.
    Gemma4,
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

/// The text that follows the arguments of a call.
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
            // Grammars of free text tell a call by its beginning, or by its function's name and what follows it.
            let begins = ![layout.open, layout.before_name].concat().is_empty();
            assert!(begins || !layout.before_arguments.is_empty(), "{format:?}");
            let is_opener = |trigger| openers.contains(&trigger);
            assert!(layout.trigger.is_none_or(is_opener), "{format:?}");
        }
    }
}
