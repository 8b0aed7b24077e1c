//! A deployment as clients use it: its description, its status and its operations.

use std::time::{Duration, Instant};

use serde::Serialize;

use crate::backend::Handle;
use crate::error::{Error, Leftover, Result};
use crate::forward::Forward;
use crate::logs::LogStream;
use crate::status::{DeploymentStatus, Event, Framework, Phase, State};

/// Log lines that are shown with an error.
pub(crate) const ERROR_LINES: usize = 20;

/// A deployment as it was when it was last read. See [`refresh`](Self::refresh).
#[derive(Clone, Debug, Serialize)]
pub struct Deployment {
    /// Name of the deployment.
    pub name: String,
    /// Base URL of the server, without `/v1`. It is empty until the server listens.
    pub url: String,
    /// State of the deployment.
    pub state: State,
    /// Current activity.
    pub phase: Phase,
    /// Remark for the user: the reason of a failure, or warnings.
    pub message: String,
    /// Backend: process, docker or kubernetes.
    pub backend: &'static str,
    /// Framework that the server is set up for.
    pub framework: Framework,
    /// Model that the server serves.
    pub model: String,
    /// Container image, or `None` for a process.
    pub image: Option<String>,
    /// Time of deployment, in seconds since 1970.
    pub created_at: f64,
    /// Time of the last change, in seconds since 1970.
    pub updated_at: f64,
    #[serde(skip)]
    pub(crate) handle: Handle,
}

impl Deployment {
    /// The current status, from the server itself.
    ///
    /// # Errors
    /// The deployment has been deleted, or its backend cannot be queried.
    pub async fn status(&self) -> Result<DeploymentStatus> {
        self.handle.status().await
    }

    /// Reads the fields again.
    ///
    /// # Errors
    /// The deployment has been deleted, or its backend cannot be queried.
    pub async fn refresh(&mut self) -> Result<()> {
        *self = self.handle.read().await?;
        Ok(())
    }

    /// The newest `tail` lines of the log, or all of them, oldest first.
    ///
    /// # Errors
    /// The log cannot be read.
    pub async fn logs(&self, tail: Option<usize>) -> Result<Vec<String>> {
        self.handle.logs(tail).await
    }

    /// The newest `tail` lines of the log, or all of them, followed by new lines as they come.
    ///
    /// # Errors
    /// The log cannot be read.
    pub async fn follow(&self, tail: Option<usize>) -> Result<LogStream> {
        self.handle.follow(tail).await
    }

    /// Events of the deployment, oldest first.
    ///
    /// # Errors
    /// The backend cannot be queried.
    pub async fn events(&self) -> Result<Vec<Event>> {
        self.handle.events().await
    }

    /// Waits until the deployment is ready, and reports progress to `on_progress`.
    ///
    /// # Errors
    /// The deployment failed, was deleted, or was not ready in time. It stays as it is.
    pub async fn wait_until_ready(
        &mut self,
        timeout: Duration,
        on_progress: impl FnMut(&DeploymentStatus),
    ) -> Result<()> {
        self.wait(timeout, timeout.as_secs(), on_progress).await
    }

    /// [`wait_until_ready`](Self::wait_until_ready) for the time that is `left` of `seconds`.
    pub(crate) async fn wait(
        &mut self,
        left: Duration,
        seconds: u64,
        mut on_progress: impl FnMut(&DeploymentStatus),
    ) -> Result<()> {
        let begin = Instant::now();
        loop {
            // The status is read before the time is checked. So even an expired limit finds a deployment that is
            // ready.
            let status = self.status().await?;
            on_progress(&status);
            if status.is_ready {
                return self.refresh().await;
            }
            let is_late = begin.elapsed() >= left;
            if status.state == State::Failed || is_late {
                return Err(self.gave_up(status, seconds).await);
            }
            tokio::time::sleep(self.handle.pace()).await;
        }
    }

    /// The error that ends the wait.
    async fn gave_up(&self, status: DeploymentStatus, seconds: u64) -> Error {
        // A log that cannot be read must not hide the reason of the failure.
        let log = self.logs(Some(ERROR_LINES)).await.unwrap_or_default();
        let (name, left) = (self.name.clone(), Leftover::Kept);
        if status.state == State::Failed {
            return Error::Failed { name, reason: status.message, log, left };
        }
        let message = match status.message.is_empty() {
            true => String::new(),
            false => format!(": {}", status.message),
        };
        Error::Timeout { name, seconds, phase: status.phase, message, log, left }
    }

    /// Opens a port of this machine that leads to a deployment in a cluster: this port, or a free one. It is
    /// closed when the result is dropped.
    ///
    /// # Errors
    /// The port cannot be opened, or the deployment is not in a cluster.
    pub async fn forward(&self, port: Option<u16>) -> Result<Forward> {
        match &self.handle {
            #[cfg(feature = "kubernetes")]
            Handle::Kubernetes(workload) => workload.forward(port.unwrap_or(0)).await,
            _ => Err(Error::validation(
                "name",
                &self.name,
                format!(
                    "the deployment is on this machine and needs no forwarded port{}",
                    port.map_or(String::new(), |port| format!(" such as {port}"))
                ),
            )),
        }
    }

    /// Stops the deployment and removes all of it.
    ///
    /// # Errors
    /// See [`Client::delete`](crate::Client::delete).
    pub async fn delete(&mut self) -> Result<()> {
        self.handle.delete().await?;
        (self.state, self.phase) = (State::Deleted, Phase::Terminating);
        Ok(())
    }

    /// Stops the server and starts it again.
    ///
    /// # Errors
    /// See [`Client::restart`](crate::Client::restart).
    pub async fn restart(&mut self) -> Result<()> {
        self.handle.restart().await?;
        self.refresh().await
    }
}
