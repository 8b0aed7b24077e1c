//! Texts that grammars of answers allow, with the vocabulary of a small tokenizer, and parsing of these texts.

use candlepower_grammar::{Grammar, GrammarCompiler};
use fastrand::Rng;
use serde_json::{Value, json};

use super::*;
use crate::{Callable, OutputEvent, OutputParser};

mod gemma4;
mod xml;

const EOS: u32 = 256;

/// A tokenizer with all bytes, an end-of-sequence token, and other special tokens.
fn tokenizer(special: &[&str]) -> Tokenizer {
    // GPT-2's table: bytes without a printable character get the code points from 256 on.
    let letters = (0..256_u32).scan(256, |next, byte| {
        // The letters for bytes in byte-level tokenizers.
        let prints = matches!(byte, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff);
        let code = if prints { byte } else { *next };
        *next += u32::from(!prints);
        Some((char::from_u32(code)?.to_string(), Value::from(byte)))
    });
    let byte_level = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false});
    let added = ["</s>"].iter().chain(special).enumerate().map(|(index, content)| {
        json!({"id": EOS + index as u32, "content": content, "special": true, "normalized": false,
               "single_word": false, "lstrip": false, "rstrip": false})
    });
    let tokenizer = json!({
        "version": "1.0", "truncation": null, "padding": null, "normalizer": null, "post_processor": null,
        "added_tokens": added.collect::<Vec<_>>(), "pre_tokenizer": byte_level, "decoder": byte_level,
        "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
                  "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false,
                  "vocab": letters.collect::<Map<_, _>>(), "merges": []},
    });
    Tokenizer::from_bytes(tokenizer.to_string().as_bytes(), None).unwrap()
}

fn schema() -> Map<String, Value> {
    let schema = json!({
        "type": "object",
        "properties": {"city": {"enum": ["Bern", "Basel"]}, "days": {"type": "integer", "minimum": 0, "maximum": 9}},
        "required": ["city"],
        "additionalProperties": false,
    });
    schema.as_object().unwrap().clone()
}

/// A model and a request.
struct Case {
    tokenizer: Tokenizer,
    dialect: Dialect,
    thinking: Thinking,
    calls: Calls,
    parallel: bool,
    strict: bool,
    has_others: bool,
    text: Option<Constraint>,
}

impl Case {
    fn new(tools: Option<ToolFormat>, calls: Calls) -> Self {
        let dialect = Dialect { tools, reasoning: None };
        let (thinking, text) = (Thinking::Possible, None);
        Self {
            tokenizer: tokenizer(&[]),
            dialect,
            thinking,
            calls,
            parallel: true,
            strict: true,
            has_others: false,
            text,
        }
    }

    fn constraint(&self) -> Result<Option<Constraint>> {
        let schema = schema();
        let functions = [
            Function { name: "get_weather", parameters: Some(&schema), strict: self.strict },
            Function { name: "noop", parameters: None, strict: false },
        ];
        let shape = AnswerShape {
            dialect: self.dialect,
            thinking: self.thinking,
            calls: self.calls,
            parallel: self.parallel,
            functions: &functions,
            has_others: self.has_others,
            text: self.text.as_ref(),
        };
        shape.constraint(&self.tokenizer)
    }

    fn grammar(&self) -> Grammar {
        let constraint = self.constraint().unwrap().unwrap();
        let compiler = GrammarCompiler::new(&self.tokenizer, &[EOS], 320).unwrap();
        compiler.compile(&constraint).unwrap_or_else(|error| panic!("{error}: {constraint:?}"))
    }

    /// The allowed part of a text, and whether it may end there. Special tokens in the text are encoded as such.
    fn take<'a>(&self, text: &'a str) -> (&'a str, bool) {
        let mut grammar = self.grammar();
        let ids = self.tokenizer.encode(text, candlepower_tokenizer::AddSpecialTokens::No).unwrap();
        let mut taken = 0;
        for id in ids {
            if grammar.is_finished() || !grammar.allowed().unwrap().allows(id) {
                return (&text[..taken], false);
            }
            grammar.accept(id).unwrap();
            taken += self.tokenizer.token_bytes(id).len();
        }
        (text, grammar.is_finished() || grammar.allowed().unwrap().allows(EOS))
    }

    fn takes(&self, text: &str) {
        assert_eq!(self.take(text), (text, true));
    }

    fn stops(&self, text: &str, at: &str) {
        let (taken, _) = self.take(text);
        assert_eq!(taken, at);
    }

    fn read(&self, text: &str) -> (String, String, Vec<(String, String)>) {
        let functions = [("get_weather", Some(schema())), ("noop", None)];
        let functions =
            functions.map(|(name, parameters)| Callable { name: name.to_owned(), parameters });
        let mut parser = OutputParser::new(self.dialect, self.thinking, Some(functions.into()));
        let (mut content, mut reasoning, mut calls) = (String::new(), String::new(), Vec::new());
        for event in parser.push(text).into_iter().chain(parser.finish()) {
            match event {
                OutputEvent::Content(text) => content.push_str(&text),
                OutputEvent::Reasoning(text) => reasoning.push_str(&text),
                OutputEvent::CallStart { name, .. } => calls.push((name, String::new())),
                OutputEvent::CallArguments { index, fragment } => {
                    calls[index].1.push_str(&fragment)
                }
                OutputEvent::CallEnd { .. } => {}
            }
        }
        (content, reasoning, calls)
    }
}

/// A text of tokens sampled from the allowed ones; `None` if it does not end.
fn sample(tokenizer: &Tokenizer, mut grammar: Grammar, random: &mut Rng) -> Option<String> {
    let mut ids = Vec::new();
    // 3,000 tokens are far more than a call needs. An answer that does not end by then is in text that only a mark can
    // end.
    for _ in 0..3000 {
        if grammar.is_finished() {
            break;
        }
        let mask = grammar.allowed().unwrap();
        let allowed = (0..320).filter(|id| mask.allows(*id)).collect::<Vec<_>>();
        let id = *random.choice(&allowed).unwrap();
        if id == EOS || (mask.allows(EOS) && random.usize(..3) == 0) {
            break;
        }
        grammar.accept(id).unwrap();
        ids.push(id);
    }
    let ended = ids.len() < 3000;
    let bytes = ids.iter().flat_map(|id| tokenizer.token_bytes(*id)).copied();
    ended.then(|| String::from_utf8(bytes.collect()).unwrap())
}

fn check_call((name, arguments): &(String, String)) {
    let arguments: Value = serde_json::from_str(arguments).unwrap();
    let arguments = arguments.as_object().unwrap();
    if name == "noop" {
        assert!(arguments.is_empty());
        return;
    }
    assert_eq!(name, "get_weather");
    assert!(matches!(arguments["city"].as_str(), Some("Bern" | "Basel")), "{arguments:?}");
    let days = arguments.get("days").map_or(Some(0), Value::as_u64);
    assert!(days.is_some_and(|days| days < 10) && arguments.len() <= 2, "{arguments:?}");
}

#[test]
fn required_calls_are_written_and_read_in_every_format() {
    for format in ToolFormat::ALL.iter().copied() {
        let mut case = Case::new(Some(format), Calls::Required);
        let marks = case.dialect.marks();
        for (special, parallel) in [(&[][..], true), (&marks[..], true), (&marks[..], false)] {
            case.tokenizer = tokenizer(special);
            case.parallel = parallel;
            let (grammar, mut random) = (case.grammar(), Rng::with_seed(format as u64));
            let mut most = 0;
            for _ in 0..24 {
                // Reasoning may go on without end, because only a token ends it.
                let Some(text) = sample(&case.tokenizer, grammar.clone(), &mut random) else {
                    assert_eq!(format, ToolFormat::GptOss);
                    continue;
                };
                let (content, _, calls) = case.read(&text);
                assert!(content.is_empty() && !calls.is_empty(), "{format:?}: {text}");
                calls.iter().for_each(check_call);
                most = most.max(calls.len());
            }
            let repeats =
                // These three layouts have `repeats: false`.
                !matches!(format, ToolFormat::Llama3Json | ToolFormat::Glm4 | ToolFormat::GptOss);
            assert_eq!(most > 1, parallel && repeats, "{format:?}");
        }
    }
}

#[test]
fn calls_are_held_to_their_schemas_in_free_text() {
    let good = r#"<tool_call>
{"name": "get_weather", "arguments": {"city": "Bern"}}
</tool_call>"#;
    let noop = "<tool_call>\n{\"name\": \"noop\", \"arguments\": {\"any\": [1]}}\n</tool_call>";
    for special in [&[][..], &["<tool_call>", "</tool_call>"]] {
        let mut case = Case::new(Some(ToolFormat::Hermes), Calls::Allowed);
        case.tokenizer = tokenizer(special);
        for text in [
            "",
            "Just text. <tool_cal",
            good,
            // `noop` is not strict, so any object is allowed, although it takes no arguments.
            &format!("Well\n{good}\n{noop} So."),
            "{\"name\": 1}",
        ] {
            case.takes(text);
        }
        case.stops("<tool_call> x", "<tool_call>");
        case.stops(&good.replace("Bern", "Rome"), &good[..good.find("ern").unwrap() - 1]);
        case.stops(&good.replace("get_w", "get_p"), &good[..good.find("weather").unwrap()]);
        case.parallel = false;
        case.takes(&format!("Well\n{good}"));
        case.stops(&format!("{good}\n{noop}"), good);
    }
    let llama = "{\"name\": \"get_weather\", \"parameters\": {\"city\": \"Bern\"}}";
    let case = Case::new(Some(ToolFormat::Llama3Json), Calls::Allowed);
    for text in ["", "Say {\"name\"", llama] {
        case.takes(text);
    }
    case.stops("{\"note\": 1}", "{\"n");
    let case = Case::new(Some(ToolFormat::Pythonic), Calls::Allowed);
    for text in [
        "",
        "Say [get",
        "[get_weather(city=\"Bern\", days=3), get_weather(city=\"Basel\"), noop()]",
    ] {
        case.takes(text);
    }
    case.stops("[get_weather(days=3)]", "[get_weather(");
    let case = Case::new(Some(ToolFormat::Glm4), Calls::Allowed);
    for text in [
        "",
        "get_weather is a function.",
        "Say get_weather\n{",
        "get_weather\n{\"city\": \"Bern\"}",
    ] {
        case.takes(text);
    }
    case.stops("get_weather\n{\"town\": 1}", "get_weather\n{\"");
}

#[test]
fn undeclared_keyword_arguments_are_allowed_where_the_schema_says_so() {
    let of = |others: Value| {
        json!({
            "properties": {"a": {"type": "integer"}, "b": {"type": "string"}},
            "required": ["a"],
            "additionalProperties": others,
        })
    };
    let alone = |others: Value| json!({"type": "object", "additionalProperties": others});
    for (schema, arguments, is_allowed) in [
        (of(json!(true)), "a=1, x=\"text\", bb=[2]", true),
        (of(json!(true)), "a=1, b=\"text\", aa=2", true),
        (of(json!(true)), "a=1", true),
        (of(json!({"type": "integer"})), "a=1, x=2", true),
        (of(json!({"type": "integer"})), "a=1, x=\"text\"", false),
        (of(json!(true)), "x=1", false),
        (of(json!(true)), "a=1, a=2", false),
        (of(json!(false)), "a=1, x=2", false),
        (alone(json!(true)), "x=1, y=2", true),
        (alone(json!(true)), "", true),
        (alone(json!(false)), "x=1", false),
    ] {
        let functions = [Function { name: "f", parameters: schema.as_object(), strict: true }];
        let shape = AnswerShape {
            dialect: Dialect { tools: Some(ToolFormat::Pythonic), reasoning: None },
            thinking: Thinking::Possible,
            calls: Calls::Required,
            parallel: true,
            functions: &functions,
            has_others: false,
            text: None,
        };
        let tokenizer = tokenizer(&[]);
        let constraint = shape.constraint(&tokenizer).unwrap().unwrap();
        let compiler = GrammarCompiler::new(&tokenizer, &[EOS], 320).unwrap();
        let mut grammar = compiler.compile(&constraint).unwrap();
        let text = format!("[f({arguments})]");
        let ids = tokenizer.encode(&text, candlepower_tokenizer::AddSpecialTokens::No).unwrap();
        let is_taken = ids
            .into_iter()
            .all(|id| grammar.allowed().unwrap().allows(id) && grammar.accept(id).is_ok());
        assert_eq!(is_taken, is_allowed, "{schema} {text}");
    }
}

#[test]
fn without_a_strict_function_free_text_needs_no_grammar() {
    let mut case = Case::new(Some(ToolFormat::Hermes), Calls::Allowed);
    case.strict = false;
    assert_eq!(case.constraint(), Ok(None));
    case.parallel = false;
    assert!(case.constraint().unwrap().is_some());
    let mut plain = Case::new(None, Calls::None);
    assert_eq!(plain.constraint(), Ok(None));
    plain.text = Some(Constraint::Regex("a".into()));
    assert_eq!(plain.constraint(), Ok(plain.text.clone()));
    assert_eq!(Case::new(None, Calls::Required).constraint(), Err(Error::NoToolFormat));
}

#[test]
fn a_text_of_a_certain_form_may_be_instead_of_calls() {
    let mut case = Case::new(Some(ToolFormat::Hermes), Calls::Allowed);
    case.text = Some(Constraint::JsonSchema(json!({"type": "boolean"})));
    case.takes("true");
    case.takes("<tool_call>\n{\"name\": \"noop\", \"arguments\": {}}\n</tool_call>");
    case.stops("Well", "");
}

#[test]
fn constraints_begin_behind_the_reasoning() {
    let call = "<tool_call>\n{\"name\": \"noop\", \"arguments\": {}}\n</tool_call>";
    for special in [&[][..], &["<think>", "</think>", "<tool_call>"]] {
        let mut case = Case::new(Some(ToolFormat::Hermes), Calls::None);
        case.tokenizer = tokenizer(special);
        case.dialect.reasoning = Some(ReasoningFormat::Qwen3);
        case.text = Some(Constraint::Choice(vec!["yes".into(), "no".into()]));
        case.takes("<think>\nHm <b\n</think>\n\nyes");
        case.takes("no");
        case.stops("<think>a</think>maybe", "<think>a</think>");
        case.thinking = Thinking::Open;
        case.takes("Hm</think>yes");
        assert_eq!(case.take("yes"), ("yes", false));
        case.thinking = Thinking::Closed;
        case.takes("yes");
        case.stops("<think>", "");

        case.text = None;
        case.calls = Calls::Required;
        case.thinking = Thinking::Possible;
        case.takes(&format!("<think>Hm</think>\n{call}"));
        case.takes(&format!("\n<think>Hm</think>\n{call}"));
        case.takes(call);
        case.calls = Calls::Allowed;
        for text in [
            "Hm",
            &format!("<think>a\n</think>\n\nWell {call}"),
            &format!("\n<think>a</think>\nWell\n{call}"),
            &format!("Well {call} and {call}"),
            "<thin>",
            "",
        ] {
            case.takes(text);
            assert_eq!(case.read(text).2.len(), text.matches("noop").count(), "{text}");
        }
        case.stops("<tool_call>x", "<tool_call>");
        case.stops("<think>a</think><tool_call>x", "<think>a</think><tool_call>");
        if special.is_empty() {
            // The parser ends reasoning at `<tool_call>` only before a brace or a bracket, so this mark alone is a
            // thought's text.
            case.takes("<think>a <tool_call>x</think>b");
        }
    }
}

#[test]
fn a_text_may_begin_with_a_letter_of_a_mark() {
    let mut case = Case::new(Some(ToolFormat::Mistral), Calls::Allowed);
    case.dialect.reasoning = Some(ReasoningFormat::Mistral);
    for text in ["There.", "[THIN", "[THINK]Hm[/THINK]There."] {
        case.takes(text);
    }
}

/// Texts around content may be missing, and a constraint applies to the content alone.
#[test]
fn texts_around_content_are_allowed() {
    let yes = Some(Constraint::Choice(vec!["yes".into()]));
    let solar = "<|think|>Hm<|end|>";
    let kimi = "<|open|>think<|sep|>Hm<|close|>think<|sep|>";
    for (tools, reasoning, thought, before, after) in [
        (
            ToolFormat::SolarOpen,
            Some(ReasoningFormat::SolarOpen),
            solar,
            "<|begin|>assistant<|content|>",
            "",
        ),
        (ToolFormat::SolarOpen, Some(ReasoningFormat::SolarOpen), "", "<|content|>", "<|end|>"),
        (
            ToolFormat::KimiK3,
            Some(ReasoningFormat::KimiK3),
            kimi,
            "<|open|>response<|sep|>",
            "<|close|>response<|sep|>",
        ),
        (
            ToolFormat::KimiK3,
            Some(ReasoningFormat::KimiK3),
            "",
            "",
            "<|close|>response<|sep|><|close|>message<|sep|>",
        ),
        (ToolFormat::FunctionaryV32, None, "", "all\n", ""),
    ] {
        let mut case = Case::new(Some(tools), Calls::None);
        case.dialect.reasoning = reasoning;
        let marks = case.dialect.marks();
        for special in [&[][..], &marks] {
            case.tokenizer = tokenizer(special);
            case.text = yes.clone();
            case.calls = Calls::None;
            let text = format!("{thought}{before}yes{after}");
            case.takes(&text);
            assert_eq!(case.read(&text).0, "yes", "{text}");
            case.stops(&format!("{thought}{before}no"), &format!("{thought}{before}"));
            // Free text beside calls that are constrained.
            (case.text, case.calls) = (None, Calls::Allowed);
            let text = format!("{thought}{before}Four.{after}");
            case.takes(&text);
            assert_eq!(case.read(&text).0, "Four.", "{text}");
        }
    }
}

#[test]
fn calls_follow_texts_around_content() {
    let weather = r#"{"city": "Bern"}"#;
    let kimi = "<|open|>tools<|sep|><|open|>call tool=\"get_weather\" index=\"1\"<|sep|><|open|>argument key=\"city\" type=\"string\"<|sep|>Bern<|close|>argument<|sep|><|close|>call<|sep|><|close|>tools<|sep|>";
    let solar = format!(
        "<|tool_calls|><|tool_call:begin|>0000000000<|tool_call:name|>get_weather<|tool_call:args|>{weather}<|tool_call:end|>"
    );
    let functionary = format!("get_weather\n{weather}");
    for (format, before, call, content) in [
        (ToolFormat::KimiK3, "<|open|>response<|sep|><|close|>response<|sep|>", kimi, ""),
        (
            ToolFormat::KimiK3,
            "<|open|>response<|sep|>I look.<|close|>response<|sep|>",
            kimi,
            "I look.",
        ),
        (ToolFormat::SolarOpen, "<|begin|>assistant", &solar, ""),
        (ToolFormat::SolarOpen, "<|content|>I look.<|end|><|begin|>assistant", &solar, "I look."),
        (ToolFormat::FunctionaryV32, "", &functionary, ""),
        (ToolFormat::FunctionaryV32, "all\nI look.>>>", &functionary, "I look."),
    ] {
        for calls in [Calls::Allowed, Calls::Required] {
            let mut case = Case::new(Some(format), calls);
            let marks = case.dialect.marks();
            for special in [&[][..], &marks] {
                // Required calls follow no content. Solar's next message is not part of the content's grammar.
                let is_apart = !content.is_empty()
                    && (calls == Calls::Required
                        || format == ToolFormat::SolarOpen && !special.is_empty());
                if is_apart {
                    continue;
                }
                case.tokenizer = tokenizer(special);
                let text = format!("{before}{call}");
                case.takes(&text);
                let (said, _, found) = case.read(&text);
                assert_eq!((said.as_str(), found.len()), (content, 1), "{text}");
                check_call(&found[0]);
                case.stops(&text.replace("Bern", "Rome"), &text[..text.find("ern").unwrap() - 1]);
            }
        }
    }
}

#[test]
fn harmony_has_its_own_messages() {
    let marks = Dialect { tools: Some(ToolFormat::GptOss), reasoning: None }.marks();
    let mut case = Case::new(Some(ToolFormat::GptOss), Calls::Allowed);
    case.tokenizer = tokenizer(&marks);
    let thought = "<|channel|>analysis<|message|>Hm<|end|><|start|>assistant";
    let call = "<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>{\"city\": \"Bern\"}";
    case.takes(&format!("{thought}{call}"));
    case.takes("<|channel|>final<|message|>Four.");
    case.stops(&call.replace("Bern", "Rome"), &call[..call.find("ern").unwrap() - 1]);
    case.text = Some(Constraint::Choice(vec!["yes".into()]));
    case.calls = Calls::None;
    case.takes(&format!("{thought}<|channel|>final<|message|>yes"));
    case.stops("yes", "");
    // Behind reasoning that was closed, no other reasoning begins.
    case.thinking = Thinking::Closed;
    case.stops(thought, "<|channel|>");
    case.takes("<|channel|>final<|message|>yes");
    (case.text, case.calls) = (None, Calls::Required);
    case.stops(thought, "<|channel|>");
    case.takes(call);
}

#[test]
fn other_functions_that_the_model_knows_of_are_not_called() {
    let mut case = Case::new(Some(ToolFormat::Hermes), Calls::Allowed);
    case.strict = false;
    assert_eq!(case.constraint(), Ok(None));
    case.has_others = true;
    case.takes("Just text.");
    case.takes(
        "Well\n<tool_call>\n{\"name\": \"noop\", \"arguments\": {\"any\": 1}}\n</tool_call>",
    );
    let head = "<tool_call>\n{\"name\": \"";
    case.stops(&format!("{head}other\""), head);
}

#[test]
fn what_python_cannot_hold_is_refused() {
    let refused = |schema: Value| {
        let functions = [Function { name: "f", parameters: schema.as_object(), strict: true }];
        let dialect = Dialect { tools: Some(ToolFormat::Pythonic), reasoning: None };
        let shape = AnswerShape {
            dialect,
            thinking: Thinking::Possible,
            calls: Calls::Required,
            parallel: true,
            functions: &functions,
            has_others: false,
            text: None,
        };
        shape.constraint(&tokenizer(&[])).unwrap_err().to_string()
    };
    assert!(refused(json!({"oneOf": []})).contains("oneOf"));
    assert!(refused(json!({"properties": {"a-b": {}}})).contains("a-b"));
}
