//! The tools of a request to POST /v1/responses.

use serde::de::Error;
use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value};
use utoipa::ToSchema;

use crate::chat::tools::{GivenTool, ToolPaths, namespaced, unknown_choice};
use crate::chat::{AllowedTools, MAX_TOOLS, Tool, ToolChoice, ToolOptions};
use crate::error::FieldError;
use crate::fields::Fields;

const PATHS: ToolPaths = ToolPaths {
    name: "name",
    schema: "parameters",
    chosen: "tool_choice.name",
    allowed: "tool_choice.tools",
};

/// The fields in JSON.
#[derive(ToSchema)]
#[schema(as = ResponsesToolOptions)]
#[expect(dead_code, reason = "it describes the fields for the OpenAPI document")]
pub(crate) struct WireToolOptions {
    /// Tools that the model may call.
    tools: Option<Vec<WireTool>>,
    /// `none`, `auto`, `required`, `{"type": "function", "name": ..}`, or `{"type": "allowed_tools", "mode": .., "tools": ..}`.
    /// Default: `auto` if there are tools.
    #[schema(value_type = Option<Object>)]
    tool_choice: Option<Value>,
    /// Allow several calls in one answer.
    #[schema(default = true)]
    parallel_tool_calls: Option<bool>,
}

/// A tool in JSON.
#[derive(Deserialize, ToSchema)]
#[schema(as = ResponsesTool)]
#[serde(deny_unknown_fields)]
struct WireTool {
    /// `function`, or `namespace` with a `name`, a `description` and `tools`. Tools of other types are ignored and listed in the
    /// response header `x-candlepower-not-held`.
    #[serde(rename = "type")]
    #[expect(dead_code, reason = "it is checked before the other fields are read")]
    kind: String,
    /// Name of the function: at most 128 letters, digits, `_`, `-` and `.`, counted with the namespace and `__`.
    name: String,
    /// Description of the function, for the model.
    description: Option<String>,
    /// JSON schema of the arguments, an object. Default: no arguments.
    #[schema(value_type = Option<Object>)]
    parameters: Option<Map<String, Value>>,
    /// Constrain arguments to the schema, also with the tool choice `auto`.
    #[schema(default = true)]
    strict: Option<bool>,
    /// Accepted and ignored: the model always sees all tools.
    #[expect(dead_code, reason = "there is no search for tools")]
    defer_loading: Option<bool>,
}

/// A namespace of functions.
#[derive(Deserialize)]
struct WireNamespace {
    name: String,
    description: Option<String>,
    tools: Vec<Value>,
}

struct ResponsesTool(GivenTool);

impl<'de> Deserialize<'de> for ResponsesTool {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = Value::deserialize(deserializer)?;
        tool(&value).map(Self).map_err(D::Error::custom)
    }
}

fn tool(value: &Value) -> Result<GivenTool, String> {
    match value["type"].as_str() {
        Some("function") => function(value, None, None).map(GivenTool::Function),
        Some("namespace") => namespace(value),
        Some(other) => GivenTool::other(other, value, "function"),
        None => Err("the tool has no `type`".to_owned()),
    }
}

/// A function. The namespace's description is put before that of its first function.
fn function(
    value: &Value,
    namespace: Option<&str>,
    before: Option<String>,
) -> Result<Tool, String> {
    let WireTool { name, description, parameters, strict, .. } =
        WireTool::deserialize(value).map_err(|error| format!("a tool: {error}"))?;
    let description = match (before, description) {
        (Some(before), Some(description)) => Some(format!("{before}\n\n{description}")),
        (before, description) => before.or(description),
    };
    let name = namespace.map_or(name.clone(), |namespace| namespaced(namespace, &name));
    // In this API, calls are constrained to their schemas by default.
    let tool = Tool::described(name, description, parameters, strict.unwrap_or(true))?;
    Ok(Tool { namespace: namespace.map(str::to_owned), ..tool })
}

fn namespace(value: &Value) -> Result<GivenTool, String> {
    let WireNamespace { name, mut description, tools } =
        WireNamespace::deserialize(value).map_err(|error| format!("a namespace: {error}"))?;
    if tools.len() > MAX_TOOLS {
        return Err(format!("a namespace has {} tools; the maximum is {MAX_TOOLS}", tools.len()));
    }
    let member = |tool: &Value| match tool["type"].as_str() {
        Some("function") => {
            function(tool, Some(&name), description.take()).map(GivenTool::Function)
        }
        other => GivenTool::other(other.unwrap_or_default(), tool, "function"),
    };
    tools.iter().map(member).collect::<Result<_, _>>().map(GivenTool::Namespace)
}

/// The name of a function in a choice or a call, with its namespace.
pub(super) fn full_name(item: &Map<String, Value>) -> Option<String> {
    let name = item.get("name")?.as_str()?;
    let namespace = item.get("namespace").and_then(Value::as_str);
    Some(namespace.map_or_else(|| name.to_owned(), |of| namespaced(of, name)))
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
                ToolChoice::Function(value.as_object().and_then(full_name).ok_or_else(wrong)?)
            }
            (None, Some("allowed_tools")) => {
                AllowedTools::read(&value, |tool| tool.as_object().and_then(full_name))
                    .map(ToolChoice::Allowed)
                    .map_err(D::Error::custom)?
            }
            (None, Some(other)) => return Err(D::Error::custom(unknown_choice(other))),
            (None, None) => return Err(wrong()),
        };
        Ok(Self(choice))
    }
}

/// Takes the tools out of `fields`; `None` without functions.
///
/// # Errors
/// A tool or the choice is invalid, or there is a choice without tools.
pub(super) fn take(fields: &mut Fields<'_>) -> Result<Option<ToolOptions>, FieldError> {
    let given: Option<Vec<ResponsesTool>> = fields.take("tools")?;
    let choice = fields.take("tool_choice")?.map(|ResponsesChoice(choice)| choice);
    let parallel = fields.take("parallel_tool_calls")?;
    let given = given.unwrap_or_default().into_iter().map(|ResponsesTool(tool)| tool).collect();
    ToolOptions::of_given(fields, given, choice, parallel, PATHS)
}
