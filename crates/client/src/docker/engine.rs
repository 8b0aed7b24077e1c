//! A container engine: calls over its socket, and readable errors.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use candlepower_machine::{ContainerEngine, EngineState};
use reqwest::{Method, RequestBuilder, Response};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::container::Container;
use super::create::Description;
use super::seen::Inspect;
use crate::error::{Error, Result};

/// The label of all containers of this backend. Its value is the deployment's name.
pub(super) const NAME_LABEL: &str = "candlepower.deployment";
/// The environment variable with the engine's socket, as Docker's own tools read it.
const HOST_VARIABLE: &str = "DOCKER_HOST";
/// Time limit of a call that only reads or creates something.
pub(super) const PATIENCE: Duration = Duration::from_secs(60);
/// Characters of a refusal that are shown.
const MAX_WORDS: usize = 500;

/// An engine that has answered.
#[derive(Clone, Debug)]
pub(crate) struct Engine {
    http: reqwest::Client,
    pub(super) kind: Kind,
    version: String,
}

/// The kinds of engine. They differ in the form of a GPU request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Docker,
    Podman,
}

/// The error of a call to the engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Refused {
    /// HTTP status; `None` if there was no answer.
    pub(super) status: Option<u16>,
    pub(super) words: String,
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.words)
    }
}

impl Refused {
    pub(super) fn is_not_found(&self) -> bool {
        self.status == Some(404)
    }
}

/// The fields that are read of `GET /version`.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Version {
    version: String,
    #[serde(default)]
    components: Vec<Component>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Component {
    name: String,
}

/// One container of a list.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Listed {
    id: String,
    #[serde(default)]
    names: Vec<String>,
    #[serde(default)]
    labels: std::collections::BTreeMap<String, String>,
}

impl Engine {
    /// The engine at `host` (`unix:///path`), or else the first that answers at the usual sockets of Docker
    /// and Podman.
    ///
    /// # Errors
    /// There is no engine, or it does not answer.
    pub(crate) async fn connect(host: Option<&str>) -> Result<Self> {
        let socket = find_socket(host)?;
        let doing = || format!("the container engine at {} cannot be used", socket.display());
        Self::at(socket.clone()).await.map_err(|refused| Error::backend(doing(), refused))
    }

    /// The engine of this machine, if one answers.
    pub(crate) async fn here() -> Option<Self> {
        Self::at(find_socket(None).ok()?).await.ok()
    }

    async fn at(socket: PathBuf) -> Result<Self, Refused> {
        let http = reqwest::Client::builder()
            .unix_socket(socket)
            // A proxy from the environment does not know the socket.
            .no_proxy()
            // A socket of this machine needs no TLS, and reading the system's certificates takes time.
            .tls_built_in_root_certs(false)
            .build()
            .map_err(|error| transport(&error))?;
        let unknown = Self { http, kind: Kind::Docker, version: String::new() };
        let version: Version = unknown.get("version", &[]).await?;
        // Podman imitates Docker's API and names itself only in the list of its components.
        let is_podman = version.components.iter().any(|part| part.name.contains("Podman"));
        let kind = if is_podman { Kind::Podman } else { Kind::Docker };
        Ok(Self { kind, version: version.version, ..unknown })
    }

    /// The deployment of this name.
    ///
    /// # Errors
    /// There is none.
    pub(crate) async fn find(&self, name: &str) -> Result<Container> {
        let found = self.labelled(&format!("{NAME_LABEL}={name}")).await?;
        found.into_iter().next().ok_or_else(|| Error::NotFound { name: name.to_owned() })
    }

    /// All deployments of this engine.
    pub(crate) async fn list(&self) -> Result<Vec<Container>> {
        self.labelled(NAME_LABEL).await
    }

    async fn labelled(&self, label: &str) -> Result<Vec<Container>> {
        let filters = json!({ "label": [label] }).to_string();
        let listed: Vec<Listed> = self
            .get("containers/json", &[("all", "true"), ("filters", &filters)])
            .await
            .map_err(|refused| Error::backend("the containers cannot be listed", refused))?;
        let ours = |listed: Listed| {
            let description = Description::of(&listed.labels)?;
            // During an update there are two containers. Only one of them has the deployment's name.
            let name = format!("/{}", container_name(&description.spec.name));
            let has_name = listed.names.is_empty() || listed.names.contains(&name);
            has_name.then(|| Container { engine: self.clone(), id: listed.id, description })
        };
        Ok(listed.into_iter().filter_map(ours).collect())
    }

    pub(super) async fn inspect(&self, container: &str) -> Result<Inspect, Refused> {
        self.get(&format!("containers/{container}/json"), &[]).await
    }

    pub(super) async fn get<T: DeserializeOwned>(
        &self,
        path: &str,
        query: &[(&str, &str)],
    ) -> Result<T, Refused> {
        let request = self.request(Method::GET, path).query(query).timeout(PATIENCE);
        let bytes = answered(request).await?.bytes().await.map_err(|error| transport(&error))?;
        serde_json::from_slice(&bytes).map_err(|error| Refused {
            status: None,
            words: format!("the answer to {path} cannot be parsed: {error}"),
        })
    }

    /// Opens a streaming answer, without a time limit for its body.
    pub(super) async fn open(
        &self,
        path: &str,
        query: &[(&str, &str)],
    ) -> Result<Response, Refused> {
        answered(self.request(Method::GET, path).query(query)).await
    }

    pub(super) async fn post(
        &self,
        path: &str,
        query: &[(&str, &str)],
        body: Option<&Value>,
        patience: Duration,
    ) -> Result<Vec<u8>, Refused> {
        let mut request = self.request(Method::POST, path).query(query).timeout(patience);
        if let Some(body) = body {
            request = request.header("content-type", "application/json").body(body.to_string());
        }
        let bytes = answered(request).await?.bytes().await.map_err(|error| transport(&error))?;
        Ok(bytes.to_vec())
    }

    /// Unpacks a tar archive in a container.
    pub(super) async fn put_archive(
        &self,
        container: &str,
        folder: &str,
        archive: Vec<u8>,
    ) -> Result<(), Refused> {
        let request = self
            .request(Method::PUT, &format!("containers/{container}/archive"))
            .query(&[("path", folder)])
            .header("content-type", "application/x-tar")
            .timeout(PATIENCE)
            .body(archive);
        answered(request).await.map(|_| ())
    }

    /// A tar archive with one file of a container.
    pub(super) async fn get_archive(
        &self,
        container: &str,
        path: &str,
    ) -> Result<Vec<u8>, Refused> {
        let request = self
            .request(Method::GET, &format!("containers/{container}/archive"))
            .query(&[("path", path)])
            .timeout(PATIENCE);
        let bytes = answered(request).await?.bytes().await.map_err(|error| transport(&error))?;
        Ok(bytes.to_vec())
    }

    /// Renames a container.
    pub(super) async fn rename(&self, container: &str, name: &str) -> Result<(), Refused> {
        let path = format!("containers/{container}/rename");
        self.post(&path, &[("name", name)], None, PATIENCE).await.map(|_| ())
    }

    pub(super) async fn delete(&self, path: &str, query: &[(&str, &str)]) -> Result<(), Refused> {
        let request = self.request(Method::DELETE, path).query(query).timeout(PATIENCE);
        answered(request).await.map(|_| ())
    }

    fn request(&self, method: Method, path: &str) -> RequestBuilder {
        // The socket decides the connection. The host name has no effect, but a URL needs one.
        self.http.request(method, format!("http://engine/{path}"))
    }
}

/// The name of a deployment's container.
pub(super) fn container_name(deployment: &str) -> String {
    format!("candlepower-{deployment}")
}

impl fmt::Display for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} {}", self.kind, self.version)
    }
}

async fn answered(request: RequestBuilder) -> Result<Response, Refused> {
    let response = request.send().await.map_err(|error| transport(&error))?;
    let status = response.status();
    // 304: the container was in the requested state already.
    if status.is_success() || status.as_u16() == 304 {
        return Ok(response);
    }
    let bytes = response.bytes().await.unwrap_or_default();
    let told = serde_json::from_slice::<Value>(&bytes).ok();
    let message = told.as_ref().and_then(|told| told["message"].as_str());
    let words = match message {
        Some(message) => message.trim().chars().take(MAX_WORDS).collect(),
        None => format!("its answer was {status}"),
    };
    Err(Refused { status: Some(status.as_u16()), words })
}

/// The error of a failed transfer, with the message of the layer below HTTP.
fn transport(error: &reqwest::Error) -> Refused {
    let mut cause: &dyn std::error::Error = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    let words = match cause.downcast_ref::<std::io::Error>().map(std::io::Error::kind) {
        Some(std::io::ErrorKind::PermissionDenied) => {
            "no permission: this user must be in the socket's group".to_owned()
        }
        Some(std::io::ErrorKind::ConnectionRefused) => "nothing listens there".to_owned(),
        Some(std::io::ErrorKind::NotFound) => "there is no such socket".to_owned(),
        _ if error.is_timeout() => "it did not answer in time".to_owned(),
        _ => cause.to_string(),
    };
    Refused { status: None, words }
}

fn socket_of(host: &str) -> Result<PathBuf> {
    let path = host.strip_prefix("unix://").unwrap_or(host);
    match path.starts_with('/') {
        true => Ok(path.into()),
        false => Err(Error::validation(
            "docker_host",
            host,
            "write unix:///path: the engine must run on this machine, where it opens the deployment's port",
        )),
    }
}

fn find_socket(host: Option<&str>) -> Result<PathBuf> {
    let named = std::env::var(HOST_VARIABLE).ok().filter(|named| !named.is_empty());
    // A named engine must answer: no other is tried in its place.
    if let Some(named) = host.or(named.as_deref()) {
        return socket_of(named);
    }
    let engines = ContainerEngine::probe_all();
    let answers = |engine: &&ContainerEngine| engine.state == EngineState::Answers;
    if let Some(socket) = engines.iter().find(answers).and_then(|engine| engine.socket.clone()) {
        return Ok(socket);
    }
    let told: Vec<String> =
        engines.iter().map(|engine| format!("{} {engine}", engine.name)).collect();
    Err(Error::backend(
        "no container engine can be used",
        format!(
            "{}; start one (`systemctl start docker`, `systemctl --user start podman.socket`), or name its socket in \
             DOCKER_HOST as unix:///path",
            told.join("; ")
        ),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_engines_of_this_machine_are_asked() {
        assert_eq!(socket_of("unix:///run/a.sock").unwrap(), PathBuf::from("/run/a.sock"));
        assert_eq!(socket_of("/run/a.sock").unwrap(), PathBuf::from("/run/a.sock"));
        for host in ["tcp://10.0.0.1:2375", "ssh://builder", ""] {
            assert_eq!(socket_of(host).unwrap_err().code(), "VALIDATION_ERROR", "{host}");
        }
    }
}
