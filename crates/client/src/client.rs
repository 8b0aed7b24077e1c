//! The client: deploys, updates, finds, lists, restarts and deletes deployments.

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
/// The client itself keeps no state. Deployments are recorded where they run: processes in the folder
/// `candlepower/deployments` of `XDG_STATE_HOME` (`~/.local/state`), containers in the engine, pods in the
/// cluster. So all clients see the same deployments.
///
/// A client without a [`backend`](Self::backend) deploys processes. It looks for names among processes first,
/// then among the containers of an engine that answers on this machine. A cluster is searched only if it is
/// named.
#[derive(Clone, Debug, Default)]
pub struct Client {
    backend: Option<Backend>,
    /// The program that supervises processes; `None` searches for it.
    binary: Option<PathBuf>,
}

impl Client {
    /// A new client. This makes no request and reads nothing.
    pub fn new() -> Self {
        Self::default()
    }

    /// Restricts the client to this backend.
    #[must_use]
    pub fn backend(mut self, backend: Backend) -> Self {
        self.backend = Some(backend);
        self
    }

    /// Uses this `candlepower` program to deploy and restart processes, instead of the one that a search
    /// would find.
    #[must_use]
    pub fn binary(mut self, path: impl Into<PathBuf>) -> Self {
        self.binary = Some(path.into());
        self
    }

    /// Deploys a server for independent requests at the highest throughput, and waits until it is ready.
    ///
    /// # Errors
    /// See [`deploy`](Self::deploy).
    pub async fn deploy_blaze(&self, params: BlazeParams) -> Result<Deployment> {
        self.deploy(params, |_| {}).await
    }

    /// Deploys a server for conversations and branches that share prefixes, and waits until it is ready.
    ///
    /// # Errors
    /// See [`deploy`](Self::deploy).
    pub async fn deploy_prism(&self, params: PrismParams) -> Result<Deployment> {
        self.deploy(params, |_| {}).await
    }

    /// Deploys a server, reports progress to `on_progress`, and waits until it is ready. An existing
    /// deployment with this name and the same parameters is returned as it is; secrets are not compared.
    ///
    /// # Errors
    /// - A parameter cannot be used.
    /// - The machine or the model does not allow it.
    /// - The name is in use with other parameters.
    /// - The server failed or was not ready in time. Everything that this call has started is removed, unless
    ///   `keep_on_failure` is set.
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
        // The preparations belong to the time limit, too.
        let left = timeout.saturating_sub(begin.elapsed());
        match deployment.wait(left, params.timeout, on_progress).await {
            Ok(()) => Ok(deployment),
            Err(error) if is_own && !params.keep_on_failure => {
                // The first error is reported, and a failed clean-up is not: the first one has the cause.
                match deployment.delete().await {
                    Ok(()) | Err(Error::NotFound { .. }) => Err(error.leaving(Leftover::Nothing)),
                    Err(_) => Err(error),
                }
            }
            Err(error) => Err(error),
        }
    }

    /// Changes a deployment. `change` receives the parameters that the deployment was made with. Parameters
    /// that it leaves alone stay as they are, values of secrets included. The call waits until the new server
    /// is ready and takes over.
    ///
    /// A process gets a new address, unless a port was requested. Processes and containers are ready before
    /// the old server ends, if there is room for both. Pods are replaced by the cluster's rolling update,
    /// with all but one staying at any time.
    ///
    /// # Errors
    /// There is no deployment of this name, a parameter cannot be used, or the new server failed or was not
    /// ready in time. The old server then keeps running.
    pub async fn update(
        &self,
        name: &str,
        change: impl FnOnce(Params) -> Params,
        on_progress: impl FnMut(&DeploymentStatus),
    ) -> Result<Deployment> {
        let handle = self.find(name).await?;
        // A client without a backend would deploy a process, although a container may have been found.
        let client = Self { backend: Some(handle.backend(self.backend.as_ref())), ..self.clone() };
        let mut params = change(Params::of(&handle.spec()?));
        // `change` may have built new parameters, which have no such mark.
        params.update = true;
        client.deploy(params, on_progress).await
    }

    /// The manifests that the kubernetes backend would apply, as YAML for `kubectl apply -f`. This contacts no
    /// cluster or hub, and reads no model. The Secret in it holds the values of secrets.
    ///
    /// # Errors
    /// A parameter cannot be used, or this build does not include the backend.
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
                let reason = "only the kubernetes backend has manifests";
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
    /// There is none, or the backend cannot be queried.
    pub async fn get(&self, name: &str) -> Result<Deployment> {
        self.find(name).await?.read().await
    }

    /// All deployments, sorted by name.
    ///
    /// # Errors
    /// The user has no home folder, or a named backend cannot be queried.
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
                // It was deleted since it was listed.
                Err(Error::NotFound { .. }) => {}
                read => found.push(read?),
            }
        }
        found.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(found)
    }

    /// Stops a deployment and removes all of it. Running requests have half a minute to finish.
    ///
    /// # Errors
    /// There is no deployment of this name, or it cannot be stopped.
    pub async fn delete(&self, name: &str) -> Result<()> {
        self.find(name).await?.delete().await
    }

    /// Stops a deployment's server and starts it again at the same address.
    ///
    /// The supervisor of a process keeps secrets (HF_TOKEN, the API key) in memory only. If the supervisor is
    /// gone, after a reboot for example, secrets are taken from the environment of this process. A deployment
    /// whose secrets are not there is not started. Containers and pods keep their secrets.
    ///
    /// # Errors
    /// There is no deployment of this name, it cannot be started, or a secret is missing.
    pub async fn restart(&self, name: &str) -> Result<Deployment> {
        let handle = self.find(name).await?;
        let before = handle.read().await?;
        handle.restart().await?;
        // Right after a restart the deployment may not be readable. The restart itself has succeeded.
        handle.read().await.or(Ok(before))
    }

    /// The newest `tail` lines of a deployment's log, or all of them, oldest first.
    ///
    /// # Errors
    /// There is no deployment of this name, or its log cannot be read.
    pub async fn logs(&self, name: &str, tail: Option<usize>) -> Result<Vec<String>> {
        self.get(name).await?.logs(tail).await
    }

    /// The newest `tail` lines of a deployment's log, or all of them, followed by new lines as they come.
    ///
    /// # Errors
    /// There is no deployment of this name, or its log cannot be read.
    pub async fn follow(&self, name: &str, tail: Option<usize>) -> Result<LogStream> {
        self.get(name).await?.follow(tail).await
    }

    /// Events of a deployment, oldest first.
    ///
    /// # Errors
    /// There is no deployment of this name.
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

    /// The backend for these parameters. This client's settings are used if they are for the same backend.
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
        // Any other error is the answer: a process of this name may exist.
        #[cfg(feature = "docker")]
        if matches!(found, Err(Error::NotFound { .. }))
            && let Some(engine) = Engine::here().await
        {
            return Ok(Handle::Docker(engine.find(name).await?));
        }
        found
    }
}

/// Adds the containers of this machine's engine, if one answers.
#[cfg(feature = "docker")]
async fn with_containers(mut handles: Vec<Handle>) -> Result<Vec<Handle>> {
    if let Some(engine) = Engine::here().await {
        handles.extend(engine.list().await?.into_iter().map(Handle::Docker));
    }
    Ok(handles)
}
