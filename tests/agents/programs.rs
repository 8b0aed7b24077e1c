//! The agents' programs. Each makes the shell print a word.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use super::{AGENTS, ANSWER, QUESTION, RESULT, server};
use crate::support::{Recorder, TempFolder};

/// The variables with the folder of the programs, and with the folder for their requests, which is optional.
const PROGRAMS: &str = "CANDLEPOWER_TEST_AGENTS";
const REQUESTS: &str = "CANDLEPOWER_AGENT_REQUESTS";

#[test]
#[ignore = "needs the programs: cargo xtask deep agents"]
fn complete_a_turn() {
    let modules = PathBuf::from(std::env::var_os(PROGRAMS).unwrap_or_else(|| {
        panic!("{PROGRAMS} is not set: `cargo xtask deep agents` installs the programs")
    }));
    let model = server();
    for agent in &AGENTS {
        let recorder = Recorder::before(model.server.address);
        let (home, work) = (TempFolder::new(), TempFolder::new());
        let url = format!("http://{}", recorder.address);
        let mut command = command(agent.name, &modules, &home, &url);
        // This test itself may run under an agent, whose settings must not apply.
        command.env_clear().env("PATH", std::env::var_os("PATH").unwrap());
        command.env("HOME", home.path()).env("NO_PROXY", "*");
        command.envs([
            ("ANTHROPIC_BASE_URL", url.as_str()),
            ("ANTHROPIC_API_KEY", "any"),
            ("IS_SANDBOX", "1"),
        ]);
        let output = command.current_dir(work.path()).stdin(Stdio::null()).output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        let passed = recorder.passed();
        eprintln!("--- {}\n{said}", agent.name);
        assert!(output.status.success() && said.contains(ANSWER), "{said}\n{errors}\n{passed:#?}");
        let posts = || passed.iter().filter(|request| request.method == "POST");
        for request in posts() {
            assert!(request.answer.starts_with("HTTP/1.1 200 "), "{request:#?}");
        }
        let is_result = |body: &[u8]| String::from_utf8_lossy(body).contains(RESULT);
        assert!(posts().any(|request| is_result(&request.body)), "{passed:#?}");
        if let Some(folder) = std::env::var_os(REQUESTS) {
            let body = |body: &[u8]| serde_json::from_slice::<Value>(body).unwrap();
            let requests = posts()
                .map(|request| json!({"path": request.path, "body": body(&request.body)}))
                .collect::<Value>();
            let file = PathBuf::from(folder).join(format!("{}.json", agent.name));
            std::fs::write(file, requests.to_string()).unwrap();
        }
    }
}

/// The command that a program's manual gives for a single task and a custom server.
fn command(agent: &str, modules: &std::path::Path, home: &TempFolder, url: &str) -> Command {
    match agent {
        "codex" => {
            let settings = format!(
                "model = \"demo\"\nmodel_provider = \"local\"\n[model_providers.local]\nname = \"local\"\nbase_url = \"{url}/v1\"\nwire_api = \"responses\"\n"
            );
            home.write(".codex/config.toml", settings);
            let mut command = Command::new("node");
            // Its own sandbox needs kernel features that a container does not have.
            command.arg(modules.join("@openai/codex/bin/codex.js")).args([
                "exec",
                "--skip-git-repo-check",
                "--dangerously-bypass-approvals-and-sandbox",
                QUESTION,
            ]);
            command
        }
        "claude_code" => {
            let program = modules.join("@anthropic-ai/claude-code-linux-x64/claude");
            let mut command = Command::new(program);
            command.args(["-p", QUESTION, "--model", "demo", "--allowedTools", "Bash"]);
            command
        }
        _ => {
            let provider = json!({
                "npm": "@ai-sdk/openai-compatible", "options": {"baseURL": format!("{url}/v1")},
                "models": {"demo": {"name": "demo", "limit": {"context": 131_072, "output": 4096}}},
            });
            let settings = json!({"provider": {"local": provider}});
            home.write(".config/opencode/opencode.json", settings.to_string());
            let mut command = Command::new(modules.join("opencode-linux-x64/bin/opencode"));
            command.args(["run", "-m", "local/demo", QUESTION]);
            command
        }
    }
}
