//! The formats of reasoning, one entry of the list for each, and the state of reasoning at the start of an answer.

use super::{Frame, kimi_k3, solar_open};

/// A format of reasoning.
#[derive(Debug)]
pub(crate) struct Reasoning {
    /// The name in settings.
    pub(super) name: &'static str,
    /// The marks around it; `None` in harmony, where reasoning is a message of its own.
    pub(super) marks: Option<(&'static str, &'static str)>,
    /// The title line after the opening mark, which is not part of the reasoning; empty if there is none.
    pub(super) title: &'static str,
    /// Whether other models use the closing mark for something else, so that it alone shows no reasoning.
    pub(crate) is_close_common: bool,
    /// The texts around content.
    pub(crate) frame: &'static Frame,
    /// Whether answers begin with reasoning although neither prompt nor answer opens it.
    /// Templates do not show this, so it is never detected.
    pub(crate) is_always_there: bool,
}

impl Reasoning {
    const PLAIN: Self = Self {
        name: "",
        marks: None,
        title: "",
        is_close_common: false,
        frame: &Frame::NONE,
        is_always_there: false,
    };
}

const THINK: (&str, &str) = ("<think>", "</think>");

formats! {
    /// The formats of reasoning.
    ReasoningFormat of Reasoning {
        DeepseekR1 = Reasoning { name: "deepseek_r1", marks: Some(THINK), is_always_there: true, ..Reasoning::PLAIN },
        Qwen3 = Reasoning { name: "qwen3", marks: Some(THINK), ..Reasoning::PLAIN },
        Mistral = Reasoning { name: "mistral", marks: Some(("[THINK]", "[/THINK]")), ..Reasoning::PLAIN },
        Gemma4 = Reasoning { name: "gemma4", marks: Some(("<|channel>", "<channel|>")), title: "thought", ..Reasoning::PLAIN },
        SeedOss = Reasoning { name: "seed_oss", marks: Some(("<seed:think>", "</seed:think>")), ..Reasoning::PLAIN },
        CohereCommand = Reasoning { name: "cohere_command", marks: Some(("<|START_THINKING|>", "<|END_THINKING|>")), ..Reasoning::PLAIN },
        // Source: the published template of Apertus.
        Apertus = Reasoning { name: "apertus", marks: Some(("<|inner_prefix|>", "<|inner_suffix|>")), ..Reasoning::PLAIN },
        SolarOpen = Reasoning {
            name: "solar_open",
            marks: Some(("<|think|>", "<|end|>")),
            is_close_common: true,
            frame: &solar_open::FRAME,
            ..Reasoning::PLAIN
        },
        KimiK3 = Reasoning {
            name: "kimi_k3",
            marks: Some(("<|open|>think<|sep|>", "<|close|>think<|sep|>")),
            frame: &kimi_k3::FRAME,
            ..Reasoning::PLAIN
        },
        GptOss = Reasoning { name: "gpt_oss", ..Reasoning::PLAIN },
    }
}

/// The state of reasoning before the first character of an answer.
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
    /// The marks around reasoning; `None` in harmony, where reasoning is a message of its own.
    pub(crate) fn marks(self) -> Option<(&'static str, &'static str)> {
        self.format().marks
    }

    /// The title line after the opening mark, which is not part of the reasoning; empty if there is none.
    pub(crate) fn title(self) -> &'static str {
        self.format().title
    }

    /// The state of reasoning after this rendered prompt.
    pub fn after_prompt(self, prompt: &str) -> Thinking {
        let Some((open, close)) = self.marks() else { return Thinking::Possible };
        let end = prompt.trim_end();
        let before_title = end.strip_suffix(self.title()).unwrap_or(end);
        if end.ends_with(close) {
            Thinking::Closed
        } else if before_title.ends_with(open) || self.format().is_always_there {
            Thinking::Open
        } else {
            Thinking::Possible
        }
    }
}
