//! Requests of clients to a supervisor, over a socket in the deployment's folder.

use std::fs::{File, Permissions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::time::timeout;

use crate::spec::Launch;

pub(super) const SOCKET: &str = "control.sock";
/// Time limit for a client to send its request.
const PATIENCE: Duration = Duration::from_secs(5);
/// Extra time of a supervisor to stop or restart its server, on top of the server's own time.
const ANSWER_PATIENCE: Duration = Duration::from_secs(20);
/// Most bytes of a request.
const MAX_BYTES: u64 = 4 << 20;

/// A client's request.
#[derive(Clone, Debug)]
pub(crate) enum ControlRequest {
    /// Stop the server and remove all of the deployment.
    Delete,
    /// Stop the server and start it again.
    Restart,
    /// Run another spec.
    Update(Box<Update>),
}

/// A server that is to take over.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Update {
    pub(crate) launch: Launch,
    /// Whether the old server ends first, because there is no room for both or they share a port.
    pub(crate) in_place: bool,
    /// Seconds until the new server must be ready.
    pub(crate) timeout: u64,
}

/// The commands of the protocol. Supervisors and clients of other versions use them too, so they never change. An
/// update is followed by its description as JSON.
const DELETE: &str = "delete";
const RESTART: &str = "restart";
const UPDATE: &str = "update ";

impl ControlRequest {
    fn to_line(&self) -> io::Result<String> {
        Ok(match self {
            Self::Delete => DELETE.to_owned(),
            Self::Restart => RESTART.to_owned(),
            Self::Update(update) => format!("{UPDATE}{}", serde_json::to_string(update)?),
        } + "\n")
    }

    fn of_line(line: &str) -> Option<Self> {
        match line.trim() {
            DELETE => Some(Self::Delete),
            RESTART => Some(Self::Restart),
            other => serde_json::from_str(other.strip_prefix(UPDATE)?).ok().map(Self::Update),
        }
    }
}

/// A short path of the socket. The system limits socket paths to 107 characters, but folders may be deep.
struct ShortPath {
    folder: File,
}

impl ShortPath {
    fn open(folder: &Path) -> io::Result<Self> {
        Ok(Self { folder: File::open(folder)? })
    }

    fn socket(&self) -> PathBuf {
        // The kernel resolves the open folder's number, however long the folder's path is.
        format!("/proc/self/fd/{}/{SOCKET}", self.folder.as_raw_fd()).into()
    }
}

/// Sends a request to the supervisor of this folder and waits for its result. Its servers may take `server_seconds`
/// to end.
///
/// # Errors
/// No supervisor listens, or the request failed. Then the error has the supervisor's message.
pub(crate) async fn ask(
    folder: &Path,
    request: &ControlRequest,
    server_seconds: u64,
) -> io::Result<()> {
    let path = ShortPath::open(folder)?;
    let mut stream = UnixStream::connect(path.socket()).await?;
    stream.write_all(request.to_line()?.as_bytes()).await?;
    let mut answer = String::new();
    let patience = Duration::from_secs(server_seconds).saturating_add(ANSWER_PATIENCE);
    timeout(patience, BufReader::new(stream).read_line(&mut answer))
        .await
        .map_err(|_| io::Error::other("the supervisor does not answer"))??;
    match answer.trim() {
        "ok" => Ok(()),
        // A supervisor of an earlier version does not know updates.
        "" if matches!(request, ControlRequest::Update(_)) => Err(io::Error::other(
            "the supervisor gave no answer: if an earlier version has started it, delete the deployment and deploy it again",
        )),
        "" => Err(io::Error::other("the supervisor ended without an answer")),
        trouble => Err(io::Error::other(trouble.to_owned())),
    }
}

/// Listens for clients.
pub(super) fn listen(folder: &Path) -> io::Result<UnixListener> {
    let path = ShortPath::open(folder)?;
    // A killed supervisor has not removed its socket.
    let _ = std::fs::remove_file(folder.join(SOCKET));
    let listener = UnixListener::bind(path.socket())?;
    // The folder admits only its owner. The mode matters if the user has opened the folder to others.
    std::fs::set_permissions(folder.join(SOCKET), Permissions::from_mode(0o600))?;
    Ok(listener)
}

/// Reads a client's request; `None` if it is not known.
pub(super) async fn read(stream: &mut UnixStream) -> Option<ControlRequest> {
    let mut line = String::new();
    // An update has the spec and secrets in its line, so the limit is far above a command's length.
    let mut reader = BufReader::new(stream.take(MAX_BYTES));
    timeout(PATIENCE, reader.read_line(&mut line)).await.ok()?.ok()?;
    ControlRequest::of_line(&line)
}

/// Sends the result to the client.
pub(super) async fn answer(mut stream: UnixStream, result: &io::Result<()>) {
    let text = match result {
        Ok(()) => "ok\n".to_owned(),
        Err(error) => format!("{error}\n"),
    };
    // A client that has disconnected does not wait for the result.
    let _ = stream.write_all(text.as_bytes()).await;
}
