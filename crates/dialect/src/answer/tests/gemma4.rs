//! Calls and reasoning in Gemma 4's format.

use candlepower_tokenizer::{ChatTemplate, LocalTime, PromptEnd, RenderInput, TemplateSources};

use super::*;

const FORMAT: ToolFormat = ToolFormat::Gemma4;
const DIALECT: Dialect = Dialect { tools: Some(FORMAT), reasoning: Some(ReasoningFormat::Gemma4) };

/// Writes calls in the form of these models' template.
const TEMPLATE: &str = r#"{%- macro value(v) -%}
{%- if v is none -%}null
{%- elif v is string -%}<|"|>{{ v }}<|"|>
{%- elif v is boolean -%}{{ 'true' if v else 'false' }}
{%- elif v is mapping -%}{{ '{' }}{% for key, item in v | dictsort %}{{ key }}:{{ value(item) }}{{ ',' if not loop.last }}{% endfor %}{{ '}' }}
{%- elif v is sequence -%}[{% for item in v %}{{ value(item) }}{{ ',' if not loop.last }}{% endfor %}]
{%- else -%}{{ v }}{%- endif -%}
{%- endmacro -%}
{%- for m in messages -%}
{%- if m.reasoning_content -%}<|channel>thought{{ '\n' }}{{ m.reasoning_content }}{{ '\n' }}<channel|>{%- endif -%}
{%- for c in m.tool_calls -%}<|tool_call>call:{{ c.function.name }}{{ value(c.function.arguments) }}<tool_call|>{%- endfor -%}
{%- endfor -%}"#;

/// An answer with these calls, each a name and arguments.
fn written(reasoning: Option<&str>, calls: &[(&str, &Value)]) -> String {
    let sources = TemplateSources { chosen: Some(TEMPLATE), ..TemplateSources::default() };
    let template = ChatTemplate::from_sources(&sources).unwrap().unwrap();
    let call = |(name, arguments): &(&str, &Value)| json!({"function": {"name": name, "arguments": arguments}});
    let calls = calls.iter().map(call).collect::<Vec<_>>();
    let message = json!({"role": "assistant", "reasoning_content": reasoning, "tool_calls": calls});
    let input = RenderInput {
        messages: &json!([message]),
        tools: None,
        documents: None,
        end: PromptEnd::LastMessage,
        chat_template_kwargs: &Map::new(),
        now: LocalTime { unix_s: 0, utc_offset_s: 0 },
    };
    template.render(&input).unwrap()
}

/// A model that must call `f`.
struct Held {
    tokenizer: Tokenizer,
    schema: Value,
}

impl Held {
    fn new(special: &[&str], schema: &Value) -> Self {
        Self { tokenizer: tokenizer(special), schema: schema.clone() }
    }

    fn constraint(&self) -> Result<Constraint> {
        let parameters = self.schema.as_object();
        let functions = [Function { name: "f", parameters, strict: true }];
        let shape = AnswerShape {
            dialect: Dialect { reasoning: None, ..DIALECT },
            thinking: Thinking::Possible,
            calls: Calls::Required,
            parallel: true,
            functions: &functions,
            has_others: false,
            text: None,
        };
        shape.constraint(&self.tokenizer).map(Option::unwrap)
    }

    fn grammar(&self) -> Grammar {
        let constraint = self.constraint().unwrap();
        let compiler = GrammarCompiler::new(&self.tokenizer, &[EOS], 320).unwrap();
        compiler.compile(&constraint).unwrap_or_else(|error| panic!("{error}: {constraint:?}"))
    }

    /// The part of this text that is not allowed.
    fn rest<'a>(&self, text: &'a str) -> &'a str {
        let (rest, may_end) = self.rest_and_end(self.grammar(), text);
        assert!(!rest.is_empty() || may_end, "{text}");
        rest
    }

    /// Whether the whole text is allowed.
    fn allows(&self, grammar: &Grammar, text: &str) -> bool {
        self.rest_and_end(grammar.clone(), text) == ("", true)
    }

    fn rest_and_end<'a>(&self, mut grammar: Grammar, text: &'a str) -> (&'a str, bool) {
        let mut taken = 0;
        for id in self.tokenizer.encode(text, candlepower_tokenizer::AddSpecialTokens::No).unwrap()
        {
            if grammar.is_finished() || !grammar.allowed().unwrap().allows(id) {
                return (&text[taken..], false);
            }
            grammar.accept(id).unwrap();
            taken += self.tokenizer.token_bytes(id).len();
        }
        ("", grammar.is_finished() || grammar.allowed().unwrap().allows(EOS))
    }

    fn rest_of_call(&self, arguments: &Value) -> String {
        self.rest(&written(None, &[("f", arguments)])).to_owned()
    }
}

/// The arguments of all calls of an answer without content.
fn read(text: &str) -> Vec<Value> {
    let dialect = Dialect { reasoning: None, ..DIALECT };
    let functions = [Callable { name: "f".to_owned(), parameters: None }];
    let mut parser = OutputParser::new(dialect, Thinking::Possible, Some(functions.into()));
    let mut calls = Vec::<String>::new();
    for event in parser.push(text).into_iter().chain(parser.finish()) {
        match event {
            OutputEvent::CallStart { .. } => calls.push(String::new()),
            OutputEvent::CallArguments { index, fragment } => calls[index].push_str(&fragment),
            OutputEvent::CallEnd { .. } => {}
            other => panic!("{other:?} in {text}"),
        }
    }
    calls.iter().map(|arguments| serde_json::from_str(arguments).unwrap()).collect()
}

fn schema() -> Value {
    json!({
        "type": "object",
        "title": "Order",
        "properties": {
            "text": {"type": "string", "description": "A text."},
            "Unit": {"$ref": "#/$defs/Unit"},
            "note": {"anyOf": [{"type": "string"}, {"type": "null"}], "default": null},
            "days": {"type": "integer", "minimum": 1, "maximum": 14},
            "at": {"type": "array", "items": {"type": "number", "minimum": -9, "maximum": 9}, "minItems": 1, "maxItems": 2},
            "codes": {"type": ["array", "boolean"], "items": {"type": "string", "minLength": 2, "maxLength": 3}},
            "labels": {"type": "object", "additionalProperties": {"type": ["integer", "null"]}},
            "node": {"$ref": "#/$defs/Node"},
            "mode": {"const": {"b": [1, "x"], "A": null}},
            "any": {},
        },
        "required": ["text", "days"],
        "$defs": {
            "Unit": {"enum": ["C", "F, \"é\"\n", 1.5, true]},
            "Node": {
                "type": "object",
                "properties": {"name": {"type": "string"}, "next": {"anyOf": [{"$ref": "#/$defs/Node"}, {"type": "null"}]}},
                "required": ["next"],
                "additionalProperties": false,
            },
        },
        "additionalProperties": false,
    })
}

const SPECIAL: [&[&str]; 3] = [&[], &["<|tool_call>", "<tool_call|>", "<|\"|>"], &["<|\"|>"]];

#[test]
fn what_the_template_writes_is_allowed_and_read() {
    for special in SPECIAL {
        let held = Held::new(special, &schema());
        for arguments in [
            json!({"text": "", "days": 1}),
            json!({"text": "fn a() {\n  b[0] < c; \"é\" </x> <|x>\n}, d:", "days": 14}),
            json!({
                "text": "a", "Unit": "F, \"é\"\n", "note": null, "days": 3, "at": [1.5, -2], "codes": ["ab", "äöü"],
                "labels": {"größe": 1, "a b": null}, "node": {"name": "n", "next": {"next": null}}, "mode": {"b": [1, "x"], "A": null},
                "any": {"k": [1, "x", null, {}, [], {"a": false}]},
            }),
            json!({"text": "a", "days": 2, "Unit": 1.5, "note": "null", "codes": false, "labels": {}, "any": "x"}),
            json!({"text": "a", "days": 2, "Unit": true, "codes": [], "any": -1.5e-05}),
        ] {
            let text = written(None, &[("f", &arguments), ("f", &arguments)]);
            assert_eq!(held.rest(&text), "");
            assert_eq!(read(&text), [arguments.clone(), arguments]);
        }
    }
}

#[test]
fn marks_within_strings_are_allowed() {
    let texts = [
        "A <|\"|> B",
        "x\n<|\"|>\ny",
        "<|\"|> begins",
        "a <|\"|> <|\"|> b",
        "note <|\"|> key: so",
        "call:f{a:<|\"|>b",
    ];
    // A special token is no text, so only its spelling without the token is a part of a text.
    let held = Held::new(&[], &schema());
    for text in texts {
        let arguments = json!({
            "text": text, "days": 1, "note": text, "labels": {}, "node": {"name": text, "next": null}, "any": [text, {"k": text}],
        });
        let written = written(None, &[("f", &arguments)]);
        assert_eq!(held.rest(&written), "", "{text}");
        assert_eq!(read(&written), [arguments], "{text}");
    }
    let limited = json!({"type": "object", "properties": {"a": {"type": "string", "maxLength": 8}}, "required": ["a"]});
    let held = Held::new(&[], &limited);
    assert_eq!(held.rest_of_call(&json!({"a": "b <|\"|> c"})), "c<|\"|>}<tool_call|>");
    assert_eq!(held.rest_of_call(&json!({"a": "<|\"|> cd"})), "");
}

/// The grammar and the parser must agree on the end of every string.
#[test]
fn texts_of_marks_are_read_as_they_were_written() {
    const PARTS: [&str; 16] = [
        "<|\"|>",
        "<|\"|>",
        "<|\"|>",
        "<tool_call|>",
        "<|tool_call>",
        "}",
        "]",
        ",",
        " ",
        ":",
        "text",
        "a",
        "1",
        "\n",
        "{",
        "'",
    ];
    let held = Held::new(&[], &schema());
    let grammar = held.grammar();
    let (mut random, mut num_allowed) = (Rng::with_seed(1), 0);
    for _ in 0..2000 {
        let text: String =
            (0..random.usize(1..7)).map(|_| *random.choice(&PARTS).unwrap()).collect();
        let arguments = json!({"any": [text, {"k": text}], "text": text, "days": 1});
        let written = written(None, &[("f", &arguments)]);
        if held.allows(&grammar, &written) {
            num_allowed += 1;
            assert_eq!(read(&written), [arguments], "{written}");
        }
    }
    assert!(num_allowed > 500, "{num_allowed}");
}

#[test]
fn integers_of_a_choice_have_no_fraction() {
    let choice = json!({"type": "object", "properties": {
        "a": {"type": "integer", "enum": [1, 2.5, 3.0]}, "b": {"type": ["integer", "string"], "enum": [2.5, "x"]},
    }, "additionalProperties": false});
    let held = Held::new(&[], &choice);
    for allowed in [json!({"a": 1}), json!({"a": 3.0}), json!({"b": "x"})] {
        assert_eq!(held.rest_of_call(&allowed), "", "{allowed}");
    }
    assert_eq!(held.rest_of_call(&json!({"a": 2.5})), "2.5}<tool_call|>");
    assert_eq!(held.rest_of_call(&json!({"b": 2.5})), "2.5}<tool_call|>");
    let never = json!({"type": "object", "properties": {"a": {"type": "integer", "const": 1.5}}, "required": ["a"]});
    let error = Held::new(&[], &never).constraint().unwrap_err().to_string();
    assert!(error.contains("no value"), "{error}");
}

#[test]
fn nothing_else_is_allowed() {
    for special in SPECIAL {
        let held = Held::new(special, &schema());
        let begins = |arguments: &Value, rest: &str| {
            let found = held.rest_of_call(arguments);
            assert!(found.starts_with(rest), "{found} {arguments}");
        };
        begins(&json!({"text": "a"}), "text");
        begins(&json!({"days": 2}), "}<");
        begins(&json!({"days": 15, "text": "a"}), "5,");
        begins(&json!({"days": 0, "text": "a"}), "0,");
        begins(&json!({"days": "2", "text": "a"}), "<|\"|>2");
        begins(&json!({"days": 2, "text": 3}), "3}");
        begins(&json!({"days": 2, "text": "a", "Unit": "K"}), "K<");
        begins(&json!({"any": 1, "at": [], "days": 2, "text": "a"}), "]");
        begins(&json!({"at": [1, 2, 3], "days": 2, "text": "a"}), ",3");
        let short = held.rest_of_call(&json!({"codes": ["a"], "days": 2, "text": "a"}));
        // The beginning of a mark may be a text.
        assert!(short.trim_start_matches(['<', '|', '"', '>']).starts_with(']'), "{short}");
        begins(&json!({"codes": ["abcd"], "days": 2, "text": "a"}), "d");
        begins(&json!({"days": 2, "labels": {"a": "b"}, "text": "a"}), "<|\"|>b");
        begins(&json!({"days": 2, "node": {}, "text": "a"}), "}");
        begins(&json!({"days": 2, "node": {"next": null, "other": 1}, "text": "a"}), ",other");
        begins(&json!({"days": 2, "text": "a", "zoo": 1}), "zoo");
        // A string's mark inside a string ends it.
        begins(&json!({"days": 2, "text": "a<|\"|>,b"}), "b<");
        assert_eq!(held.rest("Well"), "Well");
    }
}

#[test]
fn all_that_may_be_written_fits_the_schema() {
    // If the marks are plain text, sampled texts do not end.
    for (special, seed) in SPECIAL[1..].iter().zip(0..) {
        let held = Held::new(special, &schema());
        let (grammar, mut random) = (held.grammar(), Rng::with_seed(seed));
        let mut num_read = 0;
        for _ in 0..24 {
            let Some(text) = sample(&held.tokenizer, grammar.clone(), &mut random) else {
                continue;
            };
            for arguments in read(&text) {
                num_read += 1;
                let is_held = |key: &str, holds: &dyn Fn(&Value) -> bool| {
                    assert!(arguments.get(key).is_none_or(holds), "{arguments}");
                };
                assert!(arguments["text"].is_string(), "{arguments}");
                assert!((1..=14).contains(&arguments["days"].as_i64().unwrap()), "{arguments}");
                is_held("Unit", &|unit| {
                    [json!("C"), json!("F, \"é\"\n"), json!(1.5), json!(true)].contains(unit)
                });
                is_held("note", &|note| note.is_string() || note.is_null());
                let is_code = |code: &Value| {
                    (2..4).contains(&code.as_str().map_or(0, |code| code.chars().count()))
                };
                is_held("codes", &|codes| {
                    codes.is_boolean() || codes.as_array().unwrap().iter().all(is_code)
                });
                is_held("at", &|at| (1..3).contains(&at.as_array().unwrap().len()));
                is_held("labels", &|labels| {
                    labels
                        .as_object()
                        .unwrap()
                        .values()
                        .all(|label| label.is_i64() || label.is_null())
                });
                is_held("node", &|node| node.get("next").is_some());
            }
        }
        assert!(num_read > 5, "{num_read}");
    }
}

#[test]
fn what_the_notation_cannot_hold_is_refused() {
    let refused = |schema: Value| Held::new(&[], &schema).constraint().unwrap_err().to_string();
    let property = |schema: Value| {
        let message = refused(json!({"properties": {"city": schema}}));
        assert!(message.contains("in `city`"), "{message}");
        message
    };
    assert!(refused(json!({"not": {}})).contains("`not`"));
    assert!(refused(json!({"type": "string"})).contains("no value"));
    for name in ["a:b", "a=b", "a,b", " a", "", "a{", "\"a", "<a", "a\nb"] {
        let message = refused(json!({"properties": {name: {}}}));
        assert!(message.contains(&format!("`{name}`")), "{message}");
    }
    for (schema, named) in [
        (json!({"type": "string", "pattern": r"\ba"}), "`pattern`"),
        (json!({"type": "array", "uniqueItems": true}), "`uniqueItems`"),
        (json!({"type": "array", "prefixItems": []}), "`prefixItems`"),
        (json!({"type": "object", "patternProperties": {}}), "`patternProperties`"),
        (json!({"type": "integer", "anyOf": [{"minimum": 1}, {"type": "string"}]}), "`type`"),
        (json!({"oneOf": [{"type": "string"}, {"enum": ["a", 1]}]}), "`oneOf`"),
        (json!({"allOf": [{"type": "string"}, {"minLength": 1}]}), "`allOf`"),
        (json!({"const": "a<|\"|>"}), "marks"),
        (json!({"const": {"a:b": 1}}), "`a:b`"),
        (json!({"type": "string", "enum": [1]}), "no value"),
        (json!({"type": "string", "minLength": 2, "maxLength": 1}), "no value"),
        (json!({"type": "string", "minLength": -1}), "`minLength`"),
        (json!({"$ref": "#/$defs/Nothing"}), "`#/$defs/Nothing`"),
    ] {
        let message = property(schema);
        assert!(message.contains(named), "{message}");
    }
    for (schema, value, is_allowed) in [
        (json!({"type": "string", "pattern": "^a+$"}), "aa", true),
        (json!({"type": "string", "pattern": "^a+$"}), "ab", false),
        (json!({"type": "string", "format": "date"}), "2026-01-31", true),
        (json!({"type": "string", "format": "date"}), "2026-02-31", false),
        // `binary` is a format that JSON Schema does not define, so it constrains nothing. pydantic writes it for
        // bytes.
        (json!({"type": "string", "format": "binary", "maxLength": 2}), "ab", true),
        (json!({"type": "string", "format": "binary", "maxLength": 2}), "abc", false),
    ] {
        let held = Held::new(&[], &json!({"properties": {"a": schema}}));
        assert_eq!(held.rest_of_call(&json!({"a": value})).is_empty(), is_allowed, "{value}");
    }
    // With marks that are special tokens, no terminal stands for an empty text.
    for special in [&[][..], &DIALECT.marks()] {
        for (schema, is_allowed) in [
            (json!({"type": "string"}), true),
            (json!({"type": "string", "pattern": "^a*$"}), true),
            (json!({"type": "string", "pattern": "^a+$"}), false),
            (json!({"type": "string", "format": "date"}), false),
            (json!({"type": "string", "maxLength": 2}), true),
            (json!({"type": "string", "minLength": 1}), false),
        ] {
            let held = Held::new(special, &json!({"properties": {"a": schema}}));
            let rest = held.rest_of_call(&json!({"a": ""}));
            assert_eq!(rest.is_empty(), is_allowed, "{schema} {special:?}");
        }
    }
    // Optional properties may be missing.
    let held = Held::new(
        &[],
        &json!({"properties": {"a": false, "b": {"oneOf": [{"type": "string"}, {"type": "null"}]}}}),
    );
    assert_eq!(held.rest_of_call(&json!({"b": null})), "");
    assert_eq!(held.rest_of_call(&json!({})), "");
}

#[test]
fn names_and_exclusive_arms_are_held() {
    let tagged = |tag: &str, more: Value| json!({"type": "object", "properties": {"kind": {"const": tag}, "x": more}, "required": ["kind", "x"]});
    let arms = json!({"oneOf": [tagged("a", json!({"type": "integer"})), tagged("b", json!({"type": "string"}))]});
    let of_names = |names: Value| json!({"type": "object", "propertyNames": names, "additionalProperties": {"type": "integer"}});
    for (schema, value, is_allowed) in [
        (arms.clone(), json!({"kind": "a", "x": 1}), true),
        (arms.clone(), json!({"kind": "b", "x": "s"}), true),
        (arms, json!({"kind": "b", "x": 1}), false),
        (of_names(json!({"type": "string"})), json!({"any": 1}), true),
        (of_names(json!(true)), json!({"any": 1}), true),
        (of_names(json!({"pattern": "^a+$"})), json!({"aa": 1}), true),
        (of_names(json!({"pattern": "^a+$"})), json!({"ab": 1}), false),
        (of_names(json!({"pattern": "^a+$"})), json!({"aa": "s"}), false),
        (of_names(json!({"enum": ["b", "a"]})), json!({"a": 1, "b": 2}), true),
        (of_names(json!({"enum": ["b", "a"]})), json!({"c": 1}), false),
        (of_names(json!({"enum": ["a", "a"]})), json!({"a": 1}), true),
        (of_names(json!({"const": 1})), json!({}), true),
        (of_names(json!({"const": 1})), json!({"a": 1}), false),
    ] {
        let held = Held::new(&[], &json!({"properties": {"v": schema}}));
        assert_eq!(
            held.rest_of_call(&json!({"v": value})).is_empty(),
            is_allowed,
            "{schema} {value}"
        );
    }
    let both =
        json!({"type": "object", "properties": {"a": {}}, "propertyNames": {"pattern": "a"}});
    let error = Held::new(&[], &json!({"properties": {"v": both}})).constraint().unwrap_err();
    assert!(error.to_string().contains("`propertyNames`"), "{error}");
}

#[test]
fn undeclared_keys_are_allowed_where_the_schema_says_so() {
    let of = |others: Value| {
        json!({
            "type": "object",
            "properties": {"b": {"type": "integer"}, "no": false, "Ab": {"type": "string"}},
            "required": ["b"],
            "additionalProperties": others,
        })
    };
    for special in SPECIAL {
        for (others, value, is_allowed) in [
            (json!(true), json!({"b": 1, "x": [true]}), true),
            (json!(true), json!({"b": 1, "bb": "text", "x": null}), true),
            (json!(true), json!({"Ab": "a", "b": 1}), true),
            (json!({}), json!({"b": 1, "x": 2}), true),
            (json!({"type": "string"}), json!({"b": 1, "x": "a"}), true),
            (json!({"type": "string"}), json!({"b": 1, "x": 2}), false),
            // Declared keys keep their own schemas, and come once.
            (json!(true), json!({"b": "x"}), false),
            (json!(true), json!({"b": 1, "no": 1}), false),
            (json!(true), json!({"x": 1}), false),
            (json!(false), json!({"b": 1, "x": 1}), false),
            (json!({"not": {}}), json!({"b": 1, "x": 1}), false),
        ] {
            let held = Held::new(special, &of(others.clone()));
            let rest = held.rest_of_call(&value);
            assert_eq!(rest.is_empty(), is_allowed, "{others} {value}: {rest}");
            let held = Held::new(special, &json!({"properties": {"v": of(others.clone())}}));
            let rest = held.rest_of_call(&json!({"v": value}));
            assert_eq!(rest.is_empty(), is_allowed, "{others} {value}: {rest}");
        }
    }
    let twice = "<|tool_call>call:f{b:1,b:1}<tool_call|>";
    assert_eq!(Held::new(&[], &of(json!(true))).rest(twice), ":1}<tool_call|>");
    let optional = json!({"properties": {"no": false}, "additionalProperties": true});
    assert_eq!(Held::new(&[], &optional).rest_of_call(&json!({"x": 1})), "");
    assert_eq!(Held::new(&[], &optional).rest_of_call(&json!({"no": 1})), ":1}<tool_call|>");
    // A required key without a declaration is the only one that its schema declares.
    let required = json!({"required": ["a"], "additionalProperties": {"type": "integer"}});
    let held = Held::new(&[], &required);
    assert_eq!(held.rest_of_call(&json!({"a": 1, "x": 2})), "");
    assert_eq!(held.rest_of_call(&json!({"x": 2})), "x:2}<tool_call|>");
}

/// Schemas may refer to themselves and to each other endlessly, or to very many definitions.
#[test]
fn references_come_to_an_end() {
    let of = |a: Value, defs: Value| json!({"properties": {"a": a}, "$defs": defs});
    let refused =
        |a: Value, defs: Value| Held::new(&[], &of(a, defs)).constraint().unwrap_err().to_string();
    let reference = |name: &str| json!({"$ref": format!("#/$defs/{name}")});
    for defs in [
        json!({"x": reference("x")}),
        json!({"x": reference("y"), "y": reference("z"), "z": reference("x")}),
        json!({"x": {"anyOf": [reference("y")]}, "y": {"allOf": [reference("x")]}}),
    ] {
        let message = refused(reference("x"), defs);
        assert!(message.contains("which refers only to itself"), "{message}");
    }
    // An array of itself has values, and so does an alias of a definition in progress.
    let defs = json!({
        "x": {"type": "array", "items": reference("y")},
        "y": reference("x"),
    });
    let held = Held::new(&[], &of(reference("y"), defs));
    assert_eq!(held.rest_of_call(&json!({"a": [[], [[]]]})), "");
    assert_ne!(held.rest_of_call(&json!({"a": [1]})), "");

    // The paths form a tree of eight levels with thirty branches each.
    let all = vec![reference("x"); 30];
    let message = refused(reference("x"), json!({"x": {"allOf": all}}));
    assert!(message.contains("`allOf`"), "{message}");
    let chain = (0..20_000).map(|i| {
        let next = reference(&format!("d{}", i + 1));
        (format!("d{i}"), json!({"type": "object", "properties": {"p": next}}))
    });
    let message = refused(reference("d0"), chain.collect());
    assert!(message.contains("schemas are nested more than 128 levels deep"), "{message}");
    let many = (0..20_000).map(|i| (format!("d{i}"), json!({"type": "array"})));
    let any = (0..20_000).map(|i| reference(&format!("d{i}"))).collect::<Vec<_>>();
    let message = refused(json!({"anyOf": any}), many.collect());
    assert!(message.contains("more than 256 definitions"), "{message}");
    let never = vec![json!(false); 100_000];
    let message = refused(json!({"oneOf": never}), json!({}));
    assert!(message.contains("no value"), "{message}");
}

#[test]
fn functions_that_are_not_held_take_any_arguments() {
    for special in SPECIAL {
        let mut case = Case::new(Some(FORMAT), Calls::Allowed);
        case.tokenizer = tokenizer(special);
        let noop = |arguments: &Value| written(None, &[("noop", arguments)]);
        let any = json!({"any": [1, {"b": "}"}], "c d": null});
        for text in
            ["", "Just text. <|tool_cal", &noop(&json!({})), &format!("Well\n{}\nSo.", noop(&any))]
        {
            case.takes(text);
        }
        let weather = written(
            None,
            &[
                ("get_weather", &json!({"city": "Bern"})),
                ("get_weather", &json!({"city": "Basel", "days": 3})),
            ],
        );
        case.takes(&weather);
        assert_eq!(case.read(&weather).2.len(), 2);
        case.stops("<|tool_call> x", "<|tool_call>");
        case.stops("<|tool_call>call:g{}", "<|tool_call>call:g");
        case.stops(&weather.replace("Bern", "Rome"), "<|tool_call>call:get_weather{city:<|\"|>");
        case.parallel = false;
        case.takes(&format!("Well {}", noop(&any)));
        case.stops(&weather, &weather[..weather.rfind("<|tool_call>").unwrap()]);
    }
}

#[test]
fn calls_are_behind_the_reasoning() {
    let marks = DIALECT.marks();
    assert_eq!(marks, ["<|channel>", "<channel|>", "<|tool_call>", "<tool_call|>", "<|\"|>"]);
    for special in [&[][..], &marks[..]] {
        let mut case = Case::new(Some(FORMAT), Calls::Required);
        case.tokenizer = tokenizer(special);
        case.dialect = DIALECT;
        let calls = [("get_weather", &json!({"city": "Bern"})), ("noop", &json!({}))];
        let (call, thoughtful) = (written(None, &calls), written(Some("Hm, <b>.\n\nSo."), &calls));
        let check = |case: &Case, text: &str, reasoning: &str| {
            case.takes(text);
            let (content, thought, calls) = case.read(text);
            assert_eq!(
                (content.as_str(), thought.as_str(), calls.len()),
                ("", reasoning, 2),
                "{text}"
            );
        };
        check(&case, &call, "");
        check(&case, &thoughtful, "Hm, <b>.\n\nSo.");
        check(&case, &format!("<|channel>thought\n<channel|>{call}"), "");
        case.stops("<|channel>plan", "<|channel>");
        case.stops("Well", "");
        case.stops("<|channel>thought\na<channel|>b", "<|channel>thought\na<channel|>");
        case.thinking = Thinking::Open;
        check(&case, thoughtful.strip_prefix("<|channel>thought\n").unwrap(), "Hm, <b>.\n\nSo.");
        // The end mark is not part of the reasoning.
        let (taken, _) = case.take("a<|tool_call>call:x");
        assert!(taken.len() <= "a<|tool_call>call".len(), "{taken}");
        case.thinking = Thinking::Closed;
        check(&case, &call, "");
        case.stops(&thoughtful, if special.is_empty() { "<|" } else { "" });
        case.calls = Calls::Allowed;
        case.takes("Four.");
        check(&case, &call, "");
        case.thinking = Thinking::Possible;
        case.takes("thought");
        case.takes("<|channel>thought\na\n<channel|>Four.");
        check(&case, &thoughtful, "Hm, <b>.\n\nSo.");
        case.calls = Calls::None;
        case.text = Some(Constraint::Choice(vec!["yes".into()]));
        case.takes("<|channel>thought\na\n<channel|>yes");
        case.takes("yes");
        case.stops("no", "");
    }
}
