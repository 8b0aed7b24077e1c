//! The functions that a model may call, and the calls that were made.

use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Map, Value};
use utoipa::ToSchema;

use crate::error::{FieldError, excerpt};
use crate::fields::Fields;

/// Most functions of one request.
pub const MAX_TOOLS: usize = 512;
/// Longest name of a function, in bytes.
const MAX_NAME_BYTES: usize = 64;

/// What `tools`, `tool_choice` and `parallel_tool_calls` say.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ToolOptions {
    /// Never empty; names differ.
    pub tools: Vec<Tool>,
    /// Which of them are to be called.
    #[serde(rename = "tool_choice")]
    pub choice: ToolChoice,
    /// Whether one answer may hold several calls.
    #[serde(rename = "parallel_tool_calls")]
    pub parallel: bool,
}

/// The fields as they stand on the wire.
#[derive(ToSchema)]
#[schema(as = ToolOptions)]
#[expect(dead_code, reason = "it describes the fields for the OpenAPI document")]
pub(crate) struct WireToolOptions {
    /// The functions that the model may call.
    #[schema(min_items = 1)]
    tools: Option<Vec<WireTool>>,
    /// `none`, `auto`, `required`, or the function to call; `auto` where there are tools.
    tool_choice: Option<WireToolChoice>,
    /// Whether one answer may hold several calls.
    #[schema(default = true)]
    parallel_tool_calls: Option<bool>,
}

/// A choice as it stands on the wire.
#[derive(Serialize, ToSchema)]
#[schema(as = ToolChoice)]
#[serde(untagged)]
pub(crate) enum WireToolChoice {
    /// `none`, `auto` or `required`.
    Word(&'static str),
    /// This function.
    Function {
        /// `function`.
        #[serde(rename = "type")]
        kind: &'static str,
        /// The function.
        function: WireFunctionName,
    },
}

/// The name of a function.
#[derive(Serialize, ToSchema)]
#[schema(as = FunctionName)]
pub(crate) struct WireFunctionName {
    /// One of those in `tools`.
    name: String,
}

impl ToolOptions {
    /// Takes the fields out of `fields`; `None` without tools.
    ///
    /// # Errors
    /// A function or the choice is wrong, or there is a choice without anything to choose from.
    pub fn take(fields: &mut Fields<'_>) -> Result<Option<Self>, FieldError> {
        refuse_older_names(fields)?;
        let tools: Option<Vec<Tool>> = fields.take("tools")?;
        let choice: Option<ToolChoice> = fields.take("tool_choice")?;
        let parallel: Option<bool> = fields.take("parallel_tool_calls")?;
        let Some(tools) = tools else {
            return match choice {
                None | Some(ToolChoice::None) => Ok(None),
                Some(_) => Err(FieldError::new("tool_choice", "`tool_choice` needs `tools`.")),
            };
        };
        check_tools(&tools)?;
        let choice = choice.unwrap_or(ToolChoice::Auto);
        if let ToolChoice::Function(name) = &choice
            && !tools.iter().any(|tool| tool.name == *name)
        {
            let message =
                format!("`tool_choice` names `{}`, which is none of `tools`.", excerpt(name));
            return Err(FieldError::new("tool_choice.function.name", message));
        }
        Ok(Some(Self { tools, choice, parallel: parallel.unwrap_or(true) }))
    }
}

/// Source: OpenAI's API before `tools`.
fn refuse_older_names(fields: &mut Fields<'_>) -> Result<(), FieldError> {
    for (older, newer) in [("functions", "tools"), ("function_call", "tool_choice")] {
        if fields.take::<serde::de::IgnoredAny>(older)?.is_some() {
            let message = format!("`{older}` is not supported: give `{newer}` instead.");
            return Err(FieldError::new(older, message));
        }
    }
    Ok(())
}

fn check_tools(tools: &[Tool]) -> Result<(), FieldError> {
    if tools.is_empty() {
        return Err(FieldError::new("tools", "`tools` is empty: leave it out."));
    }
    if tools.len() > MAX_TOOLS {
        let message = format!("`tools` has {} functions; {MAX_TOOLS} are the most.", tools.len());
        return Err(FieldError::new("tools", message));
    }
    for (index, tool) in tools.iter().enumerate() {
        if tools[..index].iter().any(|other| other.name == tool.name) {
            let message = format!("`{}` is the name of two of `tools`.", tool.name);
            return Err(FieldError::new(format!("tools[{index}].function.name"), message));
        }
    }
    Ok(())
}

/// A function that the model may call.
#[derive(Clone, Debug, PartialEq)]
pub struct Tool {
    /// The function's name.
    pub name: String,
    /// The JSON schema of its arguments, an object.
    pub parameters: Option<Map<String, Value>>,
    /// Whether its arguments are held to the schema whenever it is called.
    pub strict: bool,
    /// All that the request says of it, for the chat template.
    pub definition: Value,
}

/// A tool as it stands on the wire.
#[derive(Deserialize, ToSchema)]
#[schema(as = Tool)]
pub(crate) struct WireTool {
    /// `function`.
    #[serde(rename = "type")]
    kind: String,
    /// The function.
    function: Option<WireFunction>,
}

/// A function as it stands on the wire.
#[derive(Deserialize, ToSchema)]
#[schema(as = Function)]
pub(crate) struct WireFunction {
    /// Letters, digits, `_`, `-` and `.`; at most 64.
    name: String,
    /// What it does, for the model.
    #[expect(
        dead_code,
        reason = "it is read for its type; the template gets the whole definition"
    )]
    description: Option<String>,
    /// The JSON schema of its arguments, an object; without it there are none.
    #[schema(value_type = Option<Object>)]
    parameters: Option<Map<String, Value>>,
    /// Whether its arguments are held to the schema whenever it is called.
    #[schema(default = false)]
    strict: Option<bool>,
}

impl<'de> Deserialize<'de> for Tool {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let definition = Value::deserialize(deserializer)?;
        let WireTool { kind, function } = WireTool::deserialize(&definition)
            .map_err(|error| D::Error::custom(format_args!("a tool: {error}")))?;
        if kind != "function" {
            return Err(D::Error::custom(format_args!(
                "tools of type `{}` are not supported, only `function`",
                excerpt(&kind)
            )));
        }
        let function = function.ok_or_else(|| D::Error::custom("the tool has no `function`"))?;
        let WireFunction { name, parameters, strict, .. } = function;
        check_name(&name).map_err(D::Error::custom)?;
        if let Some(kind) = parameters.as_ref().and_then(|schema| schema.get("type"))
            && kind != "object"
        {
            return Err(D::Error::custom(format_args!(
                "the `parameters` of `{name}` must be the schema of an object"
            )));
        }
        Ok(Self { name, parameters, strict: strict.unwrap_or(false), definition })
    }
}

impl Serialize for Tool {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.definition.serialize(serializer)
    }
}

fn check_name(name: &str) -> Result<(), String> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
    if !name.is_empty() && name.len() <= MAX_NAME_BYTES && name.chars().all(is_plain) {
        return Ok(());
    }
    Err(format!(
        "`{}` is no name of a function: letters, digits, `_`, `-` and `.`, at most {MAX_NAME_BYTES}",
        excerpt(name)
    ))
}

/// Which functions are to be called.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ToolChoice {
    /// None; the model does not see them.
    None,
    /// As the model decides.
    Auto,
    /// At least one.
    Required,
    /// This one.
    Function(String),
}

impl Serialize for ToolChoice {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let choice = match self {
            Self::None => WireToolChoice::Word("none"),
            Self::Auto => WireToolChoice::Word("auto"),
            Self::Required => WireToolChoice::Word("required"),
            Self::Function(name) => WireToolChoice::Function {
                kind: "function",
                function: WireFunctionName { name: name.clone() },
            },
        };
        choice.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for ToolChoice {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = Value::deserialize(deserializer)?;
        let wrong = || {
            D::Error::custom(
                "must be none, auto, required or {\"type\": \"function\", \"function\": {\"name\": ..}}",
            )
        };
        if let Some(word) = value.as_str() {
            return match word {
                "none" => Ok(Self::None),
                "auto" => Ok(Self::Auto),
                "required" => Ok(Self::Required),
                _ => Err(wrong()),
            };
        }
        let kind = value["type"].as_str().ok_or_else(wrong)?;
        if kind != "function" {
            return Err(D::Error::custom(format_args!(
                "the type `{}` is not supported, only `function`",
                excerpt(kind)
            )));
        }
        value["function"]["name"]
            .as_str()
            .map(|name| Self::Function(name.to_owned()))
            .ok_or_else(wrong)
    }
}

/// A call that the assistant made in an earlier turn, as the request brings it.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(transparent)]
pub struct PastToolCall(pub Map<String, Value>);

impl<'de> Deserialize<'de> for PastToolCall {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let call = Map::deserialize(deserializer)?;
        let refuse = |message: &str| Err(D::Error::custom(message));
        if call.get("type").is_some_and(|kind| kind != "function") {
            return refuse("calls of another type than `function` are not supported");
        }
        let Some(function) = call.get("function") else {
            return refuse("the call has no `function`");
        };
        if !function["name"].is_string() {
            return refuse("the call's `function` has no `name`");
        }
        match &function["arguments"] {
            Value::String(_) | Value::Object(_) => Ok(Self(call)),
            _ => refuse("the call's `function` needs `arguments`: the text of a JSON object"),
        }
    }
}

/// A call of a function.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct ToolCall {
    /// Names the call; the tool's answer says it again.
    pub id: String,
    /// `function`.
    #[serde(rename = "type")]
    pub kind: &'static str,
    /// What is called.
    pub function: FunctionCall,
}

/// A function and what it is called with.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct FunctionCall {
    /// Its name.
    pub name: String,
    /// JSON as the model wrote it.
    pub arguments: String,
}

/// What a chunk adds to a call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct ToolCallDelta {
    /// The call's place among those of the message.
    pub index: usize,
    /// In the call's first chunk only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// `function`, in the call's first chunk only.
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    pub kind: Option<&'static str>,
    /// What is added.
    pub function: FunctionCallDelta,
}

/// What a chunk adds to a function's name and arguments.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, ToSchema)]
pub struct FunctionCallDelta {
    /// In the call's first chunk only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// To be appended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub arguments: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    const WEATHER: &str = r#"{"type": "function", "function": {"name": "weather", "description": "d", "strict": true,
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}, "x": 1}}"#;

    fn take(body: &str) -> Result<Option<ToolOptions>, FieldError> {
        let mut fields = Fields::parse(body.as_bytes()).unwrap();
        let options = ToolOptions::take(&mut fields)?;
        fields.finish().map(|()| options)
    }

    fn refused(body: &str) -> String {
        take(body).unwrap_err().param.unwrap()
    }

    #[test]
    fn tools_and_choices_are_read() {
        let options = take(&format!(r#"{{"tools": [{WEATHER}]}}"#)).unwrap().unwrap();
        assert_eq!((&options.choice, options.parallel), (&ToolChoice::Auto, true));
        let tool = &options.tools[0];
        assert_eq!((tool.name.as_str(), tool.strict), ("weather", true));
        assert_eq!(tool.parameters.as_ref().unwrap()["type"], "object");
        assert_eq!(tool.definition["function"]["x"], 1);
        for (choice, expected) in [
            (r#""none""#, ToolChoice::None),
            (r#""required""#, ToolChoice::Required),
            (
                r#"{"type": "function", "function": {"name": "weather"}}"#,
                ToolChoice::Function("weather".into()),
            ),
        ] {
            let body = format!(
                r#"{{"tools": [{WEATHER}], "tool_choice": {choice}, "parallel_tool_calls": false}}"#
            );
            let options = take(&body).unwrap().unwrap();
            assert_eq!((options.choice, options.parallel), (expected, false));
        }
        assert_eq!(take(r#"{"tool_choice": "none", "parallel_tool_calls": true}"#).unwrap(), None);
        take(r#"{"tools": [{"type": "function", "function": {"name": "f", "parameters": null, "strict": null}}]}"#).unwrap();
    }

    #[test]
    fn what_is_wrong_is_named() {
        let tool = |function: &str| {
            format!(r#"{{"tools": [{{"type": "function", "function": {function}}}]}}"#)
        };
        assert_eq!(refused(r#"{"tools": []}"#), "tools");
        assert_eq!(refused(r#"{"tools": {}}"#), "tools");
        assert_eq!(refused(r#"{"tools": [{"type": "web_search"}]}"#), "tools[0]");
        assert_eq!(refused(r#"{"tools": [{"type": "function"}]}"#), "tools[0]");
        assert_eq!(refused(&tool(r#"{"name": "a b"}"#)), "tools[0]");
        assert_eq!(refused(&tool(r#"{"description": "d"}"#)), "tools[0]");
        assert_eq!(refused(&tool(r#"{"name": "f", "parameters": {"type": "array"}}"#)), "tools[0]");
        assert_eq!(refused(&tool(r#"{"name": "f", "strict": 1}"#)), "tools[0]");
        assert_eq!(
            refused(&format!(r#"{{"tools": [{WEATHER}, {WEATHER}]}}"#)),
            "tools[1].function.name"
        );
        assert_eq!(refused(r#"{"tool_choice": "auto"}"#), "tool_choice");
        let chosen = |choice: &str| {
            refused(&format!(r#"{{"tools": [{WEATHER}], "tool_choice": {choice}}}"#))
        };
        assert_eq!(chosen(r#""any""#), "tool_choice");
        assert_eq!(chosen(r#"{"type": "allowed_tools"}"#), "tool_choice");
        assert_eq!(
            chosen(r#"{"type": "function", "function": {"name": "g"}}"#),
            "tool_choice.function.name"
        );
        assert_eq!(refused(r#"{"functions": []}"#), "functions");
        assert_eq!(refused(r#"{"function_call": "auto"}"#), "function_call");
    }
}
