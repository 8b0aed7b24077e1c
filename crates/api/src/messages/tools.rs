//! The functions of a request to POST /v1/messages.

use serde::de::{Error, IgnoredAny};
use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value};
use utoipa::ToSchema;

use crate::chat::tools::{GivenTool, ToolPaths};
use crate::chat::{Tool, ToolChoice, ToolOptions};
use crate::error::FieldError;
use crate::fields::Fields;

const PATHS: ToolPaths = ToolPaths {
    name: "name",
    schema: "input_schema",
    chosen: "tool_choice.name",
    allowed: "tool_choice.name",
};

/// The fields as they stand on the wire.
#[derive(ToSchema)]
#[schema(as = MessagesOptions)]
#[expect(dead_code, reason = "it describes the fields for the OpenAPI document")]
pub(crate) struct WireOptions {
    /// What the model is told before everything else: a text or a list of text blocks.
    #[schema(value_type = Option<Object>)]
    system: Option<Value>,
    /// The functions that the model may call.
    tools: Option<Vec<WireTool>>,
    /// Which of them are to be called; `auto` where there are tools.
    tool_choice: Option<WireChoice>,
}

/// A tool as it stands on the wire.
#[derive(Deserialize, ToSchema)]
#[schema(as = MessagesTool)]
#[serde(deny_unknown_fields)]
struct WireTool {
    /// `custom`, or absent. Tools of other types are left out, which the answer's header `x-candlepower-not-held` says.
    #[serde(rename = "type")]
    #[expect(dead_code, reason = "it is checked before the other fields are read")]
    kind: Option<String>,
    /// Letters, digits, `_`, `-` and `.`; at most 128.
    name: String,
    /// What it does, for the model.
    description: Option<String>,
    /// The JSON schema of its arguments, an object.
    #[schema(value_type = Object)]
    input_schema: Map<String, Value>,
    /// Whether its arguments are held to the schema whenever it is called.
    #[schema(default = false)]
    strict: Option<bool>,
    /// Accepted and ignored: it says what to cache.
    #[schema(value_type = Option<Object>)]
    #[expect(dead_code, reason = "it cannot change the answer")]
    cache_control: Option<IgnoredAny>,
    /// Accepted and ignored: arguments are always streamed as they come.
    #[expect(dead_code, reason = "it cannot change the answer")]
    eager_input_streaming: Option<bool>,
    /// Accepted and ignored: the model knows of all functions at once.
    #[expect(dead_code, reason = "there is no search for tools")]
    defer_loading: Option<bool>,
    /// Accepted and ignored: the model itself calls.
    #[schema(value_type = Option<Object>)]
    #[expect(dead_code, reason = "there are no other callers")]
    allowed_callers: Option<IgnoredAny>,
}

/// A choice as it stands on the wire.
#[derive(Deserialize, ToSchema)]
#[schema(as = MessagesToolChoice)]
#[serde(deny_unknown_fields)]
struct WireChoice {
    /// `auto`, `any` (at least one), `tool` or `none`.
    #[serde(rename = "type")]
    kind: String,
    /// With `tool`: the function to call.
    name: Option<String>,
    /// Whether one answer holds at most one call.
    #[schema(default = false)]
    disable_parallel_tool_use: Option<bool>,
}

struct MessagesTool(GivenTool);

impl<'de> Deserialize<'de> for MessagesTool {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = Value::deserialize(deserializer)?;
        if let Some(kind) = value["type"].as_str()
            && kind != "custom"
        {
            return GivenTool::other(kind, &value, "custom").map(Self).map_err(D::Error::custom);
        }
        let WireTool { name, description, input_schema, strict, .. } =
            WireTool::deserialize(&value)
                .map_err(|error| D::Error::custom(format_args!("a tool: {error}")))?;
        Tool::described(name, description, Some(input_schema), strict.unwrap_or(false))
            .map(|tool| Self(GivenTool::Function(tool)))
            .map_err(D::Error::custom)
    }
}

impl WireChoice {
    fn choice(self) -> Result<ToolChoice, FieldError> {
        match (self.kind.as_str(), self.name) {
            ("auto", None) => Ok(ToolChoice::Auto),
            ("any", None) => Ok(ToolChoice::Required),
            ("none", None) => Ok(ToolChoice::None),
            ("tool", Some(name)) => Ok(ToolChoice::Function(name)),
            _ => Err(FieldError::new(
                "tool_choice",
                "`tool_choice` must have the type auto, any or none, or the type tool and a `name`.",
            )),
        }
    }
}

/// Takes the functions out of `fields`; `None` without any.
///
/// # Errors
/// A function or the choice is wrong, or there is nothing to choose from.
pub(super) fn take(fields: &mut Fields<'_>) -> Result<Option<ToolOptions>, FieldError> {
    let given: Option<Vec<MessagesTool>> = fields.take("tools")?;
    let choice: Option<WireChoice> = fields.take("tool_choice")?;
    let disabled = choice.as_ref().and_then(|choice| choice.disable_parallel_tool_use);
    let choice = choice.map(WireChoice::choice).transpose()?;
    let given = given.unwrap_or_default().into_iter().map(|MessagesTool(tool)| tool).collect();
    ToolOptions::of_given(fields, given, choice, disabled.map(|disabled| !disabled), PATHS)
}
