//! A fake API server on this machine, with the API that the kubernetes backend uses. It stores objects, and changes
//! them by a test's scripted story.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard};

use axum::Router;
use axum::body::Bytes;
use axum::extract::{Query, Request, State};
use axum::http::{Method, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use serde_json::{Value, json};
use tokio::runtime::Runtime;

use super::{TempFolder, port_forward};

/// The scripted future of a Deployment's pods.
#[derive(Clone, Debug)]
pub(crate) enum Story {
    /// They become ready.
    Ready,
    /// They are as this recorded file of the client's unit tests has them.
    Recorded(&'static str),
    /// They become ready, unless the Deployment contains this word. Then they are like the recorded file.
    Unless(&'static str, &'static str),
}

/// A running API server. It ends with the test.
pub(crate) struct Cluster {
    // First, so that its tasks end before the other fields are dropped.
    _runtime: Runtime,
    shared: Shared,
    folder: TempFolder,
}

#[derive(Clone)]
struct Shared {
    story: Story,
    kept: Arc<Mutex<Kept>>,
}

#[derive(Default)]
struct Kept {
    /// By their paths.
    objects: BTreeMap<String, Value>,
    /// Field managers, by path.
    managers: BTreeMap<String, String>,
    nodes: Option<Vec<Value>>,
    /// The server that answers for the pods.
    server: Option<SocketAddr>,
    requests: Vec<String>,
}

type Query2 = Query<BTreeMap<String, String>>;

const NAMESPACE: &str = "models";

impl Cluster {
    /// A cluster whose nodes the user must not list.
    pub(crate) fn start(story: Story) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let listener =
            runtime.block_on(async { tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap() });
        let address = listener.local_addr().unwrap();
        let folder = TempFolder::new();
        let kubeconfig = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "test",
            "clusters": [{"name": "test", "cluster": {"server": format!("http://{address}")}}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "me", "namespace": NAMESPACE}}],
            "users": [{"name": "me", "user": {}}],
        });
        folder.write("kubeconfig", kubeconfig.to_string());
        let shared = Shared { story, kept: Arc::default() };
        let routes = Router::new()
            .route("/api/v1/namespaces/{namespace}/pods/{pod}/portforward", get(forward))
            .fallback(answer)
            .with_state(shared.clone());
        runtime.spawn(async move { axum::serve(listener, routes).await });
        Self { _runtime: runtime, shared, folder }
    }

    /// The value of `KUBECONFIG`.
    pub(crate) fn kubeconfig(&self) -> String {
        self.folder.path().join("kubeconfig").to_str().unwrap().to_owned()
    }

    /// Lets users list these nodes.
    pub(crate) fn show_nodes(&self, nodes: Vec<Value>) {
        self.shared.kept().nodes = Some(nodes);
    }

    /// Makes this server answer for the pods.
    pub(crate) fn lead_to(&self, server: SocketAddr) {
        self.shared.kept().server = Some(server);
    }

    /// All objects by kind, without fields that the server adds.
    pub(crate) fn objects(&self) -> BTreeMap<String, Value> {
        let kept = self.shared.kept();
        let objects = kept
            .objects
            .values()
            .map(|object| (object["kind"].as_str().unwrap().to_owned(), object.clone()));
        objects.collect()
    }

    /// Creates an object that is not candlepower's.
    pub(crate) fn occupy(&self, deployment: &str) {
        let path = format!("/apis/apps/v1/namespaces/{NAMESPACE}/deployments/{deployment}");
        let object = json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": deployment}});
        self.shared.kept().objects.insert(path, object);
    }

    /// Methods and paths of all requests so far.
    pub(crate) fn requests(&self) -> Vec<String> {
        self.shared.kept().requests.clone()
    }
}

impl Shared {
    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap()
    }

    /// The Deployment and the pods of the story, for the Deployment that was applied.
    fn told(&self, deployment: &Value) -> (Value, Vec<Value>) {
        let file = match self.story {
            Story::Ready => "ready",
            Story::Recorded(file) => file,
            Story::Unless(word, file) if deployment["spec"].to_string().contains(word) => file,
            Story::Unless(..) => "ready",
        };
        // The client's unit tests read the same files, so both know the same clusters.
        let path = format!(
            "{}/../crates/client/src/kubernetes/recorded/{file}.json",
            env!("CARGO_MANIFEST_DIR")
        );
        let recorded: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
        let mut told = deployment.clone();
        told["status"] = recorded["deployment"]["status"].clone();
        // The client trusts a status only if it is about the newest generation of the spec.
        told["status"]["observedGeneration"] = told["metadata"]["generation"].clone();
        (told, recorded["pods"].as_array().unwrap().clone())
    }
}

fn refusal(code: StatusCode, reason: &str, message: String) -> Response {
    let status = json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": message, "reason": reason, "code": code.as_u16(),
    });
    (code, axum::Json(status)).into_response()
}

fn not_found(path: &str) -> Response {
    refusal(StatusCode::NOT_FOUND, "NotFound", format!("{path} not found"))
}

/// Lists objects. All other requests concern one object.
async fn answer(
    State(shared): State<Shared>,
    method: Method,
    uri: Uri,
    Query(query): Query2,
    body: Bytes,
) -> Response {
    let path = uri.path().trim_end_matches('/').to_owned();
    shared.kept().requests.push(format!("{method} {path}"));
    let parts: Vec<&str> = path.split('/').collect();
    match (method, parts.as_slice()) {
        (Method::GET, ["", "api", "v1", "nodes"]) => nodes(&shared),
        (Method::GET, [.., "deployments"]) => {
            let kept = shared.kept();
            let found = kept.objects.values().filter(|object| object["kind"] == "Deployment");
            list("Deployment", found.cloned().collect())
        }
        (Method::GET, [.., "pods"]) => list("Pod", pods(&shared)),
        (Method::GET, [.., "events"]) => list("Event", vec![event()]),
        (Method::GET, [.., "pods", _, "log"]) => log(&query).into_response(),
        (Method::GET, [.., "pods", _, "proxy", "health"]) => (
            StatusCode::SERVICE_UNAVAILABLE,
            axum::Json(json!({"status": "starting", "phase": "pulling", "progress": {"bytes_done": 5, "bytes_total": 9}})),
        )
            .into_response(),
        (Method::GET, _) => {
            let found = shared.kept().objects.get(&path).cloned();
            let Some(found) = found else { return not_found(&path) };
            let is_deployment = found["kind"] == "Deployment";
            axum::Json(if is_deployment { shared.told(&found).0 } else { found }).into_response()
        }
        (Method::PATCH, _) => patch(&shared, &path, &query, &body),
        (Method::PUT, _) => replace(&shared, &path, &body),
        (Method::DELETE, _) => {
            let mut kept = shared.kept();
            kept.managers.remove(&path);
            kept.objects.remove(&path).map_or_else(|| not_found(&path), |found| axum::Json(found).into_response())
        }
        _ => refusal(StatusCode::METHOD_NOT_ALLOWED, "MethodNotAllowed", path),
    }
}

async fn forward(State(shared): State<Shared>, request: Request) -> Response {
    let server = shared.kept().server;
    port_forward::answer(request, server.expect("nothing answers in the pods"))
}

fn nodes(shared: &Shared) -> Response {
    match shared.kept().nodes.clone() {
        Some(nodes) => list("Node", nodes),
        None => refusal(
            StatusCode::FORBIDDEN,
            "Forbidden",
            "nodes is forbidden: User \"me\" cannot list resource \"nodes\" in API group \"\" at the cluster scope".into(),
        ),
    }
}

fn list(kind: &str, items: Vec<Value>) -> Response {
    let version = if kind == "Deployment" { "apps/v1" } else { "v1" };
    let list = json!({"kind": format!("{kind}List"), "apiVersion": version, "metadata": {"resourceVersion": "1"}, "items": items});
    axum::Json(list).into_response()
}

fn pods(shared: &Shared) -> Vec<Value> {
    let deployment =
        shared.kept().objects.values().find(|object| object["kind"] == "Deployment").cloned();
    deployment.map_or(Vec::new(), |deployment| shared.told(&deployment).1)
}

fn event() -> Value {
    json!({
        "apiVersion": "v1", "kind": "Event", "metadata": {"name": "e", "namespace": NAMESPACE},
        "involvedObject": {"kind": "Pod", "name": "chat-6c9f8d7b54-x2x7q"},
        "reason": "Started", "message": "Started container server", "lastTimestamp": "2026-11-21T20:00:03Z",
    })
}

fn log(query: &BTreeMap<String, String>) -> String {
    let tail = query.get("tailLines").and_then(|tail| tail.parse().ok()).unwrap_or(usize::MAX);
    let lines = ["line 1", "line 2", "line 3"];
    lines[lines.len().saturating_sub(tail)..].iter().map(|line| format!("{line}\n")).collect()
}

/// Server-side apply, with a conflict if another manager has applied something else; or a merge of annotations.
fn patch(shared: &Shared, path: &str, query: &BTreeMap<String, String>, body: &Bytes) -> Response {
    let new: Value = serde_json::from_slice(body).unwrap();
    let mut kept = shared.kept();
    let found = kept.objects.get(path).cloned();
    let Some(manager) = query.get("fieldManager") else {
        let Some(mut found) = found else { return not_found(path) };
        merge(&mut found, &new);
        found["metadata"]["generation"] =
            json!(found["metadata"]["generation"].as_u64().unwrap_or(1) + 1);
        kept.objects.insert(path.into(), found.clone());
        return axum::Json(found).into_response();
    };
    // Server-side apply refuses fields of another manager, unless the client forces it.
    if found.is_some() && kept.managers.get(path) != Some(manager) {
        let message = "Apply failed with 1 conflict: conflict with \"candlepower\": .spec.template"
            .to_owned();
        return refusal(StatusCode::CONFLICT, "Conflict", message);
    }
    assert_ne!(
        query.get("force").map(String::as_str),
        Some("true"),
        "values of others are never taken over"
    );
    let mut object = new;
    for (key, value) in [
        ("uid", json!("5f0c3a52-7d1e-4c5b-9a43-0d4d6f1f2b10")),
        ("creationTimestamp", json!("2026-11-21T20:00:00Z")),
        ("generation", json!(1)),
        ("resourceVersion", json!("1")),
    ] {
        object["metadata"][key] = value;
    }
    kept.managers.insert(path.into(), manager.clone());
    kept.objects.insert(path.into(), object.clone());
    axum::Json(object).into_response()
}

/// Replaces an object, if its version is the one that the client has read.
fn replace(shared: &Shared, path: &str, body: &Bytes) -> Response {
    let mut new: Value = serde_json::from_slice(body).unwrap();
    let mut kept = shared.kept();
    let Some(found) = kept.objects.get(path).cloned() else { return not_found(path) };
    let version = &found["metadata"]["resourceVersion"];
    if new["metadata"]["resourceVersion"] != *version {
        let message =
            "the object has been modified; please apply your changes to the latest version";
        return refusal(StatusCode::CONFLICT, "Conflict", message.into());
    }
    let next = version.as_str().unwrap().parse::<u64>().unwrap() + 1;
    new["metadata"]["resourceVersion"] = json!(next.to_string());
    new["metadata"]["generation"] = json!(next);
    kept.objects.insert(path.into(), new.clone());
    axum::Json(new).into_response()
}

fn merge(into: &mut Value, new: &Value) {
    match new.as_object() {
        Some(new) => new.iter().for_each(|(key, value)| merge(&mut into[key], value)),
        None => *into = new.clone(),
    }
}
