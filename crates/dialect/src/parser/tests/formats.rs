//! Calls and reasoning of models in texts from their publishers, vLLM or llama.cpp.

use super::*;

/// Content, reasoning and calls of a text, which must be the same character by character and with a cut at any position.
fn read_all(
    tools: ToolFormat,
    reasoning: ReasoningFormat,
    thinking: Thinking,
    text: &str,
) -> (String, String, Vec<String>) {
    let dialect = Dialect { tools: Some(tools), reasoning: Some(reasoning) };
    let parser = || OutputParser::new(dialect, thinking, functions(&["f", "get_weather"]));
    let whole = read(parser(), [text]);
    assert_eq!(read(parser(), text.split_inclusive(|_| true)), whole, "{text}");
    for (at, _) in text.char_indices() {
        assert_eq!(read(parser(), [&text[..at], &text[at..]]), whole, "{text} {at}");
    }
    whole
}

fn seen(content: &str, reasoning: &str, calls: &[&str]) -> (String, String, Vec<String>) {
    (content.into(), reasoning.into(), calls.iter().map(|call| call.to_string()).collect())
}

const WEATHER: &str = r#"get_weather {"city": "Paris"}."#;

/// Source: the published template of Seed-OSS, in llama.cpp `ByteDance-Seed-OSS.jinja`.
#[test]
fn seed_oss() {
    let call = "<seed:tool_call>\n<function=get_weather>\n<parameter=city>Paris</parameter>\n</function>\n</seed:tool_call>";
    let read = |text: &str| {
        read_all(ToolFormat::SeedOss, ReasoningFormat::SeedOss, Thinking::Possible, text)
    };
    assert_eq!(read(call), seen("", "", &[WEATHER]));
    let thought = format!("<seed:think>\nHm.\n</seed:think>\nI look.\n{call}\n{call}");
    assert_eq!(read(&thought), seen("I look.", "Hm.", &[WEATHER; 2]));
    let lines = call.replace("Paris", "a </parameter> b\nthat can span\nlines");
    let expected = r#"get_weather {"city": "a </parameter> b\nthat can span\nlines"}."#;
    assert_eq!(read(&lines), seen("", "", &[expected]));
}

/// Source: `CohereForAI-c4ai-command-r7b-12-2024-tool_use.jinja` of llama.cpp, which is the publisher's template.
#[test]
fn command_r() {
    let call = "<|START_ACTION|>[\n    {\"tool_call_id\": \"0\", \"tool_name\": \"get_weather\", \"parameters\": {\"city\": \"Paris\"}},\n    {\"tool_call_id\": \"1\", \"tool_name\": \"f\", \"parameters\": {}}\n]<|END_ACTION|>";
    let text = format!("<|START_THINKING|>I will look.<|END_THINKING|>{call}");
    let (tools, thoughts) = (ToolFormat::CohereCommand, ReasoningFormat::CohereCommand);
    let read = |text: &str| read_all(tools, thoughts, Thinking::Possible, text);
    assert_eq!(read(&text), seen("", "I will look.", &[WEATHER, "f {}."]));
    let open = format!("<|START_THINKING|>I will look.{call}");
    assert_eq!(read(&open), seen("", "I will look.", &[WEATHER, "f {}."]));
    assert_eq!(read("Four."), seen("Four.", "", &[]));
}

/// Source: the published template of Nemotron Nano v2, in llama.cpp `NVIDIA-Nemotron-Nano-v2.jinja`.
#[test]
fn nemotron_nano_v2() {
    let call = r#"<TOOLCALL>[{"name": "get_weather", "arguments": {"city": "Paris"}}, {"name": "f", "arguments": {}}]</TOOLCALL>"#;
    let read =
        |text: &str| read_all(ToolFormat::Nemotron, ReasoningFormat::Qwen3, Thinking::Open, text);
    let text = format!("Hm.\n</think>\n\n{call}\n");
    assert_eq!(read(&text), seen("", "Hm.", &[WEATHER, "f {}."]));
    let text = format!("Hm.\n</think>\n\nI look.\n\n{call} Done.");
    assert_eq!(read(&text), seen("I look.Done.", "Hm.", &[WEATHER, "f {}."]));
}

/// Source: vLLM's parser `granite`, and the system prompt of Granite 3.3, which asks for `<|tool_call|>` and a JSON array.
#[test]
fn granite_3() {
    let read = |text: &str| {
        read_all(ToolFormat::Granite, ReasoningFormat::Qwen3, Thinking::Possible, text)
    };
    let list = r#"[{"name": "get_weather", "arguments": {"city": "Paris"}}, {"name": "f", "arguments": {}}]"#;
    for text in [format!("<|tool_call|>{list}"), format!("<|tool_call|> {list}\n")] {
        assert_eq!(read(&text), seen("", "", &[WEATHER, "f {}."]));
    }
}

/// Granite 4 writes calls as Hermes does. Source: vLLM's parser `granite4`.
#[test]
fn granite_4() {
    let call = "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Paris\"}}\n</tool_call>";
    let read = read_all(ToolFormat::Hermes, ReasoningFormat::Qwen3, Thinking::Possible, call);
    assert_eq!(read, seen("", "", &[WEATHER]));
}

/// Sources: `llama-cpp-microsoft-Phi-4-mini-instruct.jinja` of llama.cpp, and vLLM's parser `phi4_mini_json`.
#[test]
fn phi_4_mini() {
    let read = |text: &str| {
        read_all(ToolFormat::Phi4Mini, ReasoningFormat::Qwen3, Thinking::Possible, text)
    };
    let object = r#"{"name": "get_weather", "arguments": {"city": "Paris"}}"#;
    for text in [
        format!("<|tool_call|>{object}<|/tool_call|>"),
        format!("<|tool_call|>[{object}]<|/tool_call|>"),
        format!("functools[{object}]"),
    ] {
        assert_eq!(read(&text), seen("", "", &[WEATHER]), "{text}");
        assert_eq!(read(&format!("I look.\n{text}")), seen("I look.", "", &[WEATHER]), "{text}");
    }
    assert_eq!(read("Use functools in Python."), seen("Use functools in Python.", "", &[]));
}

/// Sources: the model cards of LFM2 and LFM2.5, and `llama-cpp-lfm2.jinja` of llama.cpp.
#[test]
fn lfm2() {
    let read =
        |text: &str| read_all(ToolFormat::Lfm2, ReasoningFormat::Qwen3, Thinking::Possible, text);
    for call in [
        r#"<|tool_call_start|>[get_weather(city="Paris"), f()]<|tool_call_end|>"#,
        r#"<|tool_call_start|>[{"name": "get_weather", "arguments": {"city": "Paris"}}, {"name": "f", "arguments": {}}]<|tool_call_end|>"#,
    ] {
        let text = format!("<think>Hm.</think>{call}Checking.");
        assert_eq!(read(&text), seen("Checking.", "Hm.", &[WEATHER, "f {}."]), "{call}");
    }
}

/// Source: vLLM's parser `deepseek_v32`.
#[test]
fn deepseek_v32() {
    let read = |text: &str| {
        read_all(ToolFormat::DeepseekV32, ReasoningFormat::Qwen3, Thinking::Open, text)
    };
    let invoke = |arguments: &str| {
        format!("<｜DSML｜invoke name=\"get_weather\">\n{arguments}</｜DSML｜invoke>\n")
    };
    let city = "<｜DSML｜parameter name=\"city\" string=\"true\">7 </｜DSML｜parameter> x</｜DSML｜parameter>\n";
    let days = "<｜DSML｜parameter name=\"days\" string=\"false\">[3]</｜DSML｜parameter>\n";
    let calls = [invoke(&[city, days].concat()), invoke("")].concat();
    let text =
        format!("Hm.</think>So.\n\n<｜DSML｜function_calls>\n{calls}</｜DSML｜function_calls>");
    let expected = r#"get_weather {"city": "7 </｜DSML｜parameter> x", "days": [3]}."#;
    assert_eq!(read(&text), seen("So.", "Hm.", &[expected, "get_weather {}."]));
}

/// Source: the published template of DeepSeek V3.1, in llama.cpp `deepseek-ai-DeepSeek-V3.1.jinja`.
#[test]
fn deepseek_v31_thinks() {
    let text = "Hm.</think>So.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>{\"city\": \"Paris\"}<｜tool▁call▁end｜><｜tool▁calls▁end｜>";
    let read = read_all(ToolFormat::DeepseekV31, ReasoningFormat::Qwen3, Thinking::Open, text);
    assert_eq!(read, seen("So.", "Hm.", &[WEATHER]));
}

/// Source: `moonshotai-Kimi-K2-Thinking.jinja` of llama.cpp.
#[test]
fn kimi_k2_thinking() {
    let call = "<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0<|tool_call_argument_begin|>{\"city\": \"Paris\"}<|tool_call_end|><|tool_calls_section_end|>";
    for text in [format!("<think>Hm.</think>{call}"), format!("<think>Hm. {call}")] {
        let read = read_all(ToolFormat::KimiK2, ReasoningFormat::Qwen3, Thinking::Possible, &text);
        assert_eq!(read, seen("", "Hm.", &[WEATHER]));
    }
}

/// Source: `unsloth-MiniMax-M2.jinja` of llama.cpp.
#[test]
fn minimax_m2() {
    let text = "Hm.\n</think>\n\n<minimax:tool_call>\n<invoke name=\"get_weather\">\n<parameter name=\"city\">Paris</parameter>\n</invoke>\n<invoke name=\"f\">\n</invoke>\n</minimax:tool_call>";
    let read = read_all(ToolFormat::MinimaxM2, ReasoningFormat::Qwen3, Thinking::Open, text);
    assert_eq!(read, seen("", "Hm.", &[WEATHER, "f {}."]));
}

/// Ministral 3 writes calls like Mistral's tokenizers from version 13 on. Source: its published template.
#[test]
fn ministral_3() {
    let text =
        "[THINK]Hm.[/THINK][TOOL_CALLS]get_weather[ARGS]{\"city\": \"Paris\"}[TOOL_CALLS]f[ARGS]{}";
    let read = read_all(ToolFormat::Mistral, ReasoningFormat::Mistral, Thinking::Possible, text);
    assert_eq!(read, seen("", "Hm.", &[WEATHER, "f {}."]));
}

/// Sources: vLLM's parser `deepseek_v4`, and the model's file `encoding/encoding_dsv4.py`.
#[test]
fn deepseek_v4() {
    let read =
        |text: &str| read_all(ToolFormat::DeepseekV4, ReasoningFormat::Qwen3, Thinking::Open, text);
    let city = "<｜DSML｜parameter name=\"city\" string=\"true\">Paris</｜DSML｜parameter>\n";
    let invoke = format!("<｜DSML｜invoke name=\"get_weather\">\n{city}</｜DSML｜invoke>\n");
    let text =
        format!("Hm.</think>So.\n\n<｜DSML｜tool_calls>\n{invoke}{invoke}</｜DSML｜tool_calls>");
    assert_eq!(read(&text), seen("So.", "Hm.", &[WEATHER; 2]));
}

/// Sources: the published template of GLM-4-0414, and `function_call` of the publisher's examples.
#[test]
fn glm_4() {
    let read =
        |text: &str| read_all(ToolFormat::Glm4, ReasoningFormat::Qwen3, Thinking::Possible, text);
    let call = "get_weather\n{\"city\": \"Paris\"}";
    assert_eq!(read(call), seen("", "", &[WEATHER]));
    assert_eq!(read(&format!("\n{call}\n")), seen("", "", &[WEATHER]));
    for text in ["get_weather is a function.", "get_weather", "other\n{}", "It is\nwarm."] {
        assert_eq!(read(text), seen(text, "", &[]));
    }
}

/// Source: the publisher's parser for vLLM, `solar_open_tool_parser.py`.
#[test]
fn solar_open() {
    let read = |text: &str| {
        read_all(ToolFormat::SolarOpen, ReasoningFormat::Qwen3, Thinking::Possible, text)
    };
    let call = |name: &str, arguments: &str| {
        format!(
            "<|tool_call:begin|>a1b2c3d4e5<|tool_call:name|>{name}<|tool_call:args|>{arguments}<|tool_call:end|>"
        )
    };
    let calls = [call("get_weather", "{\"city\": \"Paris\"}"), call("f", "{}")].concat();
    let text = format!("I look.<|tool_calls|>{calls}<|calls|>");
    assert_eq!(read(&text), seen("I look.", "", &[WEATHER, "f {}."]));
}

/// Source: `Apertus-8B-Instruct.jinja` of llama.cpp, which is the publisher's template.
#[test]
fn apertus() {
    let read = |text: &str| {
        read_all(ToolFormat::Apertus, ReasoningFormat::Qwen3, Thinking::Possible, text)
    };
    let text =
        r#"I look.<|tools_prefix|>[{"get_weather": {"city": "Paris"}}, {"f": {}}]<|tools_suffix|>"#;
    assert_eq!(read(text), seen("I look.", "", &[WEATHER, "f {}."]));
}

/// Sources: vLLM's parsers `minimax` and `xlam`, and `unsloth-Apriel-1.5.jinja` of llama.cpp.
#[test]
fn lists_of_objects() {
    let read =
        |format, text: &str| read_all(format, ReasoningFormat::Qwen3, Thinking::Possible, text);
    let (one, two) = (
        r#"{"name": "get_weather", "arguments": {"city": "Paris"}}"#,
        r#"{"name": "f", "arguments": {}}"#,
    );
    let calls = &[WEATHER, "f {}."];
    let text = format!("I look.\n<tool_calls>\n{one}\n{two}\n</tool_calls>");
    assert_eq!(read(ToolFormat::MinimaxM1, &text), seen("I look.", "", calls));
    let text = format!("I look.\n<tool_calls>[{one}, {two}]</tool_calls>");
    assert_eq!(read(ToolFormat::Apriel, &text), seen("I look.", "", calls));
    assert_eq!(read(ToolFormat::Xlam, &format!("[{one}, {two}]")), seen("", "", calls));
    for text in [r#"[{"name": "x", "arguments": {}}]"#, "[1, 2]", "[x]", "An answer."] {
        assert_eq!(read(ToolFormat::Xlam, text), seen(text, "", &[]));
    }
}

/// Source: `meetkai-functionary-medium-v3.1.jinja` of llama.cpp.
#[test]
fn functionary() {
    let read = |text: &str| {
        read_all(ToolFormat::FunctionaryV31, ReasoningFormat::Qwen3, Thinking::Possible, text)
    };
    let text =
        r#"I look.<function=get_weather>{"city": "Paris"}</function><function=f>{}</function>"#;
    assert_eq!(read(text), seen("I look.", "", &[WEATHER, "f {}."]));
}

/// Sources: `meetkai-functionary-medium-v3.2.jinja` of llama.cpp, and its parser. The prompt ends with `>>>`.
#[test]
fn functionary_3_2() {
    let read = |text: &str| {
        read_all(ToolFormat::FunctionaryV32, ReasoningFormat::Qwen3, Thinking::Possible, text)
    };
    let call = "get_weather\n{\"city\": \"Paris\"}";
    assert_eq!(read(call), seen("", "", &[WEATHER]));
    assert_eq!(read(&format!("{call}>>>f\n{{}}")), seen("", "", &[WEATHER, "f {}."]));
    let text = format!("all\nI look: >>> 1 + 1\n>>>{call}>>>all\nDone.");
    assert_eq!(read(&text), seen("I look: >>> 1 + 1Done.", "", &[WEATHER]));
    for (text, content) in [
        ("all\nFour.", "Four."),
        ("all\n{\"a\": 1}", "{\"a\": 1}"),
        ("all\nall\nwent", "all\nwent"),
        ("all", "all"),
        ("get_weather is a function.", "get_weather is a function."),
    ] {
        assert_eq!(read(text), seen(content, "", &[]), "{text}");
    }
    // Without functions, the recipient is no content either.
    let dialect = Dialect { tools: Some(ToolFormat::FunctionaryV32), reasoning: None };
    let parser = || OutputParser::new(dialect, Thinking::Possible, None);
    assert_eq!(super::read(parser(), ["al", "l\nFo", "ur."]), seen("Four.", "", &[]));
}

/// Sources: the publisher's page "FunctionGemma formatting and best practices", and vLLM's parser `functiongemma`.
#[test]
fn function_gemma() {
    let read = |text: &str| {
        read_all(ToolFormat::FunctionGemma, ReasoningFormat::Qwen3, Thinking::Possible, text)
    };
    let call =
        "<start_function_call>call:get_weather{city:<escape>Paris<escape>}<end_function_call>";
    assert_eq!(read(call), seen("", "", &[WEATHER]));
    assert_eq!(read(&format!("I look.\n{call}{call}")), seen("I look.", "", &[WEATHER; 2]));
    let nested = "<start_function_call>call:f{at:[1.5,-2],b:true,note:<escape>{a:1},\n\"x\"<escape>,of:{k:null}}<end_function_call>";
    let expected = r#"f {"at": [1.5, -2], "b": true, "note": "{a:1},\n\"x\"", "of": {"k": null}}."#;
    assert_eq!(read(nested), seen("", "", &[expected]));
}

/// Sources: `Kimi-K3.jinja` and the parser of llama.cpp, and vLLM's parsers `kimi_k3`.
#[test]
fn kimi_k3() {
    let argument = |key: &str, kind: &str, value: &str| {
        format!(
            "<|open|>argument key=\"{key}\" type=\"{kind}\"<|sep|>{value}<|close|>argument<|sep|>"
        )
    };
    let call = |name: &str, index: usize, arguments: &str| {
        format!(
            "<|open|>call tool=\"{name}\" index=\"{index}\"<|sep|>{arguments}<|close|>call<|sep|>"
        )
    };
    let calls = [
        call("get_weather", 1, &argument("city", "string", "Paris")),
        call(
            "f",
            2,
            &[argument("n", "string", "7"), argument("of", "object", "{\"a\": [1]}")].concat(),
        ),
        call("f", 3, ""),
    ];
    let calls = format!("<|open|>tools<|sep|>{}<|close|>tools<|sep|>", calls.concat());
    let said = "<|close|>think<|sep|><|open|>response<|sep|>I look.<|close|>response<|sep|>";
    let end = "<|close|>message<|sep|>";
    let read = |thinking, text: &str| {
        read_all(ToolFormat::KimiK3, ReasoningFormat::KimiK3, thinking, text)
    };
    let expected = &[WEATHER, r#"f {"n": "7", "of": {"a": [1]}}."#, "f {}."];
    let text = format!("Hm.{said}{calls}{end}");
    assert_eq!(read(Thinking::Open, &text), seen("I look.", "Hm.", expected));
    let text = format!("<|open|>think<|sep|>{text}");
    assert_eq!(read(Thinking::Possible, &text), seen("I look.", "Hm.", expected));
    let text = format!("Hm.{said}{end}");
    assert_eq!(read(Thinking::Open, &text), seen("I look.", "Hm.", &[]));
    // The prompt has opened the content.
    let text = format!("Four <|open.<|close|>response<|sep|>{end}");
    assert_eq!(read(Thinking::Possible, &text), seen("Four <|open.", "", &[]));
}

/// Sources: the published template of Solar Open, and vLLM's parser `solar_open` of reasoning.
#[test]
fn solar_open_thinks() {
    let read = |text: &str| {
        read_all(ToolFormat::SolarOpen, ReasoningFormat::SolarOpen, Thinking::Possible, text)
    };
    let call = "<|tool_calls|><|tool_call:begin|>a1b2c3d4e5<|tool_call:name|>get_weather<|tool_call:args|>{\"city\": \"Paris\"}<|tool_call:end|><|calls|>";
    for (text, expected) in [
        ("<|think|>Hm.<|end|><|begin|>assistant<|content|>Four.", seen("Four.", "Hm.", &[])),
        ("<|think|>Hm.<|end|><|begin|>assistant<|content|>Four.<|end|>", seen("Four.", "Hm.", &[])),
        ("<|content|>Four, assistant.<|flush|>", seen("Four, assistant.", "", &[])),
        (&format!("<|think|>Hm.<|end|><|begin|>assistant{call}"), seen("", "Hm.", &[WEATHER])),
        (call, seen("", "", &[WEATHER])),
    ] {
        assert_eq!(read(text), expected, "{text}");
    }
}

/// Source: `Apertus-8B-Instruct.jinja` of llama.cpp, which is the publisher's template.
#[test]
fn apertus_thinks() {
    let call = r#"<|tools_prefix|>[{"get_weather": {"city": "Paris"}}]<|tools_suffix|>"#;
    for text in [
        format!("<|inner_prefix|>Hm.<|inner_suffix|>I look.{call}"),
        format!("<|inner_prefix|>Hm.{call}<|inner_suffix|>I look."),
    ] {
        let read =
            read_all(ToolFormat::Apertus, ReasoningFormat::Apertus, Thinking::Possible, &text);
        assert_eq!(read, seen("I look.", "Hm.", &[WEATHER]), "{text}");
    }
}
