//! Tools, tool choices and tool calls.

use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Map, Value, json};
use utoipa::ToSchema;

use crate::error::{FieldError, excerpt};
use crate::fields::Fields;

/// Maximum number of tools of a request.
pub const MAX_TOOLS: usize = 512;
/// Maximum length of a function's name, in bytes.
const MAX_NAME_BYTES: usize = 128;

/// The tools and the tool choice of a request, for all APIs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ToolOptions {
    /// At least one tool; names are unique.
    pub tools: Vec<Tool>,
    /// The tool choice.
    #[serde(rename = "tool_choice")]
    pub choice: ToolChoice,
    /// Whether one answer may have several calls.
    #[serde(rename = "parallel_tool_calls")]
    pub parallel: bool,
    /// Name of the field with the schema of a tool's arguments, which differs between APIs.
    #[serde(skip)]
    pub schema_field: &'static str,
}

/// Paths of an API's fields, for errors.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ToolPaths {
    /// Name of the function, within the tool.
    pub(crate) name: &'static str,
    /// Schema of the arguments, within the tool.
    pub(crate) schema: &'static str,
    /// The function that the tool choice names.
    pub(crate) chosen: &'static str,
    /// The functions that the tool choice allows.
    pub(crate) allowed: &'static str,
}

const PATHS: ToolPaths = ToolPaths {
    name: "function.name",
    schema: "function.parameters",
    chosen: "tool_choice.function.name",
    allowed: "tool_choice.allowed_tools.tools",
};

/// The fields in JSON.
#[derive(ToSchema)]
#[schema(as = ToolOptions)]
#[expect(dead_code, reason = "it describes the fields for the OpenAPI document")]
pub(crate) struct WireToolOptions {
    /// Tools that the model may call.
    #[schema(min_items = 1)]
    tools: Option<Vec<WireTool>>,
    /// `none`, `auto`, `required`, a function to call, or allowed functions. Default: `auto` if there are tools.
    tool_choice: Option<WireToolChoice>,
    /// Allow several calls in one answer.
    #[schema(default = true)]
    parallel_tool_calls: Option<bool>,
}

/// The tool choice in JSON.
#[derive(Serialize, ToSchema)]
#[schema(as = ToolChoice)]
#[serde(untagged)]
pub(crate) enum WireToolChoice {
    /// `none`, `auto` or `required`.
    Word(&'static str),
    /// A call of this function.
    Function {
        /// `function`.
        #[serde(rename = "type")]
        kind: &'static str,
        /// The function.
        function: WireFunctionName,
    },
    /// Calls of these functions only.
    Allowed {
        /// `allowed_tools`.
        #[serde(rename = "type")]
        kind: &'static str,
        /// The allowed functions.
        allowed_tools: WireAllowedTools,
    },
}

/// The allowed functions.
#[derive(Serialize, ToSchema)]
#[schema(as = AllowedTools)]
pub(crate) struct WireAllowedTools {
    /// `auto`, or `required` if the answer must call at least one of them.
    mode: &'static str,
    /// The allowed functions.
    tools: Vec<WireAllowedTool>,
}

/// An allowed function.
#[derive(Serialize, ToSchema)]
#[schema(as = AllowedTool)]
pub(crate) struct WireAllowedTool {
    /// `function`.
    #[serde(rename = "type")]
    kind: &'static str,
    /// The function.
    function: WireFunctionName,
}

/// The name of a function.
#[derive(Serialize, ToSchema)]
#[schema(as = FunctionName)]
pub(crate) struct WireFunctionName {
    /// Name of a function in `tools`.
    name: String,
}

impl ToolOptions {
    /// Takes the tools and the choice out of `fields`; `None` without tools that can be called.
    ///
    /// # Errors
    /// A tool or the choice is invalid, or there is a choice without tools.
    pub fn take(fields: &mut Fields<'_>) -> Result<Option<Self>, FieldError> {
        refuse_older_names(fields)?;
        let given: Option<Vec<GivenTool>> = fields.take("tools")?;
        let choice: Option<ToolChoice> = fields.take("tool_choice")?;
        let parallel: Option<bool> = fields.take("parallel_tool_calls")?;
        if given.is_none() && choice == Some(ToolChoice::Auto) {
            return Err(FieldError::new("tool_choice", "`tool_choice` needs `tools`."));
        }
        Self::of_given(fields, given.unwrap_or_default(), choice, parallel, PATHS)
    }

    /// The functions among the given tools; other tools are ignored. `None` without functions.
    ///
    /// # Errors
    /// The errors of [`Self::checked`], or the choice requires a call and no tool can be called.
    pub(crate) fn of_given(
        fields: &mut Fields<'_>,
        given: Vec<GivenTool>,
        choice: Option<ToolChoice>,
        parallel: Option<bool>,
        paths: ToolPaths,
    ) -> Result<Option<Self>, FieldError> {
        let mut tools = Vec::new();
        let mut kinds = Vec::new();
        for (index, given) in given.into_iter().enumerate() {
            let path = format!("tools[{index}]");
            given.add(path, &mut tools, &mut |path, kind| {
                fields.leave_out(path, Some(&kind));
                kinds.push(kind);
            });
        }
        match (tools.is_empty(), choice) {
            (true, None | Some(ToolChoice::None | ToolChoice::Auto)) => Ok(None),
            (true, Some(_)) => {
                let message = match kinds.first() {
                    None => "`tool_choice` needs `tools`.".to_owned(),
                    Some(kind) => format!(
                        "`tool_choice` requires a call, but none of `tools` is a function: this server does not support tools of type `{}`.",
                        excerpt(kind)
                    ),
                };
                Err(FieldError::new("tool_choice", message))
            }
            (false, choice) => {
                Self::checked(tools, choice.unwrap_or(ToolChoice::Auto), parallel, paths).map(Some)
            }
        }
    }

    /// The namespace and the name of a function in the request.
    pub fn given_name<'a>(&'a self, name: &'a str) -> (Option<&'a str>, &'a str) {
        match self.tools.iter().find(|tool| tool.name == name) {
            Some(tool) => (tool.namespace.as_deref(), tool.given_name()),
            None => (None, name),
        }
    }

    /// Checks functions (at least one) and the tool choice.
    ///
    /// # Errors
    /// There are too many functions, two have the same name, or the choice names an unknown one.
    pub(crate) fn checked(
        tools: Vec<Tool>,
        choice: ToolChoice,
        parallel: Option<bool>,
        paths: ToolPaths,
    ) -> Result<Self, FieldError> {
        check_tools(&tools, paths)?;
        let (param, names) = match &choice {
            ToolChoice::Function(name) => (paths.chosen, std::slice::from_ref(name)),
            ToolChoice::Allowed(allowed) => (paths.allowed, &*allowed.names),
            ToolChoice::None | ToolChoice::Auto | ToolChoice::Required => ("", &[][..]),
        };
        if let Some(name) = names.iter().find(|name| !tools.iter().any(|tool| tool.name == **name))
        {
            let message =
                format!("`tool_choice` names `{}`, which is not in `tools`.", excerpt(name));
            return Err(FieldError::new(param, message));
        }
        let parallel = parallel.unwrap_or(true);
        Ok(Self { tools, choice, parallel, schema_field: paths.schema })
    }
}

/// Source: OpenAI's API before `tools`.
fn refuse_older_names(fields: &mut Fields<'_>) -> Result<(), FieldError> {
    for (older, newer) in [("functions", "tools"), ("function_call", "tool_choice")] {
        if fields.take::<serde::de::IgnoredAny>(older)?.is_some() {
            let message = format!("`{older}` is not supported: use `{newer}` instead.");
            return Err(FieldError::new(older, message));
        }
    }
    Ok(())
}

fn check_tools(tools: &[Tool], paths: ToolPaths) -> Result<(), FieldError> {
    if tools.len() > MAX_TOOLS {
        let message = format!("`tools` has {} functions; the maximum is {MAX_TOOLS}.", tools.len());
        return Err(FieldError::new("tools", message));
    }
    for (index, tool) in tools.iter().enumerate() {
        if tools[..index].iter().any(|other| other.name == tool.name) {
            let message = format!("two of `tools` have the name `{}`: rename one.", tool.name);
            return Err(FieldError::new(format!("{}.{}", tool.path, paths.name), message));
        }
    }
    Ok(())
}

/// A function among the tools.
#[derive(Clone, Debug, PartialEq)]
pub struct Tool {
    /// Name of the function.
    pub name: String,
    /// JSON schema of the arguments, an object.
    pub parameters: Option<Map<String, Value>>,
    /// Whether arguments are always constrained to the schema.
    pub strict: bool,
    /// Definition for the chat template: `type` and `function` in the format of /v1/chat/completions.
    pub definition: Value,
    /// Path in the request, such as `tools[3]`.
    pub path: String,
    /// Namespace, whose name the model sees before the function's.
    pub namespace: Option<String>,
}

/// Name of a function of a namespace, as the model sees it.
pub(crate) fn namespaced(namespace: &str, name: &str) -> String {
    format!("{namespace}__{name}")
}

/// A tool of a request.
#[derive(Debug)]
pub(crate) enum GivenTool {
    Function(Tool),
    /// Functions of a namespace.
    Namespace(Vec<GivenTool>),
    /// A tool of this type, which is not supported.
    Other(String),
}

impl GivenTool {
    /// A tool that is not a function, which is ignored, unless it looks like a function with a wrong type.
    ///
    /// # Errors
    /// The tool has fields of a function.
    pub(crate) fn other(kind: &str, tool: &Value, function: &str) -> Result<Self, String> {
        const OF_FUNCTIONS: [&str; 3] = ["function", "parameters", "input_schema"];
        let kind = excerpt(kind);
        if kind.is_empty() || OF_FUNCTIONS.iter().any(|key| tool.get(key).is_some()) {
            return Err(format!("a function must have the type `{function}`, not `{kind}`"));
        }
        Ok(Self::Other(kind))
    }

    /// Adds the functions to `tools`, and passes other tools to `leave_out`.
    fn add(self, path: String, tools: &mut Vec<Tool>, leave_out: &mut dyn FnMut(String, String)) {
        match self {
            Self::Function(tool) => tools.push(Tool { path, ..tool }),
            Self::Other(kind) => leave_out(path, kind),
            Self::Namespace(members) => {
                for (index, member) in members.into_iter().enumerate() {
                    member.add(format!("{path}.tools[{index}]"), tools, leave_out);
                }
            }
        }
    }
}

impl Tool {
    /// Name without the namespace.
    pub fn given_name(&self) -> &str {
        let before = self.namespace.as_ref().map_or(0, |namespace| namespaced(namespace, "").len());
        &self.name[before..]
    }

    /// A function from its name, description and schema.
    ///
    /// # Errors
    /// The name or the schema is invalid; the error has the reason.
    pub(crate) fn described(
        name: String,
        description: Option<String>,
        parameters: Option<Map<String, Value>>,
        strict: bool,
    ) -> Result<Self, String> {
        let mut function = Map::from_iter([("name".to_owned(), Value::from(name.as_str()))]);
        function.extend(description.map(|text| ("description".to_owned(), text.into())));
        function.extend(parameters.clone().map(|schema| ("parameters".to_owned(), schema.into())));
        let definition = json!({"type": "function", "function": function});
        Self::new(name, parameters, strict, definition).checked()
    }

    fn new(
        name: String,
        parameters: Option<Map<String, Value>>,
        strict: bool,
        definition: Value,
    ) -> Self {
        Self { name, parameters, strict, definition, path: String::new(), namespace: None }
    }

    fn checked(self) -> Result<Self, String> {
        let name = &self.name;
        check_name(name)?;
        match self.parameters.as_ref().and_then(|schema| schema.get("type")) {
            Some(kind) if kind != "object" => {
                Err(format!("the schema of `{name}` must have the type `object`"))
            }
            _ => Ok(self),
        }
    }
}

/// A tool in JSON.
#[derive(Deserialize, ToSchema)]
#[schema(as = Tool)]
pub(crate) struct WireTool {
    /// `function`. Tools of other types are ignored and listed in the response header `x-candlepower-not-held`.
    #[serde(rename = "type")]
    #[expect(dead_code, reason = "it is checked before the other fields are read")]
    kind: String,
    /// The function.
    function: Option<WireFunction>,
}

/// A function in JSON.
#[derive(Deserialize, ToSchema)]
#[schema(as = Function)]
pub(crate) struct WireFunction {
    /// Name of the function: at most 128 letters, digits, `_`, `-` and `.`.
    name: String,
    /// Description of the function, for the model.
    #[expect(
        dead_code,
        reason = "it is read for its type; the template gets the whole definition"
    )]
    description: Option<String>,
    /// JSON schema of the arguments, an object. Default: no arguments.
    #[schema(value_type = Option<Object>)]
    parameters: Option<Map<String, Value>>,
    /// Constrain arguments to the schema, also with `tool_choice` `auto`.
    #[schema(default = false)]
    strict: Option<bool>,
}

impl<'de> Deserialize<'de> for GivenTool {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let definition = Value::deserialize(deserializer)?;
        if let Some(kind) = definition["type"].as_str()
            && kind != "function"
        {
            return Self::other(kind, &definition, "function").map_err(D::Error::custom);
        }
        let WireTool { function, .. } = WireTool::deserialize(&definition)
            .map_err(|error| D::Error::custom(format_args!("a tool: {error}")))?;
        let function = function.ok_or_else(|| D::Error::custom("the tool has no `function`"))?;
        let WireFunction { name, parameters, strict, .. } = function;
        Tool::new(name, parameters, strict.unwrap_or(false), definition)
            .checked()
            .map(Self::Function)
            .map_err(D::Error::custom)
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
        "`{}` is not a valid function name: use at most {MAX_NAME_BYTES} letters, digits, `_`, `-` and `.`",
        excerpt(name)
    ))
}

/// The tool choice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ToolChoice {
    /// No calls; the model does not see the tools.
    None,
    /// The model decides.
    Auto,
    /// At least one call.
    Required,
    /// A call of this function.
    Function(String),
    /// Calls of these functions only, although the model sees the others.
    Allowed(AllowedTools),
}

/// The allowed functions, among those that the model sees.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AllowedTools {
    /// Whether a call is required.
    pub mode: AllowedMode,
    /// Names of the functions; never empty.
    pub names: Vec<String>,
}

/// Whether a call of the allowed functions is required.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AllowedMode {
    /// The model decides.
    Auto,
    /// At least one call.
    Required,
}

impl AllowedMode {
    /// The value in JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Required => "required",
        }
    }
}

impl AllowedTools {
    /// Parses `mode` and `tools` of an object; `name_of` returns the name of a tool.
    ///
    /// # Errors
    /// The expected form.
    pub(crate) fn read(
        allowed: &Value,
        name_of: fn(&Value) -> Option<String>,
    ) -> Result<Self, String> {
        let mode = match allowed["mode"].as_str() {
            Some("auto") => AllowedMode::Auto,
            Some("required") => AllowedMode::Required,
            _ => return Err("`mode` of `allowed_tools` must be auto or required".to_owned()),
        };
        let tools = allowed["tools"].as_array().map_or(&[][..], Vec::as_slice);
        let names = tools.iter().map(|tool| {
            let name = name_of(tool).filter(|_| tool["type"] == "function");
            let wrong = "`tools` of `allowed_tools` must be functions, each with its name";
            name.ok_or_else(|| wrong.to_owned())
        });
        let names = names.collect::<Result<Vec<_>, _>>()?;
        if names.is_empty() {
            return Err(
                "`tools` of `allowed_tools` is empty: use the tool choice none instead".to_owned()
            );
        }
        Ok(Self { mode, names })
    }
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
            Self::Allowed(AllowedTools { mode, names }) => {
                let tool = |name: &String| WireAllowedTool {
                    kind: "function",
                    function: WireFunctionName { name: name.clone() },
                };
                let tools = names.iter().map(tool).collect();
                WireToolChoice::Allowed {
                    kind: "allowed_tools",
                    allowed_tools: WireAllowedTools { mode: mode.as_str(), tools },
                }
            }
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
            return Self::of_word(word).ok_or_else(wrong);
        }
        match value["type"].as_str().ok_or_else(wrong)? {
            "function" => {
                let name = value["function"]["name"].as_str().ok_or_else(wrong)?;
                Ok(Self::Function(name.to_owned()))
            }
            "allowed_tools" => AllowedTools::read(&value["allowed_tools"], |tool| {
                tool["function"]["name"].as_str().map(str::to_owned)
            })
            .map(Self::Allowed)
            .map_err(D::Error::custom),
            other => Err(D::Error::custom(unknown_choice(other))),
        }
    }
}

impl ToolChoice {
    /// The choice for a word.
    pub(crate) fn of_word(word: &str) -> Option<Self> {
        match word {
            "none" => Some(Self::None),
            "auto" => Some(Self::Auto),
            "required" => Some(Self::Required),
            _ => None,
        }
    }
}

/// The error for a choice of an unknown type.
pub(crate) fn unknown_choice(kind: &str) -> String {
    format!("the type `{}` is not supported, only `function` and `allowed_tools`", excerpt(kind))
}

/// A tool call of an earlier turn, in the request's form.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(transparent)]
pub struct PastToolCall(pub Map<String, Value>);

impl PastToolCall {
    /// A tool call. `arguments` is a JSON object, or its text.
    pub fn new(id: &str, name: &str, arguments: Value) -> Self {
        let function = json!({"name": name, "arguments": arguments});
        let entries = [("id", id.into()), ("type", "function".into()), ("function", function)];
        Self(entries.into_iter().map(|(key, value)| (key.to_owned(), value)).collect())
    }
}

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
            // Calls without parameters may lack arguments: some clients send null or nothing.
            Value::String(_) | Value::Object(_) | Value::Null => Ok(Self(call)),
            // PHP writes an empty object so.
            Value::Array(items) if items.is_empty() => Ok(Self(call)),
            _ => refuse("the call's `arguments` must be the text of a JSON object"),
        }
    }
}

/// A tool call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct ToolCall {
    /// Id of the call, which the tool's result repeats.
    pub id: String,
    /// `function`.
    #[serde(rename = "type")]
    pub kind: &'static str,
    /// The function and its arguments.
    pub function: FunctionCall,
}

/// A function and its arguments.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct FunctionCall {
    /// Name of the function.
    pub name: String,
    /// Arguments as JSON text, as the model wrote it.
    pub arguments: String,
}

/// A chunk's addition to a tool call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct ToolCallDelta {
    /// Index of the call in the message.
    pub index: usize,
    /// Id, only in the call's first chunk.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// `function`, only in the call's first chunk.
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    pub kind: Option<&'static str>,
    /// The addition.
    pub function: FunctionCallDelta,
}

/// A chunk's addition to a function's name and arguments.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, ToSchema)]
pub struct FunctionCallDelta {
    /// Name, only in the call's first chunk.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Arguments to append.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub arguments: Option<String>,
}

#[cfg(test)]
mod tests;
