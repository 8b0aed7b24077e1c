//! What clients ask of a supervisor, over a socket in the deployment's folder.

use std::fs::{File, Permissions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::time::timeout;

pub(super) const SOCKET: &str = "control.sock";
/// How long a client may take to say what it wants.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long a supervisor may take to do it: its server has half a minute to finish what it does.
const ANSWER_PATIENCE: Duration = Duration::from_secs(60);

/// What is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wish {
    /// End the server and remove all of the deployment.
    Delete,
    /// End the server and start it again.
    Restart,
}

impl Wish {
    fn as_str(self) -> &'static str {
        match self {
            Self::Delete => "delete",
            Self::Restart => "restart",
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

/// Asks the supervisor of this folder, and waits until it is done.
///
/// # Errors
/// Nobody listens, or what was asked failed; the supervisor's own words.
pub(crate) async fn ask(folder: &Path, wish: Wish) -> io::Result<()> {
    let path = ShortPath::open(folder)?;
    let mut stream = UnixStream::connect(path.socket()).await?;
    stream.write_all(format!("{}\n", wish.as_str()).as_bytes()).await?;
    let mut answer = String::new();
    timeout(ANSWER_PATIENCE, BufReader::new(stream).read_line(&mut answer))
        .await
        .map_err(|_| io::Error::other("the supervisor does not answer"))??;
    match answer.trim() {
        "ok" => Ok(()),
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
    timeout(PATIENCE, BufReader::new(stream).read_line(&mut line)).await.ok()?.ok()?;
    [Wish::Delete, Wish::Restart].into_iter().find(|wish| wish.as_str() == line.trim())
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
