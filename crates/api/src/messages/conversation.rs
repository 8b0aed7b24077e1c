//! Converts the messages of a request to POST /v1/messages to chat messages.

use serde_json::{Map, Value};

use crate::chat::{ChatMessage, Content, ContentPart, PastToolCall, Role};
use crate::error::{FieldError, excerpt};
use crate::fields::Fields;
use crate::image::ImagePart;
use crate::responses::{check_fields, text_of, texts_of};

/// Takes `system` and `messages` out of `fields`. Returns the messages, and the paths of the input of all calls in them.
pub(super) fn take(fields: &mut Fields<'_>) -> Result<(Vec<ChatMessage>, Vec<String>), FieldError> {
    let (mut messages, mut call_paths) = (Vec::new(), Vec::new());
    if let Some(system) = fields.take::<Value>("system")? {
        let text = texts_of("system", Some(&system), &["text"])?;
        messages.push(ChatMessage::text(Role::System, text));
    }
    let given: Vec<Value> = fields.require("messages")?;
    if given.is_empty() {
        return Err(FieldError::new("messages", "`messages` is empty: give at least one message."));
    }
    for (index, message) in given.iter().enumerate() {
        let paths = add(&format!("messages[{index}]"), message, &mut messages, fields)?;
        call_paths.extend(paths);
    }
    Ok((messages, call_paths))
}

/// Adds a message. Results of tools become messages of their own. Returns the paths of the input of its calls.
fn add(
    path: &str,
    message: &Value,
    messages: &mut Vec<ChatMessage>,
    fields: &mut Fields<'_>,
) -> Result<Vec<String>, FieldError> {
    let role = match message["role"].as_str() {
        Some("user") => Role::User,
        Some("assistant") => Role::Assistant,
        // Claude Code sends instructions within the conversation as messages of this role.
        Some("system") => Role::System,
        _ => {
            let message = "`role` must be user, assistant or system.";
            return Err(FieldError::new(format!("{path}.role"), message));
        }
    };
    // Clients send back further fields of earlier answers, which the model does not see.
    const KNOWN: [&str; 9] = [
        "role",
        "content",
        "id",
        "type",
        "cache_control",
        "model",
        "stop_reason",
        "stop_sequence",
        "usage",
    ];
    message.as_object().map_or(Ok(()), |message| check_fields(path, message, &KNOWN))?;
    let path = format!("{path}.content");
    let blocks = match &message["content"] {
        Value::String(text) => {
            messages.push(ChatMessage::text(role, text.clone()));
            return Ok(Vec::new());
        }
        // An answer may be empty.
        Value::Null if role == Role::Assistant => {
            messages.push(ChatMessage::text(role, String::new()));
            return Ok(Vec::new());
        }
        Value::Array(blocks) => blocks,
        _ => {
            let message = format!("`{path}` must be a string or a list of blocks.");
            return Err(FieldError::new(path, message));
        }
    };
    let (mut turn, mut call_paths) = (Turn::default(), Vec::new());
    for (index, block) in blocks.iter().enumerate() {
        let block = Block { path: format!("{path}[{index}]"), block };
        let kind = block.kind();
        if role == Role::Assistant && is_of_server_tool(kind) {
            fields.leave_out(&block.path, Some(kind));
            continue;
        }
        if kind == "tool_use" {
            call_paths.push(format!("{}.input", block.path));
        }
        if let Some(answer) = turn.add(role, &block)? {
            messages.extend(std::mem::take(&mut turn).message(role));
            messages.push(answer);
        }
    }
    let answers_only = role == Role::User
        && turn.parts.is_empty()
        && messages.last().is_some_and(|message| message.role == Role::Tool)
        && !blocks.is_empty();
    if !answers_only {
        messages.push(turn.message(role).unwrap_or_else(|| ChatMessage::text(role, String::new())));
    }
    Ok(call_paths)
}

/// Whether blocks of this type are calls of tools that another server has run, or their results.
fn is_of_server_tool(kind: &str) -> bool {
    ["server_tool_use", "mcp_tool_use"].contains(&kind) || kind.ends_with("_tool_result")
}

/// The parts of one message.
#[derive(Default)]
struct Turn<'a> {
    parts: Vec<ContentPart>,
    reasoning: Vec<&'a str>,
    calls: Vec<PastToolCall>,
}

impl<'a> Turn<'a> {
    /// Adds a block of a message of `role`. Returns a tool's result as a message of its own.
    fn add(&mut self, role: Role, block: &Block<'a>) -> Result<Option<ChatMessage>, FieldError> {
        let kind = block.kind();
        match (kind, role) {
            ("text", _) => self.parts.push(block.plain()?),
            ("image", Role::User) => self.parts.push(block.image()?),
            // This server's signatures are empty, so that they are not checked.
            ("thinking", Role::Assistant) => {
                block.check_fields(&["thinking", "signature"])?;
                self.reasoning.push(block.text("thinking")?);
            }
            // Another server has encrypted this reasoning, so that it cannot be used.
            ("redacted_thinking", Role::Assistant) => {}
            ("tool_use", Role::Assistant) => self.calls.push(block.call()?),
            ("tool_result", Role::User) => return block.answer().map(Some),
            _ => {
                let known = match role {
                    Role::Assistant => "text, thinking or tool_use",
                    Role::User => "text, image or tool_result",
                    _ => "text",
                };
                let message = format!(
                    "Blocks of type `{}` are not supported here; use {known}.",
                    excerpt(kind)
                );
                return Err(FieldError::new(format!("{}.type", block.path), message));
            }
        }
        Ok(None)
    }

    /// The message; `None` if it has no parts.
    fn message(self, role: Role) -> Option<ChatMessage> {
        let is_empty = self.parts.is_empty() && self.reasoning.is_empty() && self.calls.is_empty();
        let calls = (!self.calls.is_empty()).then_some(self.calls);
        let says = !self.parts.is_empty() || calls.is_none();
        let message = ChatMessage {
            content: says.then(|| Content::of_parts(self.parts)),
            reasoning_content: (!self.reasoning.is_empty()).then(|| self.reasoning.join("\n")),
            tool_calls: calls,
            ..ChatMessage::text(role, String::new())
        };
        (!is_empty).then_some(message)
    }
}

/// A block and its path in the request.
struct Block<'a> {
    path: String,
    block: &'a Value,
}

impl<'a> Block<'a> {
    fn kind(&self) -> &'a str {
        self.block["type"].as_str().unwrap_or_default()
    }

    /// Refuses fields other than these and those that all blocks have.
    fn check_fields(&self, known: &[&str]) -> Result<(), FieldError> {
        let known = [known, &["type", "cache_control"]].concat();
        self.block.as_object().map_or(Ok(()), |block| check_fields(&self.path, block, &known))
    }

    fn text(&self, key: &str) -> Result<&'a str, FieldError> {
        self.block[key].as_str().ok_or_else(|| self.wrong(key, "a string"))
    }

    fn wrong(&self, key: &str, must_be: &str) -> FieldError {
        let path = format!("{}.{key}", self.path);
        let message = format!("`{path}` must be {must_be}.");
        FieldError::new(path, message)
    }

    fn call(&self) -> Result<PastToolCall, FieldError> {
        // `caller` is ignored: here only the model itself calls tools.
        self.check_fields(&["id", "name", "input", "caller"])?;
        let input = match &self.block["input"] {
            // Some clients send the JSON text of an object, or of a part of one.
            input @ (Value::Object(_) | Value::String(_)) => input.clone(),
            // Calls without parameters may lack input. PHP writes an empty object as `[]`.
            Value::Null => Map::new().into(),
            Value::Array(items) if items.is_empty() => Map::new().into(),
            _ => return Err(self.wrong("input", "an object")),
        };
        Ok(PastToolCall::new(self.text("id")?, self.text("name")?, input))
    }

    fn plain(&self) -> Result<ContentPart, FieldError> {
        Ok(ContentPart::plain(text_of(&self.path, self.block)?.to_owned()))
    }

    fn image(&self) -> Result<ContentPart, FieldError> {
        self.check_fields(&["source"])?;
        let path = format!("{}.source", self.path);
        Ok(ContentPart::Image(ImagePart::of_messages(path, &self.block["source"])?.into()))
    }

    /// A tool's result.
    fn answer(&self) -> Result<ChatMessage, FieldError> {
        self.check_fields(&["tool_use_id", "content", "is_error"])?;
        let call_id = self.text("tool_use_id")?.to_owned();
        let mut content = match &self.block["content"] {
            Value::Null => Content::Text(String::new()),
            Value::String(text) => Content::Text(text.clone()),
            Value::Array(blocks) => self.answer_parts(blocks)?,
            _ => return Err(self.wrong("content", "a string or a list of blocks")),
        };
        match &self.block["is_error"] {
            Value::Bool(true) => content = content.failed(),
            Value::Null | Value::Bool(false) => {}
            _ => return Err(self.wrong("is_error", "true or false")),
        }
        let message = ChatMessage::text(Role::Tool, String::new());
        Ok(ChatMessage { tool_call_id: Some(call_id), content: Some(content), ..message })
    }

    /// The blocks of a tool's result.
    fn answer_parts(&self, blocks: &[Value]) -> Result<Content, FieldError> {
        let part = |(index, block): (usize, &Value)| {
            let block = Block { path: format!("{}.content[{index}]", self.path), block };
            match block.kind() {
                "text" => block.plain(),
                // The result of a search for tools. All tools of the request are offered anyway.
                "tool_reference" => {
                    block.check_fields(&["tool_name"])?;
                    Ok(ContentPart::plain(block.text("tool_name")?.to_owned()))
                }
                "image" => block.image(),
                kind => {
                    let message = format!(
                        "Blocks of type `{}` are not supported here; use text or image.",
                        excerpt(kind)
                    );
                    Err(FieldError::new(format!("{}.type", block.path), message))
                }
            }
        };
        blocks.iter().enumerate().map(part).collect::<Result<_, _>>().map(Content::of_parts)
    }
}
