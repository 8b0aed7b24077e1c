//! The variables of a chat template for reasoning: switches and effort.

use candlepower_tokenizer::{ChatTemplate, PromptEnd};
use serde_json::{Map, Value, json};

use crate::probe::{QUESTION, render_with};

/// The variables that change the template's output.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ThinkingSwitch {
    /// `reasoning_effort`, a string.
    pub effort: bool,
    /// `enable_thinking`, true or false.
    pub enable_thinking: bool,
    /// `thinking`, true or false.
    pub thinking: bool,
}

impl ThinkingSwitch {
    /// The variables that change the prompt of a question.
    pub fn detect(template: &ChatTemplate) -> Self {
        let prompt = |name: &str, value: Value| {
            // Some templates write the effort only if the conversation has instructions.
            let messages = json!([{"role": "system", "content": QUESTION}, {"role": "user", "content": QUESTION}]);
            let bare = json!([{"role": "user", "content": QUESTION}]);
            let kwargs = Map::from_iter([(name.to_owned(), value)]);
            [messages, bare].map(|messages| {
                render_with(template, &messages, None, PromptEnd::GenerationPrompt, &kwargs)
            })
        };
        // A template that ignores a variable renders the same text. So no list of models is needed.
        let differs =
            |name: &str, one: Value, other: Value| prompt(name, one) != prompt(name, other);
        Self {
            effort: differs("reasoning_effort", "low".into(), "high".into()),
            enable_thinking: differs("enable_thinking", true.into(), false.into()),
            thinking: differs("thinking", true.into(), false.into()),
        }
    }

    /// Whether reasoning can be switched on and off.
    pub fn is_there(self) -> bool {
        self.enable_thinking || self.thinking
    }
}

#[cfg(test)]
mod tests {
    use candlepower_tokenizer::TemplateSources;

    use super::*;

    fn detect(end: &str) -> ThinkingSwitch {
        let source = format!("{{% for m in messages %}}{{{{ m.content }}}}{{% endfor %}}{end}");
        let sources = TemplateSources { chosen: Some(&source), ..TemplateSources::default() };
        ThinkingSwitch::detect(&ChatTemplate::from_sources(&sources).unwrap().unwrap())
    }

    #[test]
    fn variables_are_found_by_what_they_change() {
        let none = ThinkingSwitch::default();
        assert_eq!(detect(""), none);
        assert_eq!(
            detect(
                "{% if enable_thinking is defined and enable_thinking is false %}<think></think>{% endif %}"
            ),
            ThinkingSwitch { enable_thinking: true, ..none }
        );
        assert_eq!(
            detect("{% if thinking %}<think>{% endif %}Reasoning: {{ reasoning_effort }}"),
            ThinkingSwitch { thinking: true, effort: true, ..none }
        );
        assert!(!detect("enable_thinking").is_there());
    }
}
