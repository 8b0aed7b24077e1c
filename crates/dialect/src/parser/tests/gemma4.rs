//! Calls and reasoning in Gemma 4's format.

use serde_json::json;

use super::*;

const FORMAT: ToolFormat = ToolFormat::Gemma4;

fn parser(reasoning: Option<ReasoningFormat>, thinking: Thinking) -> OutputParser {
    let parameters = json!({"type": "object", "properties": {
        "city": {"type": "string"}, "days": {"type": "integer"}, "any": {"type": ["string", "integer"]},
    }});
    let functions = [
        Callable { name: "get_weather".into(), parameters: parameters.as_object().cloned() },
        Callable { name: "f".into(), parameters: None },
        Callable { name: "g-2.x".into(), parameters: None },
    ];
    OutputParser::new(Dialect { tools: Some(FORMAT), reasoning }, thinking, Some(functions.into()))
}

/// Content and calls of an answer, which must be the same character by character and with a cut at any position.
fn called(text: &str) -> (String, Vec<String>) {
    let plain = || parser(None, Thinking::Possible);
    let whole = read(plain(), [text]);
    assert_eq!(read(plain(), text.split_inclusive(|_| true)), whole, "{text}");
    for (at, _) in text.char_indices() {
        assert_eq!(read(plain(), [&text[..at], &text[at..]]), whole, "{text} {at}");
    }
    (whole.0, whole.2)
}

/// The arguments of the only call, which must be complete.
fn arguments(written: &str) -> String {
    let (content, calls) = called(&format!("<|tool_call>call:get_weather{written}<tool_call|>"));
    assert_eq!((content.as_str(), calls.len()), ("", 1), "{written}");
    let arguments = calls[0].strip_prefix("get_weather ").and_then(|call| call.strip_suffix('.'));
    let arguments = arguments.unwrap_or_else(|| panic!("{calls:?}"));
    serde_json::from_str::<Map<String, Value>>(arguments).unwrap();
    arguments.to_owned()
}

#[test]
fn arguments_become_json() {
    for (written, json) in [
        ("{}", "{}"),
        (r#"{city:<|"|>Bern<|"|>}"#, r#"{"city": "Bern"}"#),
        (r#"{city:<|"|>Bern<|"|>,days:3}"#, r#"{"city": "Bern", "days": 3}"#),
        (
            "{a:null,b:true,c:false,d:-1.5e-05,e:[]}",
            r#"{"a": null, "b": true, "c": false, "d": -1.5e-05, "e": []}"#,
        ),
        (
            r#"{at:{Deep:[1,<|"|>t<|"|>,{k:<|"|><|"|>}],b:{}},c:[[2],[]]}"#,
            r#"{"at": {"Deep": [1, "t", {"k": ""}], "b": {}}, "c": [[2], []]}"#,
        ),
        (
            "{city:<|\"|>a \"b\" {c}, [d]: C:\\e\n\té <b> <tool_call|> <|tool_call><|\"|>}",
            r#"{"city": "a \"b\" {c}, [d]: C:\\e\n\té <b> <tool_call|> <|tool_call>"}"#,
        ),
        (r#"{city:<|"|><|"<|"|>}"#, r#"{"city": "<|\""}"#),
        (
            r#"{key with space:1,größe-2.x:2,$y:3}"#,
            r#"{"key with space": 1, "größe-2.x": 2, "$y": 3}"#,
        ),
        (
            "{ a : 1 , b : [ 2 , 3 ] ,\nc : { d : true } }",
            r#"{"a": 1, "b": [2, 3], "c": {"d": true}}"#,
        ),
        (
            "{a:1,a:12345678901234567890123,b:1e999}",
            r#"{"a": 1, "a": 12345678901234567890123, "b": 1e999}"#,
        ),
    ] {
        // serde_json refuses a number beyond a double, which `arguments` would report. JSON itself allows it.
        if written.contains("1e999") {
            let call = format!("<|tool_call>call:f{written}<tool_call|>");
            assert_eq!(called(&call), is("", &[&format!("f {json}.")]));
            continue;
        }
        assert_eq!(arguments(written), json);
    }
}

#[test]
fn marks_within_strings_are_text() {
    for text in [
        "A <|\"|> B",
        "x\n<|\"|>\ny",
        "ends <|\"|>",
        "<|\"|>",
        "<|\"|> begins",
        "<|\"|>, <|\"|>",
        "a <|\"|> <|\"|> b",
        "A <|\"|>} B",
        "<|\"|>}, <|\"|>}",
        "keys are <|\"|>, note: so",
        "no comma <|\"|> note: so",
        "<|\"|>}<tool_call|",
        "call:f{a:<|\"|>b<|\"|>",
    ] {
        let json = Value::from(text);
        assert_eq!(
            arguments(&format!("{{city:<|\"|>{text}<|\"|>}}")),
            format!("{{\"city\": {json}}}")
        );
        if ["<|\"|>, <|\"|>", "<|\"|>}, <|\"|>}"].contains(&text) {
            // In a list, these are the ends of one item and the start of another.
            continue;
        }
        let written = format!("{{a:[<|\"|>{text}<|\"|>,{{b:<|\"|>{text}<|\"|>}}],days:3}}");
        assert_eq!(
            arguments(&written),
            format!("{{\"a\": [{json}, {{\"b\": {json}}}], \"days\": 3}}")
        );
    }
    // The answer ends before anything shows whether the mark ends the string.
    assert_eq!(called("<|tool_call>call:f{a:<|\"|>b<|\"|>").1, ["f {\"a\": \"b\""]);
    let two = "<|tool_call>call:f{a:<|\"|>b<|\"|>}<|tool_call>call:f{}<tool_call|>";
    assert_eq!(called(two).1, ["f {\"a\": \"b\"}.", "f {}."]);
}

#[test]
fn what_models_write_otherwise_is_taken() {
    for (written, json) in [
        // A string without its first mark or without both.
        (r#"{city:Bern<|"|>}"#, r#"{"city": "Bern"}"#),
        (r#"{city:Paris, France<|"|>,days:5}"#, r#"{"city": "Paris, France", "days": 5}"#),
        (r#"{days:5 {or so}<|"|>}"#, r#"{"days": "5 {or so}"}"#),
        (r#"{a:[x<|"|>,<|"|>y<|"|>]}"#, r#"{"a": ["x", "y"]}"#),
        ("{city:New York,days:3}", r#"{"city": "New York", "days": 3}"#),
        (r#"{unit:C,city:<|"|>Bern<|"|>}"#, r#"{"unit": "C", "city": "Bern"}"#),
        (r#"{a:[b,c],d:{e:f},g:<|"|>h<|"|>}"#, r#"{"a": ["b", "c"], "d": {"e": "f"}, "g": "h"}"#),
        ("{at:2026-01-02T10:30:00}", r#"{"at": "2026-01-02T10:30:00"}"#),
        (
            "{a:007,b:1.,c:+1,d:.5,e:-,f:NaN}",
            r#"{"a": "007", "b": "1.", "c": "+1", "d": ".5", "e": "-", "f": "NaN"}"#,
        ),
        // The schema requires a string.
        ("{city:3,days:3,any:3}", r#"{"city": "3", "days": 3, "any": 3}"#),
        ("{city:true}", r#"{"city": "true"}"#),
        ("{city:null}", r#"{"city": null}"#),
        // Literals of JSON and Python.
        (r#"{"city":"B\"é\n","days":3}"#, "{\"city\": \"B\\\"é\\n\", \"days\": 3}"),
        (
            r#"{'city': 'a, b: "c"}', tags: ["x", 'y']}"#,
            r#"{"city": "a, b: \"c\"}", "tags": ["x", "y"]}"#,
        ),
        (r#"{city:'Bern'<|"|>,days:1}"#, r#"{"city": "Bern", "days": 1}"#),
        (r#"{city:'90s music<|"|>,days:1}"#, r#"{"city": "'90s music", "days": 1}"#),
        (r#"{city:"a" or "b"<|"|>}"#, r#"{"city": "\"a\" or \"b\""}"#),
        ("{city:'t is}", r#"{"city": "'t is"}"#),
        ("{a:True,b:False,c:None}", r#"{"a": true, "b": false, "c": null}"#),
        (r#"{<|"|>city<|"|>:<|"|>Bern<|"|>}"#, r#"{"city": "Bern"}"#),
        (r#"{city=<|"|>Bern<|"|>,days=3}"#, r#"{"city": "Bern", "days": 3}"#),
        // Too many or too few commas.
        (r#"{city:<|"|>Bern<|"|>days:3,}"#, r#"{"city": "Bern", "days": 3}"#),
        ("{a:[1,2,],}", r#"{"a": [1, 2]}"#),
        // Missing brackets before the mark.
        (r#"{city:<|"|>Bern<|"|>"#, r#"{"city": "Bern"}"#),
        ("{a:{b:[1,{c:2", r#"{"a": {"b": [1, {"c": 2}]}}"#),
        ("{a:b", r#"{"a": "b"}"#),
    ] {
        assert_eq!(arguments(written), json, "{written}");
    }
    let f = is("", &["f {}."]);
    for text in [
        "<|tool_call>call:f{}",
        "<|tool_call>call:f {}<tool_call|>\n",
        "<|tool_call>call: f{ }\n<tool_call|>",
        "<|tool_call>call:server:tools:f{}<tool_call|>",
    ] {
        assert_eq!(called(text), f, "{text}");
    }
}

#[test]
fn text_stands_before_and_behind_calls() {
    let (one, two) =
        (r#"<|tool_call>call:f{a:1}<tool_call|>"#, "<|tool_call>call:g-2.x{}<tool_call|>");
    assert_eq!(
        called(&[one, two, one].concat()),
        is("", &["f {\"a\": 1}.", "g-2.x {}.", "f {\"a\": 1}."])
    );
    let text = format!("I look <|\"|>up<|\"|> <|tool.\n\n{one}\n{two}\n Done.");
    assert_eq!(
        called(&text),
        is("I look <|\"|>up<|\"|> <|tool.Done.", &["f {\"a\": 1}.", "g-2.x {}."])
    );
}

#[test]
fn what_is_no_call_is_content() {
    for text in [
        "Nothing. ",
        "<|tool_call>",
        "Use <|tool_call>call: so.",
        "<|tool_call>call:f",
        "<|tool_call>call:f{",
        "<|tool_call>call:f{city",
        "<|tool_call>call:f(a=1)<tool_call|>",
        "<|tool_call>call:{}<tool_call|>",
        "<|tool_call>call:server:{}<tool_call|>",
        "<|tool_call>call:f{[1]}<tool_call|>",
        "<|tool_call>call:f{:1}<tool_call|>",
        "<|tool_call>{\"name\": \"f\"}<tool_call|>",
        "<tool_call|> a <|\"|> b",
        "call:f{}",
    ] {
        assert_eq!(called(text), is(text, &[]));
    }
    let long = format!("<|tool_call>call:f{{{}:1}}", "k".repeat(5000));
    // A key has at most 4,096 bytes.
    assert_eq!(called(&long[..4400]), is(&long[..4400], &[]));
}

#[test]
fn calls_that_are_cut_or_damaged_have_no_end() {
    let cut = |written: &str| called(&format!("<|tool_call>call:f{written}"));
    assert_eq!(cut(r#"{a:<|"|>b, c<|""#), is("", &["f {\"a\": \"b, c"]));
    assert_eq!(cut("{a:12"), is("", &["f {\"a\": "]));
    assert_eq!(cut("{a:[1,{b"), is("", &["f {\"a\": [1, {"]));
    assert_eq!(cut("{a:1 2]}<tool_call|>"), is("]}<tool_call|>", &["f {\"a\": \"1 2\""]));
    assert_eq!(cut("{a:1}}<tool_call|> x"), is("}<tool_call|> x", &["f {\"a\": 1}."]));
    assert_eq!(cut("{a:,b:1} x"), is(",b:1} x", &["f {\"a\": "]));
    assert_eq!(cut("{a:b c} x"), is("x", &["f {\"a\": \"b c\"}."]));
    assert_eq!(cut("{a:'t is} x"), is("x", &["f {\"a\": \"'t is\"}."]));
    assert_eq!(cut("{a:b c, d"), is("", &["f {\"a\": \"b c\""]));
    assert_eq!(cut("{a:1,b} So."), is("b} So.", &["f {\"a\": 1"]));
    let again = "{a:{:1}}<|tool_call>call:f{}<tool_call|>";
    assert_eq!(cut(again), is(":1}}", &["f {\"a\": {", "f {}."]));
    let deep = format!("{{a:{}", "[".repeat(100));
    // The object itself is the first of 64 levels, so 63 lists are arguments and the others are content.
    assert_eq!(cut(&deep).0.len(), 100 - 63);
}

#[test]
fn files_are_arguments_too() {
    let line = "    if a < b && c > d { println!(\"<x>é\\n\"); } // <|\"\n";
    let file = line.repeat(300_000 / line.len() + 1);
    let numbers = "1,".repeat(100_000);
    let text = format!("<|tool_call>call:f{{a:[{numbers}],b:<|\"|>{file}<|\"|>}}<tool_call|>");
    let numbers = "1, ".repeat(100_000);
    let numbers = numbers.trim_end_matches(", ");
    let expected = format!("f {{\"a\": [{numbers}], \"b\": {}}}.", Value::from(file.as_str()));
    let whole = read(calls(FORMAT), [text.as_str()]);
    assert_eq!(whole, (String::new(), String::new(), vec![expected]));
    assert_eq!(read(calls(FORMAT), text.split_inclusive(|_| true)), whole);
}

#[test]
fn arguments_are_told_while_they_come() {
    let mut parser = calls(FORMAT);
    let start = parser.push("<|tool_call>call:f{a:<|\"|>");
    let argument =
        |fragment: &str| OutputEvent::CallArguments { index: 0, fragment: fragment.into() };
    assert_eq!(start[1..], [argument("{\"a\": \"")]);
    assert_eq!(parser.push("x \"y\""), [argument("x \\\"y\\\"")]);
    assert_eq!(parser.push("<|"), []);
    assert_eq!(parser.push("\"|>,b:1"), [argument("\", \"b\": ")]);
    assert_eq!(parser.push("2}"), [argument("12}"), OutputEvent::CallEnd { index: 0 }]);
}

#[test]
fn reasoning_is_set_apart() {
    let read_both = |thinking, text: &str| {
        let whole = read(parser(Some(ReasoningFormat::Gemma4), thinking), [text]);
        for (at, _) in text.char_indices() {
            let cut = [&text[..at], &text[at..]];
            assert_eq!(read(parser(Some(ReasoningFormat::Gemma4), thinking), cut), whole);
        }
        let pieces = text.split_inclusive(|_| true);
        assert_eq!(read(parser(Some(ReasoningFormat::Gemma4), thinking), pieces), whole, "{text}");
        (whole.0, whole.1, whole.2.len())
    };
    let seen =
        |content: &str, reasoning: &str, calls| (content.to_owned(), reasoning.to_owned(), calls);
    let call = "<|tool_call>call:f{}<tool_call|>";
    let (open, possible, closed) = (Thinking::Open, Thinking::Possible, Thinking::Closed);
    for thinking in [open, possible, closed] {
        let read = |text: &str| read_both(thinking, text);
        assert_eq!(
            read("<|channel>thought\nHm.\n\nSo.\n<channel|>Four."),
            seen("Four.", "Hm.\n\nSo.", 0)
        );
        assert_eq!(
            read(&format!("<|channel>thought\nHm\n<channel|>{call}{call}")),
            seen("", "Hm", 2)
        );
        // The reasoning is not closed before the call.
        assert_eq!(
            read(&format!("<|channel>thought\nHm <|tool_call> \n{call}")),
            seen("", "Hm <|tool_call>", 1)
        );
        assert_eq!(read(&format!("<|channel>thought\n{call} Done.")), seen("Done.", "", 1));
        // No reasoning.
        assert_eq!(read("<|channel>thought\n<channel|>Four."), seen("Four.", "", 0));
        assert_eq!(read("<|channel>thought<channel|>\nFour."), seen("Four.", "", 0));
        assert_eq!(read("<|channel><channel|>Four."), seen("Four.", "", 0));
        assert_eq!(
            read("<|channel>thought\n<channel|><|channel>thought\nHm\n<channel|><channel|>Four."),
            seen("Four.", "Hm", 0)
        );
        // The word is part of a text, or another word is in its position.
        assert_eq!(read("<|channel>thoughtful\n<channel|>a"), seen("a", "thoughtful", 0));
        assert_eq!(read("<|channel>plan\nHm<channel|>a"), seen("a", "plan\nHm", 0));
        assert_eq!(read("<|channel>thought\nthought\n<channel|>a"), seen("a", "thought", 0));
        // A truncated title.
        assert_eq!(read("<|channel>thou"), seen("", "", 0));
        assert_eq!(read("<|channel>thought"), seen("", "", 0));
        assert_eq!(read("<|channel>thought\nHm <channel"), seen("", "Hm <channel", 0));
    }
    assert_eq!(read_both(open, "Hm\n<channel|>Four."), seen("Four.", "Hm", 0));
    assert_eq!(read_both(open, &format!("Hm{call}")), seen("", "Hm", 1));
    for thinking in [possible, closed] {
        assert_eq!(read_both(thinking, "thought\nFour."), seen("thought\nFour.", "", 0));
        assert_eq!(read_both(thinking, "Four.<|channel>a"), seen("Four.<|channel>a", "", 0));
        assert_eq!(read_both(thinking, &format!("So.\n{call}")), seen("So.", "", 1));
        assert_eq!(read_both(thinking, "<|chan"), seen("<|chan", "", 0));
        assert_eq!(read_both(thinking, " <"), seen(" <", "", 0));
    }
    // In a request without tools, the marks of calls are reasoning text.
    let dialect = Dialect { tools: Some(FORMAT), reasoning: Some(ReasoningFormat::Gemma4) };
    let without = OutputParser::new(dialect, open, None);
    assert_eq!(read(without, [call]), (String::new(), call.to_owned(), vec![]));
}

#[test]
fn prompts_say_where_the_answer_stands() {
    let after = |prompt: &str| ReasoningFormat::Gemma4.after_prompt(prompt);
    assert_eq!(after("<|turn>model\n"), Thinking::Possible);
    assert_eq!(after("<|turn>model\n<|channel>thought\n<channel|>"), Thinking::Closed);
    assert_eq!(after("<tool_response|><|channel>thought\n"), Thinking::Open);
    assert_eq!(after("<tool_response|>"), Thinking::Possible);
    assert_eq!(after("I thought"), Thinking::Possible);
}

/// Pieces of calls and reasoning, and other text.
const PIECES: [&str; 26] = [
    "<|tool_call>call:f{",
    "<|tool_call>",
    "call:",
    "f",
    "{",
    "}",
    "[",
    "]",
    "<tool_call|>",
    "<|\"|>",
    "a:",
    "b=",
    ":",
    ",",
    "1",
    "null",
    "word",
    "'",
    "\"",
    "\\",
    "<|channel>",
    "thought",
    "<channel|>",
    "\n",
    " é",
    "<",
];

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4000))]
    #[test]
    fn events_do_not_depend_on_where_the_text_is_cut(
        start in prop::sample::select(vec!["", "<|tool_call>call:get_weather{city:", "<|channel>thought\n"]),
        pieces in prop::collection::vec(prop::sample::select(PIECES.to_vec()), 0..16),
        ends in prop::collection::vec(any::<prop::sample::Index>(), 0..8),
        thinking in prop::sample::select(vec![Thinking::Open, Thinking::Possible, Thinking::Closed]),
        reasoning in prop::sample::select(vec![None, Some(ReasoningFormat::Gemma4)]),
    ) {
        let text = format!("{start}{}", pieces.concat());
        let parser = || parser(reasoning, thinking);
        let whole = read(parser(), [text.as_str()]);
        prop_assert_eq!(read(parser(), cut(&text, &ends)), whole.clone());
        prop_assert_eq!(read(parser(), text.split_inclusive(|_| true)), whole.clone());
        // A call that ends has valid JSON arguments, for any text of the model.
        for call in whole.2.iter().filter_map(|call| call.strip_suffix('.')) {
            let arguments = call.split_once(' ').map_or(call, |(_, arguments)| arguments);
            prop_assert!(serde_json::from_str::<Map<String, Value>>(arguments).is_ok(), "{}", call);
        }
    }
}
