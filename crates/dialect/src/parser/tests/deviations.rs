//! Outputs that differ from the templates' format: misplaced, malformed and truncated calls.

use super::*;

#[test]
fn several_calls_in_the_place_of_one_are_all_read() {
    let (f, weather) = ("f {\"a\": 1}.", "get_weather {}.");
    let object = r#"{"name": "f", "arguments": {"a": 1}}"#;
    let other = r#"{"name": "get_weather", "arguments": {}}"#;
    for text in [
        format!("<tool_call>\n[{object}, {other}]\n</tool_call>"),
        format!("<tool_call>\n{object}\n{other}\n</tool_call>"),
        format!("<tool_call>{object},{other}</tool_call>"),
        format!("<tool_call>[{object}]</tool_call>\n<tool_call>{other}</tool_call>"),
    ] {
        assert_eq!(called(ToolFormat::Hermes, &text), is("", &[f, weather]), "{text}");
        let after = format!("{text} Done.");
        assert_eq!(called(ToolFormat::Hermes, &after), is("Done.", &[f, weather]), "{after}");
    }
    for between in ["; ", "\n", "\n\n", ", ", ",\n"] {
        let text = format!("{object}{between}{other}");
        assert_eq!(called(ToolFormat::Llama3Json, &text), is("", &[f, weather]), "{text}");
    }
    let text = format!("{object}\nAnd?");
    assert_eq!(called(ToolFormat::Llama3Json, &text), is("And?", &[f]));
}

#[test]
fn marks_of_kimis_section_may_be_singular() {
    let call = "<|tool_call_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_call_section_end|>";
    assert_eq!(called(ToolFormat::KimiK2, &format!("Ok.{call}")), is("Ok.", &["f {}."]));
}

#[test]
fn calls_of_functions_that_there_are_not_are_content() {
    for (format, text) in [
        (ToolFormat::Hermes, "<tool_call>{\"name\": \"g\", \"arguments\": {}}</tool_call>"),
        (ToolFormat::Mistral, "[TOOL_CALLS]g[ARGS]{}"),
        (ToolFormat::Qwen3Coder, "<tool_call>\n<function=g>\n</function>\n</tool_call>"),
        (ToolFormat::Gemma4, "<|tool_call>call:g{}<tool_call|>"),
    ] {
        assert_eq!(called(format, text), is(text, &[]));
        let mut parser = calls(format);
        parser.push(text);
        parser.finish();
        assert_eq!(parser.unknown_functions(), ["g"]);
    }
    let text = "<|channel|>commentary to=functions.g<|message|>{}<|call|>";
    let (content, _, found) = read(calls(ToolFormat::GptOss), [text]);
    assert_eq!((content.as_str(), found.len()), ("{}", 0));
}

#[test]
fn the_beginning_of_a_call_is_no_content_where_calls_are_required_or_the_text_is_cut() {
    let required = |format| {
        let dialect = Dialect { tools: Some(format), reasoning: None };
        OutputParser::of_calls(dialect, Thinking::Possible, functions(&["f"]))
    };
    let content = |events: Vec<OutputEvent>| {
        events.iter().any(|event| matches!(event, OutputEvent::Content(_)))
    };
    for (format, call) in [
        (
            ToolFormat::Hermes,
            "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}\n</tool_call>",
        ),
        (ToolFormat::Llama3Json, "{\"name\": \"f\", \"parameters\": {\"a\": 1}}"),
        (ToolFormat::Pythonic, "[f(a=1)]"),
        (ToolFormat::Mistral, "[TOOL_CALLS]f[ARGS]{\"a\": 1}"),
        (
            ToolFormat::DeepseekV31,
            "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{\"a\": 1}<｜tool▁call▁end｜>",
        ),
        (
            ToolFormat::Qwen3Coder,
            "<tool_call>\n<function=f>\n<parameter=a>\n1\n</parameter>\n</function>\n</tool_call>",
        ),
        (ToolFormat::Gemma4, "<|tool_call>call:f{a:1}<tool_call|>"),
        (
            ToolFormat::GptOss,
            "<|channel|>commentary to=functions.f <|constrain|>json<|message|>{\"a\": 1}<|call|>",
        ),
    ] {
        for (at, _) in call.char_indices() {
            let mut parser = required(format);
            let events = [parser.push(&call[..at]), parser.finish()].concat();
            assert!(!content(events), "{format:?} {}", &call[..at]);
        }
        // If the text is cut after a call's mark, the mark is dropped.
        let opener = format.openers().first();
        let Some(opener) = opener.filter(|opener| call.starts_with(**opener)) else { continue };
        for at in (opener.len()..call.len()).filter(|at| call.is_char_boundary(*at)) {
            let mut parser = calls(format);
            let events = [parser.push(&call[..at]), parser.cut()].concat();
            assert!(!content(events), "{format:?} {}", &call[..at]);
        }
    }
    let mut parser = calls(ToolFormat::Hermes);
    assert_eq!(parser.push("a < b <tool"), [OutputEvent::Content("a < b".into())]);
    assert_eq!(parser.cut(), [OutputEvent::Content(" <tool".into())]);
}

#[test]
fn white_space_before_a_call_that_is_cut_is_dropped_with_it() {
    let content = |events: Vec<OutputEvent>| -> String {
        let text = |event| match event {
            OutputEvent::Content(text) => text,
            _ => String::new(),
        };
        events.into_iter().map(text).collect()
    };
    for &format in ToolFormat::ALL {
        let dialect = Dialect { tools: Some(format), reasoning: None };
        // The parser once panicked when white space before the call was dropped, but the position after it was kept.
        for opener in format.openers().iter().chain(&["{", "[", "<"]) {
            for before in ["", " ", "\n", "\n \t\r\n", "Ok.", "Ok.\n\n"] {
                for after in ["", " ", "\n", "{", "\n{\"name", "f", "<"] {
                    let text = format!("{before}{opener}{after}");
                    let mut parser = calls(format);
                    let cut = content([parser.push(&text), parser.cut()].concat());
                    assert!(text.contains(cut.trim()), "{format:?} {text:?} {cut:?}");
                    let functions = functions(&["f"]);
                    let mut parser = OutputParser::of_calls(dialect, Thinking::Possible, functions);
                    let ended = content([parser.push(&text), parser.finish()].concat());
                    assert!(text.contains(ended.trim()), "{format:?} {text:?} {ended:?}");
                }
            }
        }
    }
    for (format, text) in [
        (ToolFormat::Hermes, "\n<tool_call>\n{\"na"),
        (ToolFormat::Llama3Json, " {\"name\": \"f\", \"parame"),
        (ToolFormat::Gemma4, "\n\n<|tool_call>call"),
    ] {
        let dialect = Dialect { tools: Some(format), reasoning: None };
        let mut parser = OutputParser::of_calls(dialect, Thinking::Possible, functions(&["f"]));
        assert_eq!(content([parser.push(text), parser.finish()].concat()), "", "{text:?}");
        if format != ToolFormat::Llama3Json {
            let mut parser = calls(format);
            assert_eq!(content([parser.push(text), parser.cut()].concat()), "", "{text:?}");
        }
    }
}

#[test]
fn white_space_is_not_held_back_without_end() {
    for format in [ToolFormat::Hermes, ToolFormat::Llama3Json, ToolFormat::GptOss] {
        let mut parser = calls(format);
        let start = if format == ToolFormat::GptOss { "<|channel|>final<|message|>" } else { "" };
        parser.push(start);
        let told: usize = (0..1000)
            .flat_map(|_| parser.push("\n"))
            .map(|event| match event {
                OutputEvent::Content(text) => text.len(),
                other => panic!("{other:?}"),
            })
            .sum();
        // At most 256 of the 1,000 line breaks are held back.
        assert!(told > 700, "{format:?} {told}");
    }
    let spaces = " ".repeat(300);
    let call = "<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>";
    let text = format!("a{spaces}{call}");
    let (content, found) = called(ToolFormat::Hermes, &text);
    // One letter and 300 spaces, of which at most 256 before the call are dropped.
    assert_eq!((content.trim_end(), content.len(), found.len()), ("a", 45, 1));
}

#[test]
fn messages_of_harmony_that_clients_join_stay_apart() {
    let read_both = |text: &str| {
        let whole = read(calls(ToolFormat::GptOss), [text]);
        assert_eq!(read(calls(ToolFormat::GptOss), text.split_inclusive(|_| true)), whole);
        whole
    };
    let message = |header: &str, text: &str| {
        format!("<|start|>assistant<|channel|>{header}<|message|>{text}<|end|>")
    };
    let text = [
        message("analysis", "One."),
        message("analysis", "Two."),
        message("commentary", "Plan: x"),
        message("analysis", ""),
        message("final", "Hi"),
    ];
    let read = read_both(&text.concat());
    assert_eq!(read, ("Plan: x\n\nHi".into(), "One.\n\nTwo.".into(), vec![]));
    // Models forget the marks before or after a function's name.
    for recipient in
        ["f", "functions.f", "functions.fjson", "fjson", "functions.f<|constrain|>json"]
    {
        let text = format!("<|channel|>commentary to={recipient}<|message|>{{}}<|call|>");
        assert_eq!(read_both(&text).2, ["f {}."], "{recipient}");
    }
    // `python` is a built-in tool of gpt-oss.
    let own = "<|channel|>commentary to=python<|message|>1<|end|>";
    assert_eq!(read_both(own), ("".into(), "1".into(), vec![]));
}

#[test]
fn calls_end_reasoning_that_is_not_closed() {
    let written = [
        (
            ToolFormat::Hermes,
            "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}\n</tool_call>",
        ),
        (
            ToolFormat::Qwen3Coder,
            "<tool_call>\n<function=f>\n<parameter=a>\n1\n</parameter>\n</function>\n</tool_call>",
        ),
        (
            ToolFormat::Glm45,
            "<tool_call>f\n<arg_key>a</arg_key>\n<arg_value>1</arg_value>\n</tool_call>",
        ),
        (
            ToolFormat::MinimaxM2,
            "<minimax:tool_call>\n<invoke name=\"f\">\n<parameter name=\"a\">1</parameter>\n</invoke>\n</minimax:tool_call>",
        ),
        (
            ToolFormat::KimiK2,
            "<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{\"a\": 1}<|tool_call_end|><|tool_calls_section_end|>",
        ),
        (
            ToolFormat::DeepseekV31,
            "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{\"a\": 1}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        ),
        (ToolFormat::Mistral, "[TOOL_CALLS]f[ARGS]{\"a\": 1}"),
        (ToolFormat::Lfm2, "<|tool_call_start|>[f(a=1)]<|tool_call_end|>"),
    ];
    for (format, call) in written {
        let dialect = Dialect { tools: Some(format), reasoning: Some(ReasoningFormat::Qwen3) };
        let read_both = |names: &[&str], text: &str| {
            let parser = || OutputParser::new(dialect, Thinking::Open, functions(names));
            let whole = read(parser(), [text]);
            assert_eq!(read(parser(), text.split_inclusive(|_| true)), whole, "{format:?} {text}");
            for (at, _) in text.char_indices() {
                assert_eq!(read(parser(), [&text[..at], &text[at..]]), whole, "{format:?} {text}");
            }
            whole
        };
        let seen = |content: &str, reasoning: &str, calls: &[&str]| {
            let calls = calls.iter().map(|call| call.to_string()).collect();
            (content.to_owned(), reasoning.to_owned(), calls)
        };
        let (names, one) = (&["f"][..], "f {\"a\": 1}.");
        let found = read_both(names, &format!("I need it.\n{call}"));
        assert_eq!(found, seen("", "I need it.", &[one]), "{format:?}");
        let found = read_both(names, &format!("I need it.\n{call}\n</think>\n\nFour."));
        assert_eq!(found, seen("Four.", "I need it.", &[one]), "{format:?}");
        let found = read_both(names, &format!("Hm\n{call}\n</think>\n\n{call}"));
        assert_eq!(found, seen("", "Hm", &[one; 2]), "{format:?}");
        // A mark alone, and a call of another function, are reasoning.
        let opener = format.openers()[0];
        let thought = format!("Use {opener} so, {opener} or\n{opener}");
        let found = read_both(names, &format!("{thought}\n</think>\n\n{call}"));
        assert_eq!(found, seen("", &thought, &[one]), "{format:?}");
        let found = read_both(&["g"], &format!("Hm {call}\n</think>\n\nFour."));
        assert_eq!(found, seen("Four.", &format!("Hm {call}"), &[]), "{format:?}");
        let found = read_both(names, &format!("Hm {}", &call[..opener.len()]));
        assert_eq!(found, seen("", &format!("Hm {opener}"), &[]), "{format:?}");
    }
}
