//! Converts messages to the form that the chat template of a model accepts.

use candlepower_api::{ChatMessage, ContentPart, PastToolCall, Role};
use candlepower_dialect::{NoContent, PastCalls, Turns};
use serde_json::{Map, Value, json};

use crate::model::served_model::LoadedModel;

/// The messages in the form that the template accepts.
pub(crate) fn template_messages(
    messages: &[ChatMessage],
    model: &LoadedModel,
    mended: &mut Vec<MendedCall>,
) -> Value {
    let form = TemplateForm {
        knows_developer: model.knows_developer,
        past_calls: model.past_calls,
        turns: model.turns,
        images_in_results: model.images.support().is_some_and(|support| support.places.tool),
    };
    form.messages(messages, mended)
}

/// The place of a call whose arguments are no JSON object, and were replaced by an empty one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MendedCall {
    /// Index of its message.
    pub(crate) message: usize,
    /// Index among the calls of the message.
    pub(crate) call: usize,
}

/// The form of a conversation that a template accepts.
#[derive(Clone, Copy, Default)]
struct TemplateForm {
    knows_developer: bool,
    past_calls: PastCalls,
    turns: Turns,
    /// Whether results of tools may have images.
    images_in_results: bool,
}

impl TemplateForm {
    fn messages(self, messages: &[ChatMessage], mended: &mut Vec<MendedCall>) -> Value {
        let mut turns = Vec::with_capacity(messages.len());
        // Images of results that the template would not write there.
        let mut moved = 0;
        for (index, message) in messages.iter().enumerate() {
            if message.role != Role::Tool {
                turns.extend(image_turn(std::mem::take(&mut moved)));
            } else if !self.images_in_results {
                moved += message.images().count();
            }
            turns.push(self.message(index, message, mended));
        }
        turns.extend(image_turn(moved));
        self.past_calls.name_calls(&mut turns);
        self.turns.arrange(turns).into()
    }

    /// The content of a message: a text, or a list of parts if it has images. If a message has only calls, it is the form of
    /// empty content that the template accepts.
    fn content(self, message: &ChatMessage) -> Option<Value> {
        let no_content = self.past_calls.no_content;
        let Some(content) = &message.content else { return no_content.value() };
        let keeps_images = message.role != Role::Tool || self.images_in_results;
        if keeps_images && content.images().next().is_some() {
            let part = |part: &ContentPart| match part.text() {
                Some(text) => json!({"type": "text", "text": text}),
                None => image_part(),
            };
            return Some(content.parts().iter().map(part).collect());
        }
        let text = content.to_text();
        let is_null =
            no_content == NoContent::Null && message.tool_calls.is_some() && text.is_empty();
        Some(if is_null { Value::Null } else { text.into() })
    }

    fn message(self, index: usize, message: &ChatMessage, mended: &mut Vec<MendedCall>) -> Value {
        let Self { knows_developer, past_calls, .. } = self;
        let mut object = Map::new();
        let role = match message.role {
            Role::Developer if knows_developer => "developer",
            Role::System | Role::Developer => "system",
            Role::User => "user",
            Role::Assistant => "assistant",
            Role::Tool => "tool",
        };
        object.insert("role".into(), role.into());
        let mut optional = |key: &str, value: Option<Value>| {
            if let Some(value) = value {
                object.insert(key.into(), value);
            }
        };
        optional("content", self.content(message));
        optional("name", message.name.clone().map(Value::from));
        optional("tool_call_id", message.tool_call_id.clone().map(Value::from));
        // Templates differ in its name.
        for name in ["reasoning_content", "reasoning"] {
            optional(name, message.reasoning_content.clone().map(Value::from));
        }
        optional(
            "tool_calls",
            message.tool_calls.as_ref().map(|calls| {
                let call = |(place, call)| {
                    let (call, is_whole) = tool_call(call, past_calls);
                    if !is_whole {
                        mended.push(MendedCall { message: index, call: place });
                    }
                    call
                };
                calls.iter().enumerate().map(call).collect()
            }),
        );
        Value::Object(object)
    }
}

/// A user's turn with images, which follows the results of tools that have them.
fn image_turn(num_images: usize) -> Option<Value> {
    let content = vec![image_part(); num_images];
    (num_images > 0).then(|| json!({"role": "user", "content": content}))
}

/// An image as templates read it.
fn image_part() -> Value {
    json!({"type": "image"})
}

/// A call with its arguments in the form that the template accepts, and whether they are valid. The protocol has arguments as JSON text.
/// Invalid ones are not refused, because the client would send the same history in every later turn, and the conversation could not go on.
fn tool_call(PastToolCall(call): &PastToolCall, past_calls: PastCalls) -> (Value, bool) {
    let mut call = call.clone();
    let function = call.get_mut("function").and_then(Value::as_object_mut);
    let is_whole = function.is_none_or(|function| {
        past_calls.shape_arguments(function.entry("arguments").or_insert(Value::Null))
    });
    (Value::Object(call), is_whole)
}

#[cfg(test)]
mod tests {
    use candlepower_api::ChatCompletionRequest;

    use super::*;

    fn messages(messages: Value) -> Vec<ChatMessage> {
        let body = json!({"model": "m", "messages": messages}).to_string();
        ChatCompletionRequest::parse(body.as_bytes()).unwrap().messages
    }

    #[test]
    fn templates_get_plain_text_and_known_roles() {
        let messages = messages(json!([
            {"role": "developer", "content": "be brief"},
            {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        ]));
        let form = TemplateForm::default();
        assert_eq!(
            form.messages(&messages, &mut Vec::new()),
            json!([{"role": "system", "content": "be brief"}, {"role": "user", "content": "a\nb"}])
        );
        let form = TemplateForm { knows_developer: true, ..form };
        assert_eq!(form.messages(&messages, &mut Vec::new())[0]["role"], "developer");
    }

    #[test]
    fn images_are_parts_and_follow_results_of_tools_that_cannot_have_them() {
        let image = |text: &str| json!([{"type": "text", "text": text}, {"type": "image_url", "image_url": "data:,"}]);
        let messages = messages(json!([
            {"role": "user", "content": image("a")},
            {"role": "tool", "tool_call_id": "b", "content": image("b")},
            {"role": "tool", "tool_call_id": "c", "content": "c"},
            {"role": "tool", "tool_call_id": "d", "content": image("d")},
            {"role": "assistant", "content": "e"},
            {"role": "tool", "tool_call_id": "f", "content": image("f")},
        ]));
        let contents = |form: TemplateForm| {
            let rendered = form.messages(&messages, &mut Vec::new());
            let said =
                |turn: &Value| (turn["role"].as_str().unwrap().to_owned(), turn["content"].clone());
            rendered.as_array().unwrap().iter().map(said).collect::<Vec<_>>()
        };
        let turn = |role: &str, content: Value| (role.to_owned(), content);
        let parts = |text: &str| json!([{"type": "text", "text": text}, {"type": "image"}]);
        let images = |count| json!(vec![json!({"type": "image"}); count]);
        let expected = [
            turn("user", parts("a")),
            turn("tool", "b".into()),
            turn("tool", "c".into()),
            turn("tool", "d".into()),
            turn("user", images(2)),
            turn("assistant", "e".into()),
            turn("tool", "f".into()),
            turn("user", images(1)),
        ];
        assert_eq!(contents(TemplateForm::default()), expected);
        let form = TemplateForm { images_in_results: true, ..TemplateForm::default() };
        let expected = [
            turn("user", parts("a")),
            turn("tool", parts("b")),
            turn("tool", "c".into()),
            turn("tool", parts("d")),
            turn("assistant", "e".into()),
            turn("tool", parts("f")),
        ];
        assert_eq!(contents(form), expected);
    }

    #[test]
    fn arguments_of_calls_become_objects() {
        let messages = messages(json!([{"role": "assistant", "content": null, "tool_calls": [
            {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{\"x\": 1}"}},
            {"id": "d", "type": "function", "function": {"name": "g", "arguments": "not json"}},
        ]}]));
        let mut mended = Vec::new();
        let rendered = TemplateForm::default().messages(&messages, &mut mended);
        assert_eq!(rendered[0]["tool_calls"][0]["function"]["arguments"], json!({"x": 1}));
        assert_eq!(rendered[0]["tool_calls"][1]["function"]["arguments"], "not json");
        assert!(mended.is_empty());
        let past_calls = PastCalls { needs_objects: true, ..PastCalls::default() };
        let form = TemplateForm { past_calls, ..TemplateForm::default() };
        let rendered = form.messages(&messages, &mut mended);
        assert_eq!(rendered[0]["tool_calls"][1]["function"]["arguments"], json!({}));
        assert_eq!(mended, [MendedCall { message: 0, call: 1 }]);
    }

    #[test]
    fn calls_have_the_form_that_the_template_takes() {
        let call = json!({"id": "c", "type": "function", "function": {"name": "f", "arguments": "{\"x\": 1}"}});
        let turn =
            |content: Value| json!({"role": "assistant", "content": content, "tool_calls": [call]});
        let messages = messages(json!([turn(Value::Null), turn(json!("")), turn(json!("a"))]));
        for (no_content, contents) in [
            (NoContent::Absent, [None, Some(json!("")), Some(json!("a"))]),
            (NoContent::Empty, [Some(json!("")), Some(json!("")), Some(json!("a"))]),
            (NoContent::Null, [Some(Value::Null), Some(Value::Null), Some(json!("a"))]),
        ] {
            let past_calls =
                PastCalls { arguments_as_text: true, no_content, ..PastCalls::default() };
            let form = TemplateForm { past_calls, ..TemplateForm::default() };
            let rendered = form.messages(&messages, &mut Vec::new());
            for (turn, content) in rendered.as_array().unwrap().iter().zip(contents) {
                assert_eq!(turn.get("content"), content.as_ref(), "{no_content:?}");
                assert_eq!(turn["tool_calls"][0], call);
            }
        }
    }
}
