//! What clients ask of a supervisor, over a socket in the deployment's folder.

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
/// How long a client may take to say what it wants.
const PATIENCE: Duration = Duration::from_secs(5);
/// How much longer than its server a supervisor may take to end it or to start it again.
const ANSWER_PATIENCE: Duration = Duration::from_secs(20);
/// Most bytes of what is asked.
const MAX_BYTES: u64 = 4 << 20;

/// What is asked.
#[derive(Clone, Debug)]
pub(crate) enum Wish {
    /// End the server and remove all of the deployment.
    Delete,
    /// End the server and start it again.
    Restart,
    /// Run something else.
    Update(Box<Update>),
}

/// A server that is to take over.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Update {
    pub(crate) launch: Launch,
    /// Whether the old server ends first, because there is no room for both or they have one port.
    pub(crate) in_place: bool,
    /// Seconds until the new server is ready.
    pub(crate) timeout: u64,
}

/// The words of wishes, which programs of other versions understand, too; an update follows its word as JSON.
const DELETE: &str = "delete";
const RESTART: &str = "restart";
const UPDATE: &str = "update ";

impl Wish {
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

/// The socket by a path of few characters: the system allows 107, and folders may be deep.
struct ShortPath {
    folder: File,
}

impl ShortPath {
    fn open(folder: &Path) -> io::Result<Self> {
        Ok(Self { folder: File::open(folder)? })
    }

    fn socket(&self) -> PathBuf {
        format!("/proc/self/fd/{}/{SOCKET}", self.folder.as_raw_fd()).into()
    }
}

/// Asks the supervisor of this folder, and waits until it is done; its servers may take so many seconds.
///
/// # Errors
/// Nobody listens, or what was asked failed; the supervisor's own words.
pub(crate) async fn ask(folder: &Path, wish: &Wish, server_seconds: u64) -> io::Result<()> {
    let path = ShortPath::open(folder)?;
    let mut stream = UnixStream::connect(path.socket()).await?;
    stream.write_all(wish.to_line()?.as_bytes()).await?;
    let mut answer = String::new();
    let patience = Duration::from_secs(server_seconds).saturating_add(ANSWER_PATIENCE);
    timeout(patience, BufReader::new(stream).read_line(&mut answer))
        .await
        .map_err(|_| io::Error::other("the supervisor does not answer"))??;
    match answer.trim() {
        "ok" => Ok(()),
        // A supervisor of an earlier version knows no updates.
        "" if matches!(wish, Wish::Update(_)) => Err(io::Error::other(
            "the supervisor gave no answer: if an earlier version has started it, delete the deployment and deploy it again",
        )),
        "" => Err(io::Error::other("the supervisor ended without an answer")),
        trouble => Err(io::Error::other(trouble.to_owned())),
    }
}

/// Listens for clients.
pub(super) fn listen(folder: &Path) -> io::Result<UnixListener> {
    let path = ShortPath::open(folder)?;
    // A supervisor that was killed leaves its socket.
    let _ = std::fs::remove_file(folder.join(SOCKET));
    let listener = UnixListener::bind(path.socket())?;
    std::fs::set_permissions(folder.join(SOCKET), Permissions::from_mode(0o600))?;
    Ok(listener)
}

/// What a client wants; `None` if it says nothing that is known.
pub(super) async fn read(stream: &mut UnixStream) -> Option<Wish> {
    let mut line = String::new();
    let mut reader = BufReader::new(stream.take(MAX_BYTES));
    timeout(PATIENCE, reader.read_line(&mut line)).await.ok()?.ok()?;
    Wish::of_line(&line)
}

/// Tells the client what has become of it.
pub(super) async fn answer(mut stream: UnixStream, result: &io::Result<()>) {
    let text = match result {
        Ok(()) => "ok\n".to_owned(),
        Err(error) => format!("{error}\n"),
    };
    // A client that has gone does not wait for it.
    let _ = stream.write_all(text.as_bytes()).await;
}
