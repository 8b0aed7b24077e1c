//! A deployment: what it is, how it is, and what can be done with it.

use std::time::{Duration, Instant};

use serde::Serialize;

use crate::client::Client;
use crate::error::{Error, Leftover, Result};
use crate::process::folder::{Folder, Record};
use crate::process::health::HealthClient;
use crate::process::logs::{self, LogStream};
use crate::process::supervisor::restart_hint;
use crate::status::{DeploymentStatus, Event, Framework, Phase, Progress, State, now};

/// How often a deployment that starts is looked at.
const LOOK: Duration = Duration::from_millis(50);
/// Lines of the log that belong to an error.
const ERROR_LINES: usize = 20;

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
    folder: Folder,
}

impl Deployment {
    /// Looks at a folder.
    pub(crate) fn read(folder: Folder) -> Result<Self> {
        let name = folder.path().file_name().unwrap_or_default().to_string_lossy().into_owned();
        let (Some(spec), Some(record)) = (folder.spec(), folder.record()) else {
            return Err(Error::NotFound { name });
        };
        let (state, phase, message) = seen(&name, &record);
        Ok(Self {
            name,
            url: record.url,
            state,
            phase,
            message,
            framework: spec.framework,
            model: spec.model,
            image: None,
            created_at: record.created_at,
            updated_at: record.updated_at,
            folder,
        })
    }

    /// How it is just now; its server is asked.
    ///
    /// # Errors
    /// It has been deleted.
    pub async fn status(&self) -> Result<DeploymentStatus> {
        let record = self.folder.record().ok_or_else(|| self.not_found())?;
        let (state, mut phase, mut message) = seen(&self.name, &record);
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

    /// Looks again.
    ///
    /// # Errors
    /// It has been deleted.
    pub async fn refresh(&mut self) -> Result<()> {
        *self = Self::read(self.folder.clone())?;
        Ok(())
    }

    /// The newest `tail` lines of its log, or all, the oldest first.
    pub fn logs(&self, tail: Option<usize>) -> Vec<String> {
        logs::tail(&self.folder.log(), tail)
    }

    /// The newest `tail` lines of its log, or all, and those to come.
    ///
    /// # Errors
    /// The log cannot be read.
    pub fn follow(&self, tail: Option<usize>) -> Result<LogStream> {
        LogStream::new(self.folder.log(), tail)
            .map_err(|error| Error::backend("the log cannot be read", error))
    }

    /// What has happened to it, the oldest first.
    pub fn events(&self) -> Vec<Event> {
        self.folder.events()
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
            let name = self.name.clone();
            let log = || self.logs(Some(ERROR_LINES));
            if status.is_ready {
                return self.refresh().await;
            }
            if status.state == State::Failed {
                return Err(Error::Failed {
                    name,
                    reason: status.message,
                    log: log(),
                    left: Leftover::Kept,
                });
            }
            if begin.elapsed() >= left {
                let message = match status.message.is_empty() {
                    true => String::new(),
                    false => format!(": {}", status.message),
                };
                let phase = status.phase;
                return Err(Error::Timeout {
                    name,
                    seconds,
                    phase,
                    message,
                    log: log(),
                    left: Leftover::Kept,
                });
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Ends it and removes all of it.
    ///
    /// # Errors
    /// See [`Client::delete`].
    pub async fn delete(&mut self) -> Result<()> {
        Client::new().delete(&self.name).await?;
        (self.state, self.phase) = (State::Deleted, Phase::Terminating);
        Ok(())
    }

    /// Ends its server and starts it again.
    ///
    /// # Errors
    /// See [`Client::restart`].
    pub async fn restart(&mut self) -> Result<()> {
        *self = Client::new().restart(&self.name).await?;
        Ok(())
    }

    fn not_found(&self) -> Error {
        Error::NotFound { name: self.name.clone() }
    }
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
