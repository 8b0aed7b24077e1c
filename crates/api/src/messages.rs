//! The requests of POST /v1/messages and /v1/messages/count_tokens, in the shape of Anthropic's clients.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use crate::chat::{ChatMessage, Role};
use crate::constraint::{ConstraintKind, OutputConstraint};
use crate::error::FieldError;
use crate::fields::Fields;
use crate::generation::{GenerationFields, StopStrings};
use crate::responses::texts_of;

/// A conversation that the model is to continue.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
pub struct MessagesRequest {
    /// Name of the model, as GET /v1/models lists it.
    pub model: String,
    /// The conversation, with `system` as its first message; never empty. Where the last message is the assistant's, the
    /// model goes on with it.
    #[schema(value_type = Vec<Object>, min_items = 1)]
    pub messages: Vec<ChatMessage>,
    /// `max_tokens`, which must be given, `temperature`, `top_p`, `top_k` and `stop_sequences`, under the names of
    /// /v1/chat/completions.
    #[serde(flatten)]
    pub generation: GenerationFields,
    /// The form of the text, and how long to think, which is handed to the chat template.
    pub output_config: Option<OutputConfig>,
}

/// What the text is to be like.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct OutputConfig {
    /// Handed to the chat template as `reasoning_effort`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub effort: Option<String>,
    /// JSON that a schema describes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub format: Option<OutputFormat>,
}

/// JSON that a schema describes.
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
    /// Reads a request body.
    pub fn parse(body: &[u8]) -> Result<Self, FieldError> {
        let mut fields = Fields::parse(body)?;
        let (model, messages) = conversation(&mut fields)?;
        let max_tokens = fields.take_integer("max_tokens")?;
        let output_config: Option<OutputConfig> = fields.take("output_config")?;
        let format = output_config.as_ref().and_then(|config| config.format.as_ref());
        let request = Self {
            model,
            messages,
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
            output_config,
        };
        fields.finish()?;
        Ok(request)
    }

    /// Reads the body of a request that only asks for the number of tokens: its model and messages.
    pub fn parse_count(body: &[u8]) -> Result<(String, Vec<ChatMessage>), FieldError> {
        let mut fields = Fields::parse(body)?;
        let conversation = conversation(&mut fields)?;
        fields.finish()?;
        Ok(conversation)
    }
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

fn conversation(fields: &mut Fields<'_>) -> Result<(String, Vec<ChatMessage>), FieldError> {
    let model = fields.require("model")?;
    let mut messages = Vec::new();
    if let Some(system) = fields.take::<Value>("system")? {
        messages
            .push(ChatMessage::text(Role::System, texts_of("system", Some(&system), &["text"])?));
    }
    let given: Vec<Value> = fields.require("messages")?;
    if given.is_empty() {
        return Err(FieldError::new("messages", "`messages` is empty: give at least one message."));
    }
    for (index, message) in given.iter().enumerate() {
        let path = format!("messages[{index}]");
        let role = match message.get("role").and_then(Value::as_str) {
            Some("user") => Role::User,
            Some("assistant") => Role::Assistant,
            _ => {
                let message = "`role` must be user or assistant; instructions are in `system`.";
                return Err(FieldError::new(format!("{path}.role"), message));
            }
        };
        let text = texts_of(&format!("{path}.content"), message.get("content"), &["text"])?;
        messages.push(ChatMessage::text(role, text));
    }
    refuse_unsupported(fields)?;
    // They say what to cache and how fast to be, and cannot change the text.
    for hint in ["cache_control", "speed"] {
        fields.take::<Value>(hint)?;
    }
    Ok((model, messages))
}

/// What would change the output and is not there.
fn refuse_unsupported(fields: &mut Fields<'_>) -> Result<(), FieldError> {
    if fields.take::<Vec<serde::de::IgnoredAny>>("tools")?.is_some_and(|tools| !tools.is_empty()) {
        let message = "Tools are not supported by /v1/messages yet: leave `tools` out.";
        return Err(FieldError::new("tools", message));
    }
    let is_none = |choice: &Value| choice.get("type").is_some_and(|kind| kind == "none");
    if fields.take::<Value>("tool_choice")?.is_some_and(|choice| !is_none(&choice)) {
        let message = "Tools are not supported by /v1/messages yet: leave `tool_choice` out.";
        return Err(FieldError::new("tool_choice", message));
    }
    let is_disabled =
        |thinking: &Value| thinking.get("type").is_some_and(|kind| kind == "disabled");
    if fields.take::<Value>("thinking")?.is_some_and(|thinking| !is_disabled(&thinking)) {
        let message =
            "Thinking is not told from the text yet: leave `thinking` out, or disable it.";
        return Err(FieldError::new("thinking", message));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

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
        assert_eq!(request.messages, expected);
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

    #[test]
    fn what_is_not_there_is_refused_by_name() {
        for (more, param) in [
            (json!({"max_tokens": null}), "max_tokens"),
            (json!({"messages": []}), "messages"),
            (json!({"messages": [{"role": "system", "content": "x"}]}), "messages[0].role"),
            (
                json!({"messages": [{"role": "user", "content": [{"type": "image"}]}]}),
                "messages[0].content[0].type",
            ),
            (json!({"tools": [{"name": "f"}]}), "tools"),
            (
                json!({"output_config": {"format": {"type": "xml", "schema": {}}}}),
                "output_config.format",
            ),
            (json!({"thinking": {"type": "enabled", "budget_tokens": 1024}}), "thinking"),
            (json!({"stop_sequences": [""]}), "stop_sequences"),
            (json!({"frequency_penalty": 1}), "frequency_penalty"),
        ] {
            assert_eq!(parse(more.clone()).unwrap_err().param.as_deref(), Some(param), "{more}");
        }
        parse(json!({"thinking": {"type": "disabled"}, "metadata": {"user_id": "u"}})).unwrap();
    }
}
