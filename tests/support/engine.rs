//! A fake container engine on this machine, with the API that the docker backend uses. Its containers are processes
//! of the built binary, so that deployed servers answer.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard};

use axum::Router;
use axum::body::Bytes;
use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::{delete, get, post, put};
use futures::stream::{StreamExt, unfold};
use serde_json::{Value, json};
use tokio::runtime::Runtime;

use super::{TempFolder, program};

/// The only image of the engine.
pub(crate) const IMAGE: &str = "candlepower:test";

/// Differences between engines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Manner {
    Docker,
    /// Answers a name conflict with another status, and drops GPU requests silently.
    OldPodman,
}

/// A running engine. It and its containers end with the test.
pub(crate) struct Engine {
    // First, so that its tasks end before the other fields are dropped.
    _runtime: Runtime,
    shared: Shared,
    folder: TempFolder,
}

#[derive(Clone)]
struct Shared {
    manner: Manner,
    containers: Arc<Mutex<BTreeMap<String, Container>>>,
    folder: PathBuf,
}

/// A container: the request that made it, and its process.
struct Container {
    name: String,
    body: Value,
    status: &'static str,
    child: Option<Child>,
    exit_code: i32,
    /// Files that were unpacked in it.
    unpacked: Vec<PathBuf>,
    log: PathBuf,
}

type Query2 = Query<BTreeMap<String, String>>;

impl Engine {
    pub(crate) fn start(manner: Manner) -> Self {
        let folder = TempFolder::new();
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let shared =
            Shared { manner, containers: Arc::default(), folder: folder.path().to_owned() };
        let listener = runtime.block_on(async {
            tokio::net::UnixListener::bind(folder.path().join("engine.sock")).unwrap()
        });
        let routes = routes(shared.clone());
        runtime.spawn(async move { axum::serve(listener, routes).await });
        Self { _runtime: runtime, shared, folder }
    }

    /// The value of `DOCKER_HOST`.
    pub(crate) fn host(&self) -> String {
        format!("unix://{}/engine.sock", self.folder.path().display())
    }

    /// The requests that made the existing containers.
    pub(crate) fn bodies(&self) -> Vec<Value> {
        self.shared.lock().values().map(|container| container.body.clone()).collect()
    }

    /// Creates a container that belongs to no deployment.
    pub(crate) fn occupy(&self, name: &str) {
        self.shared.insert(name, json!({ "Image": IMAGE, "Labels": {} }));
    }

    /// Kills the only process, as the out-of-memory killer would, and reports an event.
    pub(crate) fn kill(&self) -> u32 {
        let mut containers = self.shared.lock();
        let child = containers.values_mut().find_map(|container| container.child.as_mut()).unwrap();
        child.kill().unwrap();
        child.id()
    }

    /// Command lines of the processes.
    pub(crate) fn command_lines(&self) -> Vec<String> {
        let containers = self.shared.lock();
        let children = containers.values().filter_map(|container| container.child.as_ref());
        let line = |child: &Child| std::fs::read_to_string(format!("/proc/{}/cmdline", child.id()));
        children.map(|child| line(child).unwrap_or_default()).collect()
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        for container in self.shared.lock().values_mut() {
            container.stop();
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Container>> {
        self.containers.lock().unwrap()
    }

    fn insert(&self, name: &str, body: Value) -> String {
        let mut containers = self.lock();
        let newest = containers
            // The ids grow, so the map has the containers in the order of their creation.
            .keys()
            .next_back()
            .map_or(0, |id| u64::from_str_radix(&id[48..], 16).unwrap());
        let id = format!("{:064x}", newest + 1);
        let log = self.folder.join(format!("{name}.log"));
        File::create(&log).unwrap();
        let container = Container {
            name: name.to_owned(),
            body,
            status: "created",
            child: None,
            exit_code: 0,
            unpacked: Vec::new(),
            log,
        };
        containers.insert(id.clone(), container);
        id
    }

    /// Calls `act` for a container, by its id or its name, if it exists.
    fn with<T>(&self, id: &str, act: impl FnOnce(&mut Container) -> T) -> Option<T> {
        let mut containers = self.lock();
        let found = containers.iter_mut().find(|(key, found)| *key == id || found.name == id);
        let (_, container) = found?;
        container.look();
        Some(act(container))
    }
}

impl Container {
    /// Checks whether its process has ended.
    fn look(&mut self) {
        let Some(status) = self.child.as_mut().and_then(|child| child.try_wait().unwrap()) else {
            return;
        };
        // A process that a signal ended has no code. 137 is that of SIGKILL, the only one that tests send.
        self.exit_code = status.code().unwrap_or(137);
        self.ended();
    }

    fn ended(&mut self) {
        self.child = None;
        self.status = "exited";
    }

    fn start(&mut self) -> Result<(), String> {
        let binding = &self.body["HostConfig"]["PortBindings"];
        let port = binding.as_object().unwrap().values().next().unwrap()[0]["HostPort"].clone();
        let port = port.as_str().unwrap().to_owned();
        // Docker binds the port itself before the process starts, and reports a conflict in its own words.
        if std::net::TcpListener::bind(format!("127.0.0.1:{port}")).is_err() {
            return Err(format!("Bind for 127.0.0.1:{port} failed: port is already allocated"));
        }
        let log = File::options().append(true).open(&self.log).unwrap();
        let mut command = program();
        for word in self.body["Cmd"].as_array().unwrap() {
            let word = word.as_str().unwrap();
            // Paths inside a container are mapped to this machine's.
            let inner = self.unpacked.iter().find(|path| {
                let name = path.file_name().unwrap().to_str().unwrap();
                word.starts_with('/') && word.ends_with(name)
            });
            match (inner, word.split_once('=')) {
                (Some(path), _) => command.arg(path),
                (_, Some(("--host", _))) => command.arg("--host=127.0.0.1"),
                (_, Some(("--port", _))) => command.arg(format!("--port={port}")),
                _ => command.arg(word),
            };
        }
        for variable in self.body["Env"].as_array().unwrap() {
            let (name, value) = variable.as_str().unwrap().split_once('=').unwrap();
            command.env(name, value);
        }
        command.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
        self.child = Some(command.spawn().unwrap());
        self.status = "running";
        Ok(())
    }

    fn stop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let pid = child.id().to_string();
            Command::new("kill").args(["-TERM", &pid]).status().unwrap();
            // 143 is the code of SIGTERM.
            self.exit_code = child.wait().unwrap().code().unwrap_or(143);
            self.ended();
        }
    }

    fn inspect(&self, manner: Manner) -> Value {
        let mut host_config = self.body["HostConfig"].clone();
        if manner == Manner::OldPodman {
            // Podman 4.3 accepts GPU requests and does not keep them.
            host_config["DeviceRequests"] = Value::Null;
        }
        json!({
            "Name": format!("/{}", self.name), "RestartCount": 0,
            "State": {
                "Status": self.status, "Running": self.child.is_some(), "OOMKilled": false,
                "ExitCode": self.exit_code, "StartedAt": "2026-11-21T20:00:00.1Z", "FinishedAt": "0001-01-01T00:00:00Z",
            },
            "Config": { "Image": self.body["Image"], "Labels": self.body["Labels"], "Env": self.body["Env"] },
            "HostConfig": host_config,
        })
    }
}

fn routes(shared: Shared) -> Router {
    Router::new()
        .route("/_ping", get(|| async { "OK" }))
        .route("/version", get(version))
        .route("/images/{name}/json", get(image))
        .route("/containers/json", get(list))
        .route("/containers/create", post(create))
        .route("/containers/{id}/json", get(inspect))
        .route("/containers/{id}/start", post(start))
        .route("/containers/{id}/stop", post(stop))
        .route("/containers/{id}/restart", post(restart))
        .route("/containers/{id}/archive", put(unpack).get(pack))
        .route("/containers/{id}/rename", post(rename))
        .route("/containers/{id}/logs", get(logs))
        .route("/containers/{id}", delete(remove))
        .route("/events", get(events))
        .with_state(shared)
}

fn refusal(status: StatusCode, message: impl Into<String>) -> Response {
    let message: String = message.into();
    (status, axum::Json(json!({ "message": message }))).into_response()
}

async fn version(State(shared): State<Shared>) -> axum::Json<Value> {
    let (name, version) = match shared.manner {
        Manner::Docker => ("Engine", "28.5.1"),
        Manner::OldPodman => ("Podman Engine", "4.3.1"),
    };
    axum::Json(json!({ "Version": version, "Components": [{ "Name": name }] }))
}

async fn image(Path(name): Path<String>) -> Response {
    match name == IMAGE {
        true => axum::Json(json!({ "Config": { "User": "10001:10001" } })).into_response(),
        false => refusal(StatusCode::NOT_FOUND, format!("No such image: {name}")),
    }
}

async fn list(State(shared): State<Shared>, Query(query): Query2) -> axum::Json<Value> {
    let filters: Value = serde_json::from_str(&query["filters"]).unwrap();
    let label = filters["label"][0].as_str().unwrap();
    let containers = shared.lock();
    // A filter is a label, or a label and its value.
    let is_meant = |labels: &Value| match label.split_once('=') {
        Some((name, value)) => labels[name] == value,
        None => !labels[label].is_null(),
    };
    let found = containers.iter().filter(|(_, container)| is_meant(&container.body["Labels"]));
    let found = found.map(|(id, container)| {
        let names = [format!("/{}", container.name)];
        json!({ "Id": id, "Names": names, "Labels": container.body["Labels"] })
    });
    axum::Json(found.collect())
}

async fn create(State(shared): State<Shared>, Query(query): Query2, body: Bytes) -> Response {
    let name = &query["name"];
    if shared.lock().values().any(|container| container.name == *name) {
        let status = match shared.manner {
            Manner::Docker => StatusCode::CONFLICT,
            // Podman before 4.4 answers so, and only the message says what is wrong.
            Manner::OldPodman => StatusCode::INTERNAL_SERVER_ERROR,
        };
        return refusal(status, format!("The container name \"/{name}\" is already in use"));
    }
    let id = shared.insert(name, serde_json::from_slice(&body).unwrap());
    (StatusCode::CREATED, axum::Json(json!({ "Id": id, "Warnings": [] }))).into_response()
}

async fn inspect(State(shared): State<Shared>, Path(id): Path<String>) -> Response {
    let found = shared.with(&id, |container| container.inspect(shared.manner));
    found.map_or_else(no_such, |found| axum::Json(found).into_response())
}

fn no_such() -> Response {
    refusal(StatusCode::NOT_FOUND, "No such container")
}

async fn start(State(shared): State<Shared>, Path(id): Path<String>) -> Response {
    match shared.with(&id, Container::start) {
        Some(Ok(())) => StatusCode::NO_CONTENT.into_response(),
        Some(Err(words)) => refusal(StatusCode::INTERNAL_SERVER_ERROR, words),
        None => no_such(),
    }
}

async fn stop(State(shared): State<Shared>, Path(id): Path<String>) -> Response {
    let stopped = shared.with(&id, Container::stop);
    stopped.map_or_else(no_such, |()| StatusCode::NO_CONTENT.into_response())
}

async fn restart(State(shared): State<Shared>, Path(id): Path<String>) -> Response {
    let restarted = shared.with(&id, |container| {
        container.stop();
        container.start().unwrap();
    });
    restarted.map_or_else(no_such, |()| StatusCode::NO_CONTENT.into_response())
}

async fn remove(State(shared): State<Shared>, Path(id): Path<String>) -> Response {
    if shared.with(&id, Container::stop).is_none() {
        return no_such();
    }
    shared.lock().retain(|key, container| *key != id && container.name != id);
    StatusCode::NO_CONTENT.into_response()
}

async fn unpack(State(shared): State<Shared>, Path(id): Path<String>, body: Bytes) -> Response {
    let folder = shared.folder.join(format!("{id}-files"));
    std::fs::create_dir_all(&folder).unwrap();
    let archive = folder.with_extension("tar");
    std::fs::write(&archive, &body).unwrap();
    let mut tar = Command::new("tar");
    tar.args(["-x", "-f"]).arg(&archive).arg("-C").arg(&folder);
    assert!(tar.status().unwrap().success(), "it is no archive");
    let files = std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    let done = shared.with(&id, |container| container.unpacked = files);
    done.map_or_else(no_such, |()| StatusCode::OK.into_response())
}

/// A tar archive of an unpacked file, for a container that has it.
async fn pack(
    State(shared): State<Shared>,
    Path(id): Path<String>,
    Query(query): Query2,
) -> Response {
    let folder = shared.folder.join(format!("{id}-files"));
    let file = query["path"].trim_start_matches('/');
    if !folder.join(file).exists() {
        return refusal(StatusCode::NOT_FOUND, "Could not find the file");
    }
    let tar = Command::new("tar").args(["-c", file]).current_dir(folder).output().unwrap();
    assert!(tar.status.success(), "{tar:?}");
    tar.stdout.into_response()
}

async fn rename(
    State(shared): State<Shared>,
    Path(id): Path<String>,
    Query(query): Query2,
) -> Response {
    let name = &query["name"];
    if shared.lock().values().any(|container| container.name == *name) {
        return refusal(
            StatusCode::CONFLICT,
            format!("The container name \"/{name}\" is already in use"),
        );
    }
    let renamed = shared.with(&id, |container| container.name.clone_from(name));
    renamed.map_or_else(no_such, |()| StatusCode::NO_CONTENT.into_response())
}

/// Events of a container's life. The engine keeps no others.
async fn events(State(shared): State<Shared>, Query(query): Query2) -> Response {
    assert!(query.contains_key("until"), "without an end the answer would have none");
    let filters: Value = serde_json::from_str(&query["filters"]).unwrap();
    let id = filters["container"][0].as_str().unwrap().to_owned();
    let told = shared.with(&id, |_| {
        ["create", "start"].map(|action| {
            format!(
                "{}\n",
                json!({ "Type": "container", "Action": action, "Actor": {}, "time": 1_700_000_000 })
            )
        })
    });
    told.map_or_else(no_such, |lines| lines.concat().into_response())
}

/// The log in frames that split lines, as real engines send it.
async fn logs(
    State(shared): State<Shared>,
    Path(id): Path<String>,
    Query(query): Query2,
) -> Response {
    let Some(log) = shared.with(&id, |container| container.log.clone()) else { return no_such() };
    let lines = lines_of(&log, 0).len();
    let tail = query.get("tail").and_then(|tail| tail.parse().ok()).unwrap_or(lines);
    // With `since`, the whole log is sent. The client must skip lines that it knows.
    let from = if query.contains_key("since") { 0 } else { lines.saturating_sub(tail) };
    if query.get("follow").is_none_or(|follow| follow != "true") {
        return frames(&lines_of(&log, from)).into_response();
    }
    let next = move |from: usize| {
        let (log, shared, id) = (log.clone(), shared.clone(), id.clone());
        async move {
            loop {
                // A stream ends with the process, as in real engines.
                let is_running = shared.with(&id, |found| found.child.is_some()).unwrap_or(false);
                let lines = lines_of(&log, from);
                if !lines.is_empty() {
                    return Some((Ok::<_, std::io::Error>(frames(&lines)), from + lines.len()));
                }
                if !is_running {
                    return None;
                }
                tokio::time::sleep(std::time::Duration::from_millis(20)).await;
            }
        }
    };
    axum::body::Body::from_stream(unfold(from, next).boxed()).into_response()
}

/// The complete lines of a log, starting with line `from`.
fn lines_of(log: &std::path::Path, from: usize) -> Vec<String> {
    let text = std::fs::read_to_string(log).unwrap_or_default();
    let whole = text.rfind('\n').map_or("", |end| &text[..=end]);
    whole.lines().skip(from).map(|line| format!("{line}\n")).collect()
}

/// Frames of standard error, split at arbitrary places.
fn frames(lines: &[String]) -> Vec<u8> {
    let text = lines.concat().into_bytes();
    // The head of a frame has the stream, 2 for standard error, and the length in big-endian order.
    let head = |part: &[u8]| [&[2, 0, 0, 0][..], &(part.len() as u32).to_be_bytes()].concat();
    // Pieces of 100 bytes cut lines anywhere.
    text.chunks(100).flat_map(|part| [head(part), part.to_vec()].concat()).collect()
}
