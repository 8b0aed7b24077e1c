//! The request of POST /v1/responses.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

use crate::chat::{ChatMessage, Content, Role};
use crate::constraint::{ConstraintKind, OutputConstraint};
use crate::error::{FieldError, excerpt};
use crate::fields::Fields;
use crate::generation::GenerationFields;

/// The next turn of a conversation, of which the server may hold the earlier ones.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
pub struct ResponsesRequest {
    /// Name of the model, as GET /v1/models lists it.
    pub model: String,
    /// What is new: a text, or messages with the roles user, assistant, system and developer.
    #[schema(value_type = Object)]
    pub input: Vec<ChatMessage>,
    /// What the model is told before everything else; it holds for this turn only.
    pub instructions: Option<String>,
    /// The response that this one follows: its conversation precedes `input`.
    pub previous_response_id: Option<String>,
    /// Most tokens to generate; the rest of the context when absent.
    pub max_output_tokens: Option<i64>,
    /// Whether the response can be followed and retrieved later.
    #[schema(default = true)]
    pub store: Option<bool>,
    /// Handed to the chat template: how long to think.
    pub reasoning_effort: Option<String>,
    /// Given back as they are.
    pub metadata: Option<Map<String, Value>>,
    /// The form of the text, as it was given.
    pub text: Option<TextSettings>,
    /// How to draw tokens; one answer is generated.
    #[serde(flatten)]
    pub generation: GenerationFields,
}

/// What the text is to be like.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct TextSettings {
    /// Its form.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub format: Option<TextFormat>,
}

/// The form of a text: plain, any JSON object, or JSON that a schema describes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct TextFormat {
    /// `text`, `json_object` or `json_schema`.
    #[serde(rename = "type")]
    pub kind: String,
    /// What the schema is called; it changes nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// What it is for; it changes nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// The JSON schema, with `json_schema`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub schema: Option<Value>,
    /// The schema is held in any case.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub strict: Option<bool>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Reasoning {
    effort: Option<String>,
    summary: Option<Value>,
    generate_summary: Option<Value>,
}

impl ResponsesRequest {
    /// Reads a request body.
    pub fn parse(body: &[u8]) -> Result<Self, FieldError> {
        let mut fields = Fields::parse(body)?;
        let model = fields.require("model")?;
        let input = input_messages(fields.require("input")?)?;
        let text: Option<TextSettings> = fields.take("text")?;
        refuse_unsupported(&mut fields)?;
        let reasoning: Option<Reasoning> = fields.take("reasoning")?;
        if reasoning.as_ref().is_some_and(|r| r.summary.is_some() || r.generate_summary.is_some()) {
            let message = "Summaries of reasoning are not supported: leave `summary` out.";
            return Err(FieldError::new("reasoning.summary", message));
        }
        let mut generation = GenerationFields::take(&mut fields)?;
        if generation.n.is_some_and(|n| n != 1) || generation.prompt_logprobs.is_some() {
            return Err(FieldError::new(
                "n",
                "One response is generated: leave `n` and `prompt_logprobs` out.",
            ));
        }
        if let Some(constraint) = text.as_ref().and_then(|text| text.format.as_ref()).map(of_format)
        {
            if generation.constraint.is_some() {
                let message = "`text.format` and another field both say what the output is to be: give one of them.";
                return Err(FieldError::new("text.format", message));
            }
            generation.constraint = constraint?;
        }
        let max_output_tokens = fields.take_integer("max_output_tokens")?;
        generation.max_tokens = max_output_tokens.or(generation.max_tokens);
        let request = Self {
            model,
            input,
            instructions: fields.take("instructions")?,
            previous_response_id: fields.take("previous_response_id")?,
            max_output_tokens,
            store: fields.take("store")?,
            reasoning_effort: reasoning.and_then(|reasoning| reasoning.effort),
            metadata: fields.take("metadata")?,
            text,
            generation,
        };
        fields.finish()?;
        Ok(request)
    }
}

/// What would change the output and is not there.
fn refuse_unsupported(fields: &mut Fields<'_>) -> Result<(), FieldError> {
    let refuse =
        |name: &str, what: &str| Err(FieldError::new(name, format!("{what}: leave `{name}` out.")));
    if fields.take::<Vec<serde::de::IgnoredAny>>("tools")?.is_some_and(|tools| !tools.is_empty()) {
        return refuse("tools", "Tools are not supported by /v1/responses yet");
    }
    if fields
        .take::<Value>("tool_choice")?
        .is_some_and(|choice| choice != "auto" && choice != "none")
    {
        return refuse("tool_choice", "Tools are not supported by /v1/responses yet");
    }
    if fields.take::<Vec<String>>("include")?.is_some_and(|include| !include.is_empty()) {
        return refuse("include", "Nothing can be included beyond the text");
    }
    if fields.take_integer("top_logprobs")?.is_some_and(|top| top != 0) {
        return refuse("top_logprobs", "/v1/responses reports no log-probabilities");
    }
    if fields.take::<String>("truncation")?.is_some_and(|truncation| truncation != "disabled") {
        return refuse("truncation", "Conversations are never cut silently");
    }
    if fields.take::<bool>("background")? == Some(true) {
        return refuse("background", "Responses are not generated in the background");
    }
    for name in ["conversation", "prompt", "max_tool_calls"] {
        if fields.take::<Value>(name)?.is_some() {
            return refuse(name, "It is not supported");
        }
    }
    Ok(())
}

fn of_format(format: &TextFormat) -> Result<Option<OutputConstraint>, FieldError> {
    const PARAM: &str = "text.format.schema";
    let kind = match (format.kind.as_str(), &format.schema) {
        ("text", None) => return Ok(None),
        ("json_object", None) => ConstraintKind::JsonObject,
        ("json_schema", Some(schema @ (Value::Object(_) | Value::Bool(_)))) => {
            ConstraintKind::JsonSchema(schema.clone())
        }
        ("json_schema", _) => {
            return Err(FieldError::new(
                PARAM,
                "The type `json_schema` needs a `schema`, an object.",
            ));
        }
        ("text" | "json_object", Some(_)) => {
            return Err(FieldError::new(PARAM, "`schema` needs the type `json_schema`."));
        }
        (other, _) => {
            return Err(FieldError::new(
                "text.format.type",
                format!(
                    "`{}` is not supported: text, json_object and json_schema are.",
                    excerpt(other)
                ),
            ));
        }
    };
    Ok(Some(OutputConstraint { param: PARAM, kind }))
}

/// The messages of an `input`.
fn input_messages(input: Value) -> Result<Vec<ChatMessage>, FieldError> {
    let items = match input {
        Value::String(text) => return Ok(vec![ChatMessage::text(Role::User, text)]),
        Value::Array(items) => items,
        _ => return Err(FieldError::new("input", "`input` must be a text or a list of messages.")),
    };
    if items.is_empty() {
        return Err(FieldError::new("input", "`input` is empty: give at least one message."));
    }
    let messages = items.into_iter().enumerate();
    messages.map(|(index, item)| input_message(&format!("input[{index}]"), item)).collect()
}

fn input_message(path: &str, item: Value) -> Result<ChatMessage, FieldError> {
    let Value::Object(item) = item else {
        return Err(FieldError::new(path, format!("`{path}` must be a message: an object.")));
    };
    let kind = item.get("type").and_then(Value::as_str).unwrap_or("message");
    if kind != "message" {
        return Err(FieldError::new(
            format!("{path}.type"),
            format!("Items of type `{}` are not supported yet, only messages.", excerpt(kind)),
        ));
    }
    for key in item.keys() {
        if !["type", "role", "content", "id", "status"].contains(&key.as_str()) {
            let message = format!("`{}` is not a field of a message.", excerpt(key));
            return Err(FieldError::new(format!("{path}.{}", excerpt(key)), message));
        }
    }
    let role = match item.get("role").and_then(Value::as_str) {
        Some("user") => Role::User,
        Some("assistant") => Role::Assistant,
        Some("system") => Role::System,
        Some("developer") => Role::Developer,
        _ => {
            let message = "`role` must be user, assistant, system or developer.";
            return Err(FieldError::new(format!("{path}.role"), message));
        }
    };
    let path = format!("{path}.content");
    let text = texts_of(&path, item.get("content"), &["input_text", "output_text"])?;
    Ok(ChatMessage::text(role, text))
}

/// A text, or the texts of parts of these types, joined by line ends.
pub(crate) fn texts_of(
    path: &str,
    content: Option<&Value>,
    kinds: &[&str],
) -> Result<String, FieldError> {
    let parts = match content {
        Some(Value::String(text)) => return Ok(text.clone()),
        Some(Value::Array(parts)) => parts,
        _ => {
            return Err(FieldError::new(
                path,
                format!("`{path}` must be a text or a list of parts."),
            ));
        }
    };
    let texts = parts.iter().enumerate().map(|(index, part)| {
        let kind = part.get("type").and_then(Value::as_str).unwrap_or_default();
        if !kinds.contains(&kind) {
            let message = format!(
                "Parts of type `{}` are not supported: {} is.",
                excerpt(kind),
                kinds.join(", ")
            );
            return Err(FieldError::new(format!("{path}[{index}].type"), message));
        }
        let missing =
            || FieldError::new(format!("{path}[{index}].text"), "The part has no `text`.");
        part.get("text").and_then(Value::as_str).ok_or_else(missing)
    });
    Ok(texts.collect::<Result<Vec<_>, _>>()?.join("\n"))
}

impl ChatMessage {
    /// A turn that is one text.
    pub fn text(role: Role, text: String) -> Self {
        Self {
            role,
            content: Some(Content::Text(text)),
            name: None,
            tool_calls: None,
            tool_call_id: None,
            reasoning_content: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn parse(more: Value) -> Result<ResponsesRequest, FieldError> {
        let mut body = json!({"model": "m", "input": "Hello"});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        ResponsesRequest::parse(body.to_string().as_bytes())
    }

    #[test]
    fn texts_and_messages_are_read() {
        let hello = ChatMessage::text(Role::User, "Hello".into());
        assert_eq!(parse(json!({})).unwrap().input, std::slice::from_ref(&hello));
        let input = json!([
            {"role": "user", "content": "Hello"},
            {"type": "message", "id": "msg_1", "status": "completed", "role": "assistant",
             "content": [{"type": "output_text", "text": "Hi", "annotations": []}]},
        ]);
        let messages = parse(json!({"input": input})).unwrap().input;
        assert_eq!(messages, [hello, ChatMessage::text(Role::Assistant, "Hi".into())]);
    }

    #[test]
    fn formats_are_constraints() {
        let format = |format: Value| {
            parse(json!({"text": {"format": format}})).unwrap().generation.constraint
        };
        assert_eq!(format(json!({"type": "text"})), None);
        assert_eq!(
            format(json!({"type": "json_object"})).unwrap().kind,
            ConstraintKind::JsonObject
        );
        let schema = json!({"type": "object"});
        let found =
            format(json!({"type": "json_schema", "name": "n", "strict": true, "schema": schema}));
        assert_eq!(found.unwrap().kind, ConstraintKind::JsonSchema(schema));
    }

    #[test]
    fn what_is_not_there_is_refused_by_name() {
        for (more, param) in [
            (json!({"input": []}), "input"),
            (json!({"input": 1}), "input"),
            (json!({"input": [{"role": "tool", "content": "x"}]}), "input[0].role"),
            (json!({"input": [{"type": "function_call_output"}]}), "input[0].type"),
            (
                json!({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}),
                "input[0].content[0].type",
            ),
            (json!({"tools": [{"type": "function"}]}), "tools"),
            (json!({"truncation": "auto"}), "truncation"),
            (json!({"background": true}), "background"),
            (json!({"n": 2}), "n"),
            (json!({"text": {"format": {"type": "grammar"}}}), "text.format.type"),
            (json!({"text": {"format": {"type": "json_schema"}}}), "text.format.schema"),
            (json!({"messages": []}), "messages"),
        ] {
            assert_eq!(parse(more.clone()).unwrap_err().param.as_deref(), Some(param), "{more}");
        }
        parse(
            json!({"tools": [], "tool_choice": "auto", "store": false, "truncation": "disabled"}),
        )
        .unwrap();
    }
}
