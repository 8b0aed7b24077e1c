//! The messages in which a chat template writes images.

use candlepower_tokenizer::{ChatTemplate, PromptEnd};
use serde_json::{Value, json};

use crate::past_calls::{PastCalls, call_messages};
use crate::probe::{ANSWER, QUESTION, render, tools};

/// The messages in which a chat template writes images.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ImagePlaces {
    /// Messages of the user.
    pub user: bool,
    /// Results of tools.
    pub tool: bool,
}

impl ImagePlaces {
    /// Detects the messages in which the template writes an image as `spelling`, beside their texts.
    pub fn detect(template: &ChatTemplate, spelling: &str) -> Self {
        let writes = |messages: &Value, tools: Option<&Value>, text: &str| {
            let prompt = render(template, messages, tools, PromptEnd::GenerationPrompt);
            prompt.is_some_and(|prompt| {
                prompt.matches(spelling).count() == 1 && prompt.contains(text)
            })
        };
        let content = |text: &str| json!([{"type": "text", "text": text}, {"type": "image"}]);
        let question = json!([{"role": "user", "content": content(QUESTION)}]);
        let mut call = call_messages(PastCalls::detect(template));
        if let Some(result) = call.as_array_mut().and_then(|messages| messages.last_mut()) {
            result["content"] = content(ANSWER);
        }
        Self {
            user: writes(&question, None, QUESTION),
            tool: writes(&call, Some(&tools()), ANSWER),
        }
    }
}

#[cfg(test)]
mod tests {
    use candlepower_tokenizer::TemplateSources;

    use super::*;

    fn places(source: &str) -> (bool, bool) {
        let sources = TemplateSources { chosen: Some(source), ..TemplateSources::default() };
        let template = ChatTemplate::from_sources(&sources).unwrap().unwrap();
        let ImagePlaces { user, tool } = ImagePlaces::detect(&template, "[IMG]");
        (user, tool)
    }

    const PARTS: &str = "{% for p in m.content %}{% if p.type == 'image' %}[IMG]{% else %}{{ p.text }}{% endif %}{% endfor %}";

    #[test]
    fn images_are_written_in_every_message_in_some_or_in_none() {
        let all = format!(
            "{{% for m in messages %}}{{% if m.content is string %}}{{{{ m.content }}}}{{% elif m.content %}}{PARTS}{{% endif %}}{{% endfor %}}"
        );
        assert_eq!(places(&all), (true, true));
        let users = format!(
            "{{% for m in messages %}}{{% if m.role == 'user' and m.content is not string %}}{PARTS}{{% else %}}{{{{ m.content }}}}{{% endif %}}{{% endfor %}}"
        );
        assert_eq!(places(&users), (true, false), "a list in Python's form is no image");
        assert_eq!(places("{% for m in messages %}{{ m.content }}{% endfor %}"), (false, false));
        assert_eq!(places("{{ raise_exception('no') }}"), (false, false));
    }
}
