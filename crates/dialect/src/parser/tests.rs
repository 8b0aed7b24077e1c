//! Events for answers in each format, whole and in pieces.

use proptest::prelude::*;
use serde_json::{Map, Value};

use super::*;

mod deviations;
mod formats;
mod gemma4;
mod xml;

/// Functions with only a name.
fn functions(names: &[&str]) -> Option<Arc<[Callable]>> {
    let function = |name: &&str| Callable { name: name.to_string(), parameters: None };
    Some(names.iter().map(function).collect())
}

fn calls(format: ToolFormat) -> OutputParser {
    let dialect = Dialect { tools: Some(format), reasoning: None };
    OutputParser::new(dialect, Thinking::Possible, functions(&["f", "get_weather"]))
}

fn thoughts(format: ReasoningFormat, thinking: Thinking) -> OutputParser {
    let dialect = Dialect { tools: Some(ToolFormat::Hermes), reasoning: Some(format) };
    OutputParser::new(dialect, thinking, functions(&["f"]))
}

/// The parts of an answer: content, reasoning, and calls, with `.` after complete ones.
fn read<'a>(
    mut parser: OutputParser,
    pieces: impl IntoIterator<Item = &'a str>,
) -> (String, String, Vec<String>) {
    let (mut content, mut reasoning, mut calls) =
        (String::new(), String::new(), Vec::<String>::new());
    let mut events = Vec::new();
    for piece in pieces {
        events.extend(parser.push(piece));
    }
    events.extend(parser.finish());
    for event in events {
        match event {
            OutputEvent::Content(text) => content.push_str(&text),
            OutputEvent::Reasoning(text) => reasoning.push_str(&text),
            OutputEvent::CallStart { index, name } => {
                assert_eq!(index, calls.len());
                calls.push(format!("{name} "));
            }
            OutputEvent::CallArguments { index, fragment } => {
                assert_eq!(index, calls.len() - 1);
                calls[index].push_str(&fragment);
            }
            OutputEvent::CallEnd { index } => {
                assert_eq!(index, calls.len() - 1);
                calls[index].push('.');
            }
        }
    }
    (content, reasoning, calls)
}

/// Content and calls of an answer, which must be the same character by character.
fn called(format: ToolFormat, text: &str) -> (String, Vec<String>) {
    let (content, reasoning, found) = read(calls(format), [text]);
    let characters = text.split_inclusive(|_| true);
    assert_eq!(
        read(calls(format), characters),
        (content.clone(), reasoning.clone(), found.clone())
    );
    assert_eq!(reasoning, "");
    (content, found)
}

fn is(content: &str, calls: &[&str]) -> (String, Vec<String>) {
    (content.to_owned(), calls.iter().map(|call| call.to_string()).collect())
}

#[test]
fn hermes() {
    let called = |text: &str| called(ToolFormat::Hermes, text);
    let one =
        "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": \"}</tool_call>\"}}\n</tool_call>";
    assert_eq!(called(one), is("", &["f {\"a\": \"}</tool_call>\"}."]));
    assert_eq!(
        called(&format!("I will look.\n{one}\n{one}\n")),
        is("I will look.", &["f {\"a\": \"}</tool_call>\"}."; 2])
    );
    assert_eq!(called(&format!("{one} Done.")), is("Done.", &["f {\"a\": \"}</tool_call>\"}."]));
    let reversed =
        r#"<tool_call>{"arguments": {"a": [1]}, "id": 7, "name": "get_weather"}</tool_call>"#;
    assert_eq!(called(reversed), is("", &["get_weather {\"a\": [1]}."]));
    let text = r#"<tool_call>{"name": "f", "arguments": "{\"a\": 1}"}</tool_call>"#;
    assert_eq!(called(text), is("", &["f {\"a\": 1}."]));
    assert_eq!(called(r#"<tool_call>{"name": "f"}</tool_call>"#), is("", &["f {}."]));
    let forgotten = r#"<tool_call>{"name": "f", "arguments": {}</tool_call><tool_call>{"name": "f", "arguments": {}} x"#;
    assert_eq!(called(forgotten), is("x", &["f {}.", "f {}."]));
    let cut = r#"<tool_call>{"name": "f", "arguments": {"a": "b"#;
    assert_eq!(called(cut), is("", &["f {\"a\": \"b"]));
    let broken = "A <tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": </tool_call> B";
    assert_eq!(called(broken), is("AB", &["f {\"a\": "]));
    assert_eq!(
        called(&format!("{broken}{one}")),
        is("AB", &["f {\"a\": ", "f {\"a\": \"}</tool_call>\"}."])
    );
    // At the end of the answer a partial mark is no mark. The arguments keep it, and the call has no end.
    let begun = "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": </tool_cal";
    assert_eq!(called(begun), is("", &["f {\"a\": </tool_cal"]));
}

#[test]
fn what_is_no_call_is_content() {
    for text in [
        "",
        " \n",
        "Nothing. ",
        "a < b <tool_",
        "Use <tool_call> so.",
        "<tool_call>{\"name\": \"f\"",
        "<tool_call>{\"name\": 7}</tool_call>\n",
        "<tool_call>[1]</tool_call>",
        "</tool_call>",
    ] {
        assert_eq!(called(ToolFormat::Hermes, text), is(text, &[]));
    }
    for text in [
        "{\"name\": \"g\", \"parameters\": {}}",
        "{\"a\": 1}",
        "  {} ",
        "Say {\"name\": \"f\"",
        "<|python_tag|>print()",
    ] {
        assert_eq!(called(ToolFormat::Llama3Json, text), is(text, &[]));
    }
    for text in ["[1, 2]", "[g(a=1)]", "[f(a=b)]", "[f(1)]", "See [f(a=1)]", "[f(a='"] {
        assert_eq!(called(ToolFormat::Pythonic, text), is(text, &[]));
    }
    for text in ["[TOOL_CALLS]", "[TOOL_CALLS][]", "[TOOL_CALLS] f", "a [TOOL"] {
        assert_eq!(called(ToolFormat::Mistral, text), is(text, &[]));
    }
    let long =
        format!("<tool_call>{{\"x\": \"{}\", \"name\": \"f\"}}</tool_call>", "y".repeat(70_000));
    // 70,000 and 66,000 bytes are beyond the 64 KiB that a call may hold back before its name.
    assert_eq!(read(calls(ToolFormat::Hermes), [long.as_str()]).0, long);
    assert_eq!(read(calls(ToolFormat::Hermes), [&long[..66_000], &long[66_000..]]).0, long);
}

#[test]
fn llama() {
    let called = |text: &str| called(ToolFormat::Llama3Json, text);
    assert_eq!(called(r#"{"name": "f", "parameters": {"a": 1}}"#), is("", &["f {\"a\": 1}."]));
    let two = r#" {"type": "function", "name": "f", "parameters": {}}; {"name": "get_weather", "arguments": {"b": "c"}}"#;
    assert_eq!(called(two), is("", &["f {}.", "get_weather {\"b\": \"c\"}."]));
    // An answer in JSON is not held back until its end.
    let mut parser = calls(ToolFormat::Llama3Json);
    assert_eq!(parser.push("{\"total\": 4"), [OutputEvent::Content("{\"total\": 4".into())]);
    let mut parser = calls(ToolFormat::Llama3Json);
    assert_eq!(
        parser.push("{\"name\": \"Bob\","),
        [OutputEvent::Content("{\"name\": \"Bob\",".into())]
    );
    assert_eq!(called("<|python_tag|>{\"name\": \"f\", \"parameters\": {}}"), is("", &["f {}."]));
    assert_eq!(called("{\"name\": \"f\", \"parameters\": {}} And?"), is("And?", &["f {}."]));
    // A separator without a call after it is content again.
    assert_eq!(called("{\"name\": \"f\", \"parameters\": {}}; And?"), is("; And?", &["f {}."]));
}

#[test]
fn mistral() {
    for format in [ToolFormat::Mistral, ToolFormat::MistralList] {
        let called = |text: &str| called(format, text);
        let list = r#"[TOOL_CALLS][{"name": "f", "arguments": {"a": 1}}, {"name": "get_weather", "arguments": {}, "id": "abcdefgh1"}]"#;
        assert_eq!(called(list), is("", &["f {\"a\": 1}.", "get_weather {}."]));
        assert_eq!(called("Hm.[TOOL_CALLS]f[ARGS]{\"a\": {}}"), is("Hm.", &["f {\"a\": {}}."]));
        let two = "[TOOL_CALLS]f[CALL_ID]abcdefgh1[ARGS]{}[TOOL_CALLS]get_weather{}";
        assert_eq!(called(two), is("", &["f {}.", "get_weather {}."]));
        assert_eq!(called("[TOOL_CALLS]f[ARGS]{}\n ok"), is("ok", &["f {}."]));
    }
}

#[test]
fn pythonic() {
    let called = |text: &str| called(ToolFormat::Pythonic, text);
    assert_eq!(called("[f()]"), is("", &["f {}."]));
    let values = r#"[f(a='it\'s', b="\u00e9\n", c=[1, -2.5, None], d={'k': True, "l": (False,)}), get_weather(city='Bern')]"#;
    let first =
        r#"f {"a": "it's", "b": "é\n", "c": [1, -2.5, null], "d": {"k": true, "l": [false]}}."#;
    assert_eq!(called(values), is("", &[first, r#"get_weather {"city": "Bern"}."#]));
    assert_eq!(called("[f(a=1)] So."), is("So.", &["f {\"a\": 1}."]));
    assert_eq!(called("[f(a=1), g(b=2)]"), is(", g(b=2)]", &["f {\"a\": 1}."]));
}

#[test]
fn lfm2() {
    let called = |text: &str| called(ToolFormat::Lfm2, text);
    let two = "Ok.<|tool_call_start|>[f(a=1), get_weather(city=\"Bern\")]<|tool_call_end|> So.";
    assert_eq!(called(two), is("Ok.So.", &["f {\"a\": 1}.", "get_weather {\"city\": \"Bern\"}."]));
    assert_eq!(called("<|tool_call_start|>\n[f()]"), is("", &["f {}."]));
    // The list's bracket is missing.
    let none = "<|tool_call_start|>f()<|tool_call_end|>";
    assert_eq!(called(none), is(none, &[]));
}

#[test]
fn deepseek() {
    let v3 = "Ok.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{\"a\": 1}\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n```json\n{}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>";
    let v31 = "Ok.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{\"a\": 1}<｜tool▁call▁end｜><｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>";
    for format in [ToolFormat::DeepseekV3, ToolFormat::DeepseekV31] {
        assert_eq!(called(format, v3), is("Ok.", &["f {\"a\": 1}.", "get_weather {}."]));
        assert_eq!(called(format, v31), is("Ok.", &["f {\"a\": 1}.", "get_weather {}."]));
    }
}

#[test]
fn kimi_k2() {
    let calls = "Ok.<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{\"a\": 1}<|tool_call_end|><|tool_call_begin|>functions.get_weather:12<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>";
    assert_eq!(called(ToolFormat::KimiK2, calls), is("Ok.", &["f {\"a\": 1}.", "get_weather {}."]));
    // Without the marks around the name.
    let bare = "<|tool_call_begin|>f<|tool_call_argument_begin|>{}<|tool_call_end|>";
    assert_eq!(called(ToolFormat::KimiK2, bare), is("", &["f {}."]));
    let nameless = "<|tool_call_begin|>functions.:0<|tool_call_argument_begin|>{}";
    assert_eq!(called(ToolFormat::KimiK2, nameless), is(nameless, &[]));
}

#[test]
fn marks_of_harmony_within_arguments_are_text() {
    for mark in crate::harmony::MARKS {
        for value in [
            format!("A {mark} B"),
            format!("x\n{mark}\ny"),
            mark.to_owned(),
            format!("{mark} \"{mark} "),
        ] {
            let arguments = serde_json::json!({"a": value, "b": [value]}).to_string();
            let text = format!(
                "<|channel|>commentary to=functions.f <|constrain|>json<|message|>{arguments}<|call|>"
            );
            let whole = read(calls(ToolFormat::GptOss), [text.as_str()]);
            assert_eq!(whole.2, [format!("f {arguments}.")], "{text}");
            assert_eq!(
                read(calls(ToolFormat::GptOss), text.split_inclusive(|_| true)),
                whole,
                "{text}"
            );
        }
    }
}

#[test]
fn harmony() {
    let read_both = |text: &str| {
        let whole = read(calls(ToolFormat::GptOss), [text]);
        assert_eq!(read(calls(ToolFormat::GptOss), text.split_inclusive(|_| true)), whole);
        whole
    };
    let call = "<|channel|>analysis<|message|>Look it up.<|end|><|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json<|message|>{\"a\": 1}";
    let done = ("".into(), "Look it up.".into(), vec!["f {\"a\": 1}.".to_owned()]);
    assert_eq!(read_both(call), done);
    assert_eq!(read_both(&format!("{call}<|call|>")), done);
    // The recipient stands in the role here, before the channel. Harmony allows both orders.
    let role = " to=functions.f<|channel|>commentary json<|message|>{}<|call|>";
    assert_eq!(read_both(role).2, ["f {}."]);
    assert_eq!(read_both(&role[..role.len() - 9]).2, ["f {"]);
    // `<|call|>` ends the answer and is hidden from the parser, also after a call without arguments.
    for space in ["", " ", &" ".repeat(400)] {
        let empty = format!(" to=functions.f<|channel|>commentary<|message|>{space}");
        let seen = read_both(&format!("{empty}<|call|>")).2;
        assert_eq!(seen[0].replace(' ', ""), "f{}.", "{seen:?}");
        assert_eq!(read_both(&empty).2[0].replace(' ', ""), "f{}.");
        // A cut call is not complete.
        let mut cut = calls(ToolFormat::GptOss);
        let events = [cut.push(&empty), cut.cut()].concat();
        let is_end = |event: &OutputEvent| matches!(event, OutputEvent::CallEnd { .. });
        assert!(!events.iter().any(is_end), "{events:?}");
        let arguments = events.iter().filter_map(|event| match event {
            OutputEvent::CallArguments { fragment, .. } => Some(fragment.trim()),
            _ => None,
        });
        assert_eq!(arguments.collect::<String>(), "{}");
    }
    // White space before the arguments does not end them.
    let spaced = " to=functions.f<|channel|>commentary<|message|> \n{\"a\": 1";
    assert_eq!(read_both(spaced).2, ["f  \n{\"a\": 1"]);
    assert_eq!(read_both(&format!("{spaced}}}")).2, ["f  \n{\"a\": 1}."]);
    let answer = "<|channel|>analysis<|message|>Hm <b<|end|><|start|>assistant<|channel|>final<|message|>Four. ";
    assert_eq!(read_both(answer), ("Four.".into(), "Hm <b".into(), vec![]));
    assert_eq!(read_both("Plain <|x|>").0, "Plain <|x|>");
    let mut without = OutputParser::new(
        Dialect { tools: Some(ToolFormat::GptOss), reasoning: None },
        Thinking::Possible,
        None,
    );
    assert_eq!(without.push(role), [OutputEvent::Content("{}".into())]);
}

#[test]
fn reasoning_is_set_apart() {
    let read_both = |format, thinking, text: &str| {
        let (content, reasoning, calls) = read(thoughts(format, thinking), [text]);
        let cut = read(thoughts(format, thinking), text.split_inclusive(|_| true));
        assert_eq!(cut, (content.clone(), reasoning.clone(), calls.clone()));
        (content, reasoning, calls.len())
    };
    let seen =
        |content: &str, reasoning: &str, calls| (content.to_owned(), reasoning.to_owned(), calls);
    let (r1, qwen) = (ReasoningFormat::DeepseekR1, ReasoningFormat::Qwen3);
    let whole = "<think>\nHm.\n\n<tool_call> no\n</think>\n\nFour.";
    let call = "<think>Hm</think>\n\n<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>";
    for (format, thinking) in
        [(r1, Thinking::Open), (qwen, Thinking::Possible), (qwen, Thinking::Open)]
    {
        assert_eq!(read_both(format, thinking, whole), seen("Four.", "Hm.\n\n<tool_call> no", 0));
        assert_eq!(read_both(format, thinking, call), seen("", "Hm", 1));
        assert_eq!(read_both(format, thinking, "<think>Hm </th"), seen("", "Hm </th", 0));
        assert_eq!(read_both(format, thinking, "<think></think>"), seen("", "", 0));
    }
    assert_eq!(read_both(qwen, Thinking::Open, "Hm</think>Four"), seen("Four", "Hm", 0));
    assert_eq!(read_both(qwen, Thinking::Possible, "Four<think>"), seen("Four<think>", "", 0));
    assert_eq!(read_both(qwen, Thinking::Possible, " <th"), seen(" <th", "", 0));
    assert_eq!(
        read_both(qwen, Thinking::Closed, "\n\nFour </think>"),
        seen("Four </think>", "", 0)
    );
    let mistral = ReasoningFormat::Mistral;
    assert_eq!(read_both(mistral, Thinking::Possible, "[THINK]a[/THINK]b"), seen("b", "a", 0));
}

#[test]
fn prompts_say_where_the_answer_stands() {
    let (r1, qwen) = (ReasoningFormat::DeepseekR1, ReasoningFormat::Qwen3);
    assert_eq!(qwen.after_prompt("<|im_start|>assistant\n"), Thinking::Possible);
    assert_eq!(qwen.after_prompt("assistant\n<think>\n"), Thinking::Open);
    assert_eq!(qwen.after_prompt("assistant\n<think>\n\n</think>\n\n"), Thinking::Closed);
    assert_eq!(r1.after_prompt("<｜Assistant｜>"), Thinking::Open);
    assert_eq!(r1.after_prompt("<｜Assistant｜><think></think>"), Thinking::Closed);
    assert_eq!(ReasoningFormat::Mistral.after_prompt("[/INST]"), Thinking::Possible);
}

/// Pieces of calls in all formats, and other text.
const PIECES: [&str; 69] = [
    "<tool_call>",
    "</tool_call>",
    "{\"name\": \"f\", \"arguments\": ",
    "{\"name\":\"g\",\"parameters\":",
    "{\"a\": \"x\"}",
    "{}",
    "}",
    "{",
    "\"",
    "\\",
    "'",
    "<|python_tag|>",
    "; ",
    "[TOOL_CALLS]",
    "[ARGS]",
    "[CALL_ID]",
    "f",
    "g",
    "[",
    "]",
    ", ",
    "(",
    ")",
    "a=1",
    "f(a='b')",
    "<｜tool▁calls▁begin｜>",
    "<｜tool▁call▁begin｜>",
    "<｜tool▁sep｜>",
    "<｜tool▁call▁end｜>",
    "<｜tool▁calls▁end｜>",
    "function",
    "\n```json\n",
    "\n```",
    "<|channel|>",
    "<|start|>",
    "<|message|>",
    "<|end|>",
    "<|call|>",
    "analysis",
    "to=functions.f",
    "<function=",
    "</function>",
    "<parameter=",
    "</parameter>",
    "<arg_key>",
    "</arg_key>",
    "<arg_value>",
    "</arg_value>",
    "<minimax:tool_call>",
    "</minimax:tool_call>",
    "<invoke name=\"",
    "</invoke>",
    "<parameter name=\"",
    "\">",
    ">",
    "<|tool_call>",
    "call:f{",
    "<|\"|>",
    "<tool_call|>",
    "a:",
    ":",
    ",",
    "<|channel>",
    "<channel|>",
    "thought",
    "<think>",
    "</think>",
    "\n",
    " é",
];

/// Formats whose marks are never content, even if no call follows them.
fn in_content() -> Vec<ToolFormat> {
    let is_apart = |format: &ToolFormat| {
        matches!(format, ToolFormat::Gemma4 | ToolFormat::GptOss | ToolFormat::SolarOpen)
    };
    ToolFormat::ALL.iter().copied().filter(|format| !is_apart(format)).collect()
}

fn texts() -> impl Strategy<Value = String> {
    prop::collection::vec(prop::sample::select(PIECES.to_vec()), 0..16)
        .prop_map(|pieces| pieces.concat())
}

/// The text in pieces that end at the given characters.
fn cut<'a>(text: &'a str, ends: &[prop::sample::Index]) -> Vec<&'a str> {
    let boundaries = text.char_indices().map(|(at, _)| at).chain([text.len()]).collect::<Vec<_>>();
    let mut at = ends.iter().map(|end| *end.get(&boundaries)).collect::<Vec<_>>();
    at.extend([0, text.len()]);
    at.sort_unstable();
    at.windows(2).map(|pair| &text[pair[0]..pair[1]]).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1500))]
    #[test]
    fn events_do_not_depend_on_where_the_text_is_cut(
        text in texts(),
        ends in prop::collection::vec(any::<prop::sample::Index>(), 0..8),
        format in prop::sample::select(ToolFormat::ALL),
        thinking in prop::sample::select(vec![Thinking::Open, Thinking::Possible, Thinking::Closed]),
    ) {
        let plain = || calls(format);
        let whole = read(plain(), [text.as_str()]);
        prop_assert_eq!(read(plain(), cut(&text, &ends)), whole.clone());
        prop_assert_eq!(read(plain(), text.split_inclusive(|_| true)), whole);
        let reasoning = match format {
            ToolFormat::Gemma4 => ReasoningFormat::Gemma4,
            _ => ReasoningFormat::Qwen3,
        };
        let dialect = Dialect { tools: Some(format), reasoning: Some(reasoning) };
        let thoughtful = || OutputParser::new(dialect, thinking, functions(&["f"]));
        let whole = read(thoughtful(), [text.as_str()]);
        prop_assert_eq!(read(thoughtful(), cut(&text, &ends)), whole);
    }

    #[test]
    fn a_text_without_calls_comes_out_as_it_went_in(
        text in texts(),
        format in prop::sample::select(in_content()),
    ) {
        let (content, _, found) = read(calls(format), [text.as_str()]);
        if found.is_empty() {
            prop_assert_eq!(content, text);
        }
    }
}
