//! Converts the input items of a request to POST /v1/responses to chat messages.

use std::collections::HashSet;

use serde_json::{Map, Value};

use super::tools::full_name;
use crate::chat::{ChatMessage, Content, ContentPart, PastToolCall, Role, check_image_role};
use crate::error::{FieldError, excerpt};
use crate::fields::Fields;
use crate::image::ImagePart;

/// The input of a request.
#[derive(Default)]
pub(super) struct Input {
    /// The messages. Reasoning, content and tool calls of one assistant's turn are one message.
    pub(super) messages: Vec<ChatMessage>,
    /// Paths of the arguments of all calls in the messages.
    pub(super) call_paths: Vec<String>,
}

impl Input {
    /// The input in `given`. Items that the server cannot use are left out of it.
    pub(super) fn new(
        given: Value,
        items: &mut dyn StoredItems,
        fields: &mut Fields<'_>,
    ) -> Result<Self, FieldError> {
        let given = match given {
            Value::String(text) => {
                let messages = vec![ChatMessage::text(Role::User, text)];
                return Ok(Self { messages, ..Self::default() });
            }
            Value::Array(given) => given,
            _ => {
                let message = "`input` must be a string or a list of items.";
                return Err(FieldError::new("input", message));
            }
        };
        let mut input = Self::default();
        let mut referenced = HashSet::new();
        for (index, item) in given.iter().enumerate() {
            let path = format!("input[{index}]");
            let Some(id) = reference(&path, item)? else {
                input.add(&path, item, fields)?;
                continue;
            };
            // Each item counts once, so that a short request cannot become a large one.
            if !referenced.insert(id) {
                let message = format!("The item `{}` occurs twice.", excerpt(id));
                return Err(FieldError::new(format!("{path}.id"), message));
            }
            let Some(item) = items.item(id) else {
                let message = format!(
                    "There is no stored item `{}`: it never existed, its response was not stored, or was removed to free \
                     memory. Send the item itself.",
                    excerpt(id)
                );
                return Err(FieldError::new(format!("{path}.id"), message));
            };
            input.add(&path, &item, fields)?;
        }
        if input.messages.is_empty() {
            let message = "`input` is empty: give at least one message.";
            return Err(FieldError::new("input", message));
        }
        // A message with reasoning only, because the answer was cut.
        for message in input.messages.iter_mut().filter(|message| message.tool_calls.is_none()) {
            message.content.get_or_insert_with(|| Content::Text(String::new()));
        }
        Ok(input)
    }

    fn add(&mut self, path: &str, item: &Value, fields: &mut Fields<'_>) -> Result<(), FieldError> {
        let Value::Object(item) = item else {
            return Err(FieldError::new(path, format!("`{path}` must be an object.")));
        };
        let item = Item { path, item };
        match item.item.get("type").map_or(Some("message"), Value::as_str) {
            Some("message") => add_message(&item, &mut self.messages),
            Some("function_call") => {
                self.call_paths.push(format!("{path}.arguments"));
                add_call(&item, &mut self.messages)
            }
            Some("function_call_output") => {
                self.messages.push(item.output()?);
                Ok(())
            }
            Some("reasoning") => {
                let reasoning = item.reasoning()?;
                if !reasoning.is_empty() {
                    let message = ChatMessage { reasoning_content: Some(reasoning), ..assistant() };
                    self.messages.push(message);
                }
                Ok(())
            }
            Some(kind) if is_of_built_in_tool(kind) => {
                fields.leave_out(path, Some(kind));
                Ok(())
            }
            other => Err(FieldError::new(
                format!("{path}.type"),
                format!(
                    "Items of type `{}` are not supported; use message, function_call, function_call_output, reasoning or item_reference.",
                    excerpt(other.unwrap_or_default())
                ),
            )),
        }
    }
}

/// Stored items, to which a request may refer by their ids.
pub trait StoredItems {
    /// The item with this id; `None` if it is not stored.
    fn item(&mut self, id: &str) -> Option<Value>;
}

/// No stored items.
impl StoredItems for () {
    fn item(&mut self, _: &str) -> Option<Value> {
        None
    }
}

/// The id to which an item refers; `None` for other items.
fn reference<'a>(path: &str, item: &'a Value) -> Result<Option<&'a str>, FieldError> {
    let Value::Object(object) = item else { return Ok(None) };
    // The type of a reference may be left out.
    let only_id = || object.iter().all(|(key, value)| key == "id" || value.is_null());
    let is_reference = match object.get("type") {
        None | Some(Value::Null) => object.contains_key("id") && only_id(),
        Some(kind) => kind == "item_reference",
    };
    if !is_reference {
        return Ok(None);
    }
    check_fields(path, object, &["type", "id"])?;
    let missing =
        || FieldError::new(format!("{path}.id"), format!("`{path}.id` must be a string."));
    object.get("id").and_then(Value::as_str).map(Some).ok_or_else(missing)
}

/// Whether items of this type are calls of tools that another server has run, or their results.
fn is_of_built_in_tool(kind: &str) -> bool {
    let others = ["mcp_list_tools", "mcp_approval_request", "mcp_approval_response"];
    kind.ends_with("_call") || kind.ends_with("_call_output") || others.contains(&kind)
}

/// An empty assistant message.
fn assistant() -> ChatMessage {
    ChatMessage { content: None, ..ChatMessage::text(Role::Assistant, String::new()) }
}

fn add_message(item: &Item<'_>, messages: &mut Vec<ChatMessage>) -> Result<(), FieldError> {
    let message = item.message()?;
    match messages.last_mut() {
        // The reasoning before this message.
        Some(last)
            if message.role == Role::Assistant
                && last.role == Role::Assistant
                && last.content.is_none()
                && last.tool_calls.is_none() =>
        {
            last.content = message.content;
        }
        _ => messages.push(message),
    }
    Ok(())
}

fn add_call(item: &Item<'_>, messages: &mut Vec<ChatMessage>) -> Result<(), FieldError> {
    let call = item.call()?;
    if messages.last().is_none_or(|last| last.role != Role::Assistant) {
        messages.push(assistant());
    }
    let last = messages.last_mut().expect("a message was added if there was none");
    last.tool_calls.get_or_insert_default().push(call);
    Ok(())
}

/// An item and its path in the request.
struct Item<'a> {
    path: &'a str,
    item: &'a Map<String, Value>,
}

impl Item<'_> {
    fn message(&self) -> Result<ChatMessage, FieldError> {
        // `phase` is ignored: the model does not see it.
        self.check_fields(&["role", "content", "phase"])?;
        let role = match self.item.get("role").and_then(Value::as_str) {
            Some("user") => Role::User,
            Some("assistant") => Role::Assistant,
            Some("system") => Role::System,
            Some("developer") => Role::Developer,
            _ => {
                let message = "`role` must be user, assistant, system or developer.";
                return Err(FieldError::new(format!("{}.role", self.path), message));
            }
        };
        let kinds = ["input_text", "output_text", "refusal", "text"];
        let content = self.content("content", &kinds)?;
        if let Some(image) = content.images().next() {
            check_image_role(role, &image.path)?;
        }
        Ok(ChatMessage { content: Some(content), ..ChatMessage::text(role, String::new()) })
    }

    fn call(&self) -> Result<PastToolCall, FieldError> {
        self.check_fields(&["call_id", "name", "arguments", "namespace"])?;
        let (id, name) = (self.text("call_id")?, self.text("name")?);
        let name = full_name(self.item).unwrap_or_else(|| name.to_owned());
        let arguments = match self.item.get("arguments") {
            // Calls without parameters may lack arguments. PHP writes an empty object as `[]`.
            None | Some(Value::Null) => "".into(),
            Some(Value::Array(items)) if items.is_empty() => "".into(),
            Some(object @ Value::Object(_)) => object.clone(),
            Some(_) => self.text("arguments")?.into(),
        };
        Ok(PastToolCall::new(id, &name, arguments))
    }

    /// A tool's result.
    fn output(&self) -> Result<ChatMessage, FieldError> {
        self.check_fields(&["call_id", "output"])?;
        let call_id = self.text("call_id")?.to_owned();
        let content = Some(self.content("output", &["input_text"])?);
        let message = ChatMessage::text(Role::Tool, String::new());
        Ok(ChatMessage { tool_call_id: Some(call_id), content, ..message })
    }

    /// The text of the reasoning, or its summary.
    fn reasoning(&self) -> Result<String, FieldError> {
        // Another server may have encrypted the reasoning. Then its summary is used.
        self.check_fields(&["content", "summary", "encrypted_content"])?;
        match (self.item.get("content"), self.item.get("summary")) {
            (None | Some(Value::Null), None | Some(Value::Null)) => Ok(String::new()),
            (None | Some(Value::Null), Some(_)) => self.texts("summary", &["summary_text"]),
            (Some(_), _) => self.texts("content", &["reasoning_text"]),
        }
    }

    /// Refuses fields other than these and those that all items have.
    fn check_fields(&self, known: &[&str]) -> Result<(), FieldError> {
        check_fields(self.path, self.item, &[known, &["type", "id", "status"]].concat())
    }

    fn text(&self, key: &str) -> Result<&str, FieldError> {
        self.item.get(key).and_then(Value::as_str).ok_or_else(|| {
            let path = format!("{}.{key}", self.path);
            let message = format!("`{path}` must be a string.");
            FieldError::new(path, message)
        })
    }

    fn texts(&self, key: &str, kinds: &[&str]) -> Result<String, FieldError> {
        texts_of(&format!("{}.{key}", self.path), self.item.get(key), kinds)
    }

    /// A string, or parts: texts of these types, and images.
    fn content(&self, key: &str, kinds: &[&str]) -> Result<Content, FieldError> {
        let (path, content) = (format!("{}.{key}", self.path), self.item.get(key));
        // An answer may be empty, and a tool may return nothing.
        let may_be_null =
            key == "output" || self.item.get("role").is_some_and(|role| role == "assistant");
        if may_be_null && content.is_some_and(Value::is_null) {
            return Ok(Content::Text(String::new()));
        }
        let Some(Value::Array(parts)) = content else {
            return texts_of(&path, content, kinds).map(Content::Text);
        };
        let part = |(index, part): (usize, &Value)| {
            let path = format!("{path}[{index}]");
            if part["type"] == IMAGE
                && let Value::Object(part) = part
            {
                check_fields(&path, part, &["type", "image_url", "detail", "file_id"])?;
                return Ok(ContentPart::Image(ImagePart::of_responses(&path, part)?.into()));
            }
            check_kind(&path, part, &[kinds, &[IMAGE]].concat())?;
            Ok(ContentPart::plain(text_of(&path, part)?.to_owned()))
        };
        let parts = parts.iter().enumerate().map(part).collect::<Result<_, _>>()?;
        Ok(Content::of_parts(parts))
    }
}

/// Refuses fields of the object at `path` other than these. Null counts as absent.
pub(crate) fn check_fields(
    path: &str,
    object: &Map<String, Value>,
    known: &[&str],
) -> Result<(), FieldError> {
    let is_known = |key: &str| known.contains(&key);
    match object.iter().find(|(key, value)| !value.is_null() && !is_known(key)) {
        None => Ok(()),
        Some((key, _)) => {
            let key = excerpt(key);
            let message = format!("`{key}` is not a field of this object: leave it out.");
            Err(FieldError::new(format!("{path}.{key}"), message))
        }
    }
}

/// Accepted fields of a text part. Clients send back fields of earlier answers, and hints for caching.
const TEXT_PART: [&str; 8] =
    ["type", "text", "refusal", "id", "annotations", "logprobs", "citations", "cache_control"];

/// A string, or the texts of parts of these types, joined with line breaks.
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
                format!("`{path}` must be a string or a list of parts."),
            ));
        }
    };
    let texts = parts.iter().enumerate().map(|(index, part)| {
        let path = format!("{path}[{index}]");
        check_kind(&path, part, kinds)?;
        text_of(&path, part)
    });
    Ok(texts.collect::<Result<Vec<_>, _>>()?.join("\n"))
}

/// Checks that the part at `path` has one of these types.
fn check_kind(path: &str, part: &Value, kinds: &[&str]) -> Result<(), FieldError> {
    let kind = part.get("type").and_then(Value::as_str).unwrap_or_default();
    if kinds.contains(&kind) {
        return Ok(());
    }
    let (kind, known) = (excerpt(kind), kinds.join(", "));
    let message = format!("Parts of type `{kind}` are not supported; use {known}.");
    Err(FieldError::new(format!("{path}.type"), message))
}

/// The type of parts that are images.
const IMAGE: &str = "input_image";

/// The text of a part.
pub(crate) fn text_of<'a>(path: &str, part: &'a Value) -> Result<&'a str, FieldError> {
    let is_cited = part.get("citations").and_then(Value::as_array).is_some_and(|c| !c.is_empty());
    if is_cited {
        let message = "Citations are not supported: leave `citations` out.";
        return Err(FieldError::new(format!("{path}.citations"), message));
    }
    part.as_object().map_or(Ok(()), |part| check_fields(path, part, &TEXT_PART))?;
    let missing = || FieldError::new(format!("{path}.text"), "The part has no `text`.");
    let key = if part["type"] == "refusal" { "refusal" } else { "text" };
    part.get(key).and_then(Value::as_str).ok_or_else(missing)
}

impl ChatMessage {
    /// A message with a text.
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
