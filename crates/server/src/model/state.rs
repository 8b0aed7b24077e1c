//! State that all handlers share: the settings, the phase of the server, and the loaded model.

use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use candlepower_api::{HealthResponse, LoadProgress};
use candlepower_engine::{CallerId, EngineHealth};
use candlepower_hub::{DownloadProgress, InUse};
use candlepower_media::ImageBudget;
use tokio::sync::watch;

use crate::config::ServeConfig;
use crate::model::api_error::{ApiError, ApiResult};
use crate::model::body_memory::BodyMemory;
use crate::model::keys::ApiKeys;
use crate::model::metrics::Metrics;
use crate::model::permits::Permits;
use crate::model::refusals::Refusals;
use crate::model::served_model::Served;
use crate::model::trace::Tracer;

/// Shared by all handlers; cheap to clone.
#[derive(Clone)]
pub(crate) struct AppState(Arc<Shared>);

struct Shared {
    config: ServeConfig,
    keys: ApiKeys,
    metrics: Metrics,
    /// Set if requests are traced.
    tracer: OnceLock<Tracer>,
    refusals: Refusals,
    lifecycle: Mutex<Lifecycle>,
    /// Number of admitted HTTP requests whose responses are not complete.
    active: watch::Sender<usize>,
    /// Becomes true when running requests must be aborted.
    abort: watch::Sender<bool>,
    body_memory: BodyMemory,
    /// Hashes callers' names to ids. Its key is random, so that no caller can choose a name with the id of another.
    caller_ids: RandomState,
    /// Permits for threads that prepare requests. One caller has at most as many as there are cores.
    preparation: Permits,
    /// Permits for fetching images, which bound the bytes in flight.
    fetching: Permits,
    /// The memory for resized images.
    images: ImageBudget,
    /// Keeps a model of the hub's cache from being removed.
    in_use: OnceLock<Arc<InUse>>,
}

/// Images that are fetched at once for one caller. All callers together fetch twice as many, of at most 32 MiB each.
const FETCHES_OF_A_CALLER: usize = 8;

/// The phase of the server.
enum Lifecycle {
    /// The model is not found yet.
    Pending,
    /// The model's files are being downloaded.
    Pulling(Arc<DownloadProgress>),
    /// Weights are being loaded.
    Initializing(Option<LoadProgress>),
    /// The first forward pass runs.
    Starting,
    Ready(Served),
    /// The drain delay: /health says draining, and requests are still accepted.
    Leaving(Served),
    Draining,
    Failed(String),
}

impl AppState {
    pub(crate) fn new(config: ServeConfig, metrics: Metrics, keys: ApiKeys) -> Self {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let body_memory = BodyMemory::new(config.max_body_memory.0);
        let images = ImageBudget::new(usize::try_from(config.image_memory.0).unwrap_or(usize::MAX));
        Self(Arc::new(Shared {
            config,
            keys,
            body_memory,
            caller_ids: RandomState::new(),
            metrics,
            tracer: OnceLock::new(),
            refusals: Refusals::default(),
            lifecycle: Mutex::new(Lifecycle::Pending),
            active: watch::Sender::new(0),
            abort: watch::Sender::new(false),
            preparation: Permits::new(cores),
            fetching: Permits::new(FETCHES_OF_A_CALLER),
            images,
            in_use: OnceLock::new(),
        }))
    }

    pub(crate) fn config(&self) -> &ServeConfig {
        &self.0.config
    }

    /// Keeps the model's files from being removed while this state lives.
    pub(crate) fn keep(&self, in_use: Arc<InUse>) {
        // Only one model is loaded, so a second mark would be the same.
        let _ = self.0.in_use.set(in_use);
    }

    pub(crate) fn keys(&self) -> &ApiKeys {
        &self.0.keys
    }

    pub(crate) fn metrics(&self) -> &Metrics {
        &self.0.metrics
    }

    /// Traces requests from now on.
    pub(crate) fn set_tracer(&self, tracer: Tracer) {
        // The server sets it once.
        let _ = self.0.tracer.set(tracer);
    }

    /// The tracer, if requests are traced.
    pub(crate) fn tracer(&self) -> Option<&Tracer> {
        self.0.tracer.get()
    }

    /// Requests that were refused or failed, for the log.
    pub(crate) fn refusals(&self) -> &Refusals {
        &self.0.refusals
    }

    /// Id of the caller with this name.
    pub(crate) fn caller_id(&self, name: &str) -> CallerId {
        CallerId(self.0.caller_ids.hash_one(name))
    }

    pub(crate) fn body_memory(&self) -> &BodyMemory {
        &self.0.body_memory
    }

    /// Permits for threads that prepare requests.
    pub(crate) fn preparation(&self) -> &Permits {
        &self.0.preparation
    }

    /// Permits for fetching images.
    pub(crate) fn fetching(&self) -> &Permits {
        &self.0.fetching
    }

    /// The memory for resized images of all requests.
    pub(crate) fn images(&self) -> &ImageBudget {
        &self.0.images
    }

    /// The metrics in Prometheus' text format.
    pub(crate) fn render_metrics(&self) -> String {
        let Shared { metrics, images, .. } = &*self.0;
        metrics.images.waiting_bytes.set(images.used() as f64);
        metrics.render()
    }

    fn lifecycle(&self) -> std::sync::MutexGuard<'_, Lifecycle> {
        self.0.lifecycle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets a phase of loading; ignored once the server drains or has failed.
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
        // A failure is shown whatever the phase was.
        *self.lifecycle() = Lifecycle::Failed(reason);
    }

    /// Begins the drain delay.
    pub(crate) fn set_leaving(&self) {
        let mut lifecycle = self.lifecycle();
        // A server that has not loaded its model has nothing to drain.
        if let Lifecycle::Ready(model) = &*lifecycle {
            *lifecycle = Lifecycle::Leaving(model.clone());
        }
    }

    pub(crate) fn set_draining(&self) {
        *self.lifecycle() = Lifecycle::Draining;
    }

    /// Whether the server was asked to stop. Connections are then closed after each response, so that clients reconnect, perhaps to
    /// another server behind the load balancer.
    pub(crate) fn is_stopping(&self) -> bool {
        matches!(*self.lifecycle(), Lifecycle::Leaving(_) | Lifecycle::Draining)
    }

    /// The model, or 503 with the phase of the server.
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

    /// Whether the server is healthy, and the body of /health.
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
            // Load balancers must send new requests elsewhere during the drain delay already.
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
                    message: Some(format!(
                        "A step of the engine has been running for {seconds} s."
                    )),
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
        // The count is a watch channel, so that draining can wait for zero.
        self.0.active.send_modify(|count| *count += 1);
        ActiveRequest(self.clone())
    }

    /// Waits until no request is active.
    pub(crate) async fn wait_until_idle(&self) {
        let mut active = self.0.active.subscribe();
        // The sender lives as long as `self`.
        let _ = active.wait_for(|count| *count == 0).await;
    }

    /// Aborts running requests.
    pub(crate) fn abort(&self) {
        self.0.abort.send_replace(true);
    }

    /// Becomes true when running requests must be aborted.
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
