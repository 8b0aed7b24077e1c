//! A deployment of this backend, as clients see it: its folder, in the light of whether its supervisor lives.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use candlepower_machine::Gpus;

use super::control::{self, Wish};
use super::folder::{self, Folder, Record};
use super::launch::{Answer, launch};
use super::lease;
use super::logs::{self, FileLines};
use super::supervisor::restart_hint;
use crate::backend::{Begun, Handle, PROCESS};
use crate::check::{HUB_TOKEN, Plan};
use crate::deployment::Deployment;
use crate::error::{Error, Result};
use crate::health::HealthClient;
use crate::logs::LogStream;
use crate::model;
use crate::params::Params;
use crate::secret::Secrets;
use crate::spec::{Launch, Spec};
use crate::status::{DeploymentStatus, Event, Phase, Progress, State, now};

/// How often it is looked whether another client's deployment has got on.
const LOOK: Duration = Duration::from_millis(20);
/// How long a supervisor may take from having the name to saying what it runs.
const CLAIM_PATIENCE: Duration = Duration::from_secs(5);

/// A deployment that a supervisor has or had.
#[derive(Clone, Debug)]
pub(crate) struct Supervised {
    folder: Folder,
    /// The program that supervises, where it is not looked for.
    binary: Option<PathBuf>,
}

/// How a name stands to what is to be deployed.
enum Found {
    /// Nothing runs under it.
    Free,
    /// A deployment that is the same.
    Same,
    /// A deployment that is being deleted.
    Going,
}

/// Starts a supervisor, of this `binary` or the one that is found, or finds the deployment that is the same.
pub(crate) async fn deploy(
    params: &Params,
    mut plan: Plan,
    binary: Option<PathBuf>,
) -> Result<Begun> {
    let folder = Folder::new(&folder::root()?, &plan.spec.name);
    let is_own = loop {
        match look(&folder, &plan.spec).await? {
            Found::Same => break false,
            Found::Going => tokio::time::sleep(LOOK).await,
            Found::Free => {
                let mut warnings = plan.warnings.clone();
                let compute = plan.spec.choose_gpus(&free_gpus()?, &mut warnings)?;
                model::check(params, &plan, &compute).await?;
                let (spec, secrets) = (plan.spec.clone(), std::mem::take(&mut plan.secrets));
                let told = Launch {
                    root: folder::root()?,
                    spec,
                    secrets: secrets.clone(),
                    device: compute.device,
                    gpus: compute.uuids(),
                    warnings,
                };
                if start(&folder, told, binary.clone()).await? {
                    break true;
                }
                plan.secrets = secrets;
            }
        }
    };
    Ok(Begun { handle: Handle::Process(Supervised { folder, binary }), is_own })
}

/// # Errors
/// There is nothing of this name.
pub(crate) fn find(name: &str) -> Result<Supervised> {
    let folder = Folder::new(&folder::root()?, name);
    match folder.path().exists() {
        true => Ok(Supervised { folder, binary: None }),
        false => Err(Error::NotFound { name: name.to_owned() }),
    }
}

/// The GPUs of this machine that no supervisor holds.
pub(crate) fn free_gpus() -> Result<Gpus> {
    Ok(lease::free_gpus(&folder::root()?))
}

/// All of them, by their names.
pub(crate) fn list() -> Result<Vec<Supervised>> {
    let root = folder::root()?;
    let names = Folder::names(&root).into_iter();
    Ok(names.map(|name| Supervised { folder: Folder::new(&root, &name), binary: None }).collect())
}

impl Supervised {
    /// Is started again with this program.
    pub(crate) fn with_binary(mut self, binary: Option<PathBuf>) -> Self {
        self.binary = binary;
        self
    }

    pub(crate) async fn read(&self) -> Result<Deployment> {
        let (Some(spec), Some(record)) = (self.folder.spec(), self.folder.record()) else {
            return Err(self.not_found());
        };
        let (state, phase, message) = seen(&self.name(), &record);
        Ok(Deployment {
            name: self.name(),
            url: record.url,
            state,
            phase,
            message,
            backend: PROCESS,
            framework: spec.framework,
            model: spec.model,
            image: None,
            created_at: record.created_at,
            updated_at: record.updated_at,
            handle: Handle::Process(self.clone()),
        })
    }

    pub(crate) async fn status(&self) -> Result<DeploymentStatus> {
        let record = self.folder.record().ok_or_else(|| self.not_found())?;
        let (state, mut phase, mut message) = seen(&self.name(), &record);
        let is_ready = state == State::Running && is_healthy(&record.url).await;
        if phase == Phase::Ready && !is_ready {
            (phase, message) = (Phase::Degraded, "the server does not answer".into());
        }
        let now = now();
        Ok(DeploymentStatus {
            state,
            phase,
            is_ready,
            message,
            progress: Progress {
                step: phase,
                bytes_done: record.bytes_done,
                bytes_total: record.bytes_total,
                elapsed_s: now - record.created_at,
            },
            replicas_ready: u32::from(is_ready),
            replicas_desired: 1,
            restarts: record.restarts,
            exit_code: record.exit_code,
            gpu_seconds: f64::from(record.num_gpus) * (now - record.started_at),
        })
    }

    pub(crate) async fn logs(&self, tail: Option<usize>) -> Result<Vec<String>> {
        Ok(logs::tail(&self.folder.log(), tail))
    }

    pub(crate) async fn follow(&self, tail: Option<usize>) -> Result<LogStream> {
        FileLines::new(self.folder.log(), tail)
            .map(LogStream::new)
            .map_err(|error| Error::backend("the log cannot be read", error))
    }

    pub(crate) async fn events(&self) -> Result<Vec<Event>> {
        Ok(self.folder.events())
    }

    pub(crate) async fn delete(&self) -> Result<()> {
        let (folder, name) = (&self.folder, self.name());
        let wrong = |error| Error::backend(format!("`{name}` cannot be deleted"), error);
        let record = folder.record();
        if record.is_none() && !folder.path().exists() {
            return Err(self.not_found());
        }
        if let Some(record) = &record
            && record.supervisor.is_alive()
        {
            let asked = control::ask(folder.path(), Wish::Delete).await;
            let ended = record.supervisor.wait(CLAIM_PATIENCE).await;
            match asked {
                // Another client was faster.
                Err(_) if ended && !folder.path().exists() => return Ok(()),
                Err(error) if !ended => return Err(wrong(error)),
                _ if !folder.path().exists() => return Ok(()),
                _ => {}
            }
        }
        // Nobody supervises it: what is left is removed here.
        let Some(_lock) = folder.claim().map_err(wrong)? else {
            return Err(wrong(std::io::Error::other("it is just being started")));
        };
        if let Some(server) = folder.record().and_then(|record| record.server) {
            server.end().await;
        }
        folder.remove().map_err(wrong)
    }

    pub(crate) async fn restart(&self) -> Result<()> {
        let folder = &self.folder;
        let name = self.name();
        let wrong = |error| Error::backend(format!("`{name}` cannot be started again"), error);
        if folder.record().is_some_and(|record| record.supervisor.is_alive()) {
            return control::ask(folder.path(), Wish::Restart).await.map_err(wrong);
        }
        let spec = folder.spec().ok_or_else(|| self.not_found())?;
        let secrets = secrets_again(&spec)?;
        let mut warnings = Vec::new();
        let compute = spec.choose_gpus(&free_gpus()?, &mut warnings)?;
        let (root, gpus) = (folder::root()?, compute.uuids());
        let told = Launch { root, spec, secrets, device: compute.device, gpus, warnings };
        start(folder, told, self.binary.clone()).await.map(|_| ())
    }

    fn name(&self) -> String {
        self.folder.path().file_name().unwrap_or_default().to_string_lossy().into_owned()
    }

    fn not_found(&self) -> Error {
        Error::NotFound { name: self.name() }
    }
}

/// Looks whether a name is free; one that failed and is the same is started again.
async fn look(folder: &Folder, asked: &Spec) -> Result<Found> {
    let Some(record) = folder.record() else { return Ok(Found::Free) };
    if record.state == State::Terminating && record.supervisor.is_alive() {
        return Ok(Found::Going);
    }
    match folder.spec() {
        Some(spec) if spec != *asked => Err(Error::NameInUse { name: asked.name.clone() }),
        Some(_) if record.supervisor.is_alive() => {
            if record.state == State::Failed {
                // Another client may be faster, with the same wish or another.
                let _ = control::ask(folder.path(), Wish::Restart).await;
            }
            Ok(Found::Same)
        }
        _ => Ok(Found::Free),
    }
}

/// Starts a supervisor; false if another one has the name.
async fn start(folder: &Folder, told: Launch, binary: Option<PathBuf>) -> Result<bool> {
    match launch(told, binary).await? {
        Answer::Started => Ok(true),
        Answer::Failed(reason) => Err(Error::backend("the supervisor cannot begin", reason)),
        Answer::NoGpu(uuid) => Err(Error::ResourceUnavailable {
            asked: format!("{uuid} was"),
            available: "another deployment has just taken it: ask again".into(),
        }),
        Answer::Taken => {
            let begin = Instant::now();
            while folder.spec().is_none() && begin.elapsed() < CLAIM_PATIENCE {
                tokio::time::sleep(LOOK).await;
            }
            Ok(false)
        }
    }
}

/// The secrets of a deployment whose supervisor is gone, from this process's environment.
fn secrets_again(spec: &Spec) -> Result<Secrets> {
    let mut secrets = Secrets::default();
    let names = spec.secret_names.iter().map(String::as_str);
    for name in names.clone().chain([HUB_TOKEN]) {
        match std::env::var(name) {
            Ok(value) => {
                secrets.0.insert(name.to_owned(), value);
            }
            Err(_) if spec.secret_names.contains(name) => {
                return Err(Error::validation(
                    "env",
                    name,
                    "the supervisor that knew its value is gone: set it in the environment, or delete and deploy again",
                ));
            }
            Err(_) => {}
        }
    }
    Ok(secrets)
}

/// What a record says, seen in the light of whether its supervisor still lives.
fn seen(name: &str, record: &Record) -> (State, Phase, String) {
    if record.supervisor.is_alive() || record.state == State::Failed {
        return (record.state, record.phase, record.message.clone());
    }
    let reason = match record.supervisor.is_of_another_boot() {
        true => "the machine was started again since",
        false => "its supervisor was killed, and its server with it",
    };
    (State::Failed, Phase::Failed, format!("{reason}; {}", restart_hint(name)))
}

async fn is_healthy(url: &str) -> bool {
    match HealthClient::new() {
        Ok(client) => client.ask(url).await.is_some_and(|health| health.is_healthy()),
        Err(_) => false,
    }
}
