//! The request of POST /v1/responses.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

use crate::chat::{ChatMessage, ToolOptions, leave_out_verbosity};
use crate::constraint::{ConstraintKind, OutputConstraint};
use crate::error::{FieldError, excerpt};
use crate::fields::Fields;
use crate::generation::{GenerationFields, MaxTokensName, ResponsesSampling};
use crate::not_held::NotHeld;
use crate::thinking::ThinkingOptions;

mod input;
mod tools;

use input::Input;
pub use input::StoredItems;
pub(crate) use input::{check_fields, text_of, texts_of};

/// Maximum number of pairs in `metadata`, and maximum characters of a key and of a value.
const MAX_METADATA: usize = 16;
const MAX_METADATA_KEY: usize = 64;
const MAX_METADATA_VALUE: usize = 512;

/// The next turn of a conversation, whose earlier turns the server may store.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
pub struct ResponsesRequest {
    /// Model name, from GET /v1/models; default: the served model.
    pub model: Option<String>,
    /// New input: a string, or a list of items. Items are messages of the roles user, assistant, system and developer, tool calls,
    /// results of tools, and reasoning. Messages of the user and results of tools may have images: parts of the type `input_image` with
    /// `image_url` and `detail`. Items of the type `item_reference` refer to items of stored responses by their `id`.
    #[schema(value_type = Object)]
    pub input: Vec<ChatMessage>,
    /// Paths of the arguments of all calls in `input`.
    #[serde(skip)]
    #[schema(ignore)]
    pub call_paths: Vec<String>,
    /// System prompt, for this turn only.
    pub instructions: Option<String>,
    /// Id of the previous response, whose conversation precedes `input`.
    pub previous_response_id: Option<String>,
    /// Maximum number of tokens to generate. Default: the rest of the context.
    pub max_output_tokens: Option<i64>,
    /// Store the response, so that it can be retrieved and continued.
    #[schema(default = true)]
    pub store: Option<bool>,
    /// Reasoning: `effort` is passed to the chat template; after `max_tokens` tokens the server closes the reasoning.
    #[schema(rename = "reasoning", value_type = Option<Reasoning>)]
    pub thinking: ThinkingOptions,
    /// Variables for the chat template.
    pub chat_template_kwargs: Option<Map<String, Value>>,
    /// Return this number of most likely tokens at each position of the text.
    pub top_logprobs: Option<i64>,
    /// Additional output: `message.output_text.logprobs` returns log-probabilities of the text's tokens. Other values have no effect.
    pub include: Option<Vec<String>>,
    /// Fields that the response repeats and that have no other effect.
    #[serde(skip)]
    #[schema(ignore)]
    pub echoed: Map<String, Value>,
    /// Key-value pairs that the response repeats.
    pub metadata: Option<Map<String, Value>>,
    /// Format of the text.
    pub text: Option<TextSettings>,
    /// Tools and tool choice.
    #[serde(flatten)]
    #[schema(value_type = tools::WireToolOptions)]
    pub tool_options: Option<ToolOptions>,
    /// Sampling parameters, stops and streaming. One response is generated.
    #[serde(flatten)]
    #[schema(value_type = ResponsesSampling)]
    pub generation: GenerationFields,
    /// Ignored parts of the request.
    #[serde(skip)]
    #[schema(ignore)]
    pub not_held: NotHeld,
}

/// Fields that the response repeats.
const ECHOED: [(&str, Echoed); 4] = [
    ("max_tool_calls", Echoed::Integer),
    ("service_tier", Echoed::Text),
    ("safety_identifier", Echoed::Text),
    ("prompt_cache_key", Echoed::Text),
];

/// The type of a field that the response repeats.
#[derive(Clone, Copy)]
enum Echoed {
    Integer,
    Text,
}

/// Format and verbosity of the text.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct TextSettings {
    /// Format of the text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub format: Option<TextFormat>,
    /// Verbosity. No chat template supports it: `low` and `high` are ignored and listed in the response header `x-candlepower-not-held`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub verbosity: Option<String>,
}

/// Format of a text: plain, any JSON object, or JSON of a schema.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct TextFormat {
    /// `text`, `json_object` or `json_schema`.
    #[serde(rename = "type")]
    pub kind: String,
    /// Name of the schema; it has no effect.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Purpose of the schema; it has no effect.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// JSON schema, with the type `json_schema`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub schema: Option<Value>,
    /// Accepted and ignored: the schema is always enforced.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub strict: Option<bool>,
}

/// Reasoning options.
#[derive(ToSchema)]
#[expect(dead_code, reason = "it describes the field for the OpenAPI document")]
struct Reasoning {
    /// Reasoning effort, passed to the chat template.
    effort: Option<String>,
    /// Maximum number of reasoning tokens; then the server closes the reasoning.
    max_tokens: Option<i64>,
    /// Switch reasoning on or off.
    enabled: Option<bool>,
    /// Has no effect: the response contains the reasoning itself.
    summary: Option<String>,
}

impl ResponsesRequest {
    /// Parses a request body, whose input may refer to `items`.
    pub fn parse(body: &[u8], items: &mut dyn StoredItems) -> Result<Self, FieldError> {
        let mut fields = Fields::parse(body)?;
        let model = fields.take("model")?;
        let Input { messages: input, call_paths } =
            Input::new(fields.require("input")?, items, &mut fields)?;
        let tool_options = tools::take(&mut fields)?;
        let text: Option<TextSettings> = fields.take("text")?;
        refuse_unsupported(&mut fields)?;
        let verbosity = text.as_ref().and_then(|text| text.verbosity.as_deref());
        leave_out_verbosity(&mut fields, "text.verbosity", verbosity)?;
        let thinking = ThinkingOptions::take(&mut fields)?;
        let mut generation = GenerationFields::take(&mut fields)?;
        if generation.n.is_some_and(|n| n != 1) {
            return Err(FieldError::new(
                "n",
                "/v1/responses generates one response: leave `n` out.",
            ));
        }
        if generation.prompt_logprobs.is_some() {
            let message = "/v1/responses does not support `prompt_logprobs`: leave it out, or use /v1/completions.";
            return Err(FieldError::new("prompt_logprobs", message));
        }
        if generation.return_token_ids == Some(true) {
            let message = "/v1/responses does not support `return_token_ids`: leave it out, or use /v1/chat/completions.";
            return Err(FieldError::new("return_token_ids", message));
        }
        if let Some(constraint) = text.as_ref().and_then(|text| text.format.as_ref()).map(of_format)
        {
            if generation.constraint.is_some() {
                let message = "`text.format` and another field are both constraints on the output: give one of them.";
                return Err(FieldError::new("text.format", message));
            }
            generation.constraint = constraint?;
        }
        let max_output_tokens = fields.take_integer("max_output_tokens")?;
        if max_output_tokens.is_some() {
            if generation.max_tokens.is_some_and(|other| Some(other) != max_output_tokens) {
                let MaxTokensName(name) = generation.max_tokens_name;
                let message = format!(
                    "`max_output_tokens` and `{name}` mean the same and differ: give one of them."
                );
                return Err(FieldError::new(name, message));
            }
            generation.max_tokens = max_output_tokens;
            generation.max_tokens_name = MaxTokensName("max_output_tokens");
        }
        let mut request = Self {
            model,
            input,
            call_paths,
            instructions: fields.take("instructions")?,
            previous_response_id: fields.take("previous_response_id")?,
            max_output_tokens,
            store: fields.take("store")?,
            thinking,
            chat_template_kwargs: fields.take("chat_template_kwargs")?,
            top_logprobs: fields.take_integer("top_logprobs")?,
            include: take_include(&mut fields)?,
            echoed: take_echoed(&mut fields)?,
            metadata: fields.take("metadata")?.map(checked_metadata).transpose()?,
            text,
            tool_options,
            generation,
            not_held: NotHeld::default(),
        };
        request.not_held = fields.finish()?;
        Ok(request)
    }
}

/// Checks `metadata`: at most 16 strings of at most 512 characters, with keys of at most 64.
///
/// Source: `metadata` in OpenAI's reference of the API.
fn checked_metadata(metadata: Map<String, Value>) -> Result<Map<String, Value>, FieldError> {
    let is_fine = |(key, value): (&String, &Value)| {
        let is_short = |text: &str| text.chars().count() <= MAX_METADATA_VALUE;
        key.chars().count() <= MAX_METADATA_KEY && value.as_str().is_some_and(is_short)
    };
    if metadata.len() <= MAX_METADATA && metadata.iter().all(is_fine) {
        return Ok(metadata);
    }
    let message = format!(
        "`metadata` may have at most {MAX_METADATA} pairs, with keys of at most {MAX_METADATA_KEY} characters and values \
         that are strings of at most {MAX_METADATA_VALUE}."
    );
    Err(FieldError::new("metadata", message))
}

/// Refuses fields that would change the output and are not supported.
fn refuse_unsupported(fields: &mut Fields<'_>) -> Result<(), FieldError> {
    let refuse =
        |name: &str, what: &str| Err(FieldError::new(name, format!("{what}: leave `{name}` out.")));
    if fields.take::<String>("truncation")?.is_some_and(|truncation| truncation != "disabled") {
        return refuse("truncation", "Conversations are never truncated");
    }
    if fields.take::<bool>("background")? == Some(true) {
        return refuse("background", "Background responses are not supported");
    }
    for name in ["conversation", "prompt"] {
        if fields.take::<Value>(name)?.is_some() {
            return refuse(name, "This field is not supported");
        }
    }
    Ok(())
}

/// Takes `include`. Values for encrypted reasoning and results of built-in tools have no effect, because there are none here.
fn take_include(fields: &mut Fields<'_>) -> Result<Option<Vec<String>>, FieldError> {
    const KNOWN: [&str; 7] = [
        LOGPROBS,
        "reasoning.encrypted_content",
        "message.input_image.image_url",
        "file_search_call.results",
        "web_search_call.results",
        "web_search_call.action.sources",
        "code_interpreter_call.outputs",
    ];
    let include: Option<Vec<String>> = fields.take("include")?;
    for (index, name) in include.iter().flatten().enumerate() {
        if !KNOWN.contains(&name.as_str()) {
            fields.leave_out(format!("include[{index}]"), Some(name));
        }
    }
    Ok(include)
}

/// The value of `include` that asks for log-probabilities.
const LOGPROBS: &str = "message.output_text.logprobs";

impl ResponsesRequest {
    /// Number of alternatives for each token of the text; `None` without log-probabilities.
    pub fn num_logprobs(&self) -> Option<i64> {
        let included = self.include.iter().flatten().any(|name| name == LOGPROBS);
        let top = self.top_logprobs.filter(|top| *top != 0);
        top.or(included.then_some(0))
    }
}

fn take_echoed(fields: &mut Fields<'_>) -> Result<Map<String, Value>, FieldError> {
    let mut echoed = Map::new();
    for (name, kind) in ECHOED {
        let value = match kind {
            Echoed::Integer => fields.take_integer(name)?.map(Value::from),
            Echoed::Text => fields.take::<String>(name)?.map(Value::from),
        };
        echoed.insert(name.to_owned(), value.unwrap_or_default());
    }
    Ok(echoed)
}

fn of_format(format: &TextFormat) -> Result<Option<OutputConstraint>, FieldError> {
    const PARAM: &str = "text.format.schema";
    let kind = match (format.kind.as_str(), &format.schema) {
        ("text", None) => return Ok(None),
        ("json_object", None) => ConstraintKind::JsonObject,
        ("json_schema", Some(schema @ (Value::Object(_) | Value::Bool(_)))) => {
            ConstraintKind::JsonSchema(schema.clone())
        }
        ("json_schema", _) => {
            return Err(FieldError::new(
                PARAM,
                "The type `json_schema` needs a `schema`, an object.",
            ));
        }
        ("text" | "json_object", Some(_)) => {
            return Err(FieldError::new(PARAM, "`schema` needs the type `json_schema`."));
        }
        (other, _) => {
            return Err(FieldError::new(
                "text.format.type",
                format!(
                    "`{}` is not supported; use text, json_object or json_schema.",
                    excerpt(other)
                ),
            ));
        }
    };
    Ok(Some(OutputConstraint { param: PARAM, kind }))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::chat::{AllowedMode, AllowedTools, Role, ToolChoice};

    fn parse(more: Value) -> Result<ResponsesRequest, FieldError> {
        let mut body = json!({"model": "m", "input": "Hello"});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        ResponsesRequest::parse(body.to_string().as_bytes(), &mut ())
    }

    #[test]
    fn texts_and_messages_are_read() {
        let hello = ChatMessage::text(Role::User, "Hello".into());
        assert_eq!(parse(json!({})).unwrap().input, std::slice::from_ref(&hello));
        let input = json!([
            {"role": "user", "content": "Hello"},
            {"type": "message", "id": "msg_1", "status": "completed", "role": "assistant",
             "content": [{"type": "output_text", "text": "Hi", "annotations": []}]},
        ]);
        let messages = parse(json!({"input": input})).unwrap().input;
        assert_eq!(messages, [hello, ChatMessage::text(Role::Assistant, "Hi".into())]);
    }

    #[test]
    fn images_are_read_and_refused_by_their_place() {
        let image = |more: Value| {
            let mut image = json!({"type": "input_image", "image_url": "data:,", "detail": "auto", "file_id": null});
            image.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            image
        };
        let input = json!([
            {"role": "user", "content": [{"type": "input_text", "text": "a"}, image(json!({"detail": "low"}))]},
            {"type": "function_call_output", "call_id": "c", "output": [{"type": "input_text", "text": "b"}, image(json!({}))]},
        ]);
        let messages = parse(json!({"input": input})).unwrap().input;
        let images: Vec<_> = messages.iter().flat_map(ChatMessage::images).collect();
        let found = images.iter().map(|image| (image.path.as_str(), image.detail));
        let expected = [
            ("input[0].content[1].image_url", crate::ImageDetail::Low),
            ("input[1].output[1].image_url", crate::ImageDetail::Full),
        ];
        assert_eq!(found.collect::<Vec<_>>(), expected);
        assert_eq!(messages[1].content.as_ref().unwrap().to_text(), "b");
        for (role, part, param) in [
            ("user", image(json!({"file_id": "f"})), "input[0].content[0].file_id"),
            ("user", image(json!({"image_url": null})), "input[0].content[0].image_url"),
            ("user", image(json!({"detail": "ultra"})), "input[0].content[0].detail"),
            ("user", image(json!({"crop": 1})), "input[0].content[0].crop"),
            ("user", json!({"type": "input_file", "file_id": "f"}), "input[0].content[0].type"),
            ("user", json!({"type": "input_audio"}), "input[0].content[0].type"),
            ("assistant", image(json!({})), "input[0].content[0].image_url"),
            ("system", image(json!({})), "input[0].content[0].image_url"),
        ] {
            let error = parse(json!({"input": [{"role": role, "content": [part]}]})).unwrap_err();
            assert_eq!(error.param.as_deref(), Some(param), "{}", error.message);
        }
    }

    #[test]
    fn formats_are_constraints() {
        let format = |format: Value| {
            parse(json!({"text": {"format": format}})).unwrap().generation.constraint
        };
        assert_eq!(format(json!({"type": "text"})), None);
        assert_eq!(
            format(json!({"type": "json_object"})).unwrap().kind,
            ConstraintKind::JsonObject
        );
        let schema = json!({"type": "object"});
        let found =
            format(json!({"type": "json_schema", "name": "n", "strict": true, "schema": schema}));
        assert_eq!(found.unwrap().kind, ConstraintKind::JsonSchema(schema));
    }

    #[test]
    fn a_turn_of_the_assistant_is_one_message() {
        let input = json!([
            {"role": "user", "content": "Weather?"},
            {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm."}]},
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "I look."}]},
            {"type": "function_call", "id": "fc_1", "call_id": "a", "name": "f", "arguments": "{}", "status": "completed"},
            {"type": "function_call", "call_id": "b", "name": "g", "arguments": "{\"x\": 1}"},
            {"type": "function_call_output", "call_id": "a", "output": "12"},
            {"type": "function_call_output", "call_id": "b", "output": [{"type": "input_text", "text": "13"}]},
            {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
        ]);
        let messages = parse(json!({"input": input})).unwrap().input;
        let roles: Vec<Role> = messages.iter().map(|message| message.role).collect();
        assert_eq!(roles, [Role::User, Role::Assistant, Role::Tool, Role::Tool, Role::Assistant]);
        let turn = &messages[1];
        assert_eq!(turn.reasoning_content.as_deref(), Some("Hm."));
        assert_eq!(turn.content.as_ref().unwrap().to_text(), "I look.");
        let calls = turn.tool_calls.as_ref().unwrap();
        assert_eq!(calls[0].0["id"], "a");
        assert_eq!(calls[1].0["function"], json!({"name": "g", "arguments": "{\"x\": 1}"}));
        assert_eq!(messages[3].tool_call_id.as_deref(), Some("b"));
        assert_eq!(messages[3].content.as_ref().unwrap().to_text(), "13");
        assert_eq!(messages[4].content, None);
    }

    /// The items of one stored response.
    struct Stored;

    impl StoredItems for Stored {
        fn item(&mut self, id: &str) -> Option<Value> {
            let text = json!([{"type": "output_text", "text": "I look.", "annotations": []}]);
            Some(match id {
                "rs_1" => {
                    json!({"id": id, "type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm."}]})
                }
                "msg_1" => {
                    json!({"id": id, "type": "message", "role": "assistant", "status": "completed", "content": text})
                }
                "fc_1" => {
                    json!({"id": id, "type": "function_call", "call_id": "c", "name": "f", "arguments": "{"})
                }
                _ => return None,
            })
        }
    }

    #[test]
    fn references_are_the_items_that_they_name() {
        let reference = |id: &str| json!({"type": "item_reference", "id": id});
        let parse = |input: Value| {
            let body = json!({"input": input}).to_string();
            ResponsesRequest::parse(body.as_bytes(), &mut Stored)
        };
        let input = json!([
            {"role": "user", "content": "Weather?"}, reference("rs_1"), {"id": "msg_1"}, reference("fc_1"),
            {"type": "function_call_output", "call_id": "c", "output": null},
        ]);
        let request = parse(input).unwrap();
        let turn = &request.input[1];
        assert_eq!(turn.reasoning_content.as_deref(), Some("Hm."));
        assert_eq!(turn.content.as_ref().unwrap().to_text(), "I look.");
        assert_eq!(turn.tool_calls.as_ref().unwrap()[0].0["id"], "c");
        assert_eq!(request.call_paths, ["input[3].arguments"]);
        assert_eq!(request.input[2].content.as_ref().unwrap().to_text(), "");
        for id in ["msg_1", "msg_2"] {
            let error = parse(json!([reference("msg_1"), reference(id)])).unwrap_err();
            assert_eq!(error.param.as_deref(), Some("input[1].id"), "{}", error.message);
        }
    }

    #[test]
    fn calls_of_tools_that_another_server_ran_are_left_out() {
        let input = json!([
            {"role": "user", "content": "a"}, {"type": "web_search_call", "id": "w", "status": "completed", "action": {}},
            {"type": "custom_tool_call", "call_id": "c", "name": "n", "input": "i"},
            {"type": "custom_tool_call_output", "call_id": "c", "output": "o"}, {"role": "assistant", "content": null},
            {"type": "function_call", "call_id": "d", "name": "f", "arguments": {"a": 1}},
        ]);
        let request = parse(json!({"input": input})).unwrap();
        assert_eq!(request.input.len(), 2);
        let told = "input[1] (web_search_call), input[2] (custom_tool_call), input[3] (custom_tool_call_output)";
        assert_eq!(request.not_held.line(), told);
    }

    const F: &str = "f";

    fn function(name: &str) -> Value {
        json!({"type": "function", "name": name, "description": "d", "parameters": {"type": "object"}})
    }

    #[test]
    fn functions_are_those_of_chat() {
        let options = |more: Value| {
            let mut body = json!({"tools": [function(F)]});
            body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            parse(body).unwrap().tool_options.unwrap()
        };
        let plain = options(json!({}));
        assert_eq!((&plain.choice, plain.parallel), (&ToolChoice::Auto, true));
        assert_eq!((plain.tools[0].strict, plain.schema_field), (true, "parameters"));
        let described = json!({"name": "f", "description": "d", "parameters": {"type": "object"}});
        assert_eq!(plain.tools[0].definition, json!({"type": "function", "function": described}));
        let allowed = AllowedTools { mode: AllowedMode::Auto, names: vec![F.to_owned()] };
        for (choice, expected) in [
            (json!("required"), ToolChoice::Required),
            (json!({"type": "function", "name": "f"}), ToolChoice::Function(F.to_owned())),
            (
                json!({"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "f"}]}),
                ToolChoice::Allowed(allowed),
            ),
        ] {
            let found = options(json!({"tool_choice": choice, "parallel_tool_calls": false}));
            assert_eq!((found.choice, found.parallel), (expected, false));
        }
    }

    /// A shortened request of Codex.
    #[test]
    fn what_cannot_change_the_text_is_taken_and_the_rest_told() {
        let request = parse(json!({
            "include": ["reasoning.encrypted_content"], "reasoning": {"effort": "low", "summary": "auto"},
            "client_metadata": {"x": "y"}, "prompt_cache_key": "k", "text": {"verbosity": "low"},
            "tools": [
                {"type": "namespace", "name": "mcp__x", "description": "Of x.", "tools": [
                    function("f"), {"type": "custom", "name": "patch"},
                ]},
                {"type": "web_search", "external_web_access": true},
                function("f"),
            ],
            "input": [
                {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "a"}]},
                {"type": "message", "role": "assistant", "phase": "commentary", "content": [{"type": "output_text", "text": "b"}]},
                {"type": "function_call", "namespace": "mcp__x", "name": "f", "call_id": "c"},
                {"type": "function_call_output", "call_id": "c", "output": "1"},
            ],
        }))
        .unwrap();
        assert_eq!(
            request.not_held.line(),
            "tools[0].tools[1] (custom), tools[1] (web_search), text.verbosity (low)"
        );
        assert_eq!(request.echoed["prompt_cache_key"], "k");
        assert_eq!((request.echoed.len(), request.num_logprobs()), (4, None));
        let options = request.tool_options.unwrap();
        let names: Vec<_> = options.tools.iter().map(|tool| (&*tool.name, &*tool.path)).collect();
        assert_eq!(names, [("mcp__x__f", "tools[0].tools[0]"), ("f", "tools[2]")]);
        assert_eq!(options.tools[0].definition["function"]["description"], "Of x.\n\nd");
        assert_eq!(options.given_name("mcp__x__f"), (Some("mcp__x"), "f"));
        assert_eq!(options.given_name("f"), (None, "f"));
        let calls = request.input[1].tool_calls.as_ref().unwrap();
        assert_eq!(calls[0].0["function"]["name"], "mcp__x__f");
        let choice = json!({"type": "function", "name": "f", "namespace": "n"});
        let tools = json!([{"type": "namespace", "name": "n", "tools": [function("f")]}]);
        let chosen = parse(json!({"tools": tools, "tool_choice": choice})).unwrap();
        assert_eq!(chosen.tool_options.unwrap().choice, ToolChoice::Function("n__f".into()));
    }

    #[test]
    fn what_is_not_there_is_refused_by_name() {
        for (more, param) in [
            (json!({"input": []}), "input"),
            (json!({"input": 1}), "input"),
            (json!({"input": [{"role": "tool", "content": "x"}]}), "input[0].role"),
            (json!({"input": [{"type": "item_reference", "id": "x"}]}), "input[0].id"),
            (json!({"input": [{"type": "item_reference"}]}), "input[0].id"),
            (
                json!({"input": [{"type": "item_reference", "id": "x", "role": "user"}]}),
                "input[0].role",
            ),
            (json!({"input": [{"type": "compaction", "encrypted_content": "x"}]}), "input[0].type"),
            (json!({"input": [{"type": "web_search_call", "id": "w"}]}), "input"),
            (json!({"input": [{"type": "function_call_output"}]}), "input[0].call_id"),
            (json!({"input": [{"role": "user", "content": "x", "name": "y"}]}), "input[0].name"),
            (
                json!({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}),
                "input[0].content[0].image_url",
            ),
            (json!({"tools": [{"type": "function"}]}), "tools[0]"),
            (json!({"tools": [{"type": "functoin", "name": "f", "parameters": {}}]}), "tools[0]"),
            (json!({"tools": [{"type": "web_search"}], "tool_choice": "required"}), "tool_choice"),
            (
                json!({"tools": [function(F), {"type": "web_search"}], "tool_choice": {"type": "web_search"}}),
                "tool_choice",
            ),
            (json!({"tools": [{"type": "namespace", "name": "n"}]}), "tools[0]"),
            (
                json!({"input": [{"type": "function_call", "call_id": "c", "name": "f", "arguments": 7}]}),
                "input[0].arguments",
            ),
            (json!({"text": {"verbosity": "loud"}}), "text.verbosity"),
            (json!({"max_tool_calls": "x"}), "max_tool_calls"),
            (json!({"max_output_tokens": 2, "max_tokens": 3}), "max_tokens"),
            (json!({"tools": [{"type": "function", "name": "f", "function": {}}]}), "tools[0]"),
            (json!({"tools": [function(F), function(F)]}), "tools[1].name"),
            (json!({"tool_choice": "required"}), "tool_choice"),
            (json!({"tools": [function(F)], "tool_choice": "any"}), "tool_choice"),
            (
                json!({"tools": [function(F)], "tool_choice": {"type": "function", "name": "g"}}),
                "tool_choice.name",
            ),
            (json!({"truncation": "auto"}), "truncation"),
            (json!({"background": true}), "background"),
            (json!({"n": 2}), "n"),
            (json!({"prompt_logprobs": 0}), "prompt_logprobs"),
            (json!({"return_token_ids": true}), "return_token_ids"),
            (json!({"metadata": {"a": 1}}), "metadata"),
            (json!({"metadata": {"a": "é".repeat(513)}}), "metadata"),
            (json!({"metadata": {"a".repeat(65): "b"}}), "metadata"),
            (
                json!({"metadata": (0..17).map(|i| (i.to_string(), json!(""))).collect::<Map<_, _>>()}),
                "metadata",
            ),
            (
                json!({"input": [{"role": "user", "content": [{"type": "input_text", "text": "x", "bold": true}]}]}),
                "input[0].content[0].bold",
            ),
            (json!({"text": {"format": {"type": "grammar"}}}), "text.format.type"),
            (json!({"text": {"format": {"type": "json_schema"}}}), "text.format.schema"),
            (json!({"messages": []}), "messages"),
        ] {
            assert_eq!(parse(more.clone()).unwrap_err().param.as_deref(), Some(param), "{more}");
        }
        let pairs: Map<String, Value> =
            (0..16).map(|i| (format!("{i:064}"), "é".repeat(512).into())).collect();
        parse(json!({"metadata": pairs, "return_token_ids": false})).unwrap();
        parse(
            json!({"tools": [], "tool_choice": "auto", "store": false, "truncation": "disabled"}),
        )
        .unwrap();
    }
}
