//! Chat templates render the text that transformers' Jinja2 renders, and everything that a template does is bounded.

use candlepower_tokenizer::{
    ChatTemplate, Error, LocalTime, PromptEnd, RenderInput, TemplateSources,
};
use serde_json::{Map, Value, json};

const NOW: LocalTime = LocalTime { unix_s: 1_752_000_000, utc_offset_s: 0 };

fn template(source: &str) -> ChatTemplate {
    with_config(source, &json!({}))
}

fn with_config(source: &str, tokenizer_config: &Value) -> ChatTemplate {
    ChatTemplate::from_sources(&TemplateSources {
        chat_template_jinja: Some(source),
        tokenizer_config: Some(tokenizer_config.to_string().as_bytes()),
        ..TemplateSources::default()
    })
    .unwrap()
    .unwrap()
}

fn render_with(template: &ChatTemplate, messages: &Value, end: PromptEnd) -> Result<String, Error> {
    template.render(&RenderInput {
        messages,
        tools: None,
        documents: None,
        end,
        chat_template_kwargs: &Map::new(),
        now: NOW,
    })
}

fn render(source: &str, messages: &Value) -> Result<String, Error> {
    render_with(&template(source), messages, PromptEnd::GenerationPrompt)
}

#[test]
fn goldens_of_transformers() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/chat_templates.json");
    let goldens: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    let now = LocalTime { unix_s: goldens["now_unix_s"].as_i64().unwrap(), utc_offset_s: 0 };
    let (mut num_rendered, mut num_refused) = (0, 0);
    for family in goldens["families"].as_array().unwrap() {
        let template =
            with_config(family["template"].as_str().unwrap(), &goldens["tokenizer_config"]);
        for case in family["cases"].as_array().unwrap() {
            let rendered = template.render(&RenderInput {
                messages: &goldens["conversations"][case["conversation"].as_str().unwrap()],
                tools: (case["has_tools"] == true).then_some(&goldens["tools"]),
                documents: None,
                end: match case["end"].as_str().unwrap() {
                    "generation_prompt" => PromptEnd::GenerationPrompt,
                    "last_message" => PromptEnd::LastMessage,
                    "continue_final_message" => PromptEnd::ContinueFinalMessage,
                    other => panic!("{other}"),
                },
                chat_template_kwargs: case["kwargs"].as_object().unwrap(),
                now,
            });
            let name = format!("{} {case}", family["name"]);
            match (case["expected"].as_str(), rendered) {
                (Some(expected), Ok(rendered)) => {
                    assert_eq!(rendered, expected, "{name}");
                    num_rendered += 1;
                }
                (None, Err(Error::TemplateRaised { message })) => {
                    assert_eq!(message, case["error"].as_str().unwrap(), "{name}");
                    num_refused += 1;
                }
                (None, Err(Error::CannotContinue(_))) => {
                    assert!(case["error"].as_str().unwrap().starts_with("continue_final_message"));
                    num_refused += 1;
                }
                (_, other) => panic!("{name}: {other:?}"),
            }
        }
    }
    assert!(
        num_rendered > 100 && num_refused > 4,
        "{num_rendered} rendered, {num_refused} refused"
    );
}

#[test]
fn sources_of_templates() {
    let list = json!({"chat_template": [
        {"name": "default", "template": "D"}, {"name": "tool_use", "template": "T"}]});
    let one = json!({"chat_template": "A"});
    let nameless = json!({"chat_template": [
        {"name": "a", "template": "A"}, {"name": "b", "template": "B"}]});
    let more = |names: &[&str]| {
        names.iter().map(|name| (name.to_string(), format!("more {name}"))).collect::<Vec<_>>()
    };
    let of = |chosen, jinja, additional: &[&str], config: &Value| {
        ChatTemplate::from_sources(&TemplateSources {
            chosen,
            chat_template_jinja: jinja,
            additional: &more(additional),
            tokenizer_config: Some(config.to_string().as_bytes()),
            chat_template_json: Some(br#"{"chat_template": "J"}"#),
        })
    };
    // The chosen templates without tools and with an empty list of tools.
    let taken = |template: Result<Option<ChatTemplate>, Error>| {
        let template = template.unwrap().unwrap();
        [None, Some(&json!([]))].map(|tools| template.source(tools).unwrap().to_owned())
    };
    assert!(ChatTemplate::from_sources(&TemplateSources::default()).unwrap().is_none());
    assert_eq!(taken(of(None, None, &[], &json!({"chat_template": null}))), ["J", "J"]);
    assert_eq!(taken(of(None, None, &["tool_use"], &json!({}))), ["J", "more tool_use"]);
    assert_eq!(taken(of(None, None, &[], &one)), ["A", "A"]);
    assert_eq!(taken(of(None, None, &[], &list)), ["D", "T"]);
    assert_eq!(taken(of(None, Some("B"), &[], &list)), ["B", "B"]);
    assert_eq!(taken(of(None, Some("B"), &["rag", "tool_use"], &list)), ["B", "more tool_use"]);
    assert_eq!(taken(of(None, None, &["tool_use"], &one)), ["A", "more tool_use"]);
    assert_eq!(taken(of(None, None, &["default"], &list)), ["more default", "more default"]);
    assert_eq!(taken(of(Some("C"), Some("B"), &["tool_use"], &list)), ["C", "C"]);
    let error = of(None, None, &[], &nameless).unwrap().unwrap().source(None).unwrap_err();
    assert!(matches!(error, Error::NoDefaultTemplate { names } if names == ["a", "b"]));
    for damaged in ["{", r#"{"chat_template": 1}"#] {
        let sources = TemplateSources {
            chat_template_json: Some(damaged.as_bytes()),
            ..TemplateSources::default()
        };
        let error = ChatTemplate::from_sources(&sources).unwrap_err();
        assert!(matches!(error, Error::BadChatTemplateJson(_)), "{error}");
    }
    assert!(matches!(
        of(None, None, &[], &json!({"chat_template": 1})),
        Err(Error::BadTokenizerConfig(_))
    ));
    assert!(matches!(
        of(None, Some("a\n{% if %}"), &[], &json!({})),
        Err(Error::TemplateSyntax { line: Some(2), .. })
    ));
}

#[test]
fn keys_keep_their_order_and_kwargs_win_over_special_tokens() {
    let messages = json!([{"role": "user", "zebra": 1, "apple": 2}]);
    assert_eq!(
        render("{{ messages[0] | tojson }}", &messages).unwrap(),
        r#"{"role": "user", "zebra": 1, "apple": 2}"#
    );
    let template =
        with_config("{{ bos_token }}{{ documents[0].text }}", &json!({"bos_token": "<s>"}));
    let kwargs = json!({"bos_token": "<b>"});
    let rendered = template.render(&RenderInput {
        messages: &messages,
        tools: None,
        documents: Some(&json!([{"text": "D"}])),
        end: PromptEnd::LastMessage,
        chat_template_kwargs: kwargs.as_object().unwrap(),
        now: NOW,
    });
    assert_eq!(rendered.unwrap(), "<b>D");
}

#[test]
fn reasoning_has_three_names() {
    let source = "{{ messages[0].reasoning_content }}|{{ messages[0].thinking }}";
    for name in ["reasoning_content", "thinking", "reasoning"] {
        assert_eq!(render(source, &json!([{"role": "assistant", name: "R"}])).unwrap(), "R|R");
    }
}

#[test]
fn a_refusal_shows_the_template_s_own_words() {
    let source = "{% macro check(m) %}{% if m.role == 'x' %}{{ raise_exception('no ' ~ m.role) }}{% endif %}{% endmacro %}\
                  {% for m in messages %}{{ check(m) }}{% endfor %}";
    let error = render(source, &json!([{"role": "x"}])).unwrap_err();
    assert!(matches!(&error, Error::TemplateRaised { message } if message == "no x"), "{error:?}");
    assert!(error.to_string().contains("no x"));
}

#[test]
fn an_error_in_a_template_names_the_line() {
    let error = render("\n{{ messages[0].content.nothing.at_all }}", &json!([{"role": "user"}]))
        .unwrap_err();
    assert!(matches!(error, Error::TemplateRender { line: Some(2), .. }), "{error:?}");
    let error = render("{{ strftime_now('%Q') }}", &json!([])).unwrap_err();
    assert!(error.to_string().contains("%Q"), "{error}");
}

#[test]
fn time_and_output_are_bounded() {
    let slow = "{% for a in range(90000) %}{% for b in range(90000) %}{% endfor %}{% endfor %}";
    assert!(matches!(render(slow, &json!([])), Err(Error::TemplateTooSlow { .. })));
    let in_macro = format!("{{% macro m() %}}{slow}{{% endmacro %}}{{{{ m() }}}}");
    assert!(matches!(render(&in_macro, &json!([])), Err(Error::TemplateTooSlow { .. })));
    let long = "{% for a in range(90000) %}{{ messages[0].content }}{% endfor %}";
    let messages = json!([{"role": "user", "content": "x".repeat(10_000)}]);
    assert!(matches!(render(long, &messages), Err(Error::TemplateOutputTooLong { .. })));
    let endless = "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}";
    assert!(matches!(render(endless, &json!([])), Err(Error::TemplateRender { .. })));
}

#[test]
fn the_exceeded_bound_is_named() {
    let slow = "{% for a in range(90000) %}{% for b in range(90000) %}{% endfor %}{% endfor %}";
    let template = template(slow);
    let max_steps = |template: &ChatTemplate| match render_with(
        template,
        &json!([]),
        PromptEnd::GenerationPrompt,
    ) {
        Err(Error::TemplateTooSlow { max_steps }) => max_steps,
        other => panic!("{other:?}"),
    };
    assert_eq!(max_steps(&template), ChatTemplate::MAX_STEPS);
    assert_eq!(max_steps(&template.for_probes()), 200_000);
    assert_eq!(max_steps(&template.for_probes().for_probes()), 200_000);
}

#[test]
fn a_thousand_messages_are_far_from_the_bound() {
    let role = |i: usize| if i.is_multiple_of(2) { "user" } else { "assistant" };
    let turn = |i: usize| json!({"role": role(i), "content": "x"});
    let messages = (0..2000).map(turn).collect::<Value>();
    let chatml = "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}";
    assert_eq!(render(chatml, &messages).unwrap().lines().count(), 4000);
}

#[test]
fn messages_must_be_a_list_of_objects() {
    for bad in [json!({}), json!("a"), json!([1]), json!([{"role": "user"}, null])] {
        assert!(matches!(render("", &bad), Err(Error::BadMessages(_))), "{bad}");
    }
}

#[test]
fn what_cannot_be_continued_is_refused() {
    let chatml = template("{% for m in messages %}<{{ m.role }}>{{ m.content }}</>{% endfor %}");
    let continued = |template: &ChatTemplate, messages: Value| {
        render_with(template, &messages, PromptEnd::ContinueFinalMessage)
    };
    assert_eq!(continued(&chatml, json!([{"role": "a", "content": "So "}])).unwrap(), "<a>So ");
    let parts = json!([{"role": "a", "content": [{"type": "text", "text": "x"}, {"type": "text", "text": "y"}]}]);
    let of_parts = template("{% for p in messages[0].content %}[{{ p.text }}]{% endfor %}");
    assert_eq!(continued(&of_parts, parts).unwrap(), "[x][y");
    for messages in
        [json!([]), json!([{"role": "a"}]), json!([{"role": "a", "content": [{"type": "image"}]}])]
    {
        assert!(matches!(continued(&chatml, messages), Err(Error::CannotContinue(_))));
    }
    let message = json!([{"role": "a", "content": "hello"}]);
    for source in ["{{ messages[0].role }}", "{{ messages[0].content[:3] }}"] {
        assert!(
            matches!(continued(&template(source), message.clone()), Err(Error::CannotContinue(_))),
            "{source}"
        );
    }
}

#[test]
fn generation_tags_are_scopes() {
    let source =
        "{%- set x = 1 %}a {%- generation -%} {% set x = 2 %}{{ x }}{%-endgeneration%}\n{{ x }}";
    assert_eq!(render(source, &json!([])).unwrap(), "a21");
}
