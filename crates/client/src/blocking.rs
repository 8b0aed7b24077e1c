//! The blocking client, for programs that are not async. Each operation returns when it is done.

use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Runtime;

use crate::backend::Backend;
use crate::error::{Error, Result};
use crate::params::{BlazeParams, Params, PrismParams};
use crate::status::{DeploymentStatus, Event};

/// Blocking form of [`crate::Client`]. It must not be used within an async runtime.
#[derive(Clone, Debug)]
pub struct Client {
    client: crate::Client,
    runtime: Arc<Runtime>,
}

/// Blocking form of [`crate::Deployment`], with the same fields.
#[derive(Clone, Debug)]
pub struct Deployment {
    deployment: crate::Deployment,
    runtime: Arc<Runtime>,
}

impl Client {
    /// A client.
    ///
    /// # Errors
    /// The async runtime that the client waits with cannot be started.
    pub fn new() -> Result<Self> {
        // One thread suffices: all work of an operation is done while its caller waits in `block_on`.
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| Error::backend("the client cannot start", error))?;
        Ok(Self { client: crate::Client::new(), runtime: Arc::new(runtime) })
    }

    /// Blocking form of [`crate::Client::backend`].
    #[must_use]
    pub fn backend(mut self, backend: Backend) -> Self {
        self.client = self.client.backend(backend);
        self
    }

    /// Blocking form of [`crate::Client::deploy_blaze`].
    ///
    /// # Errors
    /// See [`crate::Client::deploy_blaze`].
    pub fn deploy_blaze(&self, params: BlazeParams) -> Result<Deployment> {
        self.deploy(params, |_| {})
    }

    /// Blocking form of [`crate::Client::deploy_prism`].
    ///
    /// # Errors
    /// See [`crate::Client::deploy_prism`].
    pub fn deploy_prism(&self, params: PrismParams) -> Result<Deployment> {
        self.deploy(params, |_| {})
    }

    /// Blocking form of [`crate::Client::deploy`].
    ///
    /// # Errors
    /// See [`crate::Client::deploy`].
    pub fn deploy(
        &self,
        params: impl Into<Params>,
        on_progress: impl FnMut(&DeploymentStatus),
    ) -> Result<Deployment> {
        let deployed = self.runtime.block_on(self.client.deploy(params, on_progress))?;
        Ok(self.own(deployed))
    }

    /// Blocking form of [`crate::Client::update`].
    ///
    /// # Errors
    /// See [`crate::Client::update`].
    pub fn update(
        &self,
        name: &str,
        change: impl FnOnce(Params) -> Params,
        on_progress: impl FnMut(&DeploymentStatus),
    ) -> Result<Deployment> {
        let updated = self.runtime.block_on(self.client.update(name, change, on_progress))?;
        Ok(self.own(updated))
    }

    /// Blocking form of [`crate::Client::get`].
    ///
    /// # Errors
    /// See [`crate::Client::get`].
    pub fn get(&self, name: &str) -> Result<Deployment> {
        Ok(self.own(self.runtime.block_on(self.client.get(name))?))
    }

    /// Blocking form of [`crate::Client::list`].
    ///
    /// # Errors
    /// See [`crate::Client::list`].
    pub fn list(&self) -> Result<Vec<Deployment>> {
        let found = self.runtime.block_on(self.client.list())?;
        Ok(found.into_iter().map(|deployment| self.own(deployment)).collect())
    }

    /// Blocking form of [`crate::Client::delete`].
    ///
    /// # Errors
    /// See [`crate::Client::delete`].
    pub fn delete(&self, name: &str) -> Result<()> {
        self.runtime.block_on(self.client.delete(name))
    }

    /// Blocking form of [`crate::Client::restart`].
    ///
    /// # Errors
    /// See [`crate::Client::restart`].
    pub fn restart(&self, name: &str) -> Result<Deployment> {
        Ok(self.own(self.runtime.block_on(self.client.restart(name))?))
    }

    /// Blocking form of [`crate::Client::logs`].
    ///
    /// # Errors
    /// See [`crate::Client::logs`].
    pub fn logs(&self, name: &str, tail: Option<usize>) -> Result<Vec<String>> {
        self.runtime.block_on(self.client.logs(name, tail))
    }

    /// Blocking form of [`crate::Client::events`].
    ///
    /// # Errors
    /// See [`crate::Client::events`].
    pub fn events(&self, name: &str) -> Result<Vec<Event>> {
        self.runtime.block_on(self.client.events(name))
    }

    fn own(&self, deployment: crate::Deployment) -> Deployment {
        Deployment { deployment, runtime: Arc::clone(&self.runtime) }
    }
}

impl Deref for Deployment {
    type Target = crate::Deployment;

    fn deref(&self) -> &crate::Deployment {
        &self.deployment
    }
}

impl Deployment {
    /// Blocking form of [`crate::Deployment::status`].
    ///
    /// # Errors
    /// See [`crate::Deployment::status`].
    pub fn status(&self) -> Result<DeploymentStatus> {
        self.runtime.block_on(self.deployment.status())
    }

    /// Blocking form of [`crate::Deployment::refresh`].
    ///
    /// # Errors
    /// See [`crate::Deployment::refresh`].
    pub fn refresh(&mut self) -> Result<()> {
        self.runtime.block_on(self.deployment.refresh())
    }

    /// Blocking form of [`crate::Deployment::logs`].
    ///
    /// # Errors
    /// See [`crate::Deployment::logs`].
    pub fn logs(&self, tail: Option<usize>) -> Result<Vec<String>> {
        self.runtime.block_on(self.deployment.logs(tail))
    }

    /// Blocking form of [`crate::Deployment::events`].
    ///
    /// # Errors
    /// See [`crate::Deployment::events`].
    pub fn events(&self) -> Result<Vec<Event>> {
        self.runtime.block_on(self.deployment.events())
    }

    /// Blocking form of [`crate::Deployment::wait_until_ready`].
    ///
    /// # Errors
    /// See [`crate::Deployment::wait_until_ready`].
    pub fn wait_until_ready(
        &mut self,
        timeout: Duration,
        on_progress: impl FnMut(&DeploymentStatus),
    ) -> Result<()> {
        self.runtime.block_on(self.deployment.wait_until_ready(timeout, on_progress))
    }

    /// Blocking form of [`crate::Deployment::delete`].
    ///
    /// # Errors
    /// See [`crate::Deployment::delete`].
    pub fn delete(&mut self) -> Result<()> {
        self.runtime.block_on(self.deployment.delete())
    }

    /// Blocking form of [`crate::Deployment::restart`].
    ///
    /// # Errors
    /// See [`crate::Deployment::restart`].
    pub fn restart(&mut self) -> Result<()> {
        self.runtime.block_on(self.deployment.restart())
    }
}
