//! The tools of a request to POST /v1/messages.

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

/// The fields in JSON.
#[derive(ToSchema)]
#[schema(as = MessagesOptions)]
#[expect(dead_code, reason = "it describes the fields for the OpenAPI document")]
pub(crate) struct WireOptions {
    /// System prompt: a string or a list of text blocks.
    #[schema(value_type = Option<Object>)]
    system: Option<Value>,
    /// Tools that the model may call.
    tools: Option<Vec<WireTool>>,
    /// Tool choice. Default: `auto` if there are tools.
    tool_choice: Option<WireChoice>,
}

/// A tool in JSON.
#[derive(Deserialize, ToSchema)]
#[schema(as = MessagesTool)]
#[serde(deny_unknown_fields)]
struct WireTool {
    /// `custom`, or absent. Tools of other types are ignored and listed in the response header `x-candlepower-not-held`.
    #[serde(rename = "type")]
    #[expect(dead_code, reason = "it is checked before the other fields are read")]
    kind: Option<String>,
    /// Name of the tool: at most 128 letters, digits, `_`, `-` and `.`.
    name: String,
    /// Description of the tool, for the model.
    description: Option<String>,
    /// JSON schema of the arguments, an object.
    #[schema(value_type = Object)]
    input_schema: Map<String, Value>,
    /// Constrain arguments to the schema, also with the tool choice `auto`.
    #[schema(default = false)]
    strict: Option<bool>,
    /// Accepted and ignored: the prefix cache needs no hints.
    #[schema(value_type = Option<Object>)]
    #[expect(dead_code, reason = "it cannot change the answer")]
    cache_control: Option<IgnoredAny>,
    /// Accepted and ignored: arguments are always streamed as they are generated.
    #[expect(dead_code, reason = "it cannot change the answer")]
    eager_input_streaming: Option<bool>,
    /// Accepted and ignored: the model always sees all tools.
    #[expect(dead_code, reason = "there is no search for tools")]
    defer_loading: Option<bool>,
    /// Accepted and ignored: only the model calls tools.
    #[schema(value_type = Option<Object>)]
    #[expect(dead_code, reason = "there are no other callers")]
    allowed_callers: Option<IgnoredAny>,
}

/// A tool choice in JSON.
#[derive(Deserialize, ToSchema)]
#[schema(as = MessagesToolChoice)]
#[serde(deny_unknown_fields)]
struct WireChoice {
    /// `auto`, `any` (at least one), `tool` or `none`.
    #[serde(rename = "type")]
    kind: String,
    /// With `tool`: name of the tool to call.
    name: Option<String>,
    /// Allow at most one call in an answer.
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

/// Takes the tools out of `fields`; `None` without functions.
///
/// # Errors
/// A tool or the choice is invalid, or there is a choice without tools.
pub(super) fn take(fields: &mut Fields<'_>) -> Result<Option<ToolOptions>, FieldError> {
    let given: Option<Vec<MessagesTool>> = fields.take("tools")?;
    let choice: Option<WireChoice> = fields.take("tool_choice")?;
    let disabled = choice.as_ref().and_then(|choice| choice.disable_parallel_tool_use);
    let choice = choice.map(WireChoice::choice).transpose()?;
    let given = given.unwrap_or_default().into_iter().map(|MessagesTool(tool)| tool).collect();
    ToolOptions::of_given(fields, given, choice, disabled.map(|disabled| !disabled), PATHS)
}
