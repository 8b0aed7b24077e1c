//! Coding agents: their requests as they send them, the programs themselves, the tools of published MCP servers, and calls that
//! models are held to.

mod calls;
mod mcp;
mod programs;
mod skeletons;

use serde_json::Value;

use crate::support::Scripted;

/// The task of an agent, which is the only text of its own in a skeleton.
const QUESTION: &str = "Print a word with the shell";
/// The word that the shell prints, which no request has before it did.
const RESULT: &str = "candle-42";
const COMMAND: &str = "echo candle-$((6*7))";
const ANSWER: &str = "The shell printed it.";
const FAILURE: &str = "There is no result.";

/// An agent, and how its model calls the shell.
struct Agent {
    name: &'static str,
    /// Where the template has the length of the prompt for its call.
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

/// A server whose model has the shell print a word when an agent asks for it, and then says that it did.
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
        places.fold(template, |template, (place, length)| {
            template.replace(&format!("* {place} "), &format!("* {length} "))
        })
    };
    Scripted::steered(template, &["<|im_start|>", "<|im_end|>"], &texts, "")
}

/// A member of an object that is a text.
fn text<'a>(value: &'a Value, name: &str) -> &'a str {
    value[name].as_str().unwrap_or_else(|| panic!("no `{name}` in {value}"))
}
