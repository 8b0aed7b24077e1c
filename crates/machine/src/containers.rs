//! Docker and Podman: whether the program and its socket exist, and whether the engine answers.

use std::env;
use std::fmt;
use std::path::{Path, PathBuf};

use serde::Serialize;

/// A container engine, found or not.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ContainerEngine {
    /// `docker` or `podman`.
    pub name: String,
    /// Path of its program.
    pub binary: Option<PathBuf>,
    /// Path of its socket.
    pub socket: Option<PathBuf>,
    /// Whether it can be used.
    #[serde(flatten)]
    pub state: EngineState,
}

/// Whether a container engine can be used.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "state", content = "reason", rename_all = "snake_case")]
pub enum EngineState {
    /// It answers on its socket.
    Answers,
    /// It has a socket and does not answer, with the reason in words.
    Silent(String),
    /// It has no socket here.
    NoSocket,
    /// `DOCKER_HOST` names an engine on another host, which is not asked.
    Elsewhere(String),
}

impl ContainerEngine {
    /// Docker and Podman, each found or not.
    #[must_use]
    pub fn probe_all() -> Vec<Self> {
        let docker = match env::var("DOCKER_HOST") {
            Ok(host) if !host.is_empty() => match host.strip_prefix("unix://") {
                Some(path) => Self::probe("docker", vec![path.into()]),
                None => Self {
                    state: EngineState::Elsewhere(host),
                    ..Self::probe("docker", Vec::new())
                },
            },
            _ => Self::probe("docker", docker_sockets()),
        };
        vec![docker, Self::probe("podman", podman_sockets())]
    }

    fn probe(name: &str, sockets: Vec<PathBuf>) -> Self {
        let socket = sockets.into_iter().find(|path| path.exists());
        Self {
            name: name.to_owned(),
            binary: find_program(name),
            state: socket.as_deref().map_or(EngineState::NoSocket, ask),
            socket,
        }
    }
}

impl fmt::Display for ContainerEngine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.state, &self.socket) {
            (EngineState::Answers, Some(socket)) => write!(f, "answers on {}", socket.display()),
            (EngineState::Answers, None) => f.write_str("answers"),
            (EngineState::Silent(reason), Some(socket)) => {
                write!(f, "does not answer on {}: {reason}", socket.display())
            }
            (EngineState::Silent(reason), None) => write!(f, "does not answer: {reason}"),
            (EngineState::Elsewhere(host), _) => write!(f, "is at {host}, which was not asked"),
            (EngineState::NoSocket, _) if self.binary.is_some() => {
                f.write_str("is installed and not running: it has no socket")
            }
            (EngineState::NoSocket, _) => f.write_str("is not here"),
        }
    }
}

fn docker_sockets() -> Vec<PathBuf> {
    let rootless = env::var_os("XDG_RUNTIME_DIR").map(|run| Path::new(&run).join("docker.sock"));
    let desktop = env::var_os("HOME").map(|home| Path::new(&home).join(".docker/run/docker.sock"));
    let system = Some(PathBuf::from("/var/run/docker.sock"));
    [system, rootless, desktop].into_iter().flatten().collect()
}

fn podman_sockets() -> Vec<PathBuf> {
    let own = env::var_os("XDG_RUNTIME_DIR").map(|run| Path::new(&run).join("podman/podman.sock"));
    own.into_iter().chain([PathBuf::from("/run/podman/podman.sock")]).collect()
}

/// Path of the program of this name on the search path.
fn find_program(name: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH")?;
    env::split_paths(&path).map(|folder| folder.join(name)).find(|program| program.is_file())
}

/// Asks the engine whether it is alive. Docker and Podman answer the same question.
/// Source: Docker Engine API, `GET /_ping`.
#[cfg(unix)]
fn ask(socket: &Path) -> EngineState {
    use std::io::{ErrorKind, Read, Write};
    use std::os::unix::net::UnixStream;
    use std::time::Duration;

    const PATIENCE: Duration = Duration::from_secs(1);
    let talk = || -> std::io::Result<String> {
        let mut stream = UnixStream::connect(socket)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        // HTTP/1.0 ends the connection after the answer. The status line fits into the 64 bytes of one read.
        stream.write_all(b"GET /_ping HTTP/1.0\r\nHost: localhost\r\n\r\n")?;
        let mut head = [0; 64];
        let count = stream.read(&mut head)?;
        Ok(String::from_utf8_lossy(&head[..count]).into_owned())
    };
    match talk() {
        Ok(head) if head.split_whitespace().nth(1) == Some("200") => EngineState::Answers,
        Ok(head) => {
            let line = head.lines().next().unwrap_or_default();
            EngineState::Silent(format!("its answer was `{line}`"))
        }
        Err(error) => EngineState::Silent(match error.kind() {
            ErrorKind::PermissionDenied => {
                "no permission: this user must be in the socket's group".into()
            }
            ErrorKind::ConnectionRefused => "nothing listens there".into(),
            ErrorKind::WouldBlock | ErrorKind::TimedOut => "it took longer than a second".into(),
            _ => error.to_string(),
        }),
    }
}

#[cfg(not(unix))]
fn ask(_socket: &Path) -> EngineState {
    EngineState::Silent("this system has no such sockets".into())
}

#[cfg(unix)]
#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::unix::net::UnixListener;

    use super::*;

    /// An engine with a socket of its own that gives one answer.
    fn engine(name: &str, answer: &'static str) -> (PathBuf, std::thread::JoinHandle<()>) {
        // A Unix socket's path has at most 108 bytes on Linux, so the name in the temporary folder is short.
        let path = env::temp_dir().join(format!("candlepower-{}-{name}.sock", std::process::id()));
        let _ = std::fs::remove_file(&path);
        let listener = UnixListener::bind(&path).unwrap();
        let thread = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let _ = stream.read(&mut [0; 256]).unwrap();
            stream.write_all(answer.as_bytes()).unwrap();
        });
        (path, thread)
    }

    #[test]
    fn an_engine_answers_or_says_something_else() {
        let (path, thread) = engine("well", "HTTP/1.0 200 OK\r\n\r\nOK");
        let found = ContainerEngine::probe("no-such-program", vec![path.clone()]);
        thread.join().unwrap();
        assert_eq!((found.state, found.binary), (EngineState::Answers, None));
        let (busy, thread) = engine("busy", "HTTP/1.0 500 No\r\n\r\n");
        assert_eq!(ask(&busy), EngineState::Silent("its answer was `HTTP/1.0 500 No`".into()));
        thread.join().unwrap();
        // The first socket has no listener any more.
        assert_eq!(ask(&path), EngineState::Silent("nothing listens there".into()));
        let _ = std::fs::remove_file(path);
        let _ = std::fs::remove_file(busy);
    }

    #[test]
    fn an_engine_that_is_not_here_says_so() {
        let found = ContainerEngine::probe("no-such-program", vec!["/nowhere.sock".into()]);
        assert_eq!(found.to_string(), "is not here");
        let json = serde_json::to_value(&found).unwrap();
        assert_eq!(json["state"], "no_socket");
    }
}
