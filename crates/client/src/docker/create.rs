//! Makes a container from a plan and runs it.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, TcpListener};

use candlepower_machine::Gpus;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::container::Container;
use super::engine::{Engine, Kind, NAME_LABEL, PATIENCE, Refused, container_name};
use super::update::{has_other_secrets, update, without_leftovers};
use crate::backend::{Begun, Handle};
use crate::check::{Compute, Plan};
use crate::error::{Error, Leftover, Result};
use crate::model;
use crate::params::Params;
use crate::process;
use crate::secret::Secrets;
use crate::secret_file::{RUN_WITH_SECRETS, SECRETS_FILE, archive};
use crate::spec::Spec;
use crate::status::{DeploymentStatus, now};

/// The label with the description of a deployment: everything but its secrets.
const DESCRIPTION_LABEL: &str = "candlepower.description";
/// Folders within the container, of the model and of the hub's cache.
const MODEL_FOLDER: &str = "/model";
const CACHE_FOLDER: &str = "/data";
/// The default volume with the hub's cache, shared by all deployments.
const CACHE_VOLUME: &str = "candlepower";
/// Number of times that the engine restarts a server that ended by itself.
const MAX_RESTARTS: u32 = 5;
/// Number of free ports that are tried. Another process may take a port between its choice and the engine's
/// bind.
const PORT_ATTEMPTS: u32 = 5;
/// Age at which a container that was made but never started counts as left over by a client that is gone.
const START_PATIENCE_S: f64 = 30.0;

/// The description of a container, stored in a label of its own.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Description {
    pub(super) spec: Spec,
    /// Time of creation, in seconds since 1970.
    pub(super) created_at: f64,
    /// The host port of the server.
    pub(super) port: u16,
    /// UUIDs of the container's GPUs.
    pub(super) gpus: Vec<String>,
    /// Warnings that the user has seen at the start.
    pub(super) warnings: Vec<String>,
}

impl Description {
    /// Reads the labels of a container; `None` if another program has made it.
    pub(super) fn of(labels: &BTreeMap<String, String>) -> Option<Self> {
        serde_json::from_str(labels.get(DESCRIPTION_LABEL)?).ok()
    }
}

/// The reason that no container was made.
enum NotMade {
    NameTaken,
    Refused(Refused),
}

/// The reason that a new container does not run.
enum NotStarted {
    /// The engine has dropped the GPU request. Old engines do so silently.
    GpusLost,
    PortTaken(Refused),
    Refused(Refused),
}

/// Makes a container and starts it, or finds the deployment with the same spec.
pub(crate) async fn deploy(
    engine: &Engine,
    params: &Params,
    mut plan: Plan,
    on_progress: &mut impl FnMut(&DeploymentStatus),
) -> Result<Begun> {
    let name = plan.spec.name.clone();
    // Clients without a backend look for names among processes first, so they would never find the container.
    if process::find(&name).is_ok() {
        let difference = "it is a process".to_owned();
        return Err(Error::NameInUse { name, difference });
    }
    without_leftovers(engine, &name).await?;
    if params.update
        && let Ok(old) = engine.find(&name).await
        && (old.description.spec != plan.spec || has_other_secrets(engine, &old, &plan).await)
    {
        return update(engine, params, plan, old, on_progress).await;
    }
    if let Some(begun) = same(engine, &plan.spec).await? {
        return Ok(begun);
    }
    let compute = choose_gpus(engine, &mut plan).await?;
    model::check(params, &plan, &compute).await?;
    let image = Image::find(engine, &plan.spec, &compute).await?;
    // The engine gives each container name once. This decides between two clients that deploy at the same moment.
    let made = make(engine, params, &plan, &compute, &image, &container_name(&name)).await?;
    match made {
        Some(container) => Ok(Begun { handle: Handle::Docker(container), is_own: true }),
        // Another client has taken the name first.
        None => same(engine, &plan.spec).await?.ok_or_else(|| foreign(&name)),
    }
}

/// Makes a container of this name and starts it; `None` if the name is taken.
pub(super) async fn make(
    engine: &Engine,
    params: &Params,
    plan: &Plan,
    compute: &Compute,
    image: &Image,
    container_name: &str,
) -> Result<Option<Container>> {
    let name = &plan.spec.name;
    // A requested port stays taken, so a second attempt is of no use.
    let mut attempts_left = if plan.spec.port.is_some() { 1 } else { PORT_ATTEMPTS };
    loop {
        attempts_left -= 1;
        let description = Description {
            spec: plan.spec.clone(),
            created_at: now(),
            port: plan.spec.port.map_or_else(free_port, Ok)?,
            gpus: compute.uuids(),
            warnings: plan.warnings.clone(),
        };
        let secrets = &plan.secrets;
        let creation = Creation { engine, description, compute, image, secrets, container_name };
        let container = match creation.make().await {
            Ok(container) => container,
            Err(NotMade::NameTaken) => return Ok(None),
            Err(NotMade::Refused(refused)) => {
                let doing = format!("the container of `{name}` cannot be made");
                return Err(Error::backend(doing, refused));
            }
        };
        match creation.start(&container).await {
            Ok(()) => return Ok(Some(container)),
            // The port is part of the container's creation. So the container is made again with another one.
            Err(NotStarted::PortTaken(_)) if attempts_left > 0 => container.delete().await?,
            Err(why) => return Err(given_up(container, why, params).await?),
        }
    }
}

/// The error of a container that was not started. The container is removed, unless it is to be kept.
///
/// # Errors
/// The container cannot be removed.
async fn given_up(container: Container, why: NotStarted, params: &Params) -> Result<Error> {
    let Description { spec, port, gpus, .. } = &container.description;
    let reason = match why {
        NotStarted::GpusLost => {
            container.delete().await?;
            return Ok(Error::ResourceUnavailable {
                asked: spec.asked_gpus(gpus.len()),
                available: format!(
                    "{} drops the GPU request: install Docker with the NVIDIA Container Toolkit, or Podman 5 with a CDI \
                     specification; set gpu_count to 0 to compute on the CPU",
                    container.engine
                ),
            });
        }
        NotStarted::PortTaken(refused) => {
            format!("port {port} of this machine is taken: {refused}")
        }
        NotStarted::Refused(refused) => format!("the container cannot be started: {refused}"),
    };
    let left = match params.keep_on_failure {
        true => Leftover::Kept,
        false => container.delete().await.map(|()| Leftover::Nothing)?,
    };
    Ok(Error::Failed { name: spec.name.clone(), reason, log: Vec::new(), left })
}

/// The existing deployment of this name with the same spec. It is started again if it has ended.
///
/// # Errors
/// The deployment has another spec.
async fn same(engine: &Engine, spec: &Spec) -> Result<Option<Begun>> {
    let container = match engine.find(&spec.name).await {
        Err(Error::NotFound { .. }) => return Ok(None),
        found => found?,
    };
    if container.description.spec != *spec {
        let difference = container.description.spec.difference(spec);
        return Err(Error::NameInUse { name: spec.name.clone(), difference });
    }
    // A younger container may be the work of another client, which is about to start it.
    let is_left = now() - container.description.created_at > START_PATIENCE_S;
    match container.inspect().await?.state.status.as_str() {
        "created" | "configured" | "initialized" if is_left => {
            container.delete().await?;
            return Ok(None);
        }
        "exited" | "stopped" | "dead" => container.restart().await?,
        _ => {}
    }
    Ok(Some(Begun { handle: Handle::Docker(container), is_own: false }))
}

/// The GPUs of this machine that are held by no supervisor and no container.
pub(super) async fn choose_gpus(engine: &Engine, plan: &mut Plan) -> Result<Compute> {
    let free = free_gpus(engine, None).await?;
    plan.spec.choose_gpus(&free, &mut plan.warnings)
}

/// The same, plus the GPUs of one container, whose memory counts as free.
pub(super) async fn free_gpus(engine: &Engine, own: Option<&Container>) -> Result<Gpus> {
    let mut free = process::free_gpus()?;
    let others = if free.devices.is_empty() { Vec::new() } else { engine.list().await? };
    for container in others {
        let gpus = &container.description.gpus;
        if own.is_some_and(|own| own.id == container.id) {
            for gpu in free.devices.iter_mut().filter(|gpu| gpus.contains(&gpu.uuid)) {
                gpu.memory_free_bytes = gpu.memory_total_bytes;
            }
        } else if container.inspect().await.is_ok_and(|inspect| inspect.is_running()) {
            // Only a running container holds GPU memory. The GPUs of a stopped one are free until it starts again.
            free.devices.retain(|gpu| !container.description.gpus.contains(&gpu.uuid));
        }
    }
    Ok(free)
}

/// The image to run.
pub(super) struct Image {
    name: String,
    /// Numeric id of the image's user; `None` if the image gives a name instead.
    uid: Option<u64>,
}

impl Image {
    pub(super) async fn find(engine: &Engine, spec: &Spec, compute: &Compute) -> Result<Self> {
        let capability = compute.gpus.first().map(|gpu| gpu.compute_capability);
        let name = spec.image_for(capability.map(|found| (found.major, found.minor)));
        let found: Value = match engine.get(&format!("images/{name}/json"), &[]).await {
            Ok(found) => found,
            Err(refused) if refused.is_not_found() => {
                let program = format!("{:?}", engine.kind).to_lowercase();
                return Err(Error::validation(
                    "image",
                    name.clone(),
                    format!(
                        "{engine} does not have it: fetch it with `{program} pull {name}`, or build it (docs/deploy.md, \"The container \
                         image\"), or name another one (image, CANDLEPOWER_IMAGE)"
                    ),
                ));
            }
            Err(refused) => {
                return Err(Error::backend(
                    format!("the image {name} cannot be inspected"),
                    refused,
                ));
            }
        };
        let user = found["Config"]["User"].as_str().unwrap_or_default();
        // The form is `USER[:GROUP]`.
        let user = user.split(':').next().unwrap_or_default();
        // An image without a user runs as root.
        let uid = if user.is_empty() { Some(0) } else { user.parse().ok() };
        Ok(Self { name, uid })
    }
}

/// A container that is to be made.
struct Creation<'a> {
    engine: &'a Engine,
    description: Description,
    compute: &'a Compute,
    image: &'a Image,
    secrets: &'a Secrets,
    container_name: &'a str,
}

impl Creation<'_> {
    async fn make(&self) -> Result<Container, NotMade> {
        let name = self.container_name;
        let body = self.body();
        let query = [("name", name)];
        let made = self.engine.post("containers/create", &query, Some(&body), PATIENCE).await;
        let answer = made.map_err(|refused| {
            // The status of a name conflict: Docker answers 409, Podman 500.
            let is_taken = refused.status == Some(409) || refused.words.contains("already in use");
            if is_taken { NotMade::NameTaken } else { NotMade::Refused(refused) }
        })?;
        let answer: Value = serde_json::from_slice(&answer).unwrap_or_default();
        // The engines accept the name as well, should the answer lack the id.
        let id = answer["Id"].as_str().unwrap_or(name).to_owned();
        Ok(Container { engine: self.engine.clone(), id, description: self.description.clone() })
    }

    /// Checks that the container has its GPUs, copies its secrets into it, and starts it.
    async fn start(&self, container: &Container) -> Result<(), NotStarted> {
        self.try_start(container).await.map_err(|refused| match refused {
            None => NotStarted::GpusLost,
            Some(refused) if is_port_taken(&refused) => NotStarted::PortTaken(refused),
            Some(refused) => NotStarted::Refused(refused),
        })
    }

    /// [`start`](Self::start) with an error of its own for lost GPUs, `None`.
    async fn try_start(&self, container: &Container) -> Result<(), Option<Refused>> {
        let (engine, id) = (self.engine, &container.id);
        // Podman 4 accepts a GPU request and drops it without an error. Only an inspection after the creation shows it;
        // otherwise the server would fail later, with a message about drivers.
        if !self.compute.gpus.is_empty() && !engine.inspect(id).await?.has_gpus() {
            return Err(None);
        }
        if !self.secrets.0.is_empty() {
            let archive = archive(self.secrets, self.image.uid)
                .map_err(|error| Refused { status: None, words: error.to_string() })?;
            engine.put_archive(id, "/", archive).await?;
        }
        engine.post(&format!("containers/{id}/start"), &[], None, PATIENCE).await?;
        Ok(())
    }

    /// The body of the creation request. Source: Docker Engine API, `POST /containers/create`.
    fn body(&self) -> Value {
        let Description { spec, port, .. } = &self.description;
        let inner = format!("{}/tcp", spec.container_port());
        let env: Vec<String> =
            spec.env.iter().map(|(name, value)| format!("{name}={value}")).collect();
        json!({
            "Image": self.image.name,
            "Entrypoint": ["candlepower"],
            "Cmd": self.command(),
            "Env": env,
            "Labels": {
                NAME_LABEL: spec.name,
                DESCRIPTION_LABEL: serde_json::to_string(&self.description).unwrap_or_default(),
            },
            "ExposedPorts": { &inner: {} },
            "StopTimeout": spec.stop_seconds(0),
            "HostConfig": {
                "Binds": self.binds(),
                // The port is bound to the loopback address only. The server may have no API key.
                "PortBindings": { &inner: [{ "HostIp": "127.0.0.1", "HostPort": port.to_string() }] },
                "Memory": spec.memory_bytes,
                // CPU shares are a relative weight. This is the formula by which the kubelet converts a CPU
                // request.
                "CpuShares": spec.cpu_millis.map_or(0, |millis| (millis * 1024 / 1000).max(2)),
                "ShmSize": spec.shm_bytes(),
                // A server that ended with status 0 was meant to end, so it is not started again.
                "RestartPolicy": { "Name": "on-failure", "MaximumRetryCount": MAX_RESTARTS },
                // Podman maps this driver name to its own format of log files.
                "LogConfig": { "Type": "json-file", "Config": { "max-size": "10m", "max-file": "5" } },
                "CapDrop": ["ALL"],
                "SecurityOpt": ["no-new-privileges"],
                "DeviceRequests": self.device_requests(),
            },
        })
    }

    fn command(&self) -> Vec<String> {
        let spec = &self.description.spec;
        let mut command = Vec::new();
        if !self.secrets.0.is_empty() {
            command.extend([RUN_WITH_SECRETS.to_owned(), SECRETS_FILE.to_owned()]);
        }
        command.extend(spec.argv.iter().cloned());
        if let Some(path) = spec.model_path() {
            // Within the container the model's folder has another path.
            let model = command.iter_mut().find(|word| **word == spec.model);
            if let Some(model) = model {
                *model = match path.file_name() {
                    Some(file) if path.is_file() => {
                        format!("{MODEL_FOLDER}/{}", file.to_string_lossy())
                    }
                    _ => MODEL_FOLDER.into(),
                };
            }
            // Requests name the model by the same name as without a container.
            let flag = "--served-model-name=";
            if let Some(name) = if path.is_file() { path.file_stem() } else { path.file_name() }
                && !spec.argv.iter().any(|word| word.starts_with(flag))
            {
                command.push(format!("{flag}{}", name.to_string_lossy()));
            }
        }
        // These flags are not in the spec, since they follow from the machine and not from the parameters.
        command.push(format!("--device={}", self.compute.device.as_str()));
        command.extend(["--host=0.0.0.0".into(), format!("--port={}", spec.container_port())]);
        command
    }

    fn binds(&self) -> Vec<String> {
        let spec = &self.description.spec;
        let cache = spec.hub_cache.as_deref().unwrap_or(CACHE_VOLUME);
        let mut binds = vec![format!("{cache}:{CACHE_FOLDER}")];
        // A GGUF file is mounted with its folder, which holds the other files of a split model.
        if let Some(path) = spec.model_path() {
            let folder = path.parent().filter(|_| path.is_file()).unwrap_or(path);
            binds.push(format!("{}:{MODEL_FOLDER}:ro", folder.display()));
        }
        binds
    }

    fn device_requests(&self) -> Vec<Value> {
        let uuids = self.compute.uuids();
        if uuids.is_empty() {
            return Vec::new();
        }
        match self.engine.kind {
            Kind::Docker => vec![json!({ "DeviceIDs": uuids, "Capabilities": [["gpu"]] })],
            Kind::Podman => {
                let devices: Vec<String> =
                    uuids.iter().map(|uuid| format!("nvidia.com/gpu={uuid}")).collect();
                vec![json!({ "Driver": "cdi", "DeviceIDs": devices })]
            }
        }
    }
}

/// A port that is free now. The container keeps it over restarts.
fn free_port() -> Result<u16> {
    let bound =
        TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).and_then(|listener| listener.local_addr());
    let address = bound.map_err(|error| Error::backend("there is no free port", error))?;
    Ok(address.port())
}

fn is_port_taken(refused: &Refused) -> bool {
    // Neither engine has a status of its own for this.
    const WORDS: [&str; 2] = ["port is already allocated", "address already in use"];
    let words = refused.words.to_lowercase();
    WORDS.iter().any(|taken| words.contains(taken))
}

/// The error for a container that has this deployment's name but was made by another program.
fn foreign(name: &str) -> Error {
    Error::backend(
        format!("`{name}` cannot be deployed"),
        format!(
            "there is a container `candlepower-{name}` that is no deployment: remove it, or choose another name"
        ),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_taken_port_is_known_by_the_words_of_each_engine() {
        let refused = |words: &str| Refused { status: Some(500), words: words.into() };
        for words in [
            "driver failed programming external connectivity: Bind for 127.0.0.1:8000 failed: port is already allocated",
            "cannot listen on the TCP port: listen tcp4 127.0.0.1:8000: bind: address already in use",
        ] {
            assert!(is_port_taken(&refused(words)));
        }
        assert!(!is_port_taken(&refused("no such image")));
    }
}
