//! Coding agents: their recorded requests, the programs themselves, the tools of published MCP servers, and
//! constrained tool calls.

mod calls;
mod mcp;
mod programs;
mod skeletons;

use serde_json::Value;

use crate::support::Scripted;

/// The agent's task, and the only text in a skeleton that is not filler.
const QUESTION: &str = "Print a word with the shell";
/// The word that the shell prints. No request contains it before the shell has run.
const RESULT: &str = "candle-42";
// The word is computed, so that a request contains it only after the shell has run.
const COMMAND: &str = "echo candle-$((6*7))";
const ANSWER: &str = "The shell printed it.";
const FAILURE: &str = "There is no result.";

/// An agent, and the form in which its model calls the shell.
struct Agent {
    name: &'static str,
    /// Placeholder in the template for the length of the prompt that its call follows.
    place: &'static str,
    function: &'static str,
    arguments: &'static [(&'static str, &'static str)],
}

const AGENTS: [Agent; 3] = [
    Agent {
        name: "codex",
        place: "CODEX",
        function: "exec_command",
        arguments: &[("cmd", COMMAND)],
    },
    Agent {
        name: "claude_code",
        place: "CLAUDE_CODE",
        function: "Bash",
        arguments: &[("command", COMMAND), ("description", "Print a word")],
    },
    Agent {
        name: "opencode",
        place: "OPENCODE",
        function: "bash",
        arguments: &[("command", COMMAND), ("description", "Print a word")],
    },
];

/// A server whose model makes the shell print a word when an agent asks for it, and then confirms it.
fn server() -> Scripted {
    let call = |agent: &Agent| {
        let argument =
            |(key, value): &(&str, &str)| format!("<parameter={key}>\n{value}\n</parameter>\n");
        let arguments: String = agent.arguments.iter().map(argument).collect();
        format!(
            "I run it.\n\n<tool_call>\n<function={}>\n{arguments}</function>\n</tool_call>",
            agent.function
        )
    };
    let calls = AGENTS.each_ref().map(call);
    // A title in the two forms that agents ask for.
    let texts = [&calls[0], &calls[1], &calls[2], ANSWER, FAILURE, "{\"title\": \"A word\"}"];
    let template = |lengths: &[usize]| {
        let template = include_str!("agents/template.jinja");
        let template = template.replace("QUESTION", QUESTION).replace("RESULT", RESULT);
        let places = AGENTS.map(|agent| agent.place);
        let places = places.into_iter().chain(["ANSWER", "FAILURE", "TITLE"]).zip(lengths);
        // The template has the lengths of prompts at which each text begins.
        places.fold(template, |template, (place, length)| {
            template.replace(&format!("* {place} "), &format!("* {length} "))
        })
    };
    Scripted::steered(template, &["<|im_start|>", "<|im_end|>"], &texts, "")
}

/// A text member of an object.
fn text<'a>(value: &'a Value, name: &str) -> &'a str {
    value[name].as_str().unwrap_or_else(|| panic!("no `{name}` in {value}"))
}
