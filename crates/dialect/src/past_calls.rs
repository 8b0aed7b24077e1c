//! The form of earlier tool calls that a chat template accepts.

use std::collections::{HashMap, HashSet, VecDeque};

use candlepower_tokenizer::{ChatTemplate, PromptEnd};
use serde_json::{Value, json};

use crate::probe::{ANSWER, FUNCTION, KEY, QUESTION, VALUE, render, tools};

/// The form of earlier tool calls that a template accepts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PastCalls {
    /// Whether arguments are JSON text, which the template concatenates to other text; otherwise they are an object.
    pub arguments_as_text: bool,
    /// The content of a message with tool calls only.
    pub no_content: NoContent,
    /// The required form of ids.
    pub ids: CallIdForm,
    /// Whether the template fails if arguments are text that is not a JSON object.
    pub needs_objects: bool,
}

/// The required form of ids of calls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CallIdForm {
    /// Any id.
    #[default]
    Any,
    /// Ids of [`PastCalls::id`], with calls counted from the start of the conversation: the template writes them instead of names.
    NameFunctions,
    /// Nine letters and digits, because Mistral's templates raise an error for others.
    NineLetters,
}

/// The content of a message without content.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NoContent {
    /// No key, as in transformers.
    #[default]
    Absent,
    /// Null, for templates that check `is none`, which is false for a missing key.
    Null,
    /// An empty string, for templates that search in it or concatenate it.
    Empty,
}

impl NoContent {
    /// The value of the key `content`; `None` for no key.
    pub fn value(self) -> Option<Value> {
        match self {
            Self::Absent => None,
            Self::Null => Some(Value::Null),
            Self::Empty => Some("".into()),
        }
    }
}

impl PastCalls {
    /// All forms, the most common first.
    pub(crate) const ALL: [Self; 7] = [
        Self::form(false, NoContent::Absent),
        // Kimi's template writes the id instead of the name, so only an id with the name shows the call.
        Self { ids: CallIdForm::NameFunctions, ..Self::form(false, NoContent::Absent) },
        Self::form(false, NoContent::Null),
        Self::form(false, NoContent::Empty),
        Self::form(true, NoContent::Absent),
        Self::form(true, NoContent::Null),
        Self::form(true, NoContent::Empty),
    ];

    /// The order of forms for a template that writes no calls: an empty string says nothing more than a missing key.
    const UNWRITTEN: [Self; 6] = [
        Self::form(false, NoContent::Absent),
        Self::form(false, NoContent::Empty),
        Self::form(false, NoContent::Null),
        Self::form(true, NoContent::Absent),
        Self::form(true, NoContent::Empty),
        Self::form(true, NoContent::Null),
    ];

    const fn form(arguments_as_text: bool, no_content: NoContent) -> Self {
        Self { arguments_as_text, no_content, ids: CallIdForm::Any, needs_objects: false }
    }

    /// The first form in which the template writes a call with its name and its arguments. If there is none, the first form that the
    /// template accepts, or else the most common one.
    pub fn detect(template: &ChatTemplate) -> Self {
        let is_written = |form: &Self| {
            let prompt = render_call(template, *form).unwrap_or_default();
            let turn = prompt.split_once(QUESTION).map_or("", |(_, turn)| turn);
            // The text before the question may contain the tool's definition, which has the name, too. So only the
            // turn after it counts.
            turn.contains(FUNCTION) && turn.contains(VALUE)
        };
        let is_taken = |form: &Self| render_call(template, *form).is_some();
        let written = Self::ALL.into_iter().find(is_written);
        let found = written.or_else(|| Self::UNWRITTEN.into_iter().find(is_taken));
        let Some(form) = found else { return Self::default() };
        let refuses = |id: &str, arguments: Value| {
            let messages = call_with(form, id, arguments);
            render(template, &messages, Some(&tools()), PromptEnd::LastMessage).is_none()
        };
        let arguments = || form.probe_arguments();
        let needs_letters =
            // An id in the form of OpenAI's. The probe's own id has nine letters, so it proves nothing.
            form.ids == CallIdForm::Any && refuses("call_0123456789abcdef", arguments());
        Self {
            ids: if needs_letters { CallIdForm::NineLetters } else { form.ids },
            // Templates that iterate over the arguments fail for text. `tojson` accepts it, and loses nothing.
            needs_objects: !form.arguments_as_text && refuses(PROBE_ID, "no object".into()),
            ..form
        }
    }

    /// The arguments of the probe's call in this form.
    fn probe_arguments(self) -> Value {
        let mut arguments = json!({KEY: VALUE});
        self.shape_arguments(&mut arguments);
        arguments
    }

    /// The id of the `number`-th call of a conversation, which names its function. Source: Kimi K2's `docs/tool_call_guidance.md`.
    pub fn id(function: &str, number: usize) -> String {
        format!("functions.{function}:{number}")
    }

    /// Replaces the ids of calls and of their results in `messages` by ids of the required form.
    pub fn name_calls(self, messages: &mut [Value]) {
        match self.ids {
            CallIdForm::Any => {}
            CallIdForm::NameFunctions => Self::name_by_functions(messages),
            CallIdForm::NineLetters => shorten_ids(messages),
        }
    }

    fn name_by_functions(messages: &mut [Value]) {
        let mut named: HashMap<String, String> = HashMap::new();
        let mut number = 0;
        for message in messages {
            let calls = message.get_mut("tool_calls").and_then(Value::as_array_mut);
            for call in calls.into_iter().flatten() {
                let function = call.pointer("/function/name").and_then(Value::as_str);
                let id = Self::id(function.unwrap_or_default(), number);
                number += 1;
                if let Some(Value::String(old)) = call.get("id") {
                    // A later call with the same id replaces the earlier one, because results follow their calls.
                    named.insert(old.clone(), id.clone());
                }
                call["id"] = id.into();
            }
            if let Some(Value::String(of)) = message.get_mut("tool_call_id")
                && let Some(id) = named.get(of)
            {
                of.clone_from(id);
            }
        }
    }

    /// Converts arguments to an object or to JSON text, as the template needs; missing ones become an empty object. Returns false if
    /// arguments were lost: arguments that are not an object stay if the template accepts them, and become an empty object otherwise.
    pub fn shape_arguments(self, arguments: &mut Value) -> bool {
        let is_nothing = match &*arguments {
            Value::Null => true,
            // Clients that collect a stream store an empty string for a call without arguments. vLLM reads these
            // forms as `{}`, too.
            // PHP writes an empty object as `[]`.
            Value::String(text) => matches!(text.trim(), "" | "null" | "[]"),
            Value::Array(items) => items.is_empty(),
            _ => false,
        };
        if is_nothing {
            *arguments = json!({});
        } else if let Some(object) = encoded_twice(arguments) {
            *arguments = object;
        }
        match arguments {
            Value::Object(_) if self.arguments_as_text => {
                *arguments = arguments.to_string().into();
            }
            Value::String(text) if !self.arguments_as_text => {
                if let Ok(object @ Value::Object(_)) = serde_json::from_str(text) {
                    *arguments = object;
                    // Arguments that `max_tokens` has cut are no JSON. An error here would end the conversation for
                    // good, because clients send them again.
                } else if self.needs_objects {
                    *arguments = json!({});
                    return false;
                }
            }
            _ => {}
        }
        true
    }
}

/// The object whose JSON text was encoded as JSON again, as some clients do.
fn encoded_twice(arguments: &Value) -> Option<Value> {
    let text = arguments.as_str().filter(|text| text.trim_start().starts_with('"'))?;
    let inner: String = serde_json::from_str(text).ok()?;
    serde_json::from_str(&inner).ok().filter(Value::is_object)
}

/// Gives calls and their results ids of nine letters and digits. Ids of this form stay.
fn shorten_ids(messages: &mut [Value]) {
    let mut short = ShortIds::default();
    let mut unanswered = VecDeque::new();
    for message in messages {
        let calls = message.get_mut("tool_calls").and_then(Value::as_array_mut);
        for call in calls.into_iter().flatten() {
            let id = short.of(call.get("id").and_then(Value::as_str));
            unanswered.push_back(id.clone());
            call["id"] = id.into();
        }
        if message["role"] == "tool" {
            let id = match message.get("tool_call_id").and_then(Value::as_str) {
                Some(id) => short.of(Some(id)),
                // A result without an id belongs to the first call without a result.
                None => unanswered.front().cloned().unwrap_or_else(|| short.of(None)),
            };
            unanswered.retain(|other| *other != id);
            message["tool_call_id"] = id.into();
        }
    }
}

/// The mapping of ids to ids of nine letters and digits.
#[derive(Default)]
struct ShortIds {
    by_id: HashMap<String, String>,
    taken: HashSet<String>,
}

impl ShortIds {
    const LENGTH: usize = 9;

    /// The short id of `id`, or a new one.
    /// An id maps to the same short id in every request, so that the prompt's prefix stays in the cache.
    fn of(&mut self, id: Option<&str>) -> String {
        if let Some(known) = id.and_then(|id| self.by_id.get(id)) {
            return known.clone();
        }
        let is_short =
            |id: &&str| id.len() == Self::LENGTH && id.bytes().all(|b| b.is_ascii_alphanumeric());
        let seed = id.map_or_else(|| format!("call {}", self.taken.len()), str::to_owned);
        let mut short = id.filter(is_short).map_or_else(|| Self::digest(&seed), str::to_owned);
        // Two ids may have the same digest, or one may be the digest of another.
        while !self.taken.insert(short.clone()) {
            short = Self::digest(&short);
        }
        self.by_id.insert(seed, short.clone());
        short
    }

    /// Source: the constants of FNV-1a.
    fn digest(text: &str) -> String {
        // 62 digits in nine places are 53 bits of the 64-bit hash.
        const DIGITS: &[u8] = b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
        let step =
            |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
        let mut hash = text.bytes().fold(0xcbf2_9ce4_8422_2325, step);
        let digit = |_| {
            let digit = DIGITS[(hash % DIGITS.len() as u64) as usize];
            hash /= DIGITS.len() as u64;
            char::from(digit)
        };
        (0..Self::LENGTH).map(digit).collect()
    }
}

/// The id of the probe's call, which all templates accept that accept any.
const PROBE_ID: &str = "abcdefgh1";

/// Renders a conversation with a call and its result, in the given form.
pub(crate) fn render_call(template: &ChatTemplate, form: PastCalls) -> Option<String> {
    render(template, &call_messages(form), Some(&tools()), PromptEnd::LastMessage)
}

/// The messages of that conversation.
pub(crate) fn call_messages(form: PastCalls) -> Value {
    let id = match form.ids {
        CallIdForm::NameFunctions => PastCalls::id(FUNCTION, 0),
        CallIdForm::Any | CallIdForm::NineLetters => PROBE_ID.to_owned(),
    };
    call_with(form, &id, form.probe_arguments())
}

/// The same conversation with another id and other arguments.
fn call_with(form: PastCalls, id: &str, arguments: Value) -> Value {
    let call = json!({"id": id, "type": "function", "function": {"name": FUNCTION, "arguments": arguments}});
    let mut turn = json!({"role": "assistant", "tool_calls": [call]});
    if let Some(content) = form.no_content.value() {
        turn["content"] = content;
    }
    json!([
        {"role": "user", "content": QUESTION},
        turn,
        {"role": "tool", "name": FUNCTION, "tool_call_id": id, "content": ANSWER},
    ])
}

#[cfg(test)]
mod tests {
    use candlepower_tokenizer::TemplateSources;

    use super::*;
    use crate::{Dialect, ReasoningFormat, ToolFormat};

    const OBJECT: PastCalls = PastCalls::form(false, NoContent::Absent);

    fn template(source: &str) -> ChatTemplate {
        let sources = TemplateSources { chosen: Some(source), ..TemplateSources::default() };
        ChatTemplate::from_sources(&sources).unwrap().unwrap()
    }

    /// A template like DeepSeek's, which concatenates strings with `+`. `calls` writes the calls of the message `m`.
    fn deepseek(calls: &str) -> ChatTemplate {
        template(&format!(
            "{{% for m in messages %}}{{% if m['role'] == 'user' %}}{{{{ '<｜User｜>' + m['content'] }}}}{{% endif %}}{calls}\
             {{% if m['role'] == 'tool' %}}{{{{ '<｜tool▁output▁begin｜>' + m['content'] + '<｜tool▁output▁end｜>' }}}}{{% endif %}}\
             {{% endfor %}}{{% if add_generation_prompt %}}{{{{ '<｜Assistant｜>' }}}}{{% endif %}}"
        ))
    }

    const CALL: &str = r"'<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>' + c['type'] + '<｜tool▁sep｜>' + c['function']['name'] + '\n```json\n' + c['function']['arguments'] + '\n```<｜tool▁call▁end｜>'";
    const ANSWER: &str = "{% if '</think>' in m['content'] %}{{ m['content'].split('</think>')[-1] }}\
                          {% else %}{{ '<｜Assistant｜>' + m['content'] }}{% endif %}";

    /// A template like R1's, which concatenates the content and each call, unless the content is null.
    fn r1() -> ChatTemplate {
        deepseek(&format!(
            "{{% if m['role'] == 'assistant' and 'tool_calls' in m %}}{{% for c in m['tool_calls'] %}}\
             {{% if m['content'] is none %}}{{{{ '<｜Assistant｜>' + {CALL} }}}}\
             {{% else %}}{{{{ '<｜Assistant｜>' + m['content'] + {CALL} }}}}{{% endif %}}{{% endfor %}}{{% endif %}}\
             {{% if m['role'] == 'assistant' and 'tool_calls' not in m %}}{ANSWER}{{% endif %}}"
        ))
    }

    /// A template like those of R1's distilled models, which write calls only if the content is null.
    fn distilled() -> ChatTemplate {
        deepseek(&format!(
            "{{% if m['role'] == 'assistant' and m['content'] is none %}}{{% for c in m['tool_calls'] %}}\
             {{{{ '<｜Assistant｜>' + {CALL} }}}}{{% endfor %}}{{% endif %}}\
             {{% if m['role'] == 'assistant' and m['content'] is not none %}}{ANSWER}{{% endif %}}"
        ))
    }

    #[test]
    fn templates_that_join_arguments_to_texts_are_given_texts() {
        let found = Dialect {
            tools: Some(ToolFormat::DeepseekV3),
            reasoning: Some(ReasoningFormat::Qwen3),
        };
        for template in [r1(), distilled()] {
            // The most common form raises an error.
            assert_eq!(render_call(&template, OBJECT), None);
            let form = PastCalls::detect(&template);
            assert_eq!(form, PastCalls::form(true, NoContent::Null));
            assert_eq!(
                render_call(&template, form).unwrap(),
                "<｜User｜>probe_question<｜Assistant｜><｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>probe_function\n\
                 ```json\n{\"probe_key\":\"probe_value\"}\n```<｜tool▁call▁end｜><｜tool▁output▁begin｜>probe_answer<｜tool▁output▁end｜>"
            );
            assert_eq!(Dialect::detect(&template), found);
        }
    }

    #[test]
    fn content_is_there_for_templates_that_cannot_do_without() {
        for (content, no_content) in [
            (
                "{% if m.content is none %}{{ '' }}{% else %}{{ m.content + '' }}{% endif %}",
                NoContent::Null,
            ),
            ("{{ m.content + '' }}", NoContent::Empty),
            ("{{ m.content }}", NoContent::Absent),
        ] {
            let source = format!(
                "{{% for m in messages %}}{content}{{% for c in m.tool_calls %}}{{{{ c | tojson }}}}{{% endfor %}}{{% endfor %}}"
            );
            let form = PastCalls::form(false, no_content);
            assert_eq!(PastCalls::detect(&template(&source)), form, "{content}");
        }
    }

    /// The published template of LFM2 writes content that is not a string as JSON, and no calls.
    #[test]
    fn templates_that_write_no_calls_are_given_a_content_that_they_take() {
        let source = "{% for m in messages %}{% set content = m['content'] %}\
            {% if content is not string %}{% set content = content | tojson %}{% endif %}{{ content }}{% endfor %}";
        assert_eq!(PastCalls::detect(&template(source)), PastCalls::form(false, NoContent::Empty));
    }

    #[test]
    fn templates_that_take_objects_are_given_objects() {
        for arguments in [
            "{{ c.function.arguments | tojson }}",
            "{% for k, v in c.function.arguments.items() %}{{ k }}={{ v }}{% endfor %}",
            "{% if c.function.arguments is string %}{{ c.function.arguments }}{% else %}{{ c.function.arguments | tojson }}{% endif %}",
            "",
        ] {
            let source = format!(
                "{{% for m in messages %}}{{{{ m.content }}}}{{% for c in m.tool_calls %}}{arguments}{{% endfor %}}{{% endfor %}}"
            );
            let found = PastCalls::detect(&template(&source));
            assert_eq!(PastCalls { needs_objects: false, ..found }, OBJECT, "{arguments}");
        }
    }

    #[test]
    fn arguments_become_objects_or_texts() {
        let shaped = |arguments_as_text, mut arguments: Value| {
            assert!(PastCalls { arguments_as_text, ..OBJECT }.shape_arguments(&mut arguments));
            arguments
        };
        let (object, text) = (json!({"x": 1}), json!("{\"x\": 1}"));
        assert_eq!(shaped(false, text.clone()), object);
        assert_eq!(shaped(false, object.clone()), object);
        assert_eq!(shaped(true, text.clone()), text);
        assert_eq!(shaped(true, object), json!("{\"x\":1}"));
        for other in [json!("not json"), json!("[1]")] {
            assert_eq!(shaped(false, other.clone()), other);
            assert_eq!(shaped(true, other.clone()), other);
            let mut mended = other;
            assert!(!PastCalls { needs_objects: true, ..OBJECT }.shape_arguments(&mut mended));
            assert_eq!(mended, json!({}));
        }
        let twice = json!(r#""{\"x\": 1}""#);
        assert_eq!(shaped(false, twice.clone()), json!({"x": 1}));
        assert_eq!(shaped(true, twice), json!("{\"x\":1}"));
        for nothing in [json!(""), json!(" \n"), json!("null"), json!("[]"), json!([]), Value::Null]
        {
            assert_eq!(shaped(false, nothing.clone()), json!({}));
            assert_eq!(shaped(true, nothing), json!("{}"));
        }
    }

    #[test]
    fn templates_show_what_they_need() {
        let of = |call: &str| {
            PastCalls::detect(&template(&format!(
                "{{% for m in messages %}}{{{{ m.content }}}}{{% for c in m.tool_calls %}}{{{{ c.function.name }}}}{call}{{% endfor %}}{{% endfor %}}"
            )))
        };
        let items = "{% for k, v in c.function.arguments.items() %}{{ k }}={{ v }}{% endfor %}";
        assert!(of(items).needs_objects);
        assert!(!of("{{ c.function.arguments | tojson }}").needs_objects);
        let nine = "{% if c.id | length != 9 %}{{ raise_exception('nine') }}{% endif %}{{ c.function.arguments | tojson }}";
        assert_eq!(of(nine).ids, CallIdForm::NineLetters);
        // Like LFM2's, it writes no calls, and uses the content of every message.
        let silent = template("{% for m in messages %}{{ m.content | tojson }}{% endfor %}");
        assert_eq!(PastCalls::detect(&silent), PastCalls::form(false, NoContent::Empty));
    }

    #[test]
    fn ids_are_nine_letters_where_they_have_to_be() {
        let call = |id: Value| json!({"id": id, "function": {"name": "f", "arguments": {}}});
        let turn = |id: &str| json!({"role": "assistant", "tool_calls": [call(id.into())]});
        let answer = |id: &str| json!({"role": "tool", "tool_call_id": id, "content": "1"});
        let mut messages = vec![
            turn("toolu_01"),
            answer("toolu_01"),
            turn("abcdefgh1"),
            answer("abcdefgh1"),
            json!({"role": "assistant", "tool_calls": [call(Value::Null), call(Value::Null)]}),
            json!({"role": "tool", "content": "1"}),
            json!({"role": "tool", "content": "2"}),
            answer("toolu_01"),
        ];
        let form = PastCalls { ids: CallIdForm::NineLetters, ..OBJECT };
        form.name_calls(&mut messages);
        let id = |index: usize, call: usize| {
            messages[index]["tool_calls"][call]["id"].as_str().unwrap().to_owned()
        };
        let of = |index: usize| messages[index]["tool_call_id"].as_str().unwrap().to_owned();
        for id in [id(0, 0), id(2, 0), id(4, 0), id(4, 1)] {
            assert!(id.len() == 9 && id.bytes().all(|b| b.is_ascii_alphanumeric()), "{id}");
        }
        assert_eq!((of(1), of(3), id(2, 0)), (id(0, 0), "abcdefgh1".into(), "abcdefgh1".into()));
        assert_eq!((of(5), of(6), of(7)), (id(4, 0), id(4, 1), id(0, 0)));
        assert_ne!(id(4, 0), id(4, 1));
        // The id alone maps to the same short id.
        let mut alone = vec![turn("toolu_01")];
        form.name_calls(&mut alone);
        assert_eq!(alone[0]["tool_calls"][0]["id"], id(0, 0));
    }

    /// Ids instead of names, as in Kimi K2's template.
    #[test]
    fn ids_that_are_written_in_place_of_names_name_functions() {
        let kimi = template(
            "{% for m in messages %}<|im_{{ m.role }}|>{% if m.role == 'tool' %}## Return of {{ m.tool_call_id }}\n{% endif %}{{ m.content }}\
             {% if m.tool_calls %}<|tool_calls_section_begin|>{% for c in m.tool_calls %}<|tool_call_begin|>{{ c.id }}\
             <|tool_call_argument_begin|>{{ c.function.arguments | tojson }}<|tool_call_end|>{% endfor %}<|tool_calls_section_end|>{% endif %}\
             {% endfor %}",
        );
        let form = PastCalls::detect(&kimi);
        assert_eq!(form, PastCalls { ids: CallIdForm::NameFunctions, ..OBJECT });
        assert_eq!(Dialect::detect(&kimi).tools, Some(ToolFormat::KimiK2));
        let call = |id: &str, name: &str| json!({"id": id, "type": "function", "function": {"name": name}});
        let conversation = json!([
            {"role": "assistant", "tool_calls": [call("call_a", "f"), call("call_b", "g")]},
            {"role": "tool", "tool_call_id": "call_b", "content": "2"},
            {"role": "tool", "tool_call_id": "call_a", "content": "1"},
            {"role": "assistant", "tool_calls": [call("functions.f:0", "f")]},
            {"role": "tool", "tool_call_id": "functions.f:0", "content": "3"},
            {"role": "tool", "tool_call_id": "unknown", "content": "4"},
            // Clients may repeat ids in other messages.
            {"role": "assistant", "tool_calls": [call("call_a", "g"), call("call_b", "f")]},
            {"role": "tool", "tool_call_id": "call_a", "content": "5"},
        ]);
        let mut named = conversation.as_array().unwrap().clone();
        form.name_calls(&mut named);
        let ids: Vec<&str> =
            ["/0/tool_calls/0/id", "/0/tool_calls/1/id", "/1/tool_call_id", "/2/tool_call_id"]
                .into_iter()
                .chain(["/3/tool_calls/0/id", "/4/tool_call_id", "/5/tool_call_id"])
                .chain(["/6/tool_calls/0/id", "/6/tool_calls/1/id", "/7/tool_call_id"])
                .map(|at| {
                    let (index, rest) = at[1..].split_once('/').unwrap();
                    named[index.parse::<usize>().unwrap()]
                        .pointer(&format!("/{rest}"))
                        .unwrap()
                        .as_str()
                        .unwrap()
                })
                .collect();
        assert_eq!(
            ids,
            [
                "functions.f:0",
                "functions.g:1",
                "functions.g:1",
                "functions.f:0",
                "functions.f:2",
                "functions.f:2",
                "unknown",
                "functions.g:3",
                "functions.f:4",
                "functions.g:3"
            ]
        );
        let mut untouched = conversation.as_array().unwrap().clone();
        OBJECT.name_calls(&mut untouched);
        assert_eq!(Value::from(untouched), conversation);
    }
}
