//! The functions that a model may call, and the calls that were made.

use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Map, Value, json};
use utoipa::ToSchema;

use crate::error::{FieldError, excerpt};
use crate::fields::Fields;

/// Most functions of one request.
pub const MAX_TOOLS: usize = 512;
/// Longest name of a function, in bytes.
const MAX_NAME_BYTES: usize = 128;

/// What a request says of functions, whichever API it comes by.
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
    /// Where a tool of this API has the schema of its arguments.
    #[serde(skip)]
    pub schema_field: &'static str,
}

/// Where an API has what can be wrong with functions.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ToolPaths {
    /// A tool's name, within the tool.
    pub(crate) name: &'static str,
    /// The schema of its arguments, within the tool.
    pub(crate) schema: &'static str,
    /// The one function that is chosen.
    pub(crate) chosen: &'static str,
    /// Those that are allowed.
    pub(crate) allowed: &'static str,
}

const PATHS: ToolPaths = ToolPaths {
    name: "function.name",
    schema: "function.parameters",
    chosen: "tool_choice.function.name",
    allowed: "tool_choice.allowed_tools.tools",
};

/// The fields as they stand on the wire.
#[derive(ToSchema)]
#[schema(as = ToolOptions)]
#[expect(dead_code, reason = "it describes the fields for the OpenAPI document")]
pub(crate) struct WireToolOptions {
    /// The functions that the model may call.
    #[schema(min_items = 1)]
    tools: Option<Vec<WireTool>>,
    /// `none`, `auto`, `required`, the function to call, or those that are allowed; `auto` where there are tools.
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
    /// One of these functions.
    Allowed {
        /// `allowed_tools`.
        #[serde(rename = "type")]
        kind: &'static str,
        /// The functions.
        allowed_tools: WireAllowedTools,
    },
}

/// Some of the functions.
#[derive(Serialize, ToSchema)]
#[schema(as = AllowedTools)]
pub(crate) struct WireAllowedTools {
    /// `auto`, or `required` where one of them has to be called.
    mode: &'static str,
    /// The functions.
    tools: Vec<WireAllowedTool>,
}

/// One of the functions that are allowed.
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
    /// One of those in `tools`.
    name: String,
}

impl ToolOptions {
    /// Takes the fields out of `fields`; `None` without tools that can be called.
    ///
    /// # Errors
    /// A function or the choice is wrong, or there is a choice without anything to choose from.
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

    /// The functions among the tools that were given; others are left out. `None` without functions.
    ///
    /// # Errors
    /// As [`Self::checked`]. The choice asks for a call where nothing can be called.
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
                        "`tool_choice` asks for a call, and none of `tools` can be called here: the server does not run `{}`.",
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

    /// The name that the request has for a function, and its namespace.
    pub fn given_name<'a>(&'a self, name: &'a str) -> (Option<&'a str>, &'a str) {
        match self.tools.iter().find(|tool| tool.name == name) {
            Some(tool) => (tool.namespace.as_deref(), tool.given_name()),
            None => (None, name),
        }
    }

    /// Checks functions, of which there is at least one, and the choice among them.
    ///
    /// # Errors
    /// There are too many, two have one name, or the choice names one that is not there.
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
                format!("`tool_choice` names `{}`, which is none of `tools`.", excerpt(name));
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
            let message = format!("`{older}` is not supported: give `{newer}` instead.");
            return Err(FieldError::new(older, message));
        }
    }
    Ok(())
}

fn check_tools(tools: &[Tool], paths: ToolPaths) -> Result<(), FieldError> {
    if tools.len() > MAX_TOOLS {
        let message = format!("`tools` has {} functions; {MAX_TOOLS} are the most.", tools.len());
        return Err(FieldError::new("tools", message));
    }
    for (index, tool) in tools.iter().enumerate() {
        if tools[..index].iter().any(|other| other.name == tool.name) {
            let message = format!("`{}` is the name of two of `tools`.", tool.name);
            return Err(FieldError::new(format!("{}.{}", tool.path, paths.name), message));
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
    /// All that the request says of it, for the chat template: `type` and `function`, as /v1/chat/completions has them.
    pub definition: Value,
    /// Its place in the request, such as `tools[3]`.
    pub path: String,
    /// The group that it belongs to, whose name the model sees in front of the function's.
    pub namespace: Option<String>,
}

/// The name that the model knows a function of a namespace by.
pub(crate) fn namespaced(namespace: &str, name: &str) -> String {
    format!("{namespace}__{name}")
}

/// One of the tools of a request.
#[derive(Debug)]
pub(crate) enum GivenTool {
    Function(Tool),
    /// Functions with a name in common.
    Namespace(Vec<GivenTool>),
    /// A tool of this type, which the server does not run.
    Other(String),
}

impl GivenTool {
    /// A tool that is no function is left out, unless it looks like one whose type is wrong.
    ///
    /// # Errors
    /// It has the fields of a function.
    pub(crate) fn other(kind: &str, tool: &Value, function: &str) -> Result<Self, String> {
        const OF_FUNCTIONS: [&str; 3] = ["function", "parameters", "input_schema"];
        let kind = excerpt(kind);
        if kind.is_empty() || OF_FUNCTIONS.iter().any(|key| tool.get(key).is_some()) {
            return Err(format!("a function must have the type `{function}`, not `{kind}`"));
        }
        Ok(Self::Other(kind))
    }

    /// Adds its functions to `tools`; `leave_out` gets the rest.
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
    /// Its name without that of its namespace.
    pub fn given_name(&self) -> &str {
        let before = self.namespace.as_ref().map_or(0, |namespace| namespaced(namespace, "").len());
        &self.name[before..]
    }

    /// A function of an API that says of it no more than this.
    ///
    /// # Errors
    /// What is wrong with its name or its schema.
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
                Err(format!("the arguments of `{name}` must have the schema of an object"))
            }
            _ => Ok(self),
        }
    }
}

/// A tool as it stands on the wire.
#[derive(Deserialize, ToSchema)]
#[schema(as = Tool)]
pub(crate) struct WireTool {
    /// `function`. Tools of other types are left out, which the answer's header `x-candlepower-not-held` says.
    #[serde(rename = "type")]
    #[expect(dead_code, reason = "it is checked before the other fields are read")]
    kind: String,
    /// The function.
    function: Option<WireFunction>,
}

/// A function as it stands on the wire.
#[derive(Deserialize, ToSchema)]
#[schema(as = Function)]
pub(crate) struct WireFunction {
    /// Letters, digits, `_`, `-` and `.`; at most 128.
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
    /// Only these, though the model knows of the others.
    Allowed(AllowedTools),
}

/// Some of the functions that the model knows of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AllowedTools {
    /// Whether one of them has to be called.
    pub mode: AllowedMode,
    /// Their names; never empty.
    pub names: Vec<String>,
}

/// Whether one of the allowed functions has to be called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AllowedMode {
    /// As the model decides.
    Auto,
    /// At least one.
    Required,
}

impl AllowedMode {
    /// Its name.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Required => "required",
        }
    }
}

impl AllowedTools {
    /// Reads `mode` and `tools` of an object; `name_of` finds the name in one of the tools.
    ///
    /// # Errors
    /// What it must be instead.
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
            return Err("`tools` of `allowed_tools` is empty: say none instead".to_owned());
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
    /// The choice that is one word.
    pub(crate) fn of_word(word: &str) -> Option<Self> {
        match word {
            "none" => Some(Self::None),
            "auto" => Some(Self::Auto),
            "required" => Some(Self::Required),
            _ => None,
        }
    }
}

/// What is wrong with a choice of a type that is not known.
pub(crate) fn unknown_choice(kind: &str) -> String {
    format!("the type `{}` is not supported, only `function` and `allowed_tools`", excerpt(kind))
}

/// A call that the assistant made in an earlier turn, as the request brings it.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(transparent)]
pub struct PastToolCall(pub Map<String, Value>);

impl PastToolCall {
    /// A call of a function. `arguments` are a JSON object, or its text.
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
            // Those of a call without parameters may be missing.
            Value::String(_) | Value::Object(_) | Value::Null => Ok(Self(call)),
            _ => refuse("the call's `arguments` must be the text of a JSON object"),
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
mod tests;
