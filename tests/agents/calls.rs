//! Tool calls of models that write random text, or that try to leave the schema at some byte. Python's `jsonschema`
//! accepts all.

use std::time::Instant;

use serde_json::{Map, Value, json};

use super::text;
use crate::support::{Form, Scripted, TempFolder, python, run_to_end};

/// Number of finished calls of each kind for each format. Without the variable there are few, and only of the first
/// formats.
const NUM_CALLS: &str = "CANDLEPOWER_TEST_CALLS";
/// The formats to test, as names with commas between them. Without the variable all are tested, or the first if there
/// are few calls.
const SELECTED: &str = "CANDLEPOWER_TEST_CALL_FORMATS";
const FEW: usize = 4;
const NUM_FORMATS_OF_FEW: usize = 5;

const FORMATS: [&str; 13] = [
    "hermes",
    "qwen3_coder",
    "glm45",
    "minimax_m2",
    "gemma4",
    "llama3_json",
    "mistral",
    "pythonic",
    "lfm2",
    "deepseek_v31",
    "kimi_k2",
    "seed_oss",
    "granite",
];

/// The template has tools, so that the prompt is longer than the question by the tool's name.
const TEMPLATE: &str = "{% for m in messages %}{{ m.content }}{% endfor %}{% for t in tools or [] %}{{ t.function.name }}{% endfor %}";

/// Markers that are special tokens of the models that write them.
const MARKS: [&str; 20] = [
    "<tool_call>",
    "</tool_call>",
    "<arg_key>",
    "</arg_key>",
    "<arg_value>",
    "</arg_value>",
    "<|tool_call>",
    "<tool_call|>",
    "<|\"|>",
    "<|python_tag|>",
    "[TOOL_CALLS]",
    "[ARGS]",
    "<|tool_call_start|>",
    "<|tool_call_end|>",
    "<｜tool▁calls▁begin｜>",
    "<｜tool▁calls▁end｜>",
    "<｜tool▁call▁begin｜>",
    "<｜tool▁call▁end｜>",
    "<｜tool▁sep｜>",
    "<minimax:tool_call>",
];
/// Pieces that end raw texts. Random bytes would never form them.
const ENDS: [&str; 6] = [
    "\n</parameter>\n<parameter=",
    "\n</parameter>\n</function>",
    "</parameter>\n<parameter name=\"",
    "</parameter>\n</invoke>",
    "</parameter>\n<parameter=",
    "</parameter>\n</function>",
];
/// Bytes that end values.
const CLOSERS: &str = "\"]})\n";

/// Schemas like those of real tools, and some that an implementation can easily enforce too loosely.
fn schemas() -> Vec<Value> {
    let of = |properties: Value, required: Value| json!({"type": "object", "properties": properties, "required": required, "additionalProperties": false});
    let tree = json!({"type": "object", "properties": {"v": {"type": "integer", "minimum": 0, "maximum": 9}, "kids": {"type": "array", "items": {"$ref": "#/$defs/tree"}, "maxItems": 1}}, "required": ["v"], "additionalProperties": false});
    let mut recursive = of(json!({"root": {"$ref": "#/$defs/tree"}}), json!(["root"]));
    recursive["$defs"] = json!({"tree": tree});
    vec![
        of(
            json!({"city": {"type": "string", "maxLength": 12}, "unit": {"enum": ["C", "F"]}}),
            json!(["city"]),
        ),
        of(
            json!({"a": {"enum": ["1", 1, true, "true", null, "null", [1], {"b": 2}]}, "b": {"const": "0"}}),
            json!(["a", "b"]),
        ),
        of(
            json!({"n": {"enum": [9_007_199_254_740_993_i64, -9_007_199_254_740_995_i64, 7]}, "m": {"type": "integer", "const": u64::MAX}}),
            json!(["n", "m"]),
        ),
        of(
            json!({"x": {"type": "number", "exclusiveMinimum": 0, "maximum": 0.5}, "y": {"type": "integer", "multipleOf": 7, "minimum": -50, "maximum": 50}}),
            json!(["x", "y"]),
        ),
        of(
            json!({"d": {"type": "string", "format": "date"}, "i": {"type": "string", "format": "ipv4"}}),
            json!(["d", "i"]),
        ),
        of(
            json!({"p": {"type": "string", "pattern": "^[A-Z]{2}-\\d{1,3}$"}, "q": {"type": ["string", "null"], "minLength": 2, "maxLength": 4}}),
            json!(["p", "q"]),
        ),
        of(
            json!({"u": {"anyOf": [{"type": "integer", "minimum": 3, "maximum": 5}, {"type": "string", "maxLength": 3}, {"type": "boolean"}]}}),
            json!(["u"]),
        ),
        of(
            json!({"e": {"oneOf": [
                {"type": "object", "properties": {"kind": {"const": "a"}, "n": {"type": "integer", "maximum": 3, "minimum": 0}}, "required": ["kind", "n"], "additionalProperties": false},
                {"type": "object", "properties": {"kind": {"const": "b"}, "s": {"type": "string", "maxLength": 2}}, "required": ["kind", "s"], "additionalProperties": false},
            ]}}),
            json!(["e"]),
        ),
        of(
            json!({"l": {"type": "array", "items": {"type": "string", "enum": ["x", "y\"", "z\n"]}, "minItems": 1, "maxItems": 3}, "o": {"type": "object", "additionalProperties": {"type": "integer", "minimum": 1, "maximum": 2}}}),
            json!(["l"]),
        ),
        of(
            json!({"long_name": {"type": "boolean"}, "b": {"type": "null"}, "z": {"type": "integer", "exclusiveMinimum": -3, "exclusiveMaximum": 3}}),
            json!(["z"]),
        ),
        recursive,
    ]
}

/// A finished call: its schema, its arguments, and the text that the model wrote.
struct Call {
    schema: Value,
    arguments: String,
    written: String,
}

#[test]
fn no_model_writes_an_invalid_call() {
    let wanted = std::env::var(NUM_CALLS).map(|count| count.parse().unwrap());
    let formats = if wanted.is_ok() { FORMATS.len() } else { NUM_FORMATS_OF_FEW };
    let wanted = wanted.unwrap_or(FEW);
    let selected = std::env::var(SELECTED).unwrap_or_else(|_| FORMATS[..formats].join(","));
    for format in selected.split(',') {
        assert!(FORMATS.contains(&format), "{SELECTED}: `{format}` is none of {FORMATS:?}");
        let began = Instant::now();
        let random = random_calls(format, wanted);
        let leaving = leaving_calls(format, wanted, &random);
        let mut lines = String::new();
        for (kind, calls) in [("random", &random), ("leaving", &leaving)] {
            eprintln!("{format}, {kind}: {} calls", calls.len());
            for Call { schema, arguments, written } in calls {
                let call = json!({"schema": schema, "arguments": arguments, "written": written});
                lines += &format!("{call}\n");
            }
        }
        let folder = TempFolder::new();
        run_to_end(python("clients/calls.py").arg(folder.write("calls.jsonl", lines)));
        eprintln!("{format}: none is invalid, {:.0} s", began.elapsed().as_secs_f64());
    }
}

/// A request that requires a call. With `bias` the model ends values sooner.
fn request(schema: &Value, bias: &Map<String, Value>, more: Value) -> Value {
    let tool = json!({"type": "function", "function": {"name": "f", "parameters": schema}});
    let mut body = json!({
        "tools": [tool], "tool_choice": "required", "parallel_tool_calls": false, "logit_bias": bias, "return_token_ids": true,
    });
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

/// The finished calls of an answer.
fn finished(model: &Scripted, schema: &Value, answer: &Value) -> Vec<Call> {
    let is_finished = |choice: &&Value| choice["finish_reason"] == "tool_calls";
    let call = |choice: &Value| {
        let tokens = json!({"tokens": choice["token_ids"]});
        let written = model.server.post("/detokenize", &tokens).ok();
        Call {
            schema: schema.clone(),
            arguments: text(&choice["message"]["tool_calls"][0]["function"], "arguments")
                .to_owned(),
            written: text(&written, "prompt").to_owned(),
        }
    };
    answer["choices"].as_array().unwrap().iter().filter(is_finished).map(call).collect()
}

/// Calls of a model that gives all tokens the same probability.
fn random_calls(format: &str, wanted: usize) -> Vec<Call> {
    let model =
        Scripted::indifferent(TEMPLATE, &MARKS, &ENDS, &format!("--tool-call-parser {format}"));
    let soon = |text: &&str| (model.token(text).to_string(), json!(6));
    let closers = CLOSERS.chars().map(|c| (model.token(&c.to_string()).to_string(), json!(4)));
    let bias: Map<String, Value> = MARKS.iter().chain(&ENDS).map(soon).chain(closers).collect();
    let schemas = schemas();
    let each = wanted.div_ceil(schemas.len());
    let mut calls = Vec::new();
    for schema in &schemas {
        let before = calls.len();
        for seed in 0.. {
            // Random calls need not end; 40 tries of many choices have always been enough.
            assert!(seed < 40, "{format}: {} of {each} calls end: {schema}", calls.len() - before);
            let more = json!({
                "messages": [{"role": "user", "content": "a"}], "n": (2 * each).clamp(4, 64), "seed": seed * 1000, "temperature": 1, "max_tokens": 160,
                // Twice as many choices as calls are wanted, since about half of them end in time.
            });
            let body = request(schema, &bias, more);
            let answer = model.server.post("/v1/chat/completions", &body).ok();
            calls.extend(finished(&model, schema, &answer));
            if calls.len() - before >= each {
                break;
            }
        }
    }
    calls
}

/// Calls of models that repeat other calls with one character changed, wherever the schema allows the change.
fn leaving_calls(format: &str, wanted: usize, others: &[Call]) -> Vec<Call> {
    const TEXTS_OF_MODEL: usize = 40;
    let mut random = fastrand::Rng::with_seed(format.len() as u64);
    let mut calls = Vec::new();
    for round in 0.. {
        assert!(round < 100, "{format}: {} of {wanted} calls end", calls.len());
        let meant = (0..TEXTS_OF_MODEL.min(2 * wanted)).map(|_| {
            let call = &others[random.usize(..others.len())];
            (call, changed(&call.written, &mut random))
        });
        let meant: Vec<(&Call, String)> = meant.collect();
        let texts: Vec<&str> = meant.iter().map(|(_, text)| text.as_str()).collect();
        let model =
            Scripted::start(TEMPLATE, &MARKS, &texts, &format!("--tool-call-parser {format}"));
        // At a position where the script must not go on, values end.
        let bias = |byte: u8| {
            let closes = CLOSERS.contains(char::from(byte)) && byte.is_ascii();
            // The first 256 tokens of a scripted vocabulary are the bytes.
            (byte.to_string(), json!(if closes { 100 } else { -100 }))
        };
        let bias: Map<String, Value> = (0..=255).map(bias).collect();
        for (index, (call, _)) in meant.iter().enumerate() {
            for form in [Form::Bytes, Form::OnePiece] {
                // The length of the prompt chooses the script, so the question has that many characters.
                let question = "a".repeat(model.start_of(index, form) - 1);
                let more = json!({"messages": [{"role": "user", "content": question}], "temperature": 0, "max_tokens": 300});
                let body = request(&call.schema, &bias, more);
                let answer = model.server.post("/v1/chat/completions", &body).ok();
                calls.extend(finished(&model, &call.schema, &answer));
                if calls.len() >= wanted {
                    return calls;
                }
            }
        }
    }
    calls
}

/// The text with one character inserted, removed or replaced.
fn changed(text: &str, random: &mut fastrand::Rng) -> String {
    // These are the characters at which JSON, numbers and the formats' marks begin, end or escape.
    const OTHERS: &str = "\"\\{}[]():,.-+e019aZ_ \n\t<>/|é\u{1}";
    let others: Vec<char> = OTHERS.chars().collect();
    let mut chars: Vec<char> = text.chars().collect();
    let (at, other) = (random.usize(..chars.len()), others[random.usize(..others.len())]);
    match random.u8(..4) {
        0 => chars.insert(at, other),
        1 => drop(chars.remove(at)),
        _ => chars[at] = other,
    }
    chars.into_iter().collect()
}
