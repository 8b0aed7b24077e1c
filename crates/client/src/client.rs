//! The client: deploys, finds, lists, ends.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use crate::check::{HUB_TOKEN, Plan, check_name};
use crate::deployment::Deployment;
use crate::error::{Error, Leftover, Result};
use crate::model;
use crate::params::{BlazeParams, Params, PrismParams};
use crate::process::LogStream;
use crate::process::control::{self, Wish};
use crate::process::folder::{self, Folder};
use crate::process::launch::{Answer, launch};
use crate::process::lease::free_gpus;
use crate::secret::Secrets;
use crate::spec::{Launch, Spec};
use crate::status::{DeploymentStatus, Event, State};

/// How often it is looked whether another client's deployment has got on.
const LOOK: Duration = Duration::from_millis(20);
/// How long a supervisor may take from having the name to saying what it runs.
const CLAIM_PATIENCE: Duration = Duration::from_secs(5);

/// Starts deployments and finds them again.
///
/// All that is known of deployments is in the folder `candlepower/deployments` in `XDG_STATE_HOME` (`~/.local/state`): clients
/// of one user see the same ones.
#[derive(Clone, Debug, Default)]
pub struct Client {
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

impl Client {
    /// A client; asks for nothing and looks at nothing yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// A client that starts this `candlepower` program, wherever else there is one; so does its own [`restart`](Self::restart).
    pub fn with_binary(path: impl Into<PathBuf>) -> Self {
        Self { binary: Some(path.into()) }
    }

    /// Deploys for requests and responses at the highest throughput, and waits until it is ready.
    ///
    /// # Errors
    /// See [`deploy`](Self::deploy).
    pub async fn deploy_blaze(&self, params: BlazeParams) -> Result<Deployment> {
        self.deploy(params, |_| {}).await
    }

    /// Deploys for conversations and branches that share prefixes, and waits until it is ready.
    ///
    /// # Errors
    /// See [`deploy`](Self::deploy).
    pub async fn deploy_prism(&self, params: PrismParams) -> Result<Deployment> {
        self.deploy(params, |_| {}).await
    }

    /// Deploys, telling `on_progress` how far it is, and waits until it is ready. A deployment that has the name and the
    /// same parameters is taken as it is; secrets are not compared.
    ///
    /// # Errors
    /// A parameter cannot be used, the machine or the model does not allow it, the name is in use with other
    /// parameters, or the server failed or was not ready in time: then nothing is left of what this call has started,
    /// unless `keep_on_failure` is set.
    pub async fn deploy(
        &self,
        params: impl Into<Params>,
        on_progress: impl FnMut(&DeploymentStatus),
    ) -> Result<Deployment> {
        let params = params.into();
        let begin = Instant::now();
        let mut plan = Plan::new(&params)?;
        let folder = self.folder(&plan.spec.name)?;
        let is_own = loop {
            match find(&folder, &plan.spec).await? {
                Found::Same => break false,
                Found::Going => tokio::time::sleep(LOOK).await,
                Found::Free => {
                    let mut warnings = plan.warnings.clone();
                    let compute =
                        plan.spec.choose_gpus(&free_gpus(&folder::root()?), &mut warnings)?;
                    model::check(&params, &plan, &compute).await?;
                    let (spec, secrets) = (plan.spec.clone(), std::mem::take(&mut plan.secrets));
                    let told = Launch {
                        root: folder::root()?,
                        spec,
                        secrets: secrets.clone(),
                        device: compute.device,
                        gpus: compute.uuids(),
                        warnings,
                    };
                    if start(&folder, told, self.binary.clone()).await? {
                        break true;
                    }
                    plan.secrets = secrets;
                }
            }
        };
        let mut deployment = Deployment::read(folder)?;
        let timeout = Duration::from_secs(params.timeout);
        let left = timeout.saturating_sub(begin.elapsed());
        match deployment.wait(left, params.timeout, on_progress).await {
            Ok(()) => Ok(deployment),
            Err(error) if is_own && !params.keep_on_failure => {
                // What went wrong first is what there is to tell.
                let _ = deployment.delete().await;
                Err(error.leaving(Leftover::Nothing))
            }
            Err(error) => Err(error),
        }
    }

    /// The deployment of this name.
    ///
    /// # Errors
    /// There is none.
    pub async fn get(&self, name: &str) -> Result<Deployment> {
        Deployment::read(self.folder(name)?)
    }

    /// All deployments, by their names.
    ///
    /// # Errors
    /// There is no home to look in.
    pub async fn list(&self) -> Result<Vec<Deployment>> {
        let root = folder::root()?;
        let folders = Folder::names(&root).into_iter().map(|name| Folder::new(&root, &name));
        // One that is deleted meanwhile is left out.
        Ok(folders.filter_map(|folder| Deployment::read(folder).ok()).collect())
    }

    /// Ends a deployment and removes all of it; running requests have half a minute to finish.
    ///
    /// # Errors
    /// There is none of this name, or it cannot be ended.
    pub async fn delete(&self, name: &str) -> Result<()> {
        let folder = self.folder(name)?;
        let none = || Error::NotFound { name: name.to_owned() };
        let record = folder.record();
        if record.is_none() && !folder.path().exists() {
            return Err(none());
        }
        let wrong = |error| Error::backend(format!("`{name}` cannot be deleted"), error);
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

    /// Ends a deployment's server and starts it again, with the same address.
    ///
    /// Its supervisor keeps the secrets (HF_TOKEN, the API key) in memory alone. Where the supervisor is gone, after a
    /// reboot for example, variables with secrets are taken from the environment of this process, and a deployment
    /// whose secrets are not there is not started.
    ///
    /// # Errors
    /// There is none of this name, it cannot be started, or a secret is missing.
    pub async fn restart(&self, name: &str) -> Result<Deployment> {
        let folder = self.folder(name)?;
        let deployment = Deployment::read(folder.clone())?;
        let wrong = |error| Error::backend(format!("`{name}` cannot be started again"), error);
        if folder.record().is_some_and(|record| record.supervisor.is_alive()) {
            control::ask(folder.path(), Wish::Restart).await.map_err(wrong)?;
        } else {
            let spec = folder.spec().ok_or_else(|| Error::NotFound { name: name.to_owned() })?;
            let secrets = secrets_again(&spec)?;
            let mut warnings = Vec::new();
            let compute = spec.choose_gpus(&free_gpus(&folder::root()?), &mut warnings)?;
            let (root, gpus) = (folder::root()?, compute.uuids());
            let told = Launch { root, spec, secrets, device: compute.device, gpus, warnings };
            start(&folder, told, self.binary.clone()).await?;
        }
        Deployment::read(folder).or(Ok(deployment))
    }

    /// The newest `tail` lines of a deployment's log, or all, the oldest first.
    ///
    /// # Errors
    /// There is none of this name.
    pub async fn logs(&self, name: &str, tail: Option<usize>) -> Result<Vec<String>> {
        Ok(self.get(name).await?.logs(tail))
    }

    /// The newest `tail` lines of a deployment's log, or all, and those to come.
    ///
    /// # Errors
    /// There is none of this name, or its log cannot be read.
    pub async fn follow(&self, name: &str, tail: Option<usize>) -> Result<LogStream> {
        self.get(name).await?.follow(tail)
    }

    /// What has happened to a deployment, the oldest first.
    ///
    /// # Errors
    /// There is none of this name.
    pub async fn events(&self, name: &str) -> Result<Vec<Event>> {
        Ok(self.get(name).await?.events())
    }

    fn folder(&self, name: &str) -> Result<Folder> {
        check_name(name)?;
        Ok(Folder::new(&folder::root()?, name))
    }
}

/// Looks whether a name is free; one that failed and is the same is started again.
async fn find(folder: &Folder, asked: &Spec) -> Result<Found> {
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
