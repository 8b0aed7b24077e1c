//! The orders of roles that a chat template accepts, and the rearrangement of conversations to such an order.

use candlepower_tokenizer::{ChatTemplate, PromptEnd};
use serde_json::{Value, json};

use crate::past_calls::{PastCalls, call_messages};
use crate::probe::{ANSWER, QUESTION, THOUGHT, render, tools};

/// The orders of roles that a template accepts. An order is not accepted if the template raises an error or drops a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Turns {
    /// Instructions at all.
    system: bool,
    /// Several messages of instructions at the start.
    several_systems: bool,
    /// Instructions after other messages, which Qwen3.5's template refuses.
    later_systems: bool,
    /// Two user messages in a row.
    repeated_users: bool,
    /// Two assistant messages in a row.
    repeated_assistants: bool,
    /// A user message after a tool's result.
    user_after_tool: bool,
}

impl Default for Turns {
    fn default() -> Self {
        Self {
            system: true,
            several_systems: true,
            later_systems: true,
            repeated_users: true,
            repeated_assistants: true,
            user_after_tool: true,
        }
    }
}

/// The separator of joined texts.
const BREAK: &str = "\n\n";

impl Turns {
    /// Detects the orders that a template accepts; all if it does not even accept a question.
    pub fn detect(template: &ChatTemplate) -> Self {
        let takes = |turns: &[(&str, &str)]| {
            let message = |(role, text): &(&str, &str)| json!({"role": role, "content": text});
            let messages: Value = turns.iter().map(message).collect();
            let prompt = render(template, &messages, None, PromptEnd::GenerationPrompt);
            // gpt-oss's template drops later instructions without an error, so each text is looked for in the prompt.
            prompt.is_some_and(|prompt| turns.iter().all(|(_, text)| prompt.contains(text)))
        };
        const MORE: &str = "probe_more";
        // A template that refuses a question may need variables, so its failures prove nothing.
        if !takes(&[("user", QUESTION)]) {
            return Self::default();
        }
        let question = ("user", QUESTION);
        let answer = ("assistant", ANSWER);
        let later = ("system", THOUGHT);
        Self {
            system: takes(&[later, question]),
            several_systems: takes(&[("system", MORE), later, question]),
            // A template may accept later instructions at one of these two positions and not at the other.
            later_systems: takes(&[question, later])
                && takes(&[question, answer, later, ("user", MORE)]),
            repeated_users: takes(&[question, ("user", MORE)]),
            repeated_assistants: takes(&[question, answer, ("assistant", MORE), ("user", THOUGHT)]),
            user_after_tool: takes_user_after_tool(template),
        }
    }

    /// Rearranges a conversation to an order that the template accepts. All texts and images stay, in their order. Contents are texts, lists of parts, or null.
    pub fn arrange(self, messages: Vec<Value>) -> Vec<Value> {
        let num_leading = messages.iter().take_while(|message| is_instruction(message)).count();
        let mut rest = messages;
        let mut turns = rest.drain(..num_leading).collect::<Vec<_>>();
        // Instructions are joined before they are moved, so that several ones become one user message.
        if !self.several_systems {
            turns = joined(turns, |_, _| true);
        }
        let rest = if self.later_systems { rest } else { to_users(rest) };
        turns.extend(rest);
        if !self.system {
            turns = to_users(turns);
        }
        if !self.repeated_users {
            turns = joined(turns, |one, other| is(one, "user") && is(other, "user"));
        }
        if !self.repeated_assistants {
            // Calls cannot be joined: their results refer to the turn that made them.
            let says = |turn: &Value| is(turn, "assistant") && turn.get("tool_calls").is_none();
            turns = joined(turns, |one, other| says(one) && says(other));
        }
        if !self.user_after_tool {
            // A message of /v1/messages may have a tool's result and a text, which become these two. Ministral's
            // template refuses that order.
            turns = joined(turns, |one, other| is(one, "tool") && is(other, "user"));
        }
        turns
    }
}

/// Whether the template accepts a user message directly after a tool's result; true if it accepts no calls.
fn takes_user_after_tool(template: &ChatTemplate) -> bool {
    const MORE: &str = "probe_more";
    let form = PastCalls::detect(template);
    let mut messages = call_messages(form);
    let render =
        |messages: &Value| render(template, messages, Some(&tools()), PromptEnd::GenerationPrompt);
    if render(&messages).is_none() {
        return true;
    }
    if let Some(messages) = messages.as_array_mut() {
        messages.push(json!({"role": "user", "content": MORE}));
    }
    render(&messages).is_some_and(|prompt| prompt.contains(MORE))
}

fn is(message: &Value, role: &str) -> bool {
    message["role"] == role
}

fn is_instruction(message: &Value) -> bool {
    is(message, "system") || is(message, "developer")
}

/// The joined contents of two messages: a text, or a list of parts if one of them is a list.
fn join(one: &Value, other: &Value) -> Value {
    let (one, other) = (&one["content"], &other["content"]);
    if one.is_array() || other.is_array() {
        return joined_parts(parts(one), parts(other));
    }
    let text = |content: &Value| content.as_str().unwrap_or_default().to_owned();
    let texts = [text(one), text(other)];
    let texts: Vec<String> = texts.into_iter().filter(|text| !text.is_empty()).collect();
    texts.join(BREAK).into()
}

/// The parts of a content; an empty text has none.
fn parts(content: &Value) -> Vec<Value> {
    match content {
        Value::Array(parts) => parts.clone(),
        Value::String(text) if !text.is_empty() => vec![json!({"type": "text", "text": text})],
        _ => Vec::new(),
    }
}

/// Two lists of parts as one. Two texts that meet are joined, as in contents without a list.
fn joined_parts(mut one: Vec<Value>, other: Vec<Value>) -> Value {
    let mut other = other.into_iter();
    if let Some(next) = other.next() {
        let text = next["text"].as_str().map(str::to_owned);
        match (one.last_mut().and_then(|last| last.get_mut("text")), text) {
            (Some(Value::String(last)), Some(text)) => {
                last.push_str(BREAK);
                last.push_str(&text);
            }
            _ => one.push(next),
        }
    }
    one.extend(other);
    one.into()
}

/// Joins neighbouring messages for which `belong` is true; other fields are those of the first one.
fn joined(messages: Vec<Value>, belong: impl Fn(&Value, &Value) -> bool) -> Vec<Value> {
    let mut turns: Vec<Value> = Vec::with_capacity(messages.len());
    for message in messages {
        match turns.last_mut() {
            Some(last) if belong(last, &message) => last["content"] = join(last, &message),
            _ => turns.push(message),
        }
    }
    turns
}

/// Moves instructions into the next user message, else into the previous one, else into a new user message.
fn to_users(messages: Vec<Value>) -> Vec<Value> {
    let mut turns: Vec<Value> = Vec::with_capacity(messages.len());
    let mut messages = messages.into_iter().peekable();
    while let Some(mut message) = messages.next() {
        if !is_instruction(&message) {
            turns.push(message);
            continue;
        }
        message["role"] = "user".into();
        if let Some(next) =
            messages.peek_mut().filter(|next| is(next, "user") || is_instruction(next))
        {
            next["content"] = join(&message, next);
        } else if let Some(last) = turns.last_mut().filter(|last| is(last, "user")) {
            last["content"] = join(last, &message);
        } else {
            turns.push(message);
        }
    }
    turns
}

#[cfg(test)]
mod tests {
    use candlepower_tokenizer::TemplateSources;

    use super::*;

    fn template(source: &str) -> ChatTemplate {
        let sources = TemplateSources { chosen: Some(source), ..TemplateSources::default() };
        ChatTemplate::from_sources(&sources).unwrap().unwrap()
    }

    /// Roles and texts of an arranged conversation.
    fn arranged(turns: Turns, conversation: &[(&str, &str)]) -> Vec<(String, String)> {
        let message = |(role, text): &(&str, &str)| json!({"role": role, "content": text});
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        let arranged = turns.arrange(conversation.iter().map(message).collect());
        arranged.iter().map(|turn| (text(&turn["role"]), text(&turn["content"]))).collect()
    }

    fn owned(turns: &[(&str, &str)]) -> Vec<(String, String)> {
        turns.iter().map(|(role, text)| ((*role).to_owned(), (*text).to_owned())).collect()
    }

    const ANY: &str = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}";
    /// Instructions only at the start, as in Qwen3.5.
    const FIRST: &str = "{% for m in messages %}{% if m.role == 'system' and not loop.first %}\
        {{ raise_exception('System message must be at the beginning.') }}{% endif %}<{{ m.role }}>{{ m.content }}{% endfor %}";
    /// Alternating user and assistant messages, as in Mistral's templates.
    const ALTERNATING: &str = "{% if messages[0].role == 'system' %}{% set rest = messages[1:] %}{{ messages[0].content }}{% else %}\
        {% set rest = messages %}{% endif %}{% set ns = namespace(index=0) %}{% for m in rest %}\
        {% if m.role == 'user' or (m.role == 'assistant' and not m.tool_calls) %}{% if (m.role == 'user') != (ns.index % 2 == 0) %}\
        {{ raise_exception('roles must alternate') }}{% endif %}{% set ns.index = ns.index + 1 %}{% endif %}\
        {% if m.role == 'system' %}{{ raise_exception('only one') }}{% endif %}<{{ m.role }}>{{ m.content }}\
        {% for c in m.tool_calls %}{{ c | tojson }}{% endfor %}{% endfor %}";
    /// No instructions, as in Gemma 2.
    const NONE: &str = "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}\
        <{{ m.role }}>{{ m.content }}{% endfor %}";
    /// Later instructions are dropped silently, as in gpt-oss.
    const DROPPING: &str = "{% if messages[0].role == 'system' %}{{ messages[0].content }}{% endif %}\
        {% for m in messages %}{% if m.role != 'system' %}<{{ m.role }}>{{ m.content }}{% endif %}{% endfor %}";

    #[test]
    fn what_templates_take_is_left_as_it_is() {
        let turns = Turns::detect(&template(ANY));
        assert_eq!(turns, Turns::default());
        let conversation =
            [("system", "a"), ("system", "b"), ("user", "c"), ("user", "d"), ("system", "e")];
        assert_eq!(arranged(turns, &conversation), owned(&conversation));
        assert_eq!(Turns::detect(&template("{{ raise_exception('no') }}")), Turns::default());
    }

    #[test]
    fn several_instructions_are_one_and_later_ones_are_the_users() {
        for source in [FIRST, DROPPING] {
            let turns = Turns::detect(&template(source));
            let conversation = [("system", "a"), ("developer", "b"), ("user", "c")];
            assert_eq!(
                arranged(turns, &conversation),
                owned(&[("system", "a\n\nb"), ("user", "c")])
            );
            let conversation = [("user", "a"), ("system", "b"), ("user", "c")];
            assert_eq!(arranged(turns, &conversation), owned(&[("user", "a"), ("user", "b\n\nc")]));
            let conversation = [("user", "a"), ("system", "b")];
            assert_eq!(arranged(turns, &conversation), owned(&[("user", "a\n\nb")]));
            let conversation =
                [("user", "a"), ("assistant", "b"), ("system", "c"), ("system", "d")];
            let expected = [("user", "a"), ("assistant", "b"), ("user", "c\n\nd")];
            assert_eq!(arranged(turns, &conversation), owned(&expected));
        }
    }

    #[test]
    fn turns_alternate_where_they_have_to() {
        let alternating = template(ALTERNATING);
        let turns = Turns::detect(&alternating);
        assert!(!turns.repeated_users && !turns.repeated_assistants && !turns.user_after_tool);
        let conversation = [
            ("system", "a"),
            ("user", "b"),
            ("user", "c"),
            ("assistant", "d"),
            ("assistant", "e"),
            ("tool", "f"),
            ("user", "g"),
        ];
        let expected =
            [("system", "a"), ("user", "b\n\nc"), ("assistant", "d\n\ne"), ("tool", "f\n\ng")];
        assert_eq!(arranged(turns, &conversation), owned(&expected));
    }

    #[test]
    fn images_stay_where_contents_are_joined() {
        let turns = Turns { repeated_users: false, ..Turns::default() };
        let (text, image) =
            (|text: &str| json!({"type": "text", "text": text}), json!({"type": "image"}));
        let user = |content: Value| json!({"role": "user", "content": content});
        let conversation = vec![
            user("a".into()),
            user(json!([text("b"), image])),
            user("".into()),
            user(json!([image, text("c")])),
            user("d".into()),
        ];
        let expected = json!([text("a\n\nb"), image, image, text("c\n\nd")]);
        assert_eq!(turns.arrange(conversation), [user(expected)]);
    }

    #[test]
    fn instructions_are_the_users_where_there_are_none() {
        let turns = Turns::detect(&template(NONE));
        let conversation = [("system", "a"), ("system", "b"), ("user", "c")];
        assert_eq!(arranged(turns, &conversation), owned(&[("user", "a\n\nb\n\nc")]));
        assert_eq!(arranged(turns, &[("system", "a")]), owned(&[("user", "a")]));
    }
}
