//! Deployments with the process backend and the command line: started, found again, restarted, deleted.

mod docker;
mod faults;
mod kubernetes;
mod life;
mod refusals;
mod secrets;
mod update;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use serde_json::{Value, json};

use crate::support::{Request, TempFolder, program, wait_for};

/// A home folder for deployments. Those that exist at the end of the test are deleted.
pub(crate) struct Home {
    state: TempFolder,
    env: Vec<(String, String)>,
}

impl Home {
    pub(crate) fn new() -> Self {
        Self { state: TempFolder::new(), env: Vec::new() }
    }

    fn with_env(mut self, name: &str, value: &str) -> Self {
        self.env.push((name.into(), value.into()));
        self
    }

    /// The command `candlepower ARGS`, not yet run.
    fn command(&self, args: &str) -> Command {
        let mut command = program();
        command.args(args.split_whitespace()).env("XDG_STATE_HOME", self.state.path());
        for name in
            ["CANDLEPOWER_API_KEY", "CANDLEPOWER_BACKEND", "CANDLEPOWER_IMAGE", "KUBECONFIG"]
        {
            command.env_remove(name);
        }
        // A test that needs an engine sets its own.
        command.env("DOCKER_HOST", "unix:///nowhere.sock").envs(self.env.iter().cloned());
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    pub(crate) fn run(&self, args: &str) -> Output {
        self.command(args).output().unwrap()
    }

    /// The JSON of a command that succeeds.
    #[track_caller]
    pub(crate) fn json(&self, args: &str) -> Value {
        let output = self.run(&format!("{args} --json"));
        assert_eq!(output.status.code(), Some(0), "{args}: {}", text(&output));
        serde_json::from_slice(&output.stdout).unwrap()
    }

    /// The error of a command that fails with this status.
    #[track_caller]
    pub(crate) fn error(&self, args: &str, status: i32) -> Value {
        let output = self.run(&format!("{args} --json"));
        assert_eq!(output.status.code(), Some(status), "{args}: {}", text(&output));
        let shown: Value = serde_json::from_slice(&output.stdout).unwrap();
        shown["error"].clone()
    }

    /// `deploy demo` with little memory.
    #[track_caller]
    pub(crate) fn deploy_demo(&self, name: &str, flags: &str) -> Value {
        self.json(&demo(name, flags))
    }

    pub(crate) fn folder(&self, name: &str) -> PathBuf {
        self.state.path().join("candlepower/deployments").join(name)
    }

    /// The pid of a deployment's `supervisor` or `server`.
    fn pid(&self, name: &str, who: &str) -> Option<u64> {
        let state = std::fs::read(self.folder(name).join("state.json")).ok()?;
        serde_json::from_slice::<Value>(&state).ok()?[who]["pid"].as_u64()
    }

    #[track_caller]
    fn wait_for_status(&self, name: &str, is: impl Fn(&Value) -> bool) -> Value {
        wait_for("a deployment's status", || {
            Some(self.json(&format!("status {name}"))).filter(|status| is(status))
        })
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        let entries = std::fs::read_dir(self.state.path().join("candlepower/deployments"));
        for entry in entries.into_iter().flatten().flatten() {
            let name = entry.file_name().into_string().unwrap();
            // A failed test shows what the deployment was doing, before it is deleted.
            if std::thread::panicking() {
                let log = std::fs::read_to_string(entry.path().join("log")).unwrap_or_default();
                let state = std::fs::read_to_string(entry.path().join("state.json"));
                eprintln!("--- {name}: {}\n{log}", state.unwrap_or_default());
            }
            self.run(&format!("delete {name}"));
        }
    }
}

fn demo(name: &str, flags: &str) -> String {
    format!("deploy demo --name {name} --env BLAZE_KV_CACHE_MEMORY=64Mi {flags}")
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&[output.stdout.clone(), output.stderr.clone()].concat()).into_owned()
}

fn address(deployment: &Value) -> SocketAddr {
    let url = deployment["url"].as_str().unwrap();
    url.strip_prefix("http://").unwrap().parse().unwrap()
}

/// Checks that a deployment of the demo generates text.
#[track_caller]
fn check_answers(deployment: &Value) {
    let body =
        json!({"model": "demo", "prompt": "The capital", "max_tokens": 4, "ignore_eos": true});
    let response = Request::post("/v1/completions", &body).send(address(deployment)).unwrap();
    assert_eq!(response.ok()["usage"]["completion_tokens"], 4);
}

/// Whether a process runs. A zombie does not.
fn is_alive(pid: u64) -> bool {
    // The name in parentheses may have spaces and parentheses of its own, so the last one counts.
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(')').is_some_and(|(_, rest)| !rest.trim_start().starts_with('Z'))
}

/// Sends a signal by its name or number.
#[track_caller]
fn signal(signal: &str, pid: u64) {
    assert!(Command::new("kill").args([signal, &pid.to_string()]).status().unwrap().success());
}

#[track_caller]
fn kill(pid: u64) {
    signal("-9", pid);
    wait_for("a killed process to end", || (!is_alive(pid)).then_some(()));
}
