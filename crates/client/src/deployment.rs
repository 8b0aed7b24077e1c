//! A deployment: what it is, how it is, and what can be done with it.

use std::time::{Duration, Instant};

use serde::Serialize;

use crate::backend::Handle;
use crate::error::{Error, Leftover, Result};
use crate::forward::Forward;
use crate::logs::LogStream;
use crate::status::{DeploymentStatus, Event, Framework, Phase, State};

/// Lines of the log that belong to an error.
pub(crate) const ERROR_LINES: usize = 20;

/// A deployment as it was when it was last looked at: see [`refresh`](Self::refresh).
#[derive(Clone, Debug, Serialize)]
pub struct Deployment {
    /// Its name.
    pub name: String,
    /// Where its server answers, without `/v1`; empty until it listens.
    pub url: String,
    /// What has become of it.
    pub state: State,
    /// What is being done.
    pub phase: Phase,
    /// What there is to say.
    pub message: String,
    /// Where it runs: process, docker or kubernetes.
    pub backend: &'static str,
    /// For what it is set up.
    pub framework: Framework,
    /// The model that it serves.
    pub model: String,
    /// The container image; absent where there is none.
    pub image: Option<String>,
    /// When it was deployed, in seconds since 1970.
    pub created_at: f64,
    /// When it last changed, in seconds since 1970.
    pub updated_at: f64,
    #[serde(skip)]
    pub(crate) handle: Handle,
}

impl Deployment {
    /// How it is just now; its server is asked.
    ///
    /// # Errors
    /// It has been deleted, or where it runs cannot be asked.
    pub async fn status(&self) -> Result<DeploymentStatus> {
        self.handle.status().await
    }

    /// Looks again.
    ///
    /// # Errors
    /// It has been deleted, or where it runs cannot be asked.
    pub async fn refresh(&mut self) -> Result<()> {
        *self = self.handle.read().await?;
        Ok(())
    }

    /// The newest `tail` lines of its log, or all, the oldest first.
    ///
    /// # Errors
    /// The log cannot be read.
    pub async fn logs(&self, tail: Option<usize>) -> Result<Vec<String>> {
        self.handle.logs(tail).await
    }

    /// The newest `tail` lines of its log, or all, and those to come.
    ///
    /// # Errors
    /// The log cannot be read.
    pub async fn follow(&self, tail: Option<usize>) -> Result<LogStream> {
        self.handle.follow(tail).await
    }

    /// What has happened to it, the oldest first.
    ///
    /// # Errors
    /// Where it runs cannot be asked.
    pub async fn events(&self) -> Result<Vec<Event>> {
        self.handle.events().await
    }

    /// Waits until it is ready, telling `on_progress` how far it is.
    ///
    /// # Errors
    /// It failed, was deleted, or is not ready in time. It stays as it is.
    pub async fn wait_until_ready(
        &mut self,
        timeout: Duration,
        on_progress: impl FnMut(&DeploymentStatus),
    ) -> Result<()> {
        self.wait(timeout, timeout.as_secs(), on_progress).await
    }

    /// As [`wait_until_ready`](Self::wait_until_ready), for what is `left` of `seconds`.
    pub(crate) async fn wait(
        &mut self,
        left: Duration,
        seconds: u64,
        mut on_progress: impl FnMut(&DeploymentStatus),
    ) -> Result<()> {
        let begin = Instant::now();
        loop {
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

    /// Why it is waited for no longer.
    async fn gave_up(&self, status: DeploymentStatus, seconds: u64) -> Error {
        // What the log would say is the less important part.
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

    /// Opens a port of this machine (a free one, unless it is named) that leads to a deployment in a cluster, for as long as
    /// what is returned is kept.
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
                    "it is on this machine and needs no other port{}",
                    port.map_or(String::new(), |port| format!(" such as {port}"))
                ),
            )),
        }
    }

    /// Ends it and removes all of it.
    ///
    /// # Errors
    /// See [`Client::delete`](crate::Client::delete).
    pub async fn delete(&mut self) -> Result<()> {
        self.handle.delete().await?;
        (self.state, self.phase) = (State::Deleted, Phase::Terminating);
        Ok(())
    }

    /// Ends its server and starts it again.
    ///
    /// # Errors
    /// See [`Client::restart`](crate::Client::restart).
    pub async fn restart(&mut self) -> Result<()> {
        self.handle.restart().await?;
        self.refresh().await
    }
}
