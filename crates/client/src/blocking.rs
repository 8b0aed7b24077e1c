//! The client for programs that are not async: the same operations, each of which returns when it is done.

use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Runtime;

use crate::backend::Backend;
use crate::error::{Error, Result};
use crate::params::{BlazeParams, Params, PrismParams};
use crate::status::{DeploymentStatus, Event};

/// As [`crate::Client`]. Not to be used from within an async runtime.
#[derive(Clone, Debug)]
pub struct Client {
    client: crate::Client,
    runtime: Arc<Runtime>,
}

/// As [`crate::Deployment`], whose fields it has.
#[derive(Clone, Debug)]
pub struct Deployment {
    deployment: crate::Deployment,
    runtime: Arc<Runtime>,
}

impl Client {
    /// A client.
    ///
    /// # Errors
    /// The system gives no resources to wait with.
    pub fn new() -> Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| Error::backend("the client cannot wait", error))?;
        Ok(Self { client: crate::Client::new(), runtime: Arc::new(runtime) })
    }

    /// As [`crate::Client::backend`].
    #[must_use]
    pub fn backend(mut self, backend: Backend) -> Self {
        self.client = self.client.backend(backend);
        self
    }

    /// As [`crate::Client::deploy_blaze`].
    ///
    /// # Errors
    /// As there.
    pub fn deploy_blaze(&self, params: BlazeParams) -> Result<Deployment> {
        self.deploy(params, |_| {})
    }

    /// As [`crate::Client::deploy_prism`].
    ///
    /// # Errors
    /// As there.
    pub fn deploy_prism(&self, params: PrismParams) -> Result<Deployment> {
        self.deploy(params, |_| {})
    }

    /// As [`crate::Client::deploy`].
    ///
    /// # Errors
    /// As there.
    pub fn deploy(
        &self,
        params: impl Into<Params>,
        on_progress: impl FnMut(&DeploymentStatus),
    ) -> Result<Deployment> {
        let deployed = self.runtime.block_on(self.client.deploy(params, on_progress))?;
        Ok(self.own(deployed))
    }

    /// The blocking form of [`crate::Client::update`].
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

    /// As [`crate::Client::get`].
    ///
    /// # Errors
    /// As there.
    pub fn get(&self, name: &str) -> Result<Deployment> {
        Ok(self.own(self.runtime.block_on(self.client.get(name))?))
    }

    /// As [`crate::Client::list`].
    ///
    /// # Errors
    /// As there.
    pub fn list(&self) -> Result<Vec<Deployment>> {
        let found = self.runtime.block_on(self.client.list())?;
        Ok(found.into_iter().map(|deployment| self.own(deployment)).collect())
    }

    /// As [`crate::Client::delete`].
    ///
    /// # Errors
    /// As there.
    pub fn delete(&self, name: &str) -> Result<()> {
        self.runtime.block_on(self.client.delete(name))
    }

    /// As [`crate::Client::restart`].
    ///
    /// # Errors
    /// As there.
    pub fn restart(&self, name: &str) -> Result<Deployment> {
        Ok(self.own(self.runtime.block_on(self.client.restart(name))?))
    }

    /// As [`crate::Client::logs`].
    ///
    /// # Errors
    /// As there.
    pub fn logs(&self, name: &str, tail: Option<usize>) -> Result<Vec<String>> {
        self.runtime.block_on(self.client.logs(name, tail))
    }

    /// As [`crate::Client::events`].
    ///
    /// # Errors
    /// As there.
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
    /// As [`crate::Deployment::status`].
    ///
    /// # Errors
    /// As there.
    pub fn status(&self) -> Result<DeploymentStatus> {
        self.runtime.block_on(self.deployment.status())
    }

    /// As [`crate::Deployment::refresh`].
    ///
    /// # Errors
    /// As there.
    pub fn refresh(&mut self) -> Result<()> {
        self.runtime.block_on(self.deployment.refresh())
    }

    /// As [`crate::Deployment::logs`].
    ///
    /// # Errors
    /// As there.
    pub fn logs(&self, tail: Option<usize>) -> Result<Vec<String>> {
        self.runtime.block_on(self.deployment.logs(tail))
    }

    /// As [`crate::Deployment::events`].
    ///
    /// # Errors
    /// As there.
    pub fn events(&self) -> Result<Vec<Event>> {
        self.runtime.block_on(self.deployment.events())
    }

    /// As [`crate::Deployment::wait_until_ready`].
    ///
    /// # Errors
    /// As there.
    pub fn wait_until_ready(
        &mut self,
        timeout: Duration,
        on_progress: impl FnMut(&DeploymentStatus),
    ) -> Result<()> {
        self.runtime.block_on(self.deployment.wait_until_ready(timeout, on_progress))
    }

    /// As [`crate::Deployment::delete`].
    ///
    /// # Errors
    /// As there.
    pub fn delete(&mut self) -> Result<()> {
        self.runtime.block_on(self.deployment.delete())
    }

    /// As [`crate::Deployment::restart`].
    ///
    /// # Errors
    /// As there.
    pub fn restart(&mut self) -> Result<()> {
        self.runtime.block_on(self.deployment.restart())
    }
}
