//! Calls with an element for each argument.

use super::*;

const XML: [ToolFormat; 3] = [ToolFormat::Qwen3Coder, ToolFormat::Glm45, ToolFormat::MinimaxM2];

/// The part of a text that a required call of `f` with these arguments allows, and whether it may end there.
fn take(format: ToolFormat, special: bool, schema: &Value, text: &str) -> (usize, bool) {
    let marks = format.marks();
    let tokenizer = tokenizer(if special { marks } else { &[] });
    let constraint = constraint(format, &tokenizer, schema).unwrap().unwrap();
    let compiler = GrammarCompiler::new(&tokenizer, &[EOS], 320).unwrap();
    let mut grammar =
        compiler.compile(&constraint).unwrap_or_else(|error| panic!("{error}: {constraint:?}"));
    let mut taken = 0;
    for id in tokenizer.encode(text, candlepower_tokenizer::AddSpecialTokens::No).unwrap() {
        if grammar.is_finished() || !grammar.allowed().unwrap().allows(id) {
            return (taken, false);
        }
        grammar.accept(id).unwrap();
        taken += tokenizer.token_bytes(id).len();
    }
    (taken, grammar.is_finished() || grammar.allowed().unwrap().allows(EOS))
}

fn constraint(
    format: ToolFormat,
    tokenizer: &Tokenizer,
    schema: &Value,
) -> Result<Option<Constraint>> {
    let functions = [Function { name: "f", parameters: schema.as_object(), strict: true }];
    let shape = AnswerShape {
        dialect: Dialect { tools: Some(format), reasoning: None },
        thinking: Thinking::Possible,
        calls: Calls::Required,
        parallel: true,
        functions: &functions,
        has_others: false,
        text: None,
    };
    shape.constraint(tokenizer)
}

fn call(format: ToolFormat, arguments: &[(&str, &str)]) -> String {
    let elements = arguments.iter().map(|(key, value)| match format {
        ToolFormat::Qwen3Coder => format!("<parameter={key}>\n{value}\n</parameter>\n"),
        ToolFormat::Glm45 => {
            format!("<arg_key>{key}</arg_key>\n<arg_value>{value}</arg_value>\n")
        }
        _ => format!("<parameter name=\"{key}\">{value}</parameter>\n"),
    });
    let elements = elements.collect::<String>();
    match format {
        ToolFormat::Qwen3Coder => {
            format!("<tool_call>\n<function=f>\n{elements}</function>\n</tool_call>")
        }
        ToolFormat::Glm45 => format!("<tool_call>f\n{elements}</tool_call>"),
        _ => format!(
            "<minimax:tool_call>\n<invoke name=\"f\">\n{elements}</invoke>\n</minimax:tool_call>"
        ),
    }
}

#[test]
fn what_templates_write_is_allowed() {
    let schema = json!({
        "type": "object",
        "properties": {
            "text": {"type": "string", "description": "A text."},
            "unit": {"$ref": "#/$defs/Unit"},
            "note": {"anyOf": [{"type": "string"}, {"type": "null"}], "default": null},
            "days": {"type": "integer"},
            "at": {"type": "array", "items": {"type": "number"}},
            "any": {},
        },
        "required": ["text", "days"],
        "$defs": {"Unit": {"enum": ["C", "F"]}},
    });
    let file = "fn a() {\n  b < c; \"é\" </x>\n}\n";
    let all = [
        ("text", file),
        ("unit", "F"),
        ("note", "null"),
        ("days", "3"),
        ("at", "[1.5, 2]"),
        ("any", "x"),
    ];
    for (format, special) in XML.into_iter().flat_map(|format| [(format, false), (format, true)]) {
        let take = |arguments: &[(&str, &str)]| {
            let text = call(format, arguments);
            let (taken, ends) = take(format, special, &schema, &text);
            let rest = text[taken..].to_owned();
            assert_eq!(rest.is_empty(), ends, "{text}");
            rest
        };
        assert_eq!(take(&all), "", "{format:?}");
        assert_eq!(take(&[("text", ""), ("days", "-1")]), "");
        assert_eq!(take(&[("text", "a"), ("note", "b"), ("days", "0")]), "");
        assert!(take(&[("text", "a"), ("days", "x")]).starts_with('x'));
        let forgotten = take(&[("text", "a\n<parameter=days>\n1"), ("days", "1")]);
        // Qwen's parser accepts a missing mark before the key of another argument, so the grammar refuses such a
        // text. In the other formats it is text.
        assert_eq!(forgotten.is_empty(), format != ToolFormat::Qwen3Coder);
        if !special {
            for text in [
                // Grammars refused the closing mark once, and bent such texts to `</parameter!`. Agents that write
                // XML depend on them.
                "A </parameter> B",
                "x\n</function>\ny",
                "</arg_value>x",
                "a\n<parameter=b>\n",
                "</parameter>x",
                "</parameter>\n <x>",
                "<parameter=days>1</parameter> x",
            ] {
                assert_eq!(take(&[("text", text), ("days", "1")]), "", "{format:?}: {text}");
                assert_eq!(
                    take(&[("text", "a"), ("days", "1"), ("any", text)]),
                    "",
                    "{format:?}: {text}"
                );
            }
        }
        assert!(take(&[("text", "a"), ("unit", "K"), ("days", "1")]).starts_with('K'));
        for (arguments, wrong) in [
            (&[("days", "1"), ("text", "a")][..], "days"),
            (&[("text", "a")], "</"),
            (&[("text", "a"), ("days", "1"), ("note", "b")], "note"),
        ] {
            let rest = take(arguments);
            // The mark before it may begin another argument.
            assert!(rest.starts_with(wrong) || rest.starts_with(&wrong[1..]), "{rest}");
        }
    }
    let together = "<tool_call>f<arg_key>text</arg_key><arg_value>a</arg_value><arg_key>days</arg_key><arg_value>1</arg_value></tool_call>";
    let twice = [together, together].concat();
    for special in [false, true] {
        assert_eq!(take(ToolFormat::Glm45, special, &schema, &twice), (twice.len(), true));
    }
}

#[test]
fn undeclared_arguments_are_allowed_where_the_schema_says_so() {
    let of = |others: Value| {
        json!({
            "properties": {"a": {"type": "integer"}, "b.c": {"type": "string"}},
            "required": ["a"],
            "additionalProperties": others,
        })
    };
    let alone = |others: Value| json!({"type": "object", "additionalProperties": others});
    for (format, special) in XML.into_iter().flat_map(|format| [(format, false), (format, true)]) {
        for (schema, arguments, is_allowed) in [
            (of(json!(true)), &[("a", "1"), ("x", "text"), ("b", "2")][..], true),
            (of(json!(true)), &[("a", "1"), ("b.c", "text"), ("bxc", "2"), ("aa", "")], true),
            (of(json!({})), &[("a", "1"), ("x", "[1]")], true),
            (of(json!(true)), &[("a", "1")], true),
            (of(json!({"type": "integer"})), &[("a", "1"), ("x", "2")], true),
            (of(json!({"type": "integer"})), &[("a", "1"), ("x", "text")], false),
            (of(json!(true)), &[("x", "1")], false),
            (of(json!(true)), &[("a", "1"), ("a", "2")], false),
            (of(json!(true)), &[("a", "1"), ("x", "2"), ("b.c", "text")], false),
            (of(json!(false)), &[("a", "1"), ("x", "2")], false),
            (of(json!({"not": {}})), &[("a", "1"), ("x", "2")], false),
            (alone(json!(true)), &[("x", "2"), ("y", "text")], true),
            (alone(json!(true)), &[], true),
            (alone(json!({"type": "integer"})), &[("x", "text")], false),
            (alone(json!(false)), &[("x", "2")], false),
        ] {
            let text = call(format, arguments);
            let (taken, _) = take(format, special, &schema, &text);
            assert_eq!(taken == text.len(), is_allowed, "{schema} {text} {taken}");
        }
    }
}

#[test]
fn functions_that_are_not_held_take_any_arguments() {
    for format in XML {
        for special in [false, true] {
            let mut case = Case::new(Some(format), Calls::Allowed);
            let marks = case.dialect.marks();
            case.tokenizer = tokenizer(if special { &marks } else { &[] });
            let noop = |arguments: &[(&str, &str)]| {
                let text = call(format, arguments);
                match format {
                    ToolFormat::Glm45 => text.replacen(">f\n", ">noop\n", 1),
                    ToolFormat::Qwen3Coder => text.replacen("=f>", "=noop>", 1),
                    _ => text.replacen("\"f\"", "\"noop\"", 1),
                }
            };
            for text in [
                "",
                "Just text. <tool_cal",
                &noop(&[]),
                &format!("Well\n{}\nSo.", noop(&[("any", "a\nb"), ("b", "[1]")])),
            ] {
                case.takes(text);
            }
            let held = noop(&[("days", "1")]).replacen("noop", "get_weather", 1);
            let (taken, _) = case.take(&held);
            assert!(!taken.contains("days"), "{taken}");
            // A text that the parser would also read as a call is not allowed without its outer mark.
            for mark in ["<function=", "<invoke name=\""] {
                let (taken, _) = case.take(mark);
                assert_eq!(taken == mark, !format.openers().contains(&mark), "{format:?}");
            }
            case.parallel = false;
            let one = noop(&[]);
            case.stops(&format!("{one}\n{one}"), &one);
        }
    }
}

#[test]
fn what_raw_text_cannot_hold_is_refused() {
    let refused = |schema: Value| {
        let tokenizer = tokenizer(&[]);
        let messages =
            XML.map(|format| constraint(format, &tokenizer, &schema).unwrap_err().to_string());
        assert!(messages.iter().all(|message| *message == messages[0]));
        messages[0].clone()
    };
    let property = |schema: Value| refused(json!({"properties": {"city": schema}}));
    assert!(refused(json!({"oneOf": []})).contains("`oneOf`"));
    assert!(refused(json!({"properties": {"a>b": {}}})).contains("`a>b`"));
    for (schema, named) in [
        (json!({"type": "string", "pattern": r"\ba"}), "`pattern`"),
        (json!({"anyOf": [{"type": "string", "minLength": -1}, {"type": "null"}]}), "`minLength`"),
        (json!({"type": "string", "enum": ["a"], "not": {"const": "a"}}), "`not`"),
        (json!({"const": "</parameter></arg_value>"}), "marks"),
    ] {
        let message = property(schema);
        assert!(message.contains(named) && message.contains("`city`"), "{message}");
    }
}

#[test]
fn patterns_formats_and_lengths_of_raw_text_are_held() {
    for (format, special) in XML.into_iter().flat_map(|format| [(format, false), (format, true)]) {
        for (schema, text, is_allowed) in [
            (json!({"type": "string", "pattern": "^[a-z]+$"}), "ab", true),
            (json!({"type": "string", "pattern": "^[a-z]+$"}), "aB", false),
            (json!({"type": "string", "pattern": "^a/b|c"}), "a/b\nx", true),
            (json!({"type": "string", "format": "date"}), "2026-02-28", true),
            (json!({"type": "string", "format": "date"}), "2026-02-30", false),
            (json!({"type": "string", "format": "uri"}), "https://example.com/a?b=c", true),
            (json!({"type": "string", "format": "uri"}), "no uri", false),
            (json!({"type": "string", "format": "binary"}), "any", true),
            (json!({"type": "string", "minLength": 2, "maxLength": 3}), "é\n", true),
            (json!({"type": "string", "minLength": 2, "maxLength": 3}), "a", false),
            (json!({"type": "string", "minLength": 2, "maxLength": 3}), "abcd", false),
            (
                json!({"anyOf": [{"type": "string", "pattern": "^b"}, {"type": "null"}]}),
                "null",
                true,
            ),
            (
                json!({"anyOf": [{"type": "string", "pattern": "^b"}, {"type": "null"}]}),
                "nul",
                false,
            ),
            (json!({"type": ["string", "null"], "minLength": 6}), "null", true),
            (json!({"enum": ["a", "bc"], "minLength": 2}), "bc", true),
            (json!({"enum": ["a", "bc"], "minLength": 2}), "a", false),
            (
                json!({"allOf": [{"type": "string"}, {"pattern": "a"}, {"maxLength": 2}]}),
                "xa",
                true,
            ),
            (
                json!({"allOf": [{"type": "string"}, {"pattern": "a"}, {"maxLength": 2}]}),
                "xx",
                false,
            ),
        ] {
            for required in [json!(["a"]), json!(["a", "b"])] {
                let whole = json!({"properties": {"a": schema, "b": {"type": "string"}}, "required": required});
                let arguments = [("a", text), ("b", "x")];
                let arguments = &arguments[..required.as_array().unwrap().len()];
                let text = call(format, arguments);
                let (taken, ends) = take(format, special, &whole, &text);
                assert_eq!(
                    (taken == text.len(), ends),
                    (is_allowed, is_allowed),
                    "{format:?} {whole} {text}"
                );
            }
        }
    }
}

/// Sources: `Kimi-K3.jinja` of llama.cpp, and `encode_arguments_to_dsml` in the encoders of DeepSeek V3.2 and V4.
#[test]
fn attributes_are_those_that_templates_write_of_the_value() {
    let schema = json!({
        "properties": {
            "note": {"anyOf": [{"type": "string", "maxLength": 4}, {"type": "null"}]},
            "unit": {"type": ["string", "null"], "enum": ["C", "F"]},
            "days": {"type": "integer"},
            "any": {"description": "Anything."},
        },
        "required": ["note"],
        "additionalProperties": true,
    });
    let kimi = |arguments: &[(&str, &str, &str)]| {
        let arguments = arguments.iter().map(|(key, kind, value)| {
            format!(
                "<|open|>argument key=\"{key}\" type=\"{kind}\"<|sep|>{value}<|close|>argument<|sep|>"
            )
        });
        let arguments = arguments.collect::<String>();
        format!(
            "<|open|>tools<|sep|><|open|>call tool=\"f\" index=\"1\"<|sep|>{arguments}<|close|>call<|sep|><|close|>tools<|sep|>"
        )
    };
    let deepseek = |arguments: &[(&str, &str, &str)]| {
        let arguments = arguments.iter().map(|(key, kind, value)| {
            let is_string = *kind == "string";
            format!(
                "<｜DSML｜parameter name=\"{key}\" string=\"{is_string}\">{value}</｜DSML｜parameter>\n"
            )
        });
        let arguments = arguments.collect::<String>();
        format!(
            "<｜DSML｜function_calls>\n<｜DSML｜invoke name=\"f\">\n{arguments}</｜DSML｜invoke>\n</｜DSML｜function_calls>"
        )
    };
    type Write<'a> = &'a dyn Fn(&[(&str, &str, &str)]) -> String;
    let formats: [(ToolFormat, Write<'_>); 2] =
        [(ToolFormat::KimiK3, &kimi), (ToolFormat::DeepseekV32, &deepseek)];
    for ((format, write), special) in
        formats.into_iter().flat_map(|format| [(format, false), (format, true)])
    {
        let is_allowed = |arguments: &[(&str, &str, &str)]| {
            let text = write(arguments);
            let (taken, ends) = take(format, special, &schema, &text);
            assert_eq!(taken == text.len(), ends, "{text}");
            ends
        };
        for arguments in [
            &[("note", "string", "b")][..],
            &[("note", "null", "null")],
            // The text of a string may be that of null.
            &[("note", "string", "null"), ("unit", "string", "C"), ("days", "number", "3")],
            &[
                ("note", "string", ""),
                ("any", "string", "x < y"),
                ("more", "object", "{\"a\": [1]}"),
            ],
            &[("note", "string", "b"), ("any", "null", "null"), ("more", "string", "a\nb")],
        ] {
            assert!(is_allowed(arguments), "{}", write(arguments));
        }
        for arguments in [
            &[("note", "null", "b")][..],
            &[("note", "string", "bbbbb")],
            &[("note", "string", "b"), ("unit", "null", "null")],
            &[("note", "string", "b"), ("days", "string", "3")],
            &[("note", "string", "b"), ("any", "boolean", "x")],
        ] {
            assert!(!is_allowed(arguments), "{}", write(arguments));
        }
        // A text without the attribute is not the template's.
        let text = write(&[("note", "string", "b")]);
        let plain = text.replace(" type=\"string\"", "").replace(" string=\"true\"", "");
        assert!(!take(format, special, &schema, &plain).1, "{plain}");
    }
    let tokenizer = tokenizer(&[]);
    let never =
        json!({"properties": {"a": {"type": ["string", "null"], "enum": ["a"], "const": "b"}}});
    let error = constraint(ToolFormat::KimiK3, &tokenizer, &never).unwrap_err().to_string();
    assert!(error.contains("allows no value") && error.contains("`a`"), "{error}");
}
