//! A container as a deployment: its state for clients, and its operations.

use std::time::Duration;

use super::create::Description;
use super::engine::{Engine, Refused};
use super::logs::{self, Followed};
use super::seen::{EngineEvent, Inspect};
use super::update::remove_leftovers;
use crate::backend::{DOCKER, Handle};
use crate::deployment::Deployment;
use crate::error::{Error, Result};
use crate::health::HealthClient;
use crate::logs::{LogStream, last_words};
use crate::spec::Spec;
use crate::status::{DeploymentStatus, Event, Phase, Progress, State, now};

/// Extra time for the engine, on top of the server's own time to stop.
const STOP_PATIENCE: Duration = Duration::from_secs(20);
/// Log lines that are searched for the reason of a failure.
const LAST_LINES: usize = 5;

/// A container made by this backend.
#[derive(Clone, Debug)]
pub(crate) struct Container {
    pub(super) engine: Engine,
    pub(super) id: String,
    pub(super) description: Description,
}

/// All known facts about a container at one moment.
struct Look {
    inspect: Inspect,
    state: State,
    phase: Phase,
    message: String,
    bytes: (u64, u64),
}

impl Container {
    pub(crate) async fn read(&self) -> Result<Deployment> {
        let Look { inspect, state, phase, message, .. } = self.look().await?;
        let Description { spec, created_at, .. } = &self.description;
        Ok(Deployment {
            name: spec.name.clone(),
            url: self.url(),
            state,
            phase,
            message,
            backend: DOCKER,
            framework: spec.framework,
            model: spec.model.clone(),
            updated_at: inspect.changed_at().unwrap_or(*created_at),
            image: Some(inspect.config.image),
            created_at: *created_at,
            handle: Handle::Docker(self.clone()),
        })
    }

    /// The spec that it was made with.
    pub(crate) fn spec(&self) -> Result<Spec> {
        Ok(self.description.spec.clone())
    }

    pub(crate) async fn status(&self) -> Result<DeploymentStatus> {
        let Look { inspect, state, phase, message, bytes } = self.look().await?;
        let is_ready = state == State::Running && phase == Phase::Ready;
        let now = now();
        let run_s = match inspect.is_running() {
            true => inspect.started_at().map_or(0.0, |start| now - start),
            false => 0.0,
        };
        Ok(DeploymentStatus {
            state,
            phase,
            is_ready,
            message,
            progress: Progress {
                step: phase,
                bytes_done: bytes.0,
                bytes_total: bytes.1,
                elapsed_s: now - self.description.created_at,
            },
            replicas_ready: u32::from(is_ready),
            replicas_desired: 1,
            restarts: inspect.restart_count,
            // A running container reports 0, which would look like a successful end.
            exit_code: (state == State::Failed).then_some(inspect.state.exit_code),
            gpu_seconds: self.description.gpus.len() as f64 * run_s,
        })
    }

    pub(crate) async fn logs(&self, tail: Option<usize>) -> Result<Vec<String>> {
        let found = logs::tail(&self.engine, &self.id, tail).await;
        found.map_err(|refused| self.wrong("has no log that can be read", refused))
    }

    pub(crate) async fn follow(&self, tail: Option<usize>) -> Result<LogStream> {
        let followed = Followed::new(self.engine.clone(), self.id.clone(), tail).await;
        let followed =
            followed.map_err(|refused| self.wrong("has no log that can be read", refused))?;
        Ok(LogStream::new(followed))
    }

    pub(crate) async fn events(&self) -> Result<Vec<Event>> {
        let since = format!("{:.0}", self.description.created_at.floor());
        // With an end time the engine reports past events only, instead of waiting for new ones.
        let until = format!("{:.0}", now().ceil());
        let filters = serde_json::json!({ "container": [self.id] }).to_string();
        let query = [("since", since.as_str()), ("until", &until), ("filters", &filters)];
        let asked = async {
            let response = self.engine.open("events", &query).await?;
            let text = response.text().await;
            text.map_err(|error| Refused { status: None, words: error.to_string() })
        };
        let text = asked.await.map_err(|refused| self.wrong("has no events", refused))?;
        let events = text.lines().filter_map(|line| serde_json::from_str::<EngineEvent>(line).ok());
        Ok(events.filter_map(|event| event.event()).collect())
    }

    /// Removes the container, and the remains of updates of its deployment.
    pub(crate) async fn delete(&self) -> Result<()> {
        let removed = self.remove().await;
        remove_leftovers(&self.engine, &self.description.spec.name).await;
        removed
    }

    /// Removes this container only.
    pub(super) async fn remove(&self) -> Result<()> {
        // The result does not matter: a container that does not stop is removed by force, and one that never
        // ran has nothing to stop.
        let _ = self.stop_or_restart("stop").await;
        let path = format!("containers/{}", self.id);
        // `v` also removes the anonymous volumes of the image. The named volume of the cache stays.
        let deleted = self.engine.delete(&path, &[("force", "true"), ("v", "true")]).await;
        match deleted {
            Err(refused) if refused.is_not_found() => Ok(()),
            // Another client is removing it at this moment.
            Err(Refused { status: Some(409), .. }) => Ok(()),
            Err(refused) => Err(self.wrong("cannot be deleted", refused)),
            Ok(()) => Ok(()),
        }
    }

    /// Stops the server and leaves the container.
    pub(super) async fn stop(&self) -> Result<()> {
        let stopped = self.stop_or_restart("stop").await;
        stopped.map_err(|refused| self.wrong("cannot be stopped", refused))
    }

    pub(crate) async fn restart(&self) -> Result<()> {
        let restarted = self.stop_or_restart("restart").await;
        restarted.map_err(|refused| self.wrong("cannot be started again", refused))
    }

    async fn stop_or_restart(&self, verb: &str) -> Result<(), Refused> {
        let seconds = self.description.spec.stop_seconds(0);
        let path = format!("containers/{}/{verb}", self.id);
        // The engine answers only after the stop. So the request needs more time than the server.
        let patience = Duration::from_secs(seconds) + STOP_PATIENCE;
        self.engine.post(&path, &[("t", &seconds.to_string())], None, patience).await.map(|_| ())
    }

    pub(super) async fn inspect(&self) -> Result<Inspect> {
        let inspect = self.engine.inspect(&self.id).await;
        inspect.map_err(|refused| self.wrong("cannot be inspected", refused))
    }

    async fn look(&self) -> Result<Look> {
        let inspect = self.inspect().await?;
        let health = match (inspect.is_running(), HealthClient::new(&self.description.spec)) {
            // A container that does not run is not asked: another program may have its port by now.
            (true, Ok(client)) => client.ask(&self.url()).await,
            _ => None,
        };
        let words = match inspect.is_running() {
            true => None,
            false => {
                let lines = logs::tail(&self.engine, &self.id, Some(LAST_LINES)).await;
                last_words(&lines.unwrap_or_default())
            }
        };
        let hint = self.description.warnings.join("; ");
        let (state, phase, message) = inspect.seen(health.as_ref(), words.as_deref(), &hint, now());
        let bytes = health.and_then(|health| health.progress);
        let bytes = bytes.map_or((0, 0), |bytes| (bytes.bytes_done, bytes.bytes_total));
        Ok(Look { inspect, state, phase, message, bytes })
    }

    fn url(&self) -> String {
        let Description { spec, port, .. } = &self.description;
        format!("{}://127.0.0.1:{port}", spec.scheme())
    }

    /// The error for a refusal of the engine. A container that is gone is reported as a missing deployment.
    fn wrong(&self, what: &str, refused: Refused) -> Error {
        let name = self.description.spec.name.clone();
        match refused.is_not_found() {
            true => Error::NotFound { name },
            false => Error::backend(format!("`{name}` {what}"), refused),
        }
    }
}
