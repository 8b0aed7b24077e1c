//! Calls with an element for each argument.

use serde_json::json;

use super::*;

const XML: [ToolFormat; 3] = [ToolFormat::Qwen3Coder, ToolFormat::Glm45, ToolFormat::MinimaxM2];

fn parser(format: ToolFormat, reasoning: Option<ReasoningFormat>) -> OutputParser {
    let parameters = json!({"type": "object", "properties": {
        "city": {"type": "string"}, "days": {"type": "integer"}, "warm": {"type": "boolean"}, "note": {"type": ["string", "null"]},
        "at": {"type": "object"}, "list": {"type": "array"},
    }});
    let parameters = parameters.as_object().cloned();
    let functions = [
        Callable { name: "get_weather".into(), parameters },
        Callable { name: "f".into(), parameters: None },
    ];
    let dialect = Dialect { tools: Some(format), reasoning };
    OutputParser::new(dialect, Thinking::Possible, Some(functions.into()))
}

/// Content and calls of an answer, which must be the same character by character and with a cut at any position.
fn called(format: ToolFormat, text: &str) -> (String, Vec<String>) {
    let whole = read(parser(format, None), [text]);
    assert_eq!(read(parser(format, None), text.split_inclusive(|_| true)), whole);
    for (at, _) in text.char_indices() {
        assert_eq!(read(parser(format, None), [&text[..at], &text[at..]]), whole, "{text} {at}");
    }
    (whole.0, whole.2)
}

/// A call in the form of the format's template.
fn written(format: ToolFormat, name: &str, arguments: &[(&str, &str)]) -> String {
    let elements = |element: &dyn Fn(&str, &str) -> String| {
        arguments.iter().map(|(key, value)| element(key, value)).collect::<String>()
    };
    match format {
        ToolFormat::Qwen3Coder => {
            let all = elements(&|key, value| format!("<parameter={key}>\n{value}\n</parameter>\n"));
            format!("<tool_call>\n<function={name}>\n{all}</function>\n</tool_call>")
        }
        ToolFormat::Glm45 => {
            let element = |key: &str, value: &str| {
                format!("<arg_key>{key}</arg_key>\n<arg_value>{value}</arg_value>\n")
            };
            format!("<tool_call>{name}\n{}</tool_call>", elements(&element))
        }
        _ => {
            let element =
                |key: &str, value: &str| format!("<parameter name=\"{key}\">{value}</parameter>\n");
            let all = elements(&element);
            format!(
                "<minimax:tool_call>\n<invoke name=\"{name}\">\n{all}</invoke>\n</minimax:tool_call>"
            )
        }
    }
}

#[test]
fn arguments_are_told_by_their_types() {
    for format in XML {
        assert_eq!(called(format, &written(format, "f", &[])), is("", &["f {}."]));
        let one = written(format, "get_weather", &[("city", "Paris")]);
        assert_eq!(called(format, &one), is("", &[r#"get_weather {"city": "Paris"}."#]));
        let city = "a <b> \"é\" </x>\n\n  C:\\d\n";
        let all = [
            ("city", city),
            ("days", "3"),
            ("warm", "True"),
            ("note", "null"),
            ("at", r#"{"lat": [1.50], "name": "x<y"}"#),
            ("other", "7"),
            ("days", "many"),
        ];
        let arguments = format!(
            r#"get_weather {{"city": {}, "days": 3, "warm": true, "note": null, "at": {}, "other": 7, "days": "many"}}."#,
            Value::from(city),
            all[4].1
        );
        assert_eq!(called(format, &written(format, "get_weather", &all)), is("", &[&arguments]));
        // Without a schema, a list is JSON, and a bare word is a string.
        let unsaid = written(format, "f", &[("a", "[]"), ("b", "true")]);
        assert_eq!(called(format, &unsaid), is("", &[r#"f {"a": [], "b": "true"}."#]));
        let unknown = written(format, "unknown", &[("a", "[]")]);
        assert_eq!(called(format, &unknown), is(&unknown, &[]));
        let empty = written(format, "get_weather", &[("city", "")]);
        assert_eq!(called(format, &empty), is("", &[r#"get_weather {"city": ""}."#]));
    }
}

#[test]
fn text_stands_before_and_behind_calls() {
    for format in XML {
        let (one, two) = (written(format, "f", &[("a", "1")]), written(format, "f", &[]));
        let text = format!("I will look < up.\n\n{one}\n{two}\n Done.");
        assert_eq!(
            called(format, &text),
            is("I will look < up.Done.", &["f {\"a\": 1}.", "f {}."])
        );
        let text = format!("\n<think>Hm {one}</think>\nSo.\n{one}");
        let whole = read(parser(format, Some(ReasoningFormat::Qwen3)), [text.as_str()]);
        assert_eq!((whole.0.as_str(), whole.1.as_str(), whole.2.len()), ("So.", "Hm", 2));
        let pieces = text.split_inclusive(|_| true);
        assert_eq!(read(parser(format, Some(ReasoningFormat::Qwen3)), pieces), whole);
    }
}

#[test]
fn marks_that_models_write_otherwise_are_taken() {
    let f = is("", &["f {\"a\": 1, \"b\": \"x\"}."]);
    for (format, text) in [
        (
            ToolFormat::Glm45,
            "<tool_call>f<arg_key>a</arg_key><arg_value>1</arg_value><arg_key>b</arg_key><arg_value>x</arg_value></tool_call>",
        ),
        (
            ToolFormat::Qwen3Coder,
            "<function=f>\n<parameter=a>\n1\n</parameter>\n<parameter=b>\nx\n</parameter>\n</function>",
        ),
        (
            ToolFormat::Qwen3Coder,
            "<tool_call>\n<function=f>\n<parameter=a>\n1\n<parameter=b>\nx\n</function>\n</tool_call>",
        ),
        (
            ToolFormat::Qwen3Coder,
            "<tool_call><function=f><parameter=a>1</parameter><parameter=b>x</parameter></tool_call>",
        ),
        (
            ToolFormat::MinimaxM2,
            "<invoke name=\"f\"><parameter name=\"a\"> 1 </parameter><parameter name=\"b\">x</parameter></invoke>",
        ),
    ] {
        assert_eq!(called(format, text), f, "{text}");
    }
    assert_eq!(called(ToolFormat::Glm45, "<tool_call>f</tool_call>"), is("", &["f {}."]));
    let two = "<minimax:tool_call>\n<invoke name=\"f\">\n</invoke>\n<invoke name=\"f\">\n<parameter name=\"a\">b</parameter>\n</invoke>\n</minimax:tool_call>\nDone.";
    assert_eq!(called(ToolFormat::MinimaxM2, two), is("Done.", &["f {}.", "f {\"a\": \"b\"}."]));
    // Marks inside a line are text.
    let mention = "use <parameter=x> and </function>";
    let text = written(ToolFormat::Qwen3Coder, "f", &[("a", mention)]);
    assert_eq!(
        called(ToolFormat::Qwen3Coder, &text),
        is("", &[&format!("f {{\"a\": \"{mention}\"}}.")])
    );
}

#[test]
fn what_is_damaged_is_content() {
    for format in XML {
        for text in [
            "<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>",
            "Use <tool_call> so, or <function=f> or <invoke name=\"f\"> so.",
            "<tool_call>",
            "<tool_call>f g</tool_call>",
            "<tool_call>\n<function=>\n</function>\n</tool_call>",
            "<minimax:tool_call></minimax:tool_call>",
            "a <function=f",
            "</tool_call>",
        ] {
            assert_eq!(called(format, text), is(text, &[]));
        }
    }
    // The text ends too early, or continues differently.
    for format in XML {
        let whole = written(format, "f", &[("a", "1"), ("b", "2")]);
        let cut = &whole[..whole.find('2').unwrap()];
        assert_eq!(called(format, cut), is("", &["f {\"a\": 1"]));
        let key = whole.find("b").filter(|_| format != ToolFormat::MinimaxM2);
        let key = key.or_else(|| whole.find("\"b\"")).unwrap();
        let before = whole[..key].rfind('<').unwrap();
        let other = format!("{}Oh no.", &whole[..before]);
        assert_eq!(called(format, &other), is("Oh no.", &["f {\"a\": 1"]));
    }
    // 4,500 bytes are beyond the limit of a key, so the call breaks off.
    let endless = format!("<tool_call><function=f><parameter={}", "k".repeat(10_000));
    let (content, calls) = called(ToolFormat::Qwen3Coder, &endless[..4500]);
    assert_eq!(
        (content.len(), calls),
        (4500 - "<tool_call><function=f>".len(), vec!["f {}".to_owned()])
    );
}

#[test]
fn marks_in_strings_of_json_are_text() {
    for format in XML {
        let end = if format == ToolFormat::Glm45 { "</arg_value>" } else { "</parameter>" };
        let object = format!(r#"{{"xml": "<a>\"{end}", "b": "{end}"}}"#);
        let text = written(format, "get_weather", &[("at", &object), ("days", "1")]);
        let expected = format!("get_weather {{\"at\": {object}, \"days\": 1}}.");
        assert_eq!(called(format, &text), is("", &[&expected]));
        // A string without an end is not held back forever.
        let text = written(format, "get_weather", &[("at", "{\"a"), ("days", "1")]);
        let expected = r#"get_weather {"at": "{\"a", "days": 1}."#;
        assert_eq!(called(format, &format!("{text}\nDone.")), is("Done.", &[expected]));
    }
}

/// The marks for the ends of a value and of a call.
fn ends(format: ToolFormat) -> (&'static str, &'static str) {
    match format {
        ToolFormat::Qwen3Coder => ("</parameter>", "</function>"),
        ToolFormat::Glm45 => ("</arg_value>", "</tool_call>"),
        _ => ("</parameter>", "</invoke>"),
    }
}

#[test]
fn marks_in_texts_are_text_where_nothing_fits_behind_them() {
    for format in XML {
        let (value, call) = ends(format);
        for city in [
            format!("A {value} B"),
            value.to_owned(),
            format!("{value}{value}"),
            format!("x\n{value}\ny"),
            format!("x\n{value}\n\n<other>"),
            format!("x\n{call}\ny"),
            call.to_owned(),
            format!("a {call} b {value} c {call}"),
            format!("x\n{value}\n{}y", if format == ToolFormat::Glm45 { "<tool>" } else { call }),
            "x\n<parameter=unknown>\ny".to_owned(),
            "x <parameter=days> y".to_owned(),
        ] {
            // A mark is not text if a fitting mark follows.
            let text = written(format, "get_weather", &[("city", &city), ("days", "1")]);
            let expected =
                format!("get_weather {{\"city\": {}, \"days\": 1}}.", Value::from(city.as_str()));
            assert_eq!(called(format, &text), is("", &[&expected]), "{format:?}");
            let after = format!("{text}\nDone.");
            assert_eq!(called(format, &after), is("Done.", &[&expected]), "{format:?}");
            let last = written(format, "get_weather", &[("days", "1"), ("city", &city)]);
            let expected =
                format!("get_weather {{\"days\": 1, \"city\": {}}}.", Value::from(city.as_str()));
            assert_eq!(called(format, &last), is("", &[&expected]), "{format:?}");
            let two = format!("{last}\n{text}");
            assert_eq!(called(format, &two).1.len(), 2, "{format:?}");
        }
    }
}

#[test]
fn a_text_with_a_mark_that_is_cut_does_not_become_content() {
    for format in XML {
        let (value, _) = ends(format);
        let text =
            written(format, "get_weather", &[("days", "1"), ("city", &format!("A {value} B"))]);
        let cut = &text[..text.find("A <").unwrap() + "A ".len() + value.len() + 2];
        assert_eq!(called(format, cut), is("", &["get_weather {\"days\": 1"]), "{format:?}");
    }
}

#[test]
fn literals_of_python_are_read() {
    for format in XML {
        let all = [
            ("at", "{'lat': [1.5, None], 'name': \"it's\", 'warm': True}"),
            ("list", "('a', -1)"),
            ("note", "None"),
            ("city", "None"),
        ];
        let expected = r#"get_weather {"at": {"lat": [1.5, null], "name": "it's", "warm": true}, "list": ["a", -1], "note": null, "city": "None"}."#;
        assert_eq!(called(format, &written(format, "get_weather", &all)), is("", &[expected]));
    }
}

/// `None` is a string if the schema has this string, wherever the schema says so.
#[test]
fn a_value_of_an_enum_is_no_literal_of_python() {
    let level = json!({"anyOf": [{"enum": ["None", "Some"]}, {"type": "null"}]});
    let other = json!({"anyOf": [{"type": "string"}, {"type": "null"}]});
    let reference = |name: &str| json!({"$ref": format!("#/$defs/{name}")});
    for (schema, value) in [
        (json!({"properties": {"a": level}}), "\"None\""),
        (json!({"properties": {"a": reference("level")}}), "\"None\""),
        (
            json!({"properties": {"a": {"anyOf": [reference("level"), {"type": "null"}]}}}),
            "\"None\"",
        ),
        (json!({"properties": {}, "additionalProperties": reference("level")}), "\"None\""),
        (json!({"properties": {"a": reference("other")}}), "null"),
        (json!({"properties": {"a": reference("circle")}}), "\"None\""),
    ] {
        let mut schema = schema;
        let circle = json!({"type": ["string", "null"], "anyOf": [reference("circle"), level]});
        schema["$defs"] = json!({"level": level, "other": other, "circle": circle});
        for format in XML {
            let parameters = schema.as_object().cloned();
            let functions = [Callable { name: "f".into(), parameters }];
            let dialect = Dialect { tools: Some(format), reasoning: None };
            let parser = OutputParser::new(dialect, Thinking::Possible, Some(functions.into()));
            let found = read(parser, [written(format, "f", &[("a", "None")]).as_str()]);
            assert_eq!(found.2, [format!("f {{\"a\": {value}}}.")], "{format:?} {schema}");
        }
    }
}

#[test]
fn a_value_whose_first_mark_is_missing_is_one() {
    let text = "<tool_call>get_weather<arg_key>city</arg_key>how many</arg_value></tool_call>";
    let call = "get_weather {\"city\": \"how many\"}.";
    assert_eq!(called(ToolFormat::Glm45, text), is("", &[call]));
}

#[test]
fn files_are_arguments_too() {
    let line = "    if a < b && c > d { println!(\"<x>é\\n\"); }\n";
    let file = line.repeat(300_000 / line.len() + 1);
    for format in XML {
        let text = written(format, "get_weather", &[("days", "1"), ("city", &file)]);
        let expected =
            format!("get_weather {{\"days\": 1, \"city\": {}}}.", Value::from(file.as_str()));
        let whole = read(parser(format, None), [text.as_str()]);
        assert_eq!(whole, (String::new(), String::new(), vec![expected]));
        assert_eq!(read(parser(format, None), text.split_inclusive(|_| true)), whole);
    }
}

#[test]
fn each_argument_is_told_when_it_is_complete() {
    for format in XML {
        let text = written(format, "get_weather", &[("city", "Bern"), ("days", "3")]);
        let mut parser = parser(format, None);
        let events = text.split_inclusive(|_| true).flat_map(|piece| parser.push(piece));
        let fragments = events.filter_map(|event| match event {
            OutputEvent::CallArguments { fragment, .. } => Some(fragment),
            _ => None,
        });
        assert_eq!(fragments.collect::<Vec<_>>(), ["{\"city\": \"Bern\"", ", \"days\": 3", "}"]);
    }
}
