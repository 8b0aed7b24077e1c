//! A deployment of this backend as clients see it: its folder, interpreted by whether its supervisor is alive.

mod update;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use candlepower_machine::Gpus;

use super::control::{self, ControlRequest};
use super::folder::{self, Folder, Record};
use super::launch::{Answer, launch};
use super::lease;
use super::logs::{self, FileLines};
use super::supervisor::restart_hint;
use crate::backend::{Begun, Handle, PROCESS};
use crate::check::{HUB_TOKEN, Plan, hub_token};
use crate::deployment::Deployment;
use crate::error::{Error, Result};
use crate::health::HealthClient;
use crate::logs::LogStream;
use crate::model;
use crate::params::Params;
use crate::secret::Secrets;
use crate::spec::{Launch, Spec};
use crate::status::{DeploymentStatus, Event, Phase, Progress, State, now};

/// Interval of the checks on another client's deployment.
const LOOK: Duration = Duration::from_millis(20);
/// Time limit for a supervisor between locking the name and writing its description.
const CLAIM_PATIENCE: Duration = Duration::from_secs(5);

/// Two times of one deployment may differ by less than this, since they were written and read as decimal numbers.
const SAME_S: f64 = 0.001;

/// A deployment that has or had a supervisor.
#[derive(Clone, Debug)]
pub(crate) struct Supervised {
    folder: Folder,
    /// Creation time of the deployment that is meant; `None` means any of this name.
    created_at: Option<f64>,
    /// The supervisor's program; `None` searches for it.
    binary: Option<PathBuf>,
}

/// State of a name before a deployment.
enum Found {
    /// Nothing runs under it.
    Free,
    /// A deployment with the same spec, with its creation time.
    Same(f64),
    /// A deployment that is being deleted.
    Going,
    /// A deployment with another spec, to be updated.
    Other(Box<Record>),
}

/// Starts a supervisor, with this `binary` or the one that a search finds. If a deployment with the same spec exists,
/// it is returned instead.
pub(crate) async fn deploy(
    params: &Params,
    mut plan: Plan,
    binary: Option<PathBuf>,
    mut on_progress: impl FnMut(&DeploymentStatus),
) -> Result<Begun> {
    let folder = Folder::new(&folder::root()?, &plan.spec.name);
    let deadline = plan.deadline.clone();
    let pause = async || {
        tokio::time::sleep(LOOK).await;
        Ok(())
    };
    let (created_at, is_own) = loop {
        match look(&folder, &plan.spec, params.update).await? {
            Found::Same(created_at) => break (created_at, false),
            Found::Going => {
                deadline.hold("the deployment that had the name is still ending", pause()).await?;
            }
            Found::Other(record) if record.supervisor.is_alive() => {
                let created_at = Some(record.created_at);
                let found = Supervised { folder, created_at, binary };
                update::update(&found, params, plan, &record, &mut on_progress).await?;
                return Ok(Begun { handle: Handle::Process(found), is_own: false });
            }
            // Its supervisor is gone, so replacing it loses nothing.
            Found::Other(record) => {
                let created_at = Some(record.created_at);
                let found = Supervised { folder: folder.clone(), created_at, binary: None };
                deadline
                    .hold("the deployment that had the name is still ending", found.delete())
                    .await?;
            }
            Found::Free => {
                let mut warnings = plan.warnings.clone();
                let compute = plan.spec.choose_gpus(&free_gpus()?, &mut warnings)?;
                model::check(params, &plan, &compute).await?;
                let (spec, secrets) = (plan.spec.clone(), std::mem::take(&mut plan.secrets));
                let to_launch = Launch {
                    root: folder::root()?,
                    folder: here(),
                    spec,
                    secrets: secrets.clone(),
                    device: compute.device,
                    gpus: compute.uuids(),
                    warnings,
                };
                if let Some(created_at) = start(&folder, to_launch, binary.clone()).await? {
                    break (created_at, true);
                }
                // The next round may need them again.
                plan.secrets = secrets;
                deadline.hold("another supervisor has the name", pause()).await?;
            }
        }
    };
    let created_at = Some(created_at);
    Ok(Begun { handle: Handle::Process(Supervised { folder, created_at, binary }), is_own })
}

/// # Errors
/// There is no deployment of this name, or the folder cannot be read.
pub(crate) fn find(name: &str) -> Result<Supervised> {
    let folder = Folder::new(&folder::root()?, name);
    match folder.path().try_exists() {
        Ok(true) => Ok(Supervised { folder, created_at: None, binary: None }),
        Ok(false) => Err(Error::NotFound { name: name.to_owned() }),
        Err(error) => Err(unreadable(folder.path(), error)),
    }
}

/// The GPUs of this machine that no supervisor holds.
pub(crate) fn free_gpus() -> Result<Gpus> {
    Ok(lease::free_gpus(&folder::root()?))
}

/// All deployments, sorted by name.
pub(crate) fn list() -> Result<Vec<Supervised>> {
    let root = folder::root()?;
    let names = Folder::names(&root).map_err(|error| unreadable(&root, error))?;
    let found = |name: String| Supervised {
        folder: Folder::new(&root, &name),
        created_at: None,
        binary: None,
    };
    Ok(names.into_iter().map(found).collect())
}

/// The content of a deployment's folder.
enum Read {
    Whole(Box<(Spec, Record)>),
    /// Incomplete, or unknown to this version: the reason, with a hint.
    Damaged(String),
}

impl Supervised {
    /// Restarts the deployment with this program.
    pub(crate) fn with_binary(mut self, binary: Option<PathBuf>) -> Self {
        self.binary = binary;
        self
    }

    pub(crate) async fn read(&self) -> Result<Deployment> {
        let found = match self.look()? {
            Read::Whole(found) => *found,
            Read::Damaged(message) => return Ok(self.unknown(message)),
        };
        let (spec, record) = found;
        let (state, phase, message) = seen(&self.name(), &record);
        // From now on this handle means this deployment, and not a later one of the same name.
        let handle = Self { created_at: Some(record.created_at), ..self.clone() };
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
            handle: Handle::Process(handle),
        })
    }

    /// A deployment whose folder is damaged.
    fn unknown(&self, message: String) -> Deployment {
        let (framework, model) = self.folder.outline();
        Deployment {
            name: self.name(),
            url: String::new(),
            state: State::Unknown,
            phase: Phase::Degraded,
            message,
            backend: PROCESS,
            framework,
            model,
            image: None,
            created_at: self.created_at.unwrap_or_default(),
            updated_at: self.created_at.unwrap_or_default(),
            handle: Handle::Process(self.clone()),
        }
    }

    pub(crate) async fn status(&self) -> Result<DeploymentStatus> {
        let (spec, record) = match self.look()? {
            Read::Whole(found) => *found,
            Read::Damaged(message) => return Ok(unknown_status(message)),
        };
        let (state, mut phase, mut message) = seen(&self.name(), &record);
        // The record may be some seconds old, so the server itself is asked.
        let is_ready = state == State::Running && is_healthy(&spec, &record.url).await;
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
            gpu_seconds: gpu_seconds(&record, now),
        })
    }

    /// Reads the folder.
    ///
    /// # Errors
    /// The deployment is gone, or its name belongs to another deployment by now.
    fn look(&self) -> Result<Read> {
        let damaged = |reason: String| {
            let (folder, name) = (self.folder.path().display(), self.name());
            let hint = format!("`candlepower delete {name}` ends and removes it");
            Ok(Read::Damaged(format!("{folder} cannot be read: {reason}; {hint}")))
        };
        let record = match self.folder.record() {
            Ok(record) => record,
            Err(error) => return damaged(error.to_string()),
        };
        if record.as_ref().is_some_and(|record| !self.is_meant(record)) {
            return Err(self.not_found());
        }
        match (self.folder.spec(), record) {
            (Ok(Some(spec)), Some(record)) => Ok(Read::Whole(Box::new((spec, record)))),
            (Err(error), _) => damaged(error.to_string()),
            (Ok(Some(_)), None) => damaged("state.json is missing".to_owned()),
            // It is being started or removed.
            (Ok(None), _) => Err(self.not_found()),
        }
    }

    fn is_meant(&self, record: &Record) -> bool {
        self.created_at.is_none_or(|at| (at - record.created_at).abs() < SAME_S)
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
        if !folder.path().try_exists().map_err(wrong)? {
            return Err(self.not_found());
        }
        // If the record cannot be read, the process that listens at the socket is the supervisor.
        let record = folder.record().ok().flatten();
        if record.as_ref().is_some_and(|record| !self.is_meant(record)) {
            return Err(self.not_found());
        }
        if record.as_ref().is_none_or(|record| record.supervisor.is_alive()) {
            let asked =
                control::ask(folder.path(), &ControlRequest::Delete, self.stop_seconds()).await;
            let ended = match &record {
                Some(record) => record.supervisor.wait(CLAIM_PATIENCE).await,
                None => true,
            };
            match asked {
                Ok(()) => return Ok(()),
                // Another client was faster.
                Err(_) if ended && !folder.path().exists() => return Ok(()),
                Err(error) if !ended => return Err(wrong(error)),
                Err(_) => {}
            }
        }
        // No supervisor is left, so this client removes the remains.
        let Some(_lock) = folder.claim().map_err(wrong)? else {
            return Err(wrong(std::io::Error::other("it is being started")));
        };
        // The kernel kills the server with its supervisor. It may need a moment for that.
        if let Some(server) = folder.record().ok().flatten().and_then(|record| record.server) {
            server.end().await;
        }
        folder.remove().map_err(wrong)
    }

    pub(crate) async fn restart(&self) -> Result<()> {
        let folder = &self.folder;
        let name = self.name();
        let wrong = |error| Error::backend(format!("`{name}` cannot be started again"), error);
        let record = folder.record();
        if let Ok(Some(record)) = &record
            && !self.is_meant(record)
        {
            return Err(self.not_found());
        }
        if !matches!(&record, Ok(Some(record)) if !record.supervisor.is_alive()) {
            let asked =
                control::ask(folder.path(), &ControlRequest::Restart, self.stop_seconds()).await;
            match (asked, record) {
                (Ok(()), _) => return Ok(()),
                (Err(error), Ok(Some(_))) => return Err(wrong(error)),
                (Err(_), Err(error)) => {
                    return Err(wrong(std::io::Error::other(format!(
                        "{error}; delete it, and deploy it again"
                    ))));
                }
                (Err(_), Ok(None)) => {}
            }
        }
        let spec = folder.spec().map_err(wrong)?.ok_or_else(|| self.not_found())?;
        let secrets = secrets_again(&spec)?;
        let mut warnings = Vec::new();
        let compute = spec.choose_gpus(&free_gpus()?, &mut warnings)?;
        let (root, gpus) = (folder::root()?, compute.uuids());
        let device = compute.device;
        let to_launch = Launch { root, folder: here(), spec, secrets, device, gpus, warnings };
        start(folder, to_launch, self.binary.clone()).await.map(|_| ())
    }

    /// The spec of the running server.
    pub(crate) fn spec(&self) -> Result<Spec> {
        let spec = self.folder.spec().map_err(|error| unreadable(self.folder.path(), error))?;
        spec.ok_or_else(|| self.not_found())
    }

    /// Time limit for the server to end, in seconds.
    fn stop_seconds(&self) -> u64 {
        // Without a readable spec the default time is used.
        self.folder.spec().ok().flatten().map_or(60, |spec| spec.stop_seconds(0))
    }

    fn name(&self) -> String {
        self.folder.path().file_name().unwrap_or_default().to_string_lossy().into_owned()
    }

    fn not_found(&self) -> Error {
        Error::NotFound { name: self.name() }
    }
}

/// The current folder, which the user's relative paths start from.
fn here() -> PathBuf {
    std::env::current_dir().unwrap_or_else(|_| "/".into())
}

fn unreadable(folder: &Path, error: std::io::Error) -> Error {
    Error::backend(format!("{} cannot be read", folder.display()), error)
}

/// Examines a name before a deployment. A failed deployment with the same spec is started again.
async fn look(folder: &Folder, asked: &Spec, is_update: bool) -> Result<Found> {
    let name = &asked.name;
    let wrong = |error: std::io::Error| {
        let hint = format!("`candlepower delete {name}` ends and removes it");
        Error::backend(
            format!("`{name}` cannot be deployed"),
            format!("there is one that cannot be read ({error}): {hint}"),
        )
    };
    let Some(record) = folder.record().map_err(wrong)? else { return Ok(Found::Free) };
    if record.state == State::Terminating && record.supervisor.is_alive() {
        return Ok(Found::Going);
    }
    match folder.spec().map_err(wrong)? {
        // The specs are equal, but secrets may differ. The supervisor compares those.
        Some(spec) if is_update && (spec != *asked || record.supervisor.is_alive()) => {
            Ok(Found::Other(Box::new(record)))
        }
        Some(spec) if spec != *asked => {
            Err(Error::NameInUse { name: name.clone(), difference: spec.difference(asked) })
        }
        Some(_) if record.supervisor.is_alive() => {
            if record.state == State::Failed {
                // An error does not matter: another client may have been faster, with the same request or another
                // one.
                let _ =
                    control::ask(folder.path(), &ControlRequest::Restart, asked.stop_seconds(0))
                        .await;
            }
            Ok(Found::Same(record.created_at))
        }
        _ => Ok(Found::Free),
    }
}

/// Starts a supervisor and returns the creation time of its deployment; `None` if another supervisor has the name.
async fn start(folder: &Folder, to_launch: Launch, binary: Option<PathBuf>) -> Result<Option<f64>> {
    match launch(to_launch, binary).await? {
        Answer::Started(created_at) => Ok(Some(created_at)),
        Answer::Failed(reason) => Err(Error::backend("the supervisor cannot begin", reason)),
        Answer::NoGpu(uuid) => Err(Error::ResourceUnavailable {
            asked: format!("{uuid} was"),
            available: "another deployment has just taken it; try again".into(),
        }),
        Answer::Taken => {
            let begin = Instant::now();
            while matches!(folder.spec(), Ok(None)) && begin.elapsed() < CLAIM_PATIENCE {
                tokio::time::sleep(LOOK).await;
            }
            Ok(None)
        }
    }
}

/// The secrets of a deployment whose supervisor is gone, from this process's environment.
fn secrets_again(spec: &Spec) -> Result<Secrets> {
    let mut secrets = Secrets::default();
    let names = spec.secret_names.iter().map(String::as_str);
    for name in names.chain([HUB_TOKEN]) {
        let value = if name == HUB_TOKEN { hub_token() } else { std::env::var(name).ok() };
        match value {
            Some(value) => {
                secrets.0.insert(name.to_owned(), value);
            }
            None if spec.secret_names.contains(name) => {
                return Err(Error::validation(
                    "env",
                    name,
                    "the supervisor that knew its value is gone: set it in the environment, or delete and deploy again",
                ));
            }
            None => {}
        }
    }
    Ok(secrets)
}

/// State, phase and message of a record, with regard to whether its supervisor is alive.
fn seen(name: &str, record: &Record) -> (State, Phase, String) {
    // The reason of a failure stays true after the supervisor has ended.
    if record.supervisor.is_alive() || record.state == State::Failed {
        return (record.state, record.phase, record.message.clone());
    }
    let reason = match record.supervisor.is_of_another_boot() {
        true => "the machine was started again since",
        false => "its supervisor was killed, and its server with it",
    };
    (State::Failed, Phase::Failed, format!("{reason}; {}", restart_hint(name)))
}

/// Time for which the GPUs were held. Without a supervisor it ends when the supervisor was last seen.
fn gpu_seconds(record: &Record, now: f64) -> f64 {
    let until = match record.supervisor.is_alive() {
        true => now,
        false => record.written_at.max(record.updated_at),
    };
    record.gpu_seconds_before + f64::from(record.num_gpus) * (until - record.started_at).max(0.0)
}

/// Status of a deployment whose folder is damaged.
fn unknown_status(message: String) -> DeploymentStatus {
    let phase = Phase::Degraded;
    DeploymentStatus {
        state: State::Unknown,
        phase,
        is_ready: false,
        message,
        progress: Progress { step: phase, bytes_done: 0, bytes_total: 0, elapsed_s: 0.0 },
        replicas_ready: 0,
        replicas_desired: 1,
        restarts: 0,
        exit_code: None,
        gpu_seconds: 0.0,
    }
}

async fn is_healthy(spec: &Spec, url: &str) -> bool {
    match HealthClient::new(spec) {
        Ok(client) => client.ask(url).await.is_some_and(|health| health.is_healthy()),
        Err(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gpus_are_counted_as_long_as_the_supervisor_lives() {
        let own = super::super::identity::Identity::of(std::process::id()).unwrap();
        let mut record: Record = serde_json::from_value(serde_json::json!({
            "state": "Running", "phase": "ready", "created_at": 5.0, "started_at": 10.0,
            "updated_at": 20.0, "written_at": 70.0, "num_gpus": 2, "supervisor": own,
        }))
        .unwrap();
        assert_eq!(gpu_seconds(&record, 1000.0), 2.0 * 990.0);
        record.supervisor.pid = 0;
        assert_eq!(gpu_seconds(&record, 1000.0), 2.0 * 60.0);
    }
}
