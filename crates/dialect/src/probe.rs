//! The probe: a conversation of texts that no template contains. The rendered text shows the format of reasoning and tool calls.

use candlepower_tokenizer::{ChatTemplate, LocalTime, PromptEnd, RenderInput};
use serde_json::{Map, Value, json};

// Texts that no template contains.
pub(crate) const QUESTION: &str = "probe_question";
pub(crate) const FUNCTION: &str = "probe_function";
pub(crate) const KEY: &str = "probe_key";
pub(crate) const VALUE: &str = "probe_value";
pub(crate) const THOUGHT: &str = "probe_thought";
pub(crate) const ANSWER: &str = "probe_answer";

/// The tool of the probe.
pub(crate) fn tools() -> Value {
    let parameters = json!({
        "type": "object",
        "properties": {KEY: {"type": "string", "description": "A key."}},
        "required": [KEY],
    });
    json!([{"type": "function", "function": {"name": FUNCTION, "description": "A function.", "parameters": parameters}}])
}

/// The rendered conversation; `None` if the template refuses it.
pub(crate) fn render(
    template: &ChatTemplate,
    messages: &Value,
    tools: Option<&Value>,
    end: PromptEnd,
) -> Option<String> {
    render_with(template, messages, tools, end, &Map::new())
}

/// The same with template variables.
pub(crate) fn render_with(
    template: &ChatTemplate,
    messages: &Value,
    tools: Option<&Value>,
    end: PromptEnd,
    kwargs: &Map<String, Value>,
) -> Option<String> {
    let input = RenderInput {
        messages,
        tools,
        documents: None,
        end,
        chat_template_kwargs: kwargs,
        // A fixed time: prompts of two probes are compared, and some templates write the date.
        now: LocalTime { unix_s: 0, utc_offset_s: 0 },
    };
    template.render(&input).ok()
}

/// The rendered prompt of a question, with the probe's tool.
pub(crate) fn render_question(template: &ChatTemplate) -> Option<String> {
    let messages = json!([{"role": "user", "content": QUESTION}]);
    render(template, &messages, Some(&tools()), PromptEnd::GenerationPrompt)
}
