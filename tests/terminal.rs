//! The commands for people at a terminal: `chat`, `pull`, `models` and `rm`.

mod chat;
mod local;
mod models;
mod others;
mod piped;
mod pull;
mod serve;
mod socket;

use std::process::{Command, Output, Stdio};

use crate::support::{TempFolder, program};

/// A user: folders for state, temporary files and downloaded models.
struct User {
    state: TempFolder,
}

impl User {
    fn new() -> Self {
        Self { state: TempFolder::new() }
    }

    /// `candlepower ARGS`, with a terminal's variables.
    fn command(&self, args: &[&str]) -> Command {
        let mut command = program();
        let folder = self.state.path();
        command.args(args).env("XDG_STATE_HOME", folder.join("state")).env("TERM", "xterm");
        command.env("HF_HOME", folder.join("hf"));
        for name in
            ["NO_COLOR", "OPENAI_API_KEY", "XDG_RUNTIME_DIR", "CANDLEPOWER_BACKEND", "KUBECONFIG"]
        {
            command.env_remove(name);
        }
        command.env("DOCKER_HOST", "unix:///nowhere.sock").env("TMPDIR", folder);
        command.env("BLAZE_KV_CACHE_MEMORY", "64Mi");
        command
    }

    /// Runs a command without a terminal.
    fn run(&self, args: &[&str]) -> Said {
        Said::of(self.command(args).stdin(Stdio::null()).output().unwrap())
    }
}

/// Status and output of a command.
#[derive(Debug, PartialEq, Eq)]
struct Said {
    code: Option<i32>,
    out: String,
    err: String,
}

impl Said {
    fn of(output: Output) -> Self {
        let text = |bytes| String::from_utf8(bytes).unwrap();
        Self { code: output.status.code(), out: text(output.stdout), err: text(output.stderr) }
    }
}
