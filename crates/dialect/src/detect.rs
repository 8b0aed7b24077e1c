//! Detects the dialect of a model from the way in which its chat template renders a tool call and reasoning.

use candlepower_tokenizer::{ChatTemplate, PromptEnd};
use serde_json::{Value, json};

use crate::format::{ReasoningFormat, ToolFormat};
use crate::parser::Dialect;
use crate::past_calls::{PastCalls, render_call};
use crate::probe::{ANSWER, FUNCTION, QUESTION, THOUGHT, render, render_question};
use crate::written_call::WrittenCall;

impl Dialect {
    /// The dialect of a template.
    pub fn detect(template: &ChatTemplate) -> Self {
        Self { tools: tool_format(template), reasoning: reasoning_format(template) }
    }
}

/// Whether the template writes tools into the prompt.
pub fn writes_tools(template: &ChatTemplate) -> bool {
    render_question(template).is_some_and(|prompt| prompt.contains(FUNCTION))
}

fn tool_format(template: &ChatTemplate) -> Option<ToolFormat> {
    let asked = render_question(template)?;
    // Templates differ in the form of earlier calls that they accept. They fail or drop the call in other forms, so
    // each form is tried.
    let written = PastCalls::ALL.into_iter().find_map(|form| {
        let rendered = render_call(template, form)?;
        format_of(&WrittenCall::find(&asked, &rendered)?)
    });
    // Some templates write tools but no tool calls.
    let mut formats = ToolFormat::ALL.iter().copied();
    let is_offered =
        |format: &ToolFormat| format.format().offered.iter().any(|offered| asked.contains(offered));
    written.or_else(|| formats.find(is_offered))
}

/// The format of a call. Formats without a mark, whose call is the whole answer, are tried last.
fn format_of(call: &WrittenCall<'_>) -> Option<ToolFormat> {
    let (bare, marked): (Vec<ToolFormat>, Vec<ToolFormat>) =
        ToolFormat::ALL.iter().partition(|format| format.format().opens_at_start());
    // A bare object also occurs within the marks of other formats, so bare formats must not be asked first.
    marked.into_iter().chain(bare).find(|format| (format.format().wrote)(call))
}

fn reasoning_format(template: &ChatTemplate) -> Option<ReasoningFormat> {
    let question = json!({"role": "user", "content": QUESTION});
    let turn = |messages: &Value, end| {
        let rendered = render(template, messages, None, end)?;
        let at = rendered.find(QUESTION)? + QUESTION.len();
        Some(rendered[at..].to_owned())
    };
    // The prompt itself opens or closes the reasoning.
    // Each conversation is rendered apart, because a template may fail on one of them. A failure only means that this
    // sign is missing.
    let opening = turn(&json!([question]), PromptEnd::GenerationPrompt).unwrap_or_default();
    // The template writes separate reasoning of the conversation between marks.
    let apart = json!([question, {"role": "assistant", "reasoning_content": THOUGHT, "reasoning": THOUGHT, "content": ANSWER}]);
    let apart = turn(&apart, PromptEnd::LastMessage).unwrap_or_default();
    let parts =
        json!([{"type": "thinking", "thinking": THOUGHT}, {"type": "text", "text": ANSWER}]);
    let parts =
        turn(&json!([question, {"role": "assistant", "content": parts}]), PromptEnd::LastMessage);
    let parts = parts.unwrap_or_default();
    // Apertus has blocks in place of parts.
    let blocks = json!({"blocks": [{"type": "thoughts", "text": THOUGHT}, {"type": "response", "text": ANSWER}]});
    let blocks = json!([question, {"role": "assistant", "content": blocks}]);
    let blocks = turn(&blocks, PromptEnd::LastMessage).unwrap_or_default();
    // Some templates write reasoning before tool calls only.
    // The id has nine letters and digits, because Mistral's templates refuse others.
    let call = json!({"id": "abcdefgh1", "type": "function", "function": {"name": FUNCTION, "arguments": {}}});
    let called = json!([question, {"role": "assistant", "reasoning_content": THOUGHT, "reasoning": THOUGHT, "content": "", "tool_calls": [call]}]);
    let called = turn(&called, PromptEnd::LastMessage).unwrap_or_default();
    let before_thought =
        // Templates differ in the white space between the mark and the reasoning.
        |text: &str| text.split_once(THOUGHT).map(|(before, _)| before.trim_end().to_owned());
    let opens = |mark: &str, title: &str| {
        [&apart, &parts, &blocks, &called]
            .into_iter()
            .filter_map(|text| before_thought(text))
            .any(|before| before.strip_suffix(title).is_some_and(|before| before.ends_with(mark)))
    };
    // The template removes reasoning from an earlier answer.
    let taken = |(open, close): (&str, &str)| {
        let answer = format!("{open}\n{THOUGHT}\n{close}\n\n{ANSWER}");
        let messages = json!([question, {"role": "assistant", "content": answer}, {"role": "user", "content": "More."}]);
        let rendered = turn(&messages, PromptEnd::LastMessage).unwrap_or_default();
        rendered.contains(ANSWER) && !rendered.contains(THOUGHT)
    };
    // Harmony has no pair of marks, so the search below could not find it.
    if opens("<|channel|>analysis<|message|>", "") {
        return Some(ReasoningFormat::GptOss);
    }
    let mut formats = ReasoningFormat::ALL.iter().copied();
    formats.find(|format| {
        // `<think>` belongs to `DeepseekR1` and to `Qwen3`. Only the latter may be found, so that an answer without
        // reasoning stays content.
        let is_optional = !format.format().is_always_there;
        is_optional
            && format.marks().is_some_and(|(open, close)| {
                let marks =
                    if format.format().is_close_common { &[open][..] } else { &[open, close] };
                let written = marks.iter().any(|mark| opening.contains(mark));
                written || opens(open, format.title()) || taken((open, close))
            })
    })
}

#[cfg(test)]
mod tests {
    use candlepower_tokenizer::TemplateSources;

    use super::*;

    fn detect(source: &str) -> Dialect {
        let sources = TemplateSources { chosen: Some(source), ..TemplateSources::default() };
        Dialect::detect(&ChatTemplate::from_sources(&sources).unwrap().unwrap())
    }

    /// A template that writes assistant messages between `[A]` and `[/A]`, and each call as `call`.
    fn calling(call: &str) -> String {
        format!(
            "{{% if tools %}}{{{{ tools | tojson }}}}{{% endif %}}{{% for m in messages %}}{{% if m.role == 'assistant' %}}<A>\n\
             {{% for c in m.tool_calls %}}{{% set f = c.function %}}{call}{{% endfor %}}{{{{ m.content }}}}</A>\
             {{% else %}}<U>{{{{ m.content }}}}</U>{{% endif %}}{{% endfor %}}{{% if add_generation_prompt %}}<A>\n{{% endif %}}"
        )
    }

    #[test]
    fn calls_are_recognized_by_what_is_written() {
        for (call, format) in [
            (
                r#"<tool_call>{"name": "{{ f.name }}", "arguments": {{ f.arguments | tojson }}}</tool_call>"#,
                Some(ToolFormat::Hermes),
            ),
            (r#"<tool_call>{{ f | tojson }}</tool_call>"#, Some(ToolFormat::Hermes)),
            (
                r#"{"name": "{{ f.name }}", "parameters": {{ f.arguments | tojson }}}"#,
                Some(ToolFormat::Llama3Json),
            ),
            (
                r#"[TOOL_CALLS]{{ f.name }}[ARGS]{{ f.arguments | tojson }}"#,
                Some(ToolFormat::Mistral),
            ),
            (
                r#"[TOOL_CALLS] [{"name": "{{ f.name }}", "arguments": {{ f.arguments | tojson }}}]"#,
                Some(ToolFormat::MistralList),
            ),
            (
                r#"[{{ f.name }}({% for k, v in f.arguments.items() %}{{ k }}='{{ v }}'{% endfor %})]"#,
                Some(ToolFormat::Pythonic),
            ),
            (
                "<|tool_call_start|>[{{ f.name }}({% for k, v in f.arguments.items() %}{{ k }}='{{ v }}'{% endfor %})]<|tool_call_end|>",
                Some(ToolFormat::Lfm2),
            ),
            (
                "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>{{ f.name }}",
                Some(ToolFormat::DeepseekV3),
            ),
            (
                "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>{{ f.name }}<｜tool▁sep｜>",
                Some(ToolFormat::DeepseekV31),
            ),
            (
                "<|channel|>commentary to=functions.{{ f.name }}<|message|>{}",
                Some(ToolFormat::GptOss),
            ),
            (
                "<|tool_call>call:{{ f.name }}{{ '{' }}{% for k, v in f.arguments | dictsort %}{{ k }}:<|\"|>{{ v }}<|\"|>{% endfor %}}\
                 <tool_call|>",
                Some(ToolFormat::Gemma4),
            ),
            (
                "<|tool_calls_section_begin|><|tool_call_begin|>{{ c.id }}<|tool_call_argument_begin|>{{ f.arguments | tojson }}<|tool_call_end|>",
                Some(ToolFormat::KimiK2),
            ),
            ("<|tool_call>call:{{ f.name }}({{ f.arguments | tojson }})<tool_call|>", None),
            (r#"Say {"name": "{{ f.name }}", "parameters": {}}"#, None),
            (r#"{"name": "{{ f.name }}", "arguments": {}}"#, None),
            (
                "<tool_call>\n<function={{ f.name }}>\n{% for k, v in f.arguments.items() %}<parameter={{ k }}>\n{{ v }}\n</parameter>\n\
                 {% endfor %}</function>\n</tool_call>",
                Some(ToolFormat::Qwen3Coder),
            ),
            (
                "<tool_call>{{ f.name }}\n{% for k, v in f.arguments.items() %}<arg_key>{{ k }}</arg_key>\n\
                 <arg_value>{{ v }}</arg_value>\n{% endfor %}</tool_call>",
                Some(ToolFormat::Glm45),
            ),
            (
                "<tool_call>{{ f.name }}{% for k, v in f.arguments.items() %}<arg_key>{{ k }}</arg_key>\
                 <arg_value>{{ v }}</arg_value>{% endfor %}</tool_call>",
                Some(ToolFormat::Glm45),
            ),
            (
                "<minimax:tool_call>\n<invoke name=\"{{ f.name }}\">\n{% for k, v in f.arguments.items() %}\
                 <parameter name=\"{{ k }}\">{{ v }}</parameter>\n{% endfor %}</invoke>\n</minimax:tool_call>",
                Some(ToolFormat::MinimaxM2),
            ),
            (
                "<seed:tool_call>\n<function={{ f.name }}>\n{% for k, v in f.arguments.items() %}<parameter={{ k }}>{{ v }}</parameter>\n\
                 {% endfor %}</function>\n</seed:tool_call>",
                Some(ToolFormat::SeedOss),
            ),
            (
                r#"<|START_ACTION|>[{"tool_call_id": "0", "tool_name": "{{ f.name }}", "parameters": {{ f.arguments | tojson }}}]<|END_ACTION|>"#,
                Some(ToolFormat::CohereCommand),
            ),
            (
                r#"<TOOLCALL>[{"name": "{{ f.name }}", "arguments": {{ f.arguments | tojson }}}]</TOOLCALL>"#,
                Some(ToolFormat::Nemotron),
            ),
            (
                r#"<|tool_call|>[{"name": "{{ f.name }}", "arguments": {{ f.arguments | tojson }}}]"#,
                Some(ToolFormat::Granite),
            ),
            ("<|tool_call|>{{ f | tojson }}<|/tool_call|>", Some(ToolFormat::Phi4Mini)),
            (
                r#"<|tool_call_start|>[{"name": "{{ f.name }}", "arguments": {{ f.arguments | tojson }}}]<|tool_call_end|>"#,
                Some(ToolFormat::Lfm2),
            ),
            (
                r#"<tool_calls>[{"name": "{{ f.name }}", "arguments": {{ f.arguments | tojson }}}]</tool_calls>"#,
                Some(ToolFormat::Apriel),
            ),
            (
                "<tool_calls>\n{\"name\": \"{{ f.name }}\", \"arguments\": {{ f.arguments | tojson }}}\n</tool_calls>",
                Some(ToolFormat::MinimaxM1),
            ),
            (
                r#"[{"name": "{{ f.name }}", "arguments": {{ f.arguments | tojson }}}]"#,
                Some(ToolFormat::Xlam),
            ),
            (
                r#"<|tools_prefix|>[{"{{ f.name }}": {{ f.arguments | tojson }}}]<|tools_suffix|>"#,
                Some(ToolFormat::Apertus),
            ),
            (
                "<|tool_calls|><|tool_call:begin|>{{ c.id }}<|tool_call:name|>{{ f.name }}<|tool_call:args|>{{ f.arguments | tojson }}<|tool_call:end|>",
                Some(ToolFormat::SolarOpen),
            ),
            (
                "<function={{ f.name }}>{{ f.arguments | tojson }}</function>",
                Some(ToolFormat::FunctionaryV31),
            ),
            (">>>{{ f.name }}\n{{ f.arguments | tojson }}", Some(ToolFormat::FunctionaryV32)),
            (
                "<start_function_call>call:{{ f.name }}{{ '{' }}{% for k, v in f.arguments | dictsort %}{{ k }}:<escape>{{ v }}<escape>{% endfor %}}\
                 <end_function_call>",
                Some(ToolFormat::FunctionGemma),
            ),
            (
                "<|open|>tools<|sep|><|open|>call tool=\"{{ f.name }}\" index=\"1\"<|sep|>{% for k, v in f.arguments.items() %}\
                 <|open|>argument key=\"{{ k }}\" type=\"string\"<|sep|>{{ v }}<|close|>argument<|sep|>{% endfor %}<|close|>call<|sep|>",
                Some(ToolFormat::KimiK3),
            ),
            (
                "<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"{{ f.name }}\">\n{% for k, v in f.arguments.items() %}\
                 <｜DSML｜parameter name=\"{{ k }}\" string=\"true\">{{ v }}</｜DSML｜parameter>\n{% endfor %}</｜DSML｜invoke>",
                Some(ToolFormat::DeepseekV4),
            ),
            (
                "<calls><invoke name=\"{{ f.name }}\"><parameter name=\"probe_key\">x</parameter></invoke></calls>",
                None,
            ),
            (r#"<tool_call><function={{ f.name }}></tool_call>"#, None),
            (r#"<tool_call>{{ f.name }}({{ f.arguments | tojson }})</tool_call>"#, None),
            ("", None),
        ] {
            assert_eq!(
                detect(&calling(call)),
                Dialect { tools: format, reasoning: None },
                "{call}"
            );
        }
    }

    /// An example is the published template of LFM2-8B-A1B.
    #[test]
    fn templates_that_write_no_calls_are_recognized_by_their_prompts() {
        let source = "{% if tools %}List of tools: <|tool_list_start|>{{ tools | tojson }}<|tool_list_end|>{% endif %}\
            {% for m in messages %}{{ m.role }}: {{ m.content }}{% endfor %}";
        assert_eq!(detect(source).tools, Some(ToolFormat::Lfm2));
        // Another example is the one of GLM-4-0414.
        // LFM2.5's has no marks around the list, and Granite 3.3's asks for a mark.
        for (offer, format) in [
            ("List of tools: [{{ tools[0] | tojson }}]", ToolFormat::Lfm2),
            (
                "Respond only with <|tool_call|> followed by a JSON list of tools used. {{ tools | tojson }}",
                ToolFormat::Granite,
            ),
        ] {
            let source = format!(
                "{{% if tools %}}{offer}{{% endif %}}{{% for m in messages %}}{{{{ m.role }}}}: {{{{ m.content }}}}{{% endfor %}}"
            );
            assert_eq!(detect(&source).tools, Some(format));
        }
        let source = "{% for tool in tools %}## {{ tool.function.name }}\n{{ tool.function | tojson }}\n\
            在调用上述函数时，请使用 Json 格式表示调用的参数。{% endfor %}{% for m in messages %}<|{{ m.role }}|>\n{{ m.content }}{% endfor %}";
        assert_eq!(detect(source).tools, Some(ToolFormat::Glm4));
    }

    #[test]
    fn reasoning_is_recognized_by_what_is_written() {
        let turns = |assistant: &str, opening: &str| {
            format!(
                "{{% for m in messages %}}{{% if m.role == 'assistant' %}}{assistant}{{% else %}}{{{{ m.content }}}}{{% endif %}}\
                 {{% endfor %}}{{% if add_generation_prompt %}}<A>{opening}{{% endif %}}"
            )
        };
        let reasoning =
            |assistant: &str, opening: &str| detect(&turns(assistant, opening)).reasoning;
        let plain = "{{ m.content }}";
        assert_eq!(reasoning(plain, ""), None);
        assert_eq!(reasoning(plain, "<think>\n"), Some(ReasoningFormat::Qwen3));
        assert_eq!(reasoning(plain, "<think></think>"), Some(ReasoningFormat::Qwen3));
        assert_eq!(
            reasoning("{{ m.content.split('</think>')[-1] }}", ""),
            Some(ReasoningFormat::Qwen3)
        );
        let apart = "{{ open }}{{ m.reasoning_content }}{{ close }}{{ m.content }}";
        let apart_in = |open: &str| apart.replace("{{ open }}", open);
        assert_eq!(reasoning(&apart_in("<think>\n"), ""), Some(ReasoningFormat::Qwen3));
        assert_eq!(reasoning(&apart_in("[THINK]"), ""), Some(ReasoningFormat::Mistral));
        assert_eq!(
            reasoning(&apart_in("<|channel|>analysis<|message|>"), ""),
            Some(ReasoningFormat::GptOss)
        );
        assert_eq!(reasoning(&apart_in("<thoughts>"), ""), None);
        assert_eq!(reasoning(&apart_in("<seed:think>"), ""), Some(ReasoningFormat::SeedOss));
        let solar = "{% if m.reasoning %}<|begin|>assistant<|think|>{{ m.reasoning }}<|end|>{% endif %}<|content|>{{ m.content }}<|end|>";
        assert_eq!(reasoning(solar, ""), Some(ReasoningFormat::SolarOpen));
        // Many models end turns with the mark that ends Solar's reasoning.
        assert_eq!(reasoning("{{ m.content }}<|end|>", "<|end|><|assistant|>"), None);
        let blocks = "{% if m.content is mapping %}{% for b in m.content.blocks %}\
            {% if b.type == 'thoughts' %}<|inner_prefix|>{{ b.text }}<|inner_suffix|>{% else %}{{ b.text }}{% endif %}{% endfor %}\
            {% else %}{{ m.content }}{% endif %}";
        assert_eq!(reasoning(blocks, ""), Some(ReasoningFormat::Apertus));
        let kimi = Some(ReasoningFormat::KimiK3);
        assert_eq!(reasoning(plain, "<|open|>think<|sep|>"), kimi);
        // Command R7B reasons only before calls.
        let called = "{% if m.tool_calls %}<|START_THINKING|>{{ m.reasoning_content }}<|END_THINKING|>{% endif %}{{ m.content }}";
        assert_eq!(reasoning(called, ""), Some(ReasoningFormat::CohereCommand));
        let gemma = Some(ReasoningFormat::Gemma4);
        assert_eq!(reasoning(&apart_in("<|channel>thought\n"), ""), gemma);
        assert_eq!(reasoning(plain, "<|channel>thought\n<channel|>"), gemma);
        let taken = "{{ m.content.split('<|channel>')[0] }}{{ m.content.split('<channel|>')[-1] }}";
        assert_eq!(reasoning(taken, ""), gemma);
    }
}
