//! Starts a supervisor that outlives this process.

use std::ffi::OsStr;
use std::io::{self, BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde::{Deserialize, Serialize};

use super::server::FOREIGN;
use crate::check::HUB_TOKENS;
use crate::error::{Error, Result};
use crate::secret::is_secret;
use crate::spec::Launch;

/// The hidden command of the binary that supervises.
pub(crate) const SUPERVISE: &str = "__supervise";
/// The environment variable with the binary's path, if it is not beside the program.
const BINARY_VARIABLE: &str = "CANDLEPOWER_BIN";
const BINARY: &str = "candlepower";

/// The first message of a supervisor.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Answer {
    /// It runs, and its folder is complete. The value is the deployment's creation time in seconds since 1970.
    Started(f64),
    /// Another supervisor has the name.
    Taken,
    /// Another deployment has just taken this GPU.
    NoGpu(String),
    /// It cannot start.
    Failed(String),
}

/// Starts a supervisor, with this `binary` or the one that a search finds, and waits for its first message.
///
/// # Errors
/// There is no binary, or it cannot supervise.
pub(crate) async fn launch(launch: Launch, binary: Option<PathBuf>) -> Result<Answer> {
    let binary = binary.map_or_else(find_binary, Ok)?;
    let doing = format!("the supervisor {} cannot be started", binary.display());
    let started = tokio::task::spawn_blocking(move || start(&binary, &launch)).await;
    let answer = started.map_err(io::Error::other).and_then(|answer| answer);
    answer.map_err(|error| Error::backend(doing, error))
}

fn start(binary: &Path, launch: &Launch) -> io::Result<Answer> {
    let mut command = Command::new(binary);
    // Other users could read secrets in the environment or the arguments under `/proc`. So secrets go through the
    // pipe.
    for (name, _) in std::env::vars_os().filter(|(name, _)| is_kept_back(name, launch)) {
        command.env_remove(name);
    }
    let mut child = command
        .arg(SUPERVISE)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        // The supervisor outlives the terminal. Its only message is the answer.
        .stderr(Stdio::null())
        .spawn()?;
    let mut stdin = child.stdin.take().expect("it is piped");
    let stdout = child.stdout.take().expect("it is piped");
    let told = serde_json::to_vec(launch)
        .map_err(io::Error::from)
        .and_then(|bytes| stdin.write_all(&bytes));
    // The supervisor reads up to the end of its input.
    drop(stdin);
    let mut line = String::new();
    let heard = BufReader::new(stdout).read_line(&mut line);
    // The thread reaps the child whenever it ends. Otherwise a client that lives long would collect zombies.
    std::thread::Builder::new().name("supervisor".into()).spawn(move || child.wait())?;
    // Errors count only from here, when the child is sure to be reaped.
    told?;
    heard?;
    serde_json::from_str(&line).map_err(|_| io::Error::other("it ended without an answer"))
}

/// Whether a variable of this process is a secret of some deployment, which no supervisor's environment may contain.
fn is_kept_back(name: &OsStr, launch: &Launch) -> bool {
    let Some(name) = name.to_str() else { return false };
    let is_own = FOREIGN.iter().any(|prefix| name.starts_with(prefix)) && is_secret(name);
    is_own || HUB_TOKENS.contains(&name) || launch.secrets.0.contains_key(name)
}

/// The binary: the one named by `CANDLEPOWER_BIN`, or one beside this program, or one in `PATH`.
fn find_binary() -> Result<PathBuf> {
    if let Some(path) = std::env::var_os(BINARY_VARIABLE).filter(|path| !path.is_empty()) {
        return Ok(path.into());
    }
    // The binary beside this program is more likely to be of its version than one in `PATH`.
    let beside = std::env::current_exe().ok().and_then(|exe| Some(exe.parent()?.join(BINARY)));
    let paths = std::env::var_os("PATH").unwrap_or_default();
    let mut places =
        beside.into_iter().chain(std::env::split_paths(&paths).map(|path| path.join(BINARY)));
    places.find(|path| path.is_file()).ok_or_else(|| {
        Error::backend(
            "there is no candlepower binary beside this program or in PATH",
            format!("set {BINARY_VARIABLE} to its path"),
        )
    })
}
