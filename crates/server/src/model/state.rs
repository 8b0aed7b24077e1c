//! What the handlers share: the settings, the phase the server is in, and the model once it is loaded.

use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, Mutex, PoisonError};

use candlepower_api::{HealthResponse, LoadProgress};
use candlepower_engine::{CallerId, EngineHealth};
use candlepower_hub::DownloadProgress;
use tokio::sync::watch;

use crate::config::ServeConfig;
use crate::model::api_error::{ApiError, ApiResult};
use crate::model::body_memory::BodyMemory;
use crate::model::keys::ApiKeys;
use crate::model::metrics::Metrics;
use crate::model::permits::Permits;
use crate::model::refusals::Refusals;
use crate::model::served_model::Served;

/// Shared by all handlers; cheap to clone.
#[derive(Clone)]
pub(crate) struct AppState(Arc<Shared>);

struct Shared {
    config: ServeConfig,
    keys: ApiKeys,
    metrics: Metrics,
    refusals: Refusals,
    lifecycle: Mutex<Lifecycle>,
    /// HTTP requests that were let through and are not answered to the end.
    active: watch::Sender<usize>,
    /// Becomes true when running requests are to be cut short.
    abort: watch::Sender<bool>,
    body_memory: BodyMemory,
    /// Makes ids of callers' names. Its key is random, so that no caller can choose a name with another's id.
    caller_ids: RandomState,
    /// Threads that prepare requests at the same time: for one caller as many as there are cores.
    preparation: Permits,
}

/// Where the server is.
enum Lifecycle {
    /// Nothing is known of the model yet.
    Pending,
    /// Its files are being downloaded.
    Pulling(Arc<DownloadProgress>),
    /// Weights are being read.
    Initializing(Option<LoadProgress>),
    /// The first forward runs.
    Starting,
    Ready(Served),
    /// It was asked to stop, says so in /health, and answers all the same.
    Leaving(Served),
    Draining,
    Failed(String),
}

impl AppState {
    pub(crate) fn new(config: ServeConfig, metrics: Metrics, keys: ApiKeys) -> Self {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let body_memory = BodyMemory::new(config.max_body_memory.0);
        Self(Arc::new(Shared {
            config,
            keys,
            body_memory,
            caller_ids: RandomState::new(),
            metrics,
            refusals: Refusals::default(),
            lifecycle: Mutex::new(Lifecycle::Pending),
            active: watch::Sender::new(0),
            abort: watch::Sender::new(false),
            preparation: Permits::new(cores),
        }))
    }

    pub(crate) fn config(&self) -> &ServeConfig {
        &self.0.config
    }

    pub(crate) fn keys(&self) -> &ApiKeys {
        &self.0.keys
    }

    pub(crate) fn metrics(&self) -> &Metrics {
        &self.0.metrics
    }

    /// Requests that were refused or failed, for the log.
    pub(crate) fn refusals(&self) -> &Refusals {
        &self.0.refusals
    }

    /// The id of the caller with this name.
    pub(crate) fn caller_id(&self, name: &str) -> CallerId {
        CallerId(self.0.caller_ids.hash_one(name))
    }

    pub(crate) fn body_memory(&self) -> &BodyMemory {
        &self.0.body_memory
    }

    /// Permits to prepare requests on threads.
    pub(crate) fn preparation(&self) -> &Permits {
        &self.0.preparation
    }

    fn lifecycle(&self) -> std::sync::MutexGuard<'_, Lifecycle> {
        self.0.lifecycle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A phase of loading; ignored once the server drains or has failed.
    fn advance(&self, next: Lifecycle) {
        let mut lifecycle = self.lifecycle();
        if matches!(
            *lifecycle,
            Lifecycle::Pending
                | Lifecycle::Pulling(_)
                | Lifecycle::Initializing(_)
                | Lifecycle::Starting
        ) {
            *lifecycle = next;
        }
    }

    pub(crate) fn set_pulling(&self, progress: Arc<DownloadProgress>) {
        self.advance(Lifecycle::Pulling(progress));
    }

    pub(crate) fn set_initializing(&self, progress: Option<LoadProgress>) {
        self.advance(Lifecycle::Initializing(progress));
    }

    pub(crate) fn set_starting(&self) {
        self.advance(Lifecycle::Starting);
    }

    pub(crate) fn set_ready(&self, model: Served) {
        self.advance(Lifecycle::Ready(model));
    }

    pub(crate) fn set_failed(&self, reason: String) {
        *self.lifecycle() = Lifecycle::Failed(reason);
    }

    /// Goes on answering, while /health says that the server is about to stop.
    pub(crate) fn set_leaving(&self) {
        let mut lifecycle = self.lifecycle();
        if let Lifecycle::Ready(model) = &*lifecycle {
            *lifecycle = Lifecycle::Leaving(model.clone());
        }
    }

    pub(crate) fn set_draining(&self) {
        *self.lifecycle() = Lifecycle::Draining;
    }

    /// Whether the server was asked to stop: clients are better off with a new connection, which may lead elsewhere.
    pub(crate) fn is_stopping(&self) -> bool {
        matches!(*self.lifecycle(), Lifecycle::Leaving(_) | Lifecycle::Draining)
    }

    /// The model, or 503 with the reason why it cannot be asked.
    pub(crate) fn ready_model(&self) -> ApiResult<Served> {
        let message = match &*self.lifecycle() {
            Lifecycle::Ready(model) | Lifecycle::Leaving(model) => return Ok(model.clone()),
            Lifecycle::Pending => {
                "The server is starting: the model is not loaded yet (phase pending).".to_owned()
            }
            Lifecycle::Pulling(_) => {
                "The server is starting: the model is being downloaded (phase pulling).".into()
            }
            Lifecycle::Initializing(_) => {
                "The server is starting: the model is being loaded (phase initializing).".into()
            }
            Lifecycle::Starting => {
                "The server is starting: the model is warming up (phase starting).".into()
            }
            Lifecycle::Draining => {
                "The server is stopping and takes no new requests (phase draining).".into()
            }
            Lifecycle::Failed(reason) => format!("The model could not be loaded: {reason}"),
        };
        Err(ApiError::unavailable(message))
    }

    /// The body of /health, and whether all is well.
    pub(crate) fn health(&self) -> (bool, HealthResponse) {
        let not_ready = |status, phase| HealthResponse {
            status,
            phase: Some(phase),
            message: None,
            progress: None,
        };
        let response = match &*self.lifecycle() {
            Lifecycle::Pending => not_ready("starting", "pending"),
            Lifecycle::Pulling(progress) => {
                let (bytes_done, bytes_total) = progress.bytes();
                let progress = Some(LoadProgress { bytes_done, bytes_total });
                HealthResponse { progress, ..not_ready("starting", "pulling") }
            }
            Lifecycle::Initializing(progress) => {
                HealthResponse { progress: *progress, ..not_ready("starting", "initializing") }
            }
            Lifecycle::Starting => not_ready("starting", "starting"),
            Lifecycle::Leaving(_) | Lifecycle::Draining => not_ready("draining", "draining"),
            Lifecycle::Failed(reason) => {
                HealthResponse { message: Some(reason.clone()), ..not_ready("failed", "failed") }
            }
            Lifecycle::Ready(model) => match model.health() {
                EngineHealth::Healthy => {
                    let healthy = HealthResponse {
                        status: "healthy",
                        phase: None,
                        message: None,
                        progress: None,
                    };
                    return (true, healthy);
                }
                EngineHealth::Stuck { seconds } => HealthResponse {
                    message: Some(format!("The engine's step has been running for {seconds} s.")),
                    ..not_ready("unhealthy", "degraded")
                },
                EngineHealth::Dead(reason) => HealthResponse {
                    message: Some(format!("The engine has stopped: {reason}")),
                    ..not_ready("unhealthy", "failed")
                },
            },
        };
        (false, response)
    }

    /// Counts a request until the guard is dropped.
    pub(crate) fn enter(&self) -> ActiveRequest {
        self.0.active.send_modify(|count| *count += 1);
        ActiveRequest(self.clone())
    }

    /// Waits until no request is active.
    pub(crate) async fn wait_until_idle(&self) {
        let mut active = self.0.active.subscribe();
        // The sender lives as long as `self`.
        let _ = active.wait_for(|count| *count == 0).await;
    }

    /// Cuts running requests short.
    pub(crate) fn abort(&self) {
        self.0.abort.send_replace(true);
    }

    /// Becomes true when running requests are to be cut short.
    pub(crate) fn aborted(&self) -> watch::Receiver<bool> {
        self.0.abort.subscribe()
    }
}

/// One active request.
pub(crate) struct ActiveRequest(AppState);

impl Drop for ActiveRequest {
    fn drop(&mut self) {
        self.0.0.active.send_modify(|count| *count -= 1);
    }
}
