//! Mutated chat templates, deeply nested ones, and conversations with which a template builds much text.

use candlepower_tokenizer::{ChatTemplate, LocalTime, PromptEnd, RenderInput, TemplateSources};
use fastrand::Rng;
use serde_json::{Map, Value, json};

use super::repository;
use crate::{Round, Verdict, change};

const PIECES: [&str; 22] = [
    "{{",
    "}}",
    "{%",
    "%}",
    "{#",
    "#}",
    "-",
    " not ",
    "(",
    ")",
    "[",
    "]",
    "|upper",
    "|tojson",
    ".b",
    " and ",
    " ~ ",
    "'",
    "{% if a %}",
    "{% endif %}",
    "{% for m in messages %}",
    "{% endfor %}",
];
/// Texts that are repeated before and after a value.
const DEEP: [(&str, &str); 14] = [
    ("-", ""),
    ("not ", ""),
    ("(", ")"),
    ("[", "]"),
    ("{'a': ", "}"),
    ("1 + ", ""),
    ("1 ** ", ""),
    ("a and ", ""),
    ("a ~ ", ""),
    ("a if b else ", ""),
    ("", "|upper"),
    ("", ".b"),
    ("", "['b']"),
    ("", "(1)"),
];
const DEEP_BLOCKS: [(&str, &str); 4] = [
    ("{% if a %}", "{% endif %}"),
    ("{% for a in b %}", "{% endfor %}"),
    ("{% set a %}", "{% endset %}"),
    ("{% macro a() %}", "{% endmacro %}"),
];
/// Expressions that build text or examine lists; `x` is a text of the conversation.
const EXPRESSIONS: [&str; 24] = [
    "x|replace('a', x)",
    "x.replace('', x)",
    "x|indent(100000)",
    "x|indent(x)",
    "x.split('a')|join(x)",
    "x.split('')|join(x)",
    "x|list|sort|join",
    "x|list|unique|list|length",
    "x|list|groupby('a')|length",
    "'%1000000000d'|format(1)",
    "x|format(x, x, x)",
    "'%s%s%s%s'|format(x, x, x, x)",
    "x.join(x|list)",
    "messages|tojson(indent=100000)",
    "messages|tojson|tojson|tojson",
    "x|upper|title|trim|capitalize",
    "x ~ x ~ x",
    "messages|map(attribute='content')|join(x)",
    "x|batch(1)|list|length",
    "x|slice(1000000)|list|length",
    "x.splitlines()|join(x)",
    "x|pprint",
    "x.strip(x).lstrip(x).rstrip(x)",
    "range(100000)|list|join(x)",
];

pub(super) fn open() -> Round {
    let data =
        std::fs::read(repository("crates/tokenizer/tests/data/chat_templates.json")).unwrap();
    let data: Value = serde_json::from_slice(&data).unwrap();
    let families = data["families"].as_array().unwrap().iter();
    let families: Vec<String> =
        families.map(|family| family["template"].as_str().unwrap().to_owned()).collect();
    let tools = data["tools"].clone();
    Box::new(move |random| {
        let (source, is_own) = match random.usize(..6) {
            0 => (deep(random), true),
            1 | 2 => (change::text(random.choice(&families).unwrap(), &PIECES, random), false),
            3 => (random.choice(&families).unwrap().clone(), false),
            _ => (built(random), true),
        };
        let sources =
            TemplateSources { chat_template_jinja: Some(&source), ..TemplateSources::default() };
        let template = match ChatTemplate::from_sources(&sources) {
            Ok(template) => template.unwrap(),
            Err(error) => return Verdict::Refused(line(&error.to_string())),
        };
        // A published template takes as many steps as its author chose, so families run without a
        // limit. The fuzzer's own templates get one, or a round could take too long.
        let template = if is_own { template.for_probes() } else { template };
        let messages: Vec<Value> = (0..random.usize(1..5)).map(|_| message(random)).collect();
        let rendered = template.render(&RenderInput {
            messages: &messages.into(),
            tools: random.bool().then_some(&tools),
            documents: None,
            end: *random
                .choice(&[
                    PromptEnd::GenerationPrompt,
                    PromptEnd::LastMessage,
                    PromptEnd::ContinueFinalMessage,
                ])
                .unwrap(),
            chat_template_kwargs: &Map::from_iter([("a".to_owned(), text(random).into())]),
            // A fixed time keeps rounds repeatable.
            now: LocalTime { unix_s: 1_752_000_000, utc_offset_s: 0 },
        });
        match rendered {
            Ok(_) => Verdict::Accepted,
            Err(error) => Verdict::Refused(line(&error.to_string())),
        }
    })
}

/// A template may raise an error of any length, with line breaks.
fn line(reason: &str) -> String {
    reason.chars().take(1_000).map(|c| if c == '\n' { ' ' } else { c }).collect()
}

fn deep(random: &mut Rng) -> String {
    // Up to 16,384 levels, at which a recursive parser overflows its stack.
    let times = 1 << random.u32(0..15);
    if random.bool() {
        let (open, close) = random.choice(&DEEP).unwrap();
        format!("{{{{ {}1{} }}}}", open.repeat(times), close.repeat(times))
    } else {
        let (open, close) = random.choice(&DEEP_BLOCKS).unwrap();
        format!("{}a{}", open.repeat(times), close.repeat(times))
    }
}

/// Expressions on the texts of a conversation, in sequence or each on the result of the last.
fn built(random: &mut Rng) -> String {
    let mut source = "{% for message in messages %}{% set x = message.content %}".to_owned();
    for _ in 0..random.usize(1..4) {
        let expression = *random.choice(&EXPRESSIONS).unwrap();
        match random.usize(..3) {
            0 => source.push_str(&format!("{{% set x = ({expression})|string %}}")),
            1 => source.push_str(&format!(
                "{{% for i in range(100) %}}{{{{ {expression} }}}}{{% endfor %}}"
            )),
            _ => source.push_str(&format!("{{{{ {expression} }}}}")),
        }
    }
    source.push_str("{{ x }}{% endfor %}");
    source
}

fn message(random: &mut Rng) -> Value {
    let role = *random.choice(&["system", "user", "assistant", "tool"]).unwrap();
    json!({ "role": role, "content": text(random) })
}

/// Repetitions of texts that templates search for.
fn text(random: &mut Rng) -> String {
    let piece = *random.choice(&["a", " ", "\n", "aé", "<think>", "%s", "{}", "日", "a,"]).unwrap();
    piece.repeat(1 << random.u32(0..16))
}
