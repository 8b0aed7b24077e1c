//! The requests of POST /v1/messages and /v1/messages/count_tokens, in the format of Anthropic's Messages API.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use crate::chat::{ChatMessage, ToolOptions};
use crate::constraint::{ConstraintKind, OutputConstraint};
use crate::error::FieldError;
use crate::fields::Fields;
use crate::generation::{GenerationFields, MessagesSampling, StopStrings};
use crate::not_held::NotHeld;
use crate::thinking::{ThinkingOptions, said, set};

mod conversation;
mod tools;

/// A conversation that the model continues.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
pub struct MessagesRequest {
    /// The parts of the prompt.
    #[serde(flatten)]
    pub prompt: MessagesPrompt,
    /// `max_tokens` (required), `temperature`, `top_p`, `top_k`, `stop_sequences` and `stream`, with the meaning of
    /// /v1/chat/completions.
    #[serde(flatten)]
    #[schema(value_type = MessagesSampling)]
    pub generation: GenerationFields,
}

/// The parts of the prompt, which are also the body of /v1/messages/count_tokens.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
pub struct MessagesPrompt {
    /// Model name, from GET /v1/models; default: the served model.
    pub model: Option<String>,
    /// The conversation; at least one message. If the last message is the assistant's, the model continues it. Messages of the user and
    /// results of tools may have images: blocks of the type `image` with a `source`, which is `base64` or `url`.
    #[schema(value_type = Vec<Object>, min_items = 1)]
    pub messages: Vec<ChatMessage>,
    /// Paths of the input of all calls in `messages`.
    #[serde(skip)]
    #[schema(ignore)]
    pub call_paths: Vec<String>,
    /// Tools and tool choice.
    #[serde(flatten)]
    #[schema(value_type = tools::WireOptions)]
    pub tool_options: Option<ToolOptions>,
    /// Reasoning: an object with the `type` `enabled`, `adaptive` or `disabled`, which is passed to the chat template. After
    /// `budget_tokens` tokens the server closes the reasoning.
    #[schema(value_type = Option<Object>)]
    pub thinking: ThinkingOptions,
    /// Format of the text, and reasoning effort for the chat template.
    pub output_config: Option<OutputConfig>,
    /// Ignored parts of the request.
    #[serde(skip)]
    #[schema(ignore)]
    pub not_held: NotHeld,
}

/// Format of the text, and reasoning effort.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct OutputConfig {
    /// Reasoning effort, passed to the chat template as `reasoning_effort`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub effort: Option<String>,
    /// JSON schema of the text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub format: Option<OutputFormat>,
}

/// JSON schema of the text.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct OutputFormat {
    /// `json_schema`.
    #[serde(rename = "type")]
    pub kind: String,
    /// The JSON schema.
    #[schema(value_type = Object)]
    pub schema: Value,
}

impl MessagesRequest {
    /// Parses a request body.
    pub fn parse(body: &[u8]) -> Result<Self, FieldError> {
        let mut fields = Fields::parse(body)?;
        let prompt = MessagesPrompt::take(&mut fields)?;
        let max_tokens = fields.take_integer("max_tokens")?;
        let format = prompt.output_config.as_ref().and_then(|config| config.format.as_ref());
        let mut request = Self {
            generation: GenerationFields {
                constraint: format.map(of_format).transpose()?,
                max_tokens: Some(
                    max_tokens
                        .ok_or_else(|| FieldError::new("max_tokens", "`max_tokens` is missing."))?,
                ),
                temperature: fields.take("temperature")?,
                top_p: fields.take("top_p")?,
                top_k: fields.take_integer("top_k")?,
                stop: fields.take::<StopStrings>("stop_sequences")?,
                stream: fields.take("stream")?,
                ..GenerationFields::default()
            },
            prompt,
        };
        request.prompt.not_held = fields.finish()?;
        Ok(request)
    }
}

impl MessagesPrompt {
    /// Parses the body of a request that counts tokens.
    pub fn parse(body: &[u8]) -> Result<Self, FieldError> {
        let mut fields = Fields::parse(body)?;
        let mut prompt = Self::take(&mut fields)?;
        prompt.not_held = fields.finish()?;
        Ok(prompt)
    }

    fn take(fields: &mut Fields<'_>) -> Result<Self, FieldError> {
        if fields.take::<Value>("thread")?.is_some() {
            // Clients send `thread` if the server may keep the conversation; they retry without it when it is refused.
            let message = "This server does not store conversations: leave `thread` out, and send all messages.";
            return Err(FieldError::new(THREAD, message));
        }
        leave_out_edits(fields)?;
        let output_config: Option<OutputConfig> = fields.take("output_config")?;
        let mut thinking = ThinkingOptions::default();
        thinking.take_thinking(fields)?;
        let effort = output_config.as_ref().and_then(|config| config.effort.clone());
        set(&mut thinking.effort, "output_config.effort", said(effort))?;
        let (messages, call_paths) = conversation::take(fields)?;
        Ok(Self {
            model: fields.take("model")?,
            messages,
            call_paths,
            tool_options: tools::take(fields)?,
            thinking,
            output_config,
            not_held: NotHeld::default(),
        })
    }
}

/// The field that asks the server to store the conversation.
const THREAD: &str = "thread";

/// Ignores edits of the context, because the server never removes messages. Keeping all reasoning is no edit.
fn leave_out_edits(fields: &mut Fields<'_>) -> Result<(), FieldError> {
    #[derive(Deserialize)]
    struct ContextManagement {
        edits: Option<Vec<Value>>,
    }
    let management: Option<ContextManagement> = fields.take("context_management")?;
    let edits = management.and_then(|management| management.edits).unwrap_or_default();
    for (index, edit) in edits.iter().enumerate() {
        let kind = edit["type"].as_str().unwrap_or_default();
        let keeps_all = kind.starts_with("clear_thinking") && edit["keep"] == "all";
        if !keeps_all {
            fields.leave_out(format!("context_management.edits[{index}]"), Some(kind));
        }
    }
    Ok(())
}

fn of_format(format: &OutputFormat) -> Result<OutputConstraint, FieldError> {
    if format.kind != "json_schema" || !format.schema.is_object() {
        let message =
            "`output_config.format` must have the type `json_schema` and a `schema`, an object.";
        return Err(FieldError::new("output_config.format", message));
    }
    let kind = ConstraintKind::JsonSchema(format.schema.clone());
    Ok(OutputConstraint { param: "output_config.format.schema", kind })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::chat::{Role, ToolChoice};

    fn parse(more: Value) -> Result<MessagesRequest, FieldError> {
        let mut body = json!({"model": "m", "max_tokens": 5, "messages": [{"role": "user", "content": "Hello"}]});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        MessagesRequest::parse(body.to_string().as_bytes())
    }

    #[test]
    fn the_system_prompt_comes_first() {
        let request = parse(
            json!({"system": [{"type": "text", "text": "Be brief."}], "stop_sequences": ["x"]}),
        )
        .unwrap();
        let texts = [(Role::System, "Be brief."), (Role::User, "Hello")];
        let expected = texts.map(|(role, text)| ChatMessage::text(role, text.into()));
        assert_eq!(request.prompt.messages, expected);
        assert_eq!(request.generation.stop, Some(StopStrings(vec!["x".into()])));
        assert_eq!(request.generation.max_tokens, Some(5));
    }

    #[test]
    fn a_format_is_a_constraint() {
        let schema = json!({"type": "object"});
        let format =
            json!({"output_config": {"format": {"type": "json_schema", "schema": schema}}});
        let constraint = parse(format).unwrap().generation.constraint.unwrap();
        assert_eq!(constraint.kind, ConstraintKind::JsonSchema(schema));
    }

    fn tool(name: &str) -> Value {
        json!({"name": name, "description": "d", "input_schema": {"type": "object"}, "cache_control": {"type": "ephemeral"}})
    }

    #[test]
    fn functions_are_those_of_chat() {
        for (choice, expected, parallel) in [
            (json!(null), ToolChoice::Auto, true),
            (json!({"type": "auto", "disable_parallel_tool_use": true}), ToolChoice::Auto, false),
            (json!({"type": "any"}), ToolChoice::Required, true),
            (json!({"type": "tool", "name": "f"}), ToolChoice::Function("f".into()), true),
            (json!({"type": "none"}), ToolChoice::None, true),
        ] {
            let request = parse(json!({"tools": [tool("f")], "tool_choice": choice})).unwrap();
            let options = request.prompt.tool_options.unwrap();
            assert_eq!((options.choice, options.parallel), (expected, parallel));
            assert!(!options.tools[0].strict && options.schema_field == "input_schema");
            let schema = json!({"type": "object"});
            let function = json!({"name": "f", "description": "d", "parameters": schema});
            let definition = json!({"type": "function", "function": function});
            assert_eq!(options.tools[0].definition, definition);
        }
        assert_eq!(parse(json!({"tools": []})).unwrap().prompt.tool_options, None);
    }

    #[test]
    fn blocks_become_the_messages_of_chat() {
        let messages = json!([
            {"role": "user", "content": "Weather?"},
            {"role": "assistant", "content": [
                {"type": "thinking", "thinking": "Hm.", "signature": ""},
                {"type": "text", "text": "I look."},
                {"type": "tool_use", "id": "a", "name": "f", "input": {"x": 1}},
                {"type": "tool_use", "id": "b", "name": "g", "input": {}},
            ]},
            {"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": "a", "content": [{"type": "text", "text": "12"}]},
                {"type": "tool_result", "tool_use_id": "b", "content": "none", "is_error": true},
                {"type": "text", "text": "And?"},
            ]},
            {"role": "assistant", "content": [{"type": "tool_use", "id": "c", "name": "f", "input": {}}]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c"}]},
        ]);
        let messages = parse(json!({"messages": messages})).unwrap().prompt.messages;
        let said: Vec<(Role, Option<String>)> = messages
            .iter()
            .map(|message| (message.role, message.content.as_ref().map(|text| text.to_text())))
            .collect();
        let text = |text: &str| Some(text.to_owned());
        assert_eq!(
            said,
            [
                (Role::User, text("Weather?")),
                (Role::Assistant, text("I look.")),
                (Role::Tool, text("12")),
                (Role::Tool, text("Error: none")),
                (Role::User, text("And?")),
                (Role::Assistant, None),
                (Role::Tool, text("")),
            ]
        );
        assert_eq!(messages[1].reasoning_content.as_deref(), Some("Hm."));
        let calls = messages[1].tool_calls.as_ref().unwrap();
        assert_eq!(calls[0].0["function"], json!({"name": "f", "arguments": {"x": 1}}));
        assert_eq!(messages[3].tool_call_id.as_deref(), Some("b"));
    }

    #[test]
    fn images_are_read_in_messages_and_in_results_of_tools() {
        let image = |data: &str| {
            let source = json!({"type": "base64", "media_type": "image/png", "data": data});
            json!({"type": "image", "source": source, "cache_control": {"type": "ephemeral"}})
        };
        let url =
            json!({"type": "image", "source": {"type": "url", "url": "https://a.example/b.png"}});
        let messages = json!([
            {"role": "user", "content": [{"type": "text", "text": "a"}, image("AA=="), {"type": "text", "text": "b"}, url]},
            {"role": "assistant", "content": [{"type": "tool_use", "id": "c", "name": "f", "input": {}}]},
            {"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": "c", "is_error": true, "content": [{"type": "text", "text": "t"}, image("BB==")]},
                image("CC=="),
            ]},
        ]);
        let messages = parse(json!({"messages": messages})).unwrap().prompt.messages;
        let places = |message: &ChatMessage| {
            message.images().map(|image| image.path.clone()).collect::<Vec<_>>()
        };
        assert_eq!(
            places(&messages[0]),
            ["messages[0].content[1].source", "messages[0].content[3].source"]
        );
        assert_eq!(places(&messages[2]), ["messages[2].content[0].content[1].source"]);
        assert_eq!(places(&messages[3]), ["messages[2].content[1].source"]);
        assert_eq!((messages[2].role, messages[3].role), (Role::Tool, Role::User));
        let content = messages[2].content.as_ref().unwrap();
        assert_eq!(content.to_text(), "Error: \nt");
        let parts = messages[0].content.as_ref().unwrap().parts();
        let texts: Vec<_> = parts.iter().map(crate::ContentPart::text).collect();
        assert_eq!(texts, [Some("a"), None, Some("b"), None]);
        let source = &messages[3].images().next().unwrap().source;
        let (media_type, data) = ("image/png".to_owned(), "CC==".to_owned());
        assert!(*source == crate::ImageSource::Base64 { media_type, data });
    }

    #[test]
    fn answers_are_taken_back_as_they_were_given() {
        let ephemeral = json!({"type": "ephemeral"});
        let messages = json!([
            {"role": "user", "content": [{"type": "text", "text": "Hi", "cache_control": ephemeral}]},
            {"id": "msg_1", "type": "message", "role": "assistant", "model": "m", "stop_reason": "end_turn",
             "stop_sequence": null, "usage": {"input_tokens": 1}, "content": [
                {"type": "thinking", "thinking": "Hm.", "signature": ""},
                {"type": "text", "text": "Hello", "citations": null},
                {"type": "text", "text": "again", "citations": []},
                {"type": "tool_use", "id": "a", "name": "f", "input": {}, "caller": {"type": "direct"}},
            ]},
            {"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": "a", "content": "12", "cache_control": ephemeral},
            ]},
        ]);
        assert_eq!(parse(json!({"messages": messages})).unwrap().prompt.messages.len(), 3);
    }

    #[test]
    fn what_is_not_there_is_refused_by_name() {
        for (more, param) in [
            (json!({"max_tokens": null}), "max_tokens"),
            (json!({"messages": []}), "messages"),
            (json!({"messages": [{"role": "tool", "content": "x"}]}), "messages[0].role"),
            (
                json!({"messages": [{"role": "user", "content": [{"type": "image"}]}]}),
                "messages[0].content[0].source.type",
            ),
            (
                json!({"messages": [{"role": "user", "content": [{"type": "document", "source": {}}]}]}),
                "messages[0].content[0].type",
            ),
            (
                json!({"messages": [{"role": "assistant", "content": [{"type": "image", "source": {}}]}]}),
                "messages[0].content[0].type",
            ),
            (
                json!({"messages": [{"role": "user", "content": [{"type": "image", "source": {"type": "file", "file_id": "f"}}]}]}),
                "messages[0].content[0].source.type",
            ),
            (
                json!({"messages": [{"role": "user", "content": [{"type": "image", "source": {"type": "base64", "data": "AA=="}}]}]}),
                "messages[0].content[0].source.media_type",
            ),
            (
                json!({"messages": [{"role": "user", "content": [{"type": "image", "source": {"type": "url", "url": "u", "x": 1}}]}]}),
                "messages[0].content[0].source.x",
            ),
            (
                json!({"messages": [{"role": "user", "content": [
                    {"type": "tool_result", "tool_use_id": "a", "content": [{"type": "document", "source": {}}]},
                ]}]}),
                "messages[0].content[0].content[0].type",
            ),
            (
                json!({"messages": [{"role": "user", "content": "x", "name": "y"}]}),
                "messages[0].name",
            ),
            (
                json!({"messages": [{"role": "user", "content": [{"type": "text", "text": "x", "bold": true}]}]}),
                "messages[0].content[0].bold",
            ),
            (
                json!({"messages": [{"role": "user", "content": [
                    {"type": "tool_result", "tool_use_id": "a", "content": [{"type": "text", "text": "x", "y": 1}]},
                ]}]}),
                "messages[0].content[0].content[0].y",
            ),
            (
                json!({"messages": [{"role": "assistant", "content": [{"type": "text", "text": "x", "citations": [{}]}]}]}),
                "messages[0].content[0].citations",
            ),
            (json!({"system": [{"type": "text", "text": "x", "y": 1}]}), "system[0].y"),
            (json!({"tools": [{"name": "f"}]}), "tools[0]"),
            (json!({"tools": [{"type": "costum", "name": "f", "input_schema": {}}]}), "tools[0]"),
            (
                json!({"tools": [{"type": "bash_20250124", "name": "bash"}], "tool_choice": {"type": "any"}}),
                "tool_choice",
            ),
            (json!({"thread": {"type": "create"}}), "thread"),
            (json!({"tools": [tool("f"), tool("f")]}), "tools[1].name"),
            (json!({"tool_choice": {"type": "any"}}), "tool_choice"),
            (json!({"tools": [tool("f")], "tool_choice": {"type": "tool"}}), "tool_choice"),
            (
                json!({"tools": [tool("f")], "tool_choice": {"type": "tool", "name": "g"}}),
                "tool_choice.name",
            ),
            (
                json!({"messages": [{"role": "user", "content": [{"type": "tool_use"}]}]}),
                "messages[0].content[0].type",
            ),
            (
                json!({"messages": [{"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "f", "input": 7}]}]}),
                "messages[0].content[0].input",
            ),
            (
                json!({"output_config": {"format": {"type": "xml", "schema": {}}}}),
                "output_config.format",
            ),
            (
                json!({"thinking": {"type": "enabled", "budget_tokens": -1}}),
                "thinking.budget_tokens",
            ),
            (json!({"thinking": {"type": "long"}}), "thinking.type"),
            (json!({"stop_sequences": [""]}), "stop_sequences"),
            (json!({"frequency_penalty": 1}), "frequency_penalty"),
        ] {
            assert_eq!(parse(more.clone()).unwrap_err().param.as_deref(), Some(param), "{more}");
        }
        let request =
            parse(json!({"thinking": {"type": "disabled"}, "metadata": {"user_id": "u"}}));
        assert!(!request.unwrap().prompt.thinking.enabled.unwrap().value);
    }

    /// A shortened first request of Claude Code.
    #[test]
    fn instructions_may_come_later_and_edits_are_left_out() {
        let keep = json!({"type": "clear_thinking_20251015", "keep": "all"});
        let request = parse(json!({
            "messages": [
                {"role": "user", "content": "Hello"},
                {"role": "system", "content": [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}]},
            ],
            "context_management": {"edits": [keep, {"type": "clear_tool_uses_20250919"}]},
            "thinking": {"type": "enabled", "budget_tokens": 1024}, "output_config": {"effort": "high"},
            "tools": [{"type": "web_search_20250305", "name": "web_search"}, tool("f")],
        }))
        .unwrap()
        .prompt;
        assert_eq!(request.messages[1], ChatMessage::text(Role::System, "Be brief.".into()));
        let told = "context_management.edits[1] (clear_tool_uses_20250919), tools[0] (web_search_20250305)";
        assert_eq!(request.not_held.line(), told);
        assert_eq!(request.thinking.budget.unwrap().value, 1024);
        assert_eq!(request.thinking.effort.unwrap().field, "output_config.effort");
        assert_eq!(request.tool_options.unwrap().tools[0].path, "tools[1]");
    }

    #[test]
    fn calls_without_arguments_are_taken_back() {
        let call = json!({"type": "tool_use", "id": "a", "name": "f"});
        let messages = json!([{"role": "assistant", "content": [call]}]);
        let request = parse(json!({"messages": messages})).unwrap().prompt;
        assert!(request.messages[0].tool_calls.is_some());
    }

    #[test]
    fn blocks_of_tools_that_another_server_ran_are_left_out() {
        let text = json!({"type": "text", "text": "x"});
        let used = json!({"type": "tool_use", "id": "a", "name": "f", "input": "{\"x\": 1}"});
        let messages = json!([
            {"role": "user", "content": "q"}, {"role": "assistant", "content": null}, {"role": "user", "content": "q"},
            {"role": "assistant", "content": [
                {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {}},
                {"type": "web_search_tool_result", "tool_use_id": "s", "content": []}, text, used,
            ]},
            {"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": "a", "content": [{"type": "tool_reference", "tool_name": "g"}]},
            ]},
        ]);
        let request = parse(json!({"messages": messages})).unwrap().prompt;
        let told = "messages[3].content[0] (server_tool_use), messages[3].content[1] (web_search_tool_result)";
        assert_eq!(request.not_held.line(), told);
        assert_eq!(request.call_paths, ["messages[3].content[3].input"]);
        assert_eq!(request.messages[4].content.as_ref().unwrap().to_text(), "g");
        let calls = request.messages[3].tool_calls.as_ref().unwrap();
        assert_eq!(calls[0].0["function"]["arguments"], "{\"x\": 1}");
        assert_eq!(request.messages[1].content.as_ref().unwrap().to_text(), "");
    }
}
