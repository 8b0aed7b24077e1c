//! `cargo xtask deep agents`: runs coding agents and MCP servers from npm against this build, with the tests of
//! `tests/agents`.

use anyhow::{Context, Result};

use crate::steps::{Shell, run};
use crate::test::{self, Clients, RealModel};
use crate::tools::tools_folder;

const TURNS: &str = "agents::programs::complete_a_turn";
const TOOLS: &str = "agents::mcp::tools_are_held_in_every_format";
const CALLS: &str = "agents::calls::no_model_writes_an_invalid_call";

/// The programs. The versions are those whose requests `tests/agents` contains.
const PROGRAMS: [&str; 3] =
    ["@openai/codex@0.171.0", "@anthropic-ai/claude-code@2.1.197", "opencode-ai@1.18.33"];

/// Number of finished calls of each kind for each format. `CANDLEPOWER_TEST_CALL_FORMATS=hermes,glm45` selects formats.
const NUM_CALLS: &str = "500";

/// Starts a program without a network, apart from the loopback interface. No answer can come from a real provider
/// then.
const ALONE: [&str; 5] = ["-rn", "sh", "-c", "ip link set lo up && exec \"$@\"", "sh"];

pub(crate) fn all(shell: &Shell) -> Result<String> {
    test::build(shell)?;
    let clients = Clients::install(shell, RealModel::IfItCanBeHad)?;
    let (programs, servers) = (tools_folder(shell).join("agents"), tools_folder(shell).join("mcp"));
    std::fs::create_dir_all(&programs)?;
    // The packages bring complete programs. Their install scripts are not run.
    let mut npm = shell.command("npm");
    npm.args(["install", "--ignore-scripts", "--no-audit", "--no-fund", "--prefix"]);
    run(npm.arg(&programs).args(PROGRAMS)).context("Node with npm is needed")?;
    let mut tools = shell.command(clients.venv.program("python"));
    run(tools.arg("scripts/mcp_tools.py").arg(&servers))?;
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut tests = shell.command("unshare");
    // `-r` makes this user root in the new namespace, so that the interface can be set up.
    tests.args(ALONE).arg(cargo);
    tests.args(["test", "--workspace", "--test", "main", "--locked", "--offline"]);
    tests.args(test::FEATURES).args(["--", "--include-ignored", "--exact", "--nocapture"]);
    tests
        .args([TURNS, TOOLS, CALLS])
        .env("CANDLEPOWER_TEST_PYTHON", clients.venv.program("python"))
        .env("CANDLEPOWER_TEST_AGENTS", programs.join("node_modules"))
        .env("CANDLEPOWER_TEST_MCP_TOOLS", servers.join("tools.json"))
        .env("CANDLEPOWER_TEST_CALLS", NUM_CALLS);
    run(&mut tests)?;
    Ok(format!("{} programs", PROGRAMS.len()))
}
