//! The functions of a request to POST /v1/responses.

use serde::de::Error;
use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value};
use utoipa::ToSchema;

use crate::chat::tools::{ToolPaths, unknown_choice};
use crate::chat::{AllowedTools, Tool, ToolChoice, ToolOptions};
use crate::error::{FieldError, excerpt};
use crate::fields::Fields;

const PATHS: ToolPaths = ToolPaths {
    name: "name",
    schema: "parameters",
    chosen: "tool_choice.name",
    allowed: "tool_choice.tools",
};

/// The fields as they stand on the wire.
#[derive(ToSchema)]
#[schema(as = ResponsesToolOptions)]
#[expect(dead_code, reason = "it describes the fields for the OpenAPI document")]
pub(crate) struct WireToolOptions {
    /// The functions that the model may call.
    tools: Option<Vec<WireTool>>,
    /// `none`, `auto`, `required`, `{"type": "function", "name": ..}`, or `{"type": "allowed_tools", "mode": .., "tools": ..}`;
    /// `auto` where there are tools.
    #[schema(value_type = Option<Object>)]
    tool_choice: Option<Value>,
    /// Whether one answer may hold several calls.
    #[schema(default = true)]
    parallel_tool_calls: Option<bool>,
}

/// A tool as it stands on the wire.
#[derive(Deserialize, ToSchema)]
#[schema(as = ResponsesTool)]
#[serde(deny_unknown_fields)]
struct WireTool {
    /// `function`.
    #[serde(rename = "type")]
    #[expect(dead_code, reason = "it is checked before the other fields are read")]
    kind: String,
    /// Letters, digits, `_`, `-` and `.`; at most 64.
    name: String,
    /// What it does, for the model.
    description: Option<String>,
    /// The JSON schema of its arguments, an object; without it there are none.
    #[schema(value_type = Option<Object>)]
    parameters: Option<Map<String, Value>>,
    /// Whether its arguments are held to the schema whenever it is called.
    #[schema(default = true)]
    strict: Option<bool>,
}

struct ResponsesTool(Tool);

impl<'de> Deserialize<'de> for ResponsesTool {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = Value::deserialize(deserializer)?;
        match value["type"].as_str() {
            Some("function") => {}
            Some(other) => {
                return Err(D::Error::custom(format_args!(
                    "tools of type `{}` are not supported, only `function`",
                    excerpt(other)
                )));
            }
            None => return Err(D::Error::custom("the tool has no `type`")),
        }
        let WireTool { name, description, parameters, strict, .. } = WireTool::deserialize(&value)
            .map_err(|error| D::Error::custom(format_args!("a tool: {error}")))?;
        // This API holds calls to their schemas unless it is told not to.
        Tool::described(name, description, parameters, strict.unwrap_or(true))
            .map(Self)
            .map_err(D::Error::custom)
    }
}

struct ResponsesChoice(ToolChoice);

impl<'de> Deserialize<'de> for ResponsesChoice {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = Value::deserialize(deserializer)?;
        let wrong = || {
            D::Error::custom(
                "must be none, auto, required or {\"type\": \"function\", \"name\": ..}",
            )
        };
        let choice = match (value.as_str(), value["type"].as_str()) {
            (Some(word), _) => ToolChoice::of_word(word).ok_or_else(wrong)?,
            (None, Some("function")) => {
                ToolChoice::Function(value["name"].as_str().ok_or_else(wrong)?.to_owned())
            }
            (None, Some("allowed_tools")) => {
                AllowedTools::read(&value, |tool| tool["name"].as_str())
                    .map(ToolChoice::Allowed)
                    .map_err(D::Error::custom)?
            }
            (None, Some(other)) => return Err(D::Error::custom(unknown_choice(other))),
            (None, None) => return Err(wrong()),
        };
        Ok(Self(choice))
    }
}

/// Takes the functions out of `fields`; `None` without any.
///
/// # Errors
/// A function or the choice is wrong, or there is nothing to choose from.
pub(super) fn take(fields: &mut Fields<'_>) -> Result<Option<ToolOptions>, FieldError> {
    let tools: Option<Vec<ResponsesTool>> = fields.take("tools")?;
    let choice = fields.take("tool_choice")?.map(|ResponsesChoice(choice)| choice);
    let parallel = fields.take("parallel_tool_calls")?;
    let tools: Vec<Tool> =
        tools.unwrap_or_default().into_iter().map(|ResponsesTool(tool)| tool).collect();
    match (tools.is_empty(), choice) {
        // An answer of this API says this much where there was nothing to choose from.
        (true, None | Some(ToolChoice::None | ToolChoice::Auto)) => Ok(None),
        (true, Some(_)) => Err(FieldError::new("tool_choice", "`tool_choice` needs `tools`.")),
        (false, choice) => {
            ToolOptions::checked(tools, choice.unwrap_or(ToolChoice::Auto), parallel, PATHS)
                .map(Some)
        }
    }
}
