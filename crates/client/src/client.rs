//! The client: deploys, finds, lists, ends.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use crate::backend::{Backend, Begun, Handle};
use crate::check::{Plan, check_name};
use crate::deployment::Deployment;
use crate::error::{Error, Leftover, Result};
use crate::logs::LogStream;
use crate::params::{BlazeParams, Params, PrismParams};
use crate::process;
use crate::status::{DeploymentStatus, Event};

#[cfg(feature = "docker")]
use crate::docker::{self, Engine};
#[cfg(feature = "kubernetes")]
use crate::kubernetes::{self, Cluster};

/// Starts deployments and finds them again.
///
/// Nothing is kept but where deployments run: of processes in the folder `candlepower/deployments` in `XDG_STATE_HOME`
/// (`~/.local/state`), of containers in the engine, of pods in the cluster. Clients that look there see the same ones.
///
/// A client without a [`backend`](Self::backend) deploys processes, and looks for names among processes and then among the
/// containers of an engine that answers on this machine. A cluster is asked only where it is named.
#[derive(Clone, Debug, Default)]
pub struct Client {
    backend: Option<Backend>,
    /// The program that supervises processes, where it is not looked for.
    binary: Option<PathBuf>,
}

impl Client {
    /// A client; asks for nothing and looks at nothing yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Deploys and looks here alone.
    #[must_use]
    pub fn backend(mut self, backend: Backend) -> Self {
        self.backend = Some(backend);
        self
    }

    /// Starts this `candlepower` program where it deploys or restarts processes, wherever else there is one.
    #[must_use]
    pub fn binary(mut self, path: impl Into<PathBuf>) -> Self {
        self.binary = Some(path.into());
        self
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
        mut on_progress: impl FnMut(&DeploymentStatus),
    ) -> Result<Deployment> {
        let params = params.into();
        let begin = Instant::now();
        let Begun { handle, is_own } = self.begin(&params, &mut on_progress).await?;
        let mut deployment = handle.read().await?;
        let timeout = Duration::from_secs(params.timeout);
        let left = timeout.saturating_sub(begin.elapsed());
        match deployment.wait(left, params.timeout, on_progress).await {
            Ok(()) => Ok(deployment),
            Err(error) if is_own && !params.keep_on_failure => {
                // What went wrong first is what there is to tell.
                match deployment.delete().await {
                    Ok(()) | Err(Error::NotFound { .. }) => Err(error.leaving(Leftover::Nothing)),
                    Err(_) => Err(error),
                }
            }
            Err(error) => Err(error),
        }
    }

    /// Changes a deployment: `change` is given the parameters that it was made with, and what is not said of them stays, the
    /// values of secrets included. It waits until the new server is ready, which then takes over.
    ///
    /// A process gets a new address, unless its port was asked for. It and a container are ready before the old one ends,
    /// where there is room for both; pods are replaced as the cluster does, all but one at a time staying.
    ///
    /// # Errors
    /// There is none of this name, a parameter cannot be used, or the new server failed or was not ready in time: then what
    /// ran before runs on.
    pub async fn update(
        &self,
        name: &str,
        change: impl FnOnce(Params) -> Params,
        on_progress: impl FnMut(&DeploymentStatus),
    ) -> Result<Deployment> {
        let handle = self.find(name).await?;
        let client = Self { backend: Some(handle.backend(self.backend.as_ref())), ..self.clone() };
        let mut params = change(Params::of(&handle.spec()?));
        params.update = true;
        client.deploy(params, on_progress).await
    }

    /// The manifests with which the kubernetes backend would deploy this, as YAML for `kubectl apply -f`. No cluster, hub
    /// or model is asked. The values of secrets are in it, in the Secret.
    ///
    /// # Errors
    /// A parameter cannot be used, or this build does not have the backend.
    pub fn manifests(&self, params: impl Into<Params>) -> Result<String> {
        let params = params.into();
        let backend = self.backend_for(&params)?;
        let plan = Plan::new(&params, &backend)?;
        match backend {
            #[cfg(feature = "kubernetes")]
            Backend::Kubernetes { namespace, .. } => {
                kubernetes::manifests(&params, &plan, namespace.as_deref())
            }
            other => {
                let reason = "the kubernetes backend alone has manifests";
                Err(Error::validation(
                    "backend",
                    other.as_str(),
                    format!("{reason}: `{}` has none", plan.spec.name),
                ))
            }
        }
    }

    /// The deployment of this name.
    ///
    /// # Errors
    /// There is none, or where it would be cannot be asked.
    pub async fn get(&self, name: &str) -> Result<Deployment> {
        self.find(name).await?.read().await
    }

    /// All deployments, by their names.
    ///
    /// # Errors
    /// There is no home to look in, or a backend that was named cannot be asked.
    pub async fn list(&self) -> Result<Vec<Deployment>> {
        let handles = match &self.backend {
            Some(backend) => backend.list().await?,
            None => {
                let handles = Backend::Process.list().await?;
                #[cfg(feature = "docker")]
                let handles = with_containers(handles).await?;
                handles
            }
        };
        let mut found = Vec::new();
        for handle in handles {
            match handle.read().await {
                // It was deleted meanwhile.
                Err(Error::NotFound { .. }) => {}
                read => found.push(read?),
            }
        }
        found.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(found)
    }

    /// Ends a deployment and removes all of it; running requests have half a minute to finish.
    ///
    /// # Errors
    /// There is none of this name, or it cannot be ended.
    pub async fn delete(&self, name: &str) -> Result<()> {
        self.find(name).await?.delete().await
    }

    /// Ends a deployment's server and starts it again, with the same address.
    ///
    /// The supervisor of a process keeps the secrets (HF_TOKEN, the API key) in memory alone. Where the supervisor is gone,
    /// after a reboot for example, variables with secrets are taken from the environment of this process, and a
    /// deployment whose secrets are not there is not started. Containers and pods keep theirs.
    ///
    /// # Errors
    /// There is none of this name, it cannot be started, or a secret is missing.
    pub async fn restart(&self, name: &str) -> Result<Deployment> {
        let handle = self.find(name).await?;
        let before = handle.read().await?;
        handle.restart().await?;
        handle.read().await.or(Ok(before))
    }

    /// The newest `tail` lines of a deployment's log, or all, the oldest first.
    ///
    /// # Errors
    /// There is none of this name, or its log cannot be read.
    pub async fn logs(&self, name: &str, tail: Option<usize>) -> Result<Vec<String>> {
        self.get(name).await?.logs(tail).await
    }

    /// The newest `tail` lines of a deployment's log, or all, and those to come.
    ///
    /// # Errors
    /// There is none of this name, or its log cannot be read.
    pub async fn follow(&self, name: &str, tail: Option<usize>) -> Result<LogStream> {
        self.get(name).await?.follow(tail).await
    }

    /// What has happened to a deployment, the oldest first.
    ///
    /// # Errors
    /// There is none of this name.
    pub async fn events(&self, name: &str) -> Result<Vec<Event>> {
        self.get(name).await?.events().await
    }

    async fn begin(
        &self,
        params: &Params,
        on_progress: &mut impl FnMut(&DeploymentStatus),
    ) -> Result<Begun> {
        let backend = self.backend_for(params)?;
        let plan = Plan::new(params, &backend)?;
        match backend {
            Backend::Process => {
                process::deploy(params, plan, self.binary.clone(), on_progress).await
            }
            #[cfg(feature = "docker")]
            Backend::Docker { host } => {
                let connecting = Engine::connect(host.as_deref());
                let engine = plan.deadline.hold("the engine did not answer", connecting).await?;
                docker::deploy(&engine, params, plan, on_progress).await
            }
            #[cfg(feature = "kubernetes")]
            Backend::Kubernetes { context, namespace } => {
                let connecting = Cluster::connect(context.as_deref(), namespace.as_deref());
                let cluster = plan.deadline.hold("the cluster did not answer", connecting).await?;
                kubernetes::deploy(&cluster, params, plan, on_progress).await
            }
            #[allow(unreachable_patterns, reason = "with all features there is no other")]
            other => Err(other.not_built()),
        }
    }

    /// Where this is to run: what the parameters name, with this client's settings if they are of the same kind.
    fn backend_for(&self, params: &Params) -> Result<Backend> {
        let own = self.backend.clone();
        let named = params.backend.as_deref().map(str::parse::<Backend>).transpose()?;
        Ok(match (named, own) {
            (Some(named), Some(own)) if named.as_str() == own.as_str() => own,
            (named, own) => named.or(own).unwrap_or_default(),
        })
    }

    async fn find(&self, name: &str) -> Result<Handle> {
        check_name(name)?;
        Ok(self.look_for(name).await?.with_binary(self.binary.clone()))
    }

    async fn look_for(&self, name: &str) -> Result<Handle> {
        if let Some(backend) = &self.backend {
            return backend.find(name).await;
        }
        let found = Backend::Process.find(name).await;
        #[cfg(feature = "docker")]
        if matches!(found, Err(Error::NotFound { .. }))
            && let Some(engine) = Engine::here().await
        {
            return Ok(Handle::Docker(engine.find(name).await?));
        }
        found
    }
}

/// Adds the containers of the engine of this machine, if one answers.
#[cfg(feature = "docker")]
async fn with_containers(mut handles: Vec<Handle>) -> Result<Vec<Handle>> {
    if let Some(engine) = Engine::here().await {
        handles.extend(engine.list().await?.into_iter().map(Handle::Docker));
    }
    Ok(handles)
}
