//! The items of stored responses: pages of input items at GET /v1/responses/{id}/input_items, and references to items.

use std::collections::HashMap;

use candlepower_api::{ChatMessage, ContentPart, FieldError, ImageDetail, Role, StoredItems};
use serde_json::{Value, json};

use crate::generation::preparation::Preparation;
use crate::model::api_error::{ApiError, ApiResult};
use crate::model::served_model::LoadedModel;
use crate::model::stored_responses::StoredResponse;

/// Default and maximum number of items of a page.
const DEFAULT_LIMIT: usize = 20;
const MAX_LIMIT: usize = 100;

/// The requested page.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Page {
    limit: usize,
    /// Whether the oldest item comes first.
    ascending: bool,
    /// Id of the last item of the previous page.
    after: Option<String>,
}

impl Page {
    /// Parses the query of a request.
    ///
    /// # Errors
    /// 400 with the parameter that is invalid or unknown.
    pub(super) fn of_query(query: &str) -> ApiResult<Self> {
        let mut page = Self { limit: DEFAULT_LIMIT, ascending: false, after: None };
        for parameter in query.split('&').filter(|parameter| !parameter.is_empty()) {
            let (name, value) = parameter.split_once('=').unwrap_or((parameter, ""));
            match name {
                "limit" => {
                    let limit = value.parse().ok().filter(|limit| (1..=MAX_LIMIT).contains(limit));
                    page.limit = limit.ok_or_else(|| {
                        let message = format!("`limit` must be a number from 1 to {MAX_LIMIT}.");
                        ApiError::invalid("limit", message)
                    })?;
                }
                "order" => {
                    page.ascending = match value {
                        "asc" => true,
                        "desc" => false,
                        _ => {
                            return Err(ApiError::invalid("order", "`order` must be asc or desc."));
                        }
                    };
                }
                "after" => page.after = Some(value.to_owned()),
                // Clients send `include` by default; it has no effect, because items have no optional parts.
                _ if name.starts_with("include") => {}
                _ => {
                    let name = candlepower_api::excerpt(name);
                    let message = format!(
                        "`{name}` is not a parameter of this endpoint: use limit, order and after."
                    );
                    return Err(ApiError::invalid(name, message));
                }
            }
        }
        Ok(page)
    }

    /// The page as a list object.
    ///
    /// # Errors
    /// 404 if `after` is none of the items.
    pub(super) fn list(&self, mut items: Vec<Value>) -> ApiResult<Value> {
        if !self.ascending {
            items.reverse();
        }
        if let Some(after) = &self.after {
            let at = items.iter().position(|item| item["id"] == **after).ok_or_else(|| {
                let message = "`after` is not an item of this response: use the `last_id` of the previous page.";
                ApiError::not_found(Some("after"), "not_found", message)
            })?;
            items.drain(..=at);
        }
        let has_more = items.len() > self.limit;
        items.truncate(self.limit);
        let id = |item: Option<&Value>| item.map_or(Value::Null, |item| item["id"].clone());
        Ok(json!({
            "object": "list", "first_id": id(items.first()), "last_id": id(items.last()),
            "has_more": has_more, "data": items,
        }))
    }
}

/// The items of stored responses, to which a request refers by their ids.
pub(super) struct Items<'a, 'm> {
    model: &'a Preparation<'m, LoadedModel>,
    /// The items of the responses that were referred to, by the response and whether they are its input.
    known: HashMap<(String, bool), Vec<Value>>,
    /// Whether the request has to be prepared on a thread: stored responses may be large.
    pub(super) are_postponed: bool,
    /// Whether an item was not found.
    is_missing: bool,
}

impl<'a, 'm> Items<'a, 'm> {
    pub(super) fn new(model: &'a Preparation<'m, LoadedModel>) -> Self {
        Self { model, known: HashMap::new(), are_postponed: false, is_missing: false }
    }

    /// The error of a request's fields: a 404 if it is that of a missing item.
    pub(super) fn not_found(&self, error: FieldError) -> ApiError {
        match &error.param {
            Some(param) if self.is_missing => {
                ApiError::not_found(Some(param), "item_not_found", error.message)
            }
            _ => error.into(),
        }
    }

    /// The items of a stored response; none if it is not stored.
    fn of_response(&self, response: &str, are_input: bool) -> Vec<Value> {
        let Ok(stored) = self.model.responses.get(self.model.caller, "id", response) else {
            return Vec::new();
        };
        if are_input {
            return items(response, input_of(&stored));
        }
        let object: Option<Value> = serde_json::from_str(&stored.object).ok();
        let output = object.map(|mut object| object["output"].take());
        output.and_then(|mut output| output.as_array_mut().map(std::mem::take)).unwrap_or_default()
    }
}

impl StoredItems for Items<'_, '_> {
    fn item(&mut self, id: &str) -> Option<Value> {
        self.are_postponed = self.model.cancelled().is_none();
        if self.are_postponed {
            return None;
        }
        let (kind, place) = id.split_once('_').unwrap_or((id, ""));
        let (response, index) = place.rsplit_once('_').unwrap_or((place, ""));
        let key = (format!("resp_{response}"), kind == INPUT);
        if !self.known.contains_key(&key) {
            let items = self.of_response(&key.0, key.1);
            self.known.insert(key.clone(), items);
        }
        let items = &self.known[&key];
        let item = index.parse().ok().and_then(|index: usize| items.get(index));
        let item = item.filter(|item| item["id"] == *id).cloned();
        self.is_missing = item.is_none();
        item
    }
}

/// The input of a stored response, whose last message is the response itself.
pub(super) fn input_of(stored: &StoredResponse) -> &[ChatMessage] {
    stored.messages.split_last().map_or(&[][..], |(_, input)| input)
}

/// The beginning of the ids of input items.
const INPUT: &str = "item";

/// The items of a conversation. Their ids are derived from their positions.
pub(super) fn items(response_id: &str, messages: &[ChatMessage]) -> Vec<Value> {
    let mut items: Vec<Value> = Vec::new();
    let response = response_id.trim_start_matches("resp_");
    for message in messages {
        let text = message.content.as_ref().map(|content| content.to_text());
        if let Some(reasoning) = &message.reasoning_content {
            items.push(json!({
                "type": "reasoning", "summary": [],
                "content": [{"type": "reasoning_text", "text": reasoning}],
            }));
        }
        match (message.role, text) {
            (Role::Tool, text) => {
                let output = image_parts(message, "input_text");
                let output = output.unwrap_or_else(|| text.unwrap_or_default().into());
                items.push(json!({
                    "type": "function_call_output", "call_id": message.tool_call_id, "output": output,
                }));
            }
            (role, Some(text)) if !text.is_empty() || message.tool_calls.is_none() => {
                let (role, kind) = match role {
                    Role::Assistant => ("assistant", "output_text"),
                    Role::System => ("system", "input_text"),
                    Role::Developer => ("developer", "input_text"),
                    Role::User | Role::Tool => ("user", "input_text"),
                };
                let content = image_parts(message, kind);
                let content = content.unwrap_or_else(|| json!([{"type": kind, "text": text}]));
                items.push(json!({"type": "message", "role": role, "content": content}));
            }
            _ => {}
        }
        for call in message.tool_calls.iter().flatten() {
            let function = &call.0["function"];
            items.push(json!({
                "type": "function_call", "call_id": call.0["id"], "name": function["name"],
                "arguments": function["arguments"],
            }));
        }
    }
    for (index, item) in items.iter_mut().enumerate() {
        item["id"] = format!("{INPUT}_{response}_{index}").into();
        item["status"] = "completed".into();
    }
    items
}

/// The parts of a message that has images. Their URLs, which may have megabytes, are left out, as the protocol allows.
fn image_parts(message: &ChatMessage, text_kind: &str) -> Option<Value> {
    message.images().next()?;
    let part = |part: &ContentPart| match part.image() {
        None => json!({"type": text_kind, "text": part.text()}),
        Some(image) => {
            let detail = if image.detail == ImageDetail::Low { "low" } else { "auto" };
            json!({"type": "input_image", "detail": detail, "image_url": null, "file_id": null})
        }
    };
    message.content.as_ref().map(|content| content.parts().iter().map(part).collect())
}

#[cfg(test)]
mod tests {
    use candlepower_api::PastToolCall;

    use super::*;

    fn conversation() -> Vec<ChatMessage> {
        let call = PastToolCall::new("c", "f", "{}".into());
        let turn = ChatMessage::text(Role::Assistant, String::new());
        let turn = ChatMessage {
            tool_calls: Some(vec![call]),
            reasoning_content: Some("Hm.".into()),
            ..turn
        };
        let answer = ChatMessage::text(Role::Tool, "1".into());
        let answer = ChatMessage { tool_call_id: Some("c".into()), ..answer };
        vec![ChatMessage::text(Role::User, "Hi".into()), turn, answer]
    }

    #[test]
    fn images_are_listed_without_their_bytes() {
        let body = json!({"input": [
            {"role": "user", "content": [{"type": "input_text", "text": "a"}, {"type": "input_image", "image_url": "data:,", "detail": "low"}]},
            {"type": "function_call_output", "call_id": "c", "output": [{"type": "input_image", "image_url": "data:,"}]},
        ]});
        let request =
            candlepower_api::ResponsesRequest::parse(body.to_string().as_bytes(), &mut ()).unwrap();
        let image = |detail: &str| json!({"type": "input_image", "detail": detail, "image_url": null, "file_id": null});
        let found = items("resp_1", &request.input);
        assert_eq!(found[0]["content"], json!([{"type": "input_text", "text": "a"}, image("low")]));
        assert_eq!(found[1]["output"], json!([image("auto")]));
    }

    #[test]
    fn items_come_in_pages() {
        let list = |query: &str| {
            Page::of_query(query).unwrap().list(items("resp_1", &conversation())).unwrap()
        };
        let all = list("order=asc");
        let kinds: Vec<&str> =
            all["data"].as_array().unwrap().iter().map(|i| i["type"].as_str().unwrap()).collect();
        assert_eq!(kinds, ["message", "reasoning", "function_call", "function_call_output"]);
        assert_eq!((&all["has_more"], &all["first_id"]), (&json!(false), &json!("item_1_0")));
        let page = list("order=asc&limit=2&after=item_1_0");
        assert_eq!((&page["has_more"], &page["last_id"]), (&json!(true), &json!("item_1_2")));
        assert_eq!(list("")["first_id"], "item_1_3");
        for query in ["limit=0", "limit=101", "limit=x", "order=up", "colour=red"] {
            Page::of_query(query).unwrap_err();
        }
        assert!(
            Page::of_query("after=no").unwrap().list(items("resp_1", &conversation())).is_err()
        );
    }
}
