//! What a chat template is to be given for the calls that a conversation already has.

use std::collections::HashMap;

use candlepower_tokenizer::{ChatTemplate, PromptEnd};
use serde_json::{Value, json};

use crate::probe::{ANSWER, FUNCTION, KEY, QUESTION, VALUE, render, tools};

/// The form in which a template takes the calls of earlier turns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PastCalls {
    /// Whether arguments are the text of a JSON object, which the template joins to other texts; else they are the object.
    pub arguments_as_text: bool,
    /// What the turn has for its content where nothing is said beside the calls.
    pub no_content: NoContent,
    /// Whether the template writes ids in place of names: they have to be those of [`Self::id`], with calls counted from the beginning of
    /// the conversation.
    pub ids_name_functions: bool,
}

/// The content of a turn in which nothing is said.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NoContent {
    /// There is none, as in transformers.
    #[default]
    Absent,
    /// Null, for templates that ask `is none`: what is absent is not.
    Null,
    /// A text without characters, for templates that look into it or join it to others.
    Empty,
}

impl NoContent {
    /// The value of the key `content`, where there is one.
    pub fn value(self) -> Option<Value> {
        match self {
            Self::Absent => None,
            Self::Null => Some(Value::Null),
            Self::Empty => Some("".into()),
        }
    }
}

impl PastCalls {
    /// The usual form first.
    pub(crate) const ALL: [Self; 7] = [
        Self::form(false, NoContent::Absent),
        Self { ids_name_functions: true, ..Self::form(false, NoContent::Absent) },
        Self::form(false, NoContent::Null),
        Self::form(false, NoContent::Empty),
        Self::form(true, NoContent::Absent),
        Self::form(true, NoContent::Null),
        Self::form(true, NoContent::Empty),
    ];

    const fn form(arguments_as_text: bool, no_content: NoContent) -> Self {
        Self { arguments_as_text, no_content, ids_name_functions: false }
    }

    /// The first form in which the template writes a call with its name and its arguments; the usual one where it never does.
    pub fn detect(template: &ChatTemplate) -> Self {
        let is_written = |form: &Self| {
            let prompt = render_call(template, *form).unwrap_or_default();
            let turn = prompt.split_once(QUESTION).map_or("", |(_, turn)| turn);
            turn.contains(FUNCTION) && turn.contains(VALUE)
        };
        // A template that writes no calls may still refuse turns without content.
        let is_taken = |form: &Self| render_call(template, *form).is_some();
        let mut taken = [NoContent::Absent, NoContent::Empty, NoContent::Null]
            .map(|no_content| Self::form(false, no_content))
            .into_iter();
        Self::ALL.into_iter().find(is_written).or_else(|| taken.find(is_taken)).unwrap_or_default()
    }

    /// The id of the `number`-th call of a conversation, which names its function. Source: Kimi K2's `docs/tool_call_guidance.md`.
    pub fn id(function: &str, number: usize) -> String {
        format!("functions.{function}:{number}")
    }

    /// Gives the calls of `messages`, and what answers them, the ids that the template needs.
    pub fn name_calls(self, messages: &mut [Value]) {
        if !self.ids_name_functions {
            return;
        }
        let mut named: HashMap<String, String> = HashMap::new();
        let mut number = 0;
        for message in messages {
            let calls = message.get_mut("tool_calls").and_then(Value::as_array_mut);
            for call in calls.into_iter().flatten() {
                let function = call.pointer("/function/name").and_then(Value::as_str);
                let id = Self::id(function.unwrap_or_default(), number);
                number += 1;
                if let Some(Value::String(old)) = call.get("id") {
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

    /// Makes an object of arguments, or the text of one, what the template takes. What is no object stays as it is.
    pub fn shape_arguments(self, arguments: &mut Value) {
        match arguments {
            Value::Object(_) if self.arguments_as_text => {
                *arguments = arguments.to_string().into();
            }
            Value::String(text) if !self.arguments_as_text => {
                if let Ok(object @ Value::Object(_)) = serde_json::from_str(text) {
                    *arguments = object;
                }
            }
            _ => {}
        }
    }
}

/// A conversation with a call and its answer, in the given form.
pub(crate) fn render_call(template: &ChatTemplate, form: PastCalls) -> Option<String> {
    let mut arguments = json!({KEY: VALUE});
    form.shape_arguments(&mut arguments);
    let id = if form.ids_name_functions { PastCalls::id(FUNCTION, 0) } else { "abcdefgh1".into() };
    let call = json!({"id": id, "type": "function", "function": {"name": FUNCTION, "arguments": arguments}});
    let mut turn = json!({"role": "assistant", "tool_calls": [call]});
    if let Some(content) = form.no_content.value() {
        turn["content"] = content;
    }
    let messages = json!([
        {"role": "user", "content": QUESTION},
        turn,
        {"role": "tool", "name": FUNCTION, "tool_call_id": id, "content": ANSWER},
    ]);
    render(template, &messages, Some(&tools()), PromptEnd::LastMessage)
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

    /// Turns as DeepSeek's templates write them: `calls` writes those of a turn, with `m` for the turn; texts are joined by `+`.
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

    /// Calls as R1 has them, whose content is joined to them unless it is null.
    fn r1() -> ChatTemplate {
        deepseek(&format!(
            "{{% if m['role'] == 'assistant' and 'tool_calls' in m %}}{{% for c in m['tool_calls'] %}}\
             {{% if m['content'] is none %}}{{{{ '<｜Assistant｜>' + {CALL} }}}}\
             {{% else %}}{{{{ '<｜Assistant｜>' + m['content'] + {CALL} }}}}{{% endif %}}{{% endfor %}}{{% endif %}}\
             {{% if m['role'] == 'assistant' and 'tool_calls' not in m %}}{ANSWER}{{% endif %}}"
        ))
    }

    /// Calls as R1's distilled models have them, which are written only where the content is null.
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
            // The usual form is an error.
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

    /// The published template of LFM2 writes the content as JSON unless it is a text, and no calls.
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
            assert_eq!(PastCalls::detect(&template(&source)), OBJECT, "{arguments}");
        }
    }

    #[test]
    fn arguments_become_objects_or_texts() {
        let shaped = |arguments_as_text, mut arguments: Value| {
            PastCalls { arguments_as_text, ..OBJECT }.shape_arguments(&mut arguments);
            arguments
        };
        let (object, text) = (json!({"x": 1}), json!("{\"x\": 1}"));
        assert_eq!(shaped(false, text.clone()), object);
        assert_eq!(shaped(false, object.clone()), object);
        assert_eq!(shaped(true, text.clone()), text);
        assert_eq!(shaped(true, object), json!("{\"x\":1}"));
        for other in [json!("not json"), json!("[1]"), Value::Null] {
            assert_eq!(shaped(false, other.clone()), other);
            assert_eq!(shaped(true, other.clone()), other);
        }
    }

    /// Ids in place of names, as Kimi K2's template writes them.
    #[test]
    fn ids_that_are_written_in_place_of_names_name_functions() {
        let kimi = template(
            "{% for m in messages %}<|im_{{ m.role }}|>{% if m.role == 'tool' %}## Return of {{ m.tool_call_id }}\n{% endif %}{{ m.content }}\
             {% if m.tool_calls %}<|tool_calls_section_begin|>{% for c in m.tool_calls %}<|tool_call_begin|>{{ c.id }}\
             <|tool_call_argument_begin|>{{ c.function.arguments | tojson }}<|tool_call_end|>{% endfor %}<|tool_calls_section_end|>{% endif %}\
             {% endfor %}",
        );
        let form = PastCalls::detect(&kimi);
        assert_eq!(form, PastCalls { ids_name_functions: true, ..OBJECT });
        assert_eq!(Dialect::detect(&kimi).tools, Some(ToolFormat::KimiK2));
        let call = |id: &str, name: &str| json!({"id": id, "type": "function", "function": {"name": name}});
        let conversation = json!([
            {"role": "assistant", "tool_calls": [call("call_a", "f"), call("call_b", "g")]},
            {"role": "tool", "tool_call_id": "call_b", "content": "2"},
            {"role": "tool", "tool_call_id": "call_a", "content": "1"},
            {"role": "assistant", "tool_calls": [call("functions.f:0", "f")]},
            {"role": "tool", "tool_call_id": "functions.f:0", "content": "3"},
            {"role": "tool", "tool_call_id": "unknown", "content": "4"},
            // Clients may repeat ids in other turns.
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
