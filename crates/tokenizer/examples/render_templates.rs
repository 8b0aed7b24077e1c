//! Renders chat templates for scripts/compare_templates.py: a JSON object per line in, one out.
//!
//! In: `template`, `tokenizer_config`, `messages`, `tools` (or null), `kwargs`, `now_unix_s`. Out: `text` or `error`.

use std::io::{BufRead, Write};

use candlepower_tokenizer::{
    ChatTemplate, Error, LocalTime, PromptEnd, RenderInput, TemplateSources,
};
use serde_json::{Map, Value, json};

fn main() -> std::io::Result<()> {
    let mut output = std::io::stdout().lock();
    for line in std::io::stdin().lock().lines() {
        let case: Value = serde_json::from_str(&line?)?;
        let answer = match render(&case) {
            Ok(text) => json!({"text": text}),
            Err(Error::TemplateRaised { message }) => json!({"error": message}),
            Err(error) => json!({"error": error.to_string()}),
        };
        writeln!(output, "{answer}")?;
    }
    Ok(())
}

fn render(case: &Value) -> Result<String, Error> {
    let template = ChatTemplate::from_sources(&TemplateSources {
        chat_template_jinja: case["template"].as_str(),
        tokenizer_config: Some(case["tokenizer_config"].to_string().as_bytes()),
        ..TemplateSources::default()
    })?
    .expect("there is a template");
    template.render(&RenderInput {
        messages: &case["messages"],
        tools: Some(&case["tools"]).filter(|tools| !tools.is_null()),
        documents: None,
        end: PromptEnd::GenerationPrompt,
        chat_template_kwargs: case["kwargs"].as_object().unwrap_or(&Map::new()),
        now: LocalTime { unix_s: case["now_unix_s"].as_i64().unwrap_or(0), utc_offset_s: 0 },
    })
}
