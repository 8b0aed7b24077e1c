//! Tools of published MCP servers, collected by `scripts/mcp_tools.py`. Nearly all of them can be enforced in every
//! tool format.

use std::path::PathBuf;

use serde_json::{Value, json};

use super::text;
use crate::support::{Server, ServerBuilder, TempFolder};

/// The variable with the tools' file.
const TOOLS: &str = "CANDLEPOWER_TEST_MCP_TOOLS";
const FORMATS: [&str; 5] = ["hermes", "qwen3_coder", "glm45", "minimax_m2", "gemma4"];
/// Most tools that may be refused in a format.
const MAX_REFUSED: usize = 2;
const LEAST_TOOLS: usize = 220;

/// A template with the names of tools only, so that prompts are short.
const TEMPLATE: &str = "{% for m in messages %}{{ m.content }}{% endfor %}{% for t in tools or [] %}{{ t.function.name }}{% endfor %}";

#[test]
#[ignore = "needs the tools: cargo xtask deep agents"]
fn tools_are_held_in_every_format() {
    let file = PathBuf::from(std::env::var_os(TOOLS).unwrap_or_else(|| {
        panic!("{TOOLS} is not set: `cargo xtask deep agents` collects the tools")
    }));
    let tools: Vec<Value> = serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
    assert!(tools.len() >= LEAST_TOOLS, "{} tools", tools.len());
    let folder = TempFolder::new();
    let template = folder.write("template.jinja", TEMPLATE);
    let mut too_many = Vec::new();
    for format in FORMATS {
        let server = ServerBuilder::new("demo")
            .flag("--chat-template", &template)
            .flag("--tool-call-parser", format)
            .start();
        for (path, is_chat) in [("/v1/chat/completions", true), ("/v1/responses", false)] {
            let refused = tools.iter().filter_map(|tool| refused(&server, tool, is_chat));
            let refused: Vec<String> = refused.collect();
            eprintln!("{format}, {path}: {} of {} refused", refused.len(), tools.len());
            refused.iter().for_each(|line| eprintln!("  {line}"));
            if refused.len() > MAX_REFUSED {
                too_many.push(format!("{format} at {path}: {}", refused.len()));
            }
        }
    }
    assert!(too_many.is_empty(), "{too_many:?}");
}

/// The reason that a single tool is refused. It is required in a chat, and strict in a response.
fn refused(server: &Server, tool: &Value, is_chat: bool) -> Option<String> {
    // MCP allows a point in names, and OpenAI's API does not.
    let name = text(tool, "name").replace('.', "_");
    let function = json!({"name": name, "description": "", "parameters": tool["parameters"]});
    let response = if is_chat {
        let body = json!({
            "messages": [{"role": "user", "content": "q"}], "max_tokens": 1, "tool_choice": "required",
            "tools": [{"type": "function", "function": function}],
        });
        server.post("/v1/chat/completions", &body)
    } else {
        let mut function = function;
        function["type"] = "function".into();
        let body =
            json!({"input": "q", "max_output_tokens": 1, "store": false, "tools": [function]});
        server.post("/v1/responses", &body)
    };
    let told = response.header("x-candlepower-not-held").map(str::to_owned);
    let reason = match response.status {
        // An enforced tool is answered without a report; a report names the part that is not enforced.
        200 => told?,
        _ => text(&response.json()["error"], "message").to_owned(),
    };
    Some(format!("{} of {}: {reason}", name, text(tool, "server")))
}
