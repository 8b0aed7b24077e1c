//! Definitions of tools in a JSON file.

use anyhow::{Context, Result, bail};
use serde_json::{Map, Value, json};

/// Maximum number of tools.
const MAX_TOOLS: usize = 128;

/// A tool that the model may call.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Tool {
    pub(super) name: String,
    pub(super) description: String,
    /// JSON schema of the arguments.
    pub(super) parameters: Value,
}

impl Tool {
    /// The tool in a request.
    pub(super) fn to_json(&self) -> Value {
        let mut function = json!({"name": self.name, "parameters": self.parameters});
        if !self.description.is_empty() {
            function["description"] = self.description.as_str().into();
        }
        json!({"type": "function", "function": function})
    }

    /// A tool, with or without `{"type": "function", "function": ..}` around it.
    fn parse(value: &Value) -> Result<Self> {
        let function = value.get("function").unwrap_or(value);
        let name = function["name"].as_str().context("`name` is missing")?;
        let is_letter = |c: char| c.is_ascii_alphanumeric() || "_-".contains(c);
        if name.is_empty() || name.len() > 64 || !name.chars().all(is_letter) {
            bail!("`{name}` is no name: 1 to 64 letters, digits, _ and - are needed");
        }
        let parameters = match function.get("parameters") {
            None | Some(Value::Null) => Value::Object(Map::new()),
            Some(parameters @ Value::Object(_)) => parameters.clone(),
            Some(_) => bail!("`parameters` must be a JSON schema"),
        };
        let description = function["description"].as_str().unwrap_or_default().to_owned();
        Ok(Self { name: name.to_owned(), description, parameters })
    }
}

/// The tools of a JSON list.
///
/// # Errors
/// The value is no such list; the error names the tool.
pub(super) fn parse(value: &Value) -> Result<Vec<Tool>> {
    let list = value.as_array().context("a JSON list of tools is needed")?;
    if list.len() > MAX_TOOLS {
        bail!("{} tools are too many: at most {MAX_TOOLS}", list.len());
    }
    let tool = |(i, tool)| Tool::parse(tool).with_context(|| format!("tool {}", i + 1));
    list.iter().enumerate().map(tool).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tools_have_a_name_and_a_schema() {
        let bare = json!([{"name": "f", "description": "d", "parameters": {"type": "object"}}]);
        let wrapped = json!([parse(&bare).unwrap()[0].to_json()]);
        assert_eq!(parse(&wrapped).unwrap(), parse(&bare).unwrap());
        for wrong in [
            json!({}),
            json!([{}]),
            json!([{"name": "a b"}]),
            json!([{"name": "f", "parameters": 1}]),
        ] {
            assert!(parse(&wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_tool_needs_no_parameters_and_a_list_has_an_end() {
        for bare in [json!([{"name": "f"}]), json!([{"name": "f", "parameters": null}])] {
            let tool = parse(&bare).unwrap()[0].to_json();
            assert_eq!(tool["function"], json!({"name": "f", "parameters": {}}));
        }
        let many = Value::from(vec![json!({"name": "f"}); MAX_TOOLS + 1]);
        let error = parse(&many).unwrap_err().to_string();
        assert_eq!(error, "129 tools are too many: at most 128");
    }
}
