//! Starts the engine like `serve`, but without HTTP, for measurements.

use candlepower_checkpoint::{Description, ModelSpec};
use candlepower_engine::{EngineHandle, EngineMetrics};

use crate::config::ServeConfig;
use crate::lifecycle::error::{Error, Result};
use crate::lifecycle::load::chosen_device;
use crate::lifecycle::logging::Terminal;
use crate::lifecycle::pull::pull;
use crate::lifecycle::source::ModelSource;
use crate::lifecycle::startup::load_in_thread;
use crate::model::keys::ApiKeys;
use crate::model::metrics::Metrics;
use crate::model::served_model::Served;
use crate::model::state::AppState;

/// An engine and its model's description.
#[derive(Debug)]
pub struct StartedEngine {
    /// The engine.
    pub engine: EngineHandle,
    /// The model's description.
    pub spec: ModelSpec,
}

/// Finds, downloads and loads the model as `serve` does, and starts the engine, which counts into `metrics`.
///
/// # Errors
/// The model or the settings are invalid; the error has one line.
pub async fn start_engine(
    config: ServeConfig,
    terminal: &Terminal,
    metrics: EngineMetrics,
) -> Result<StartedEngine> {
    let device = chosen_device(&config)?.device;
    let source = ModelSource::find(&config)?;
    let mut measured = Metrics::new(None, &source.names(&config)[0]);
    measured.engine = metrics;
    let keys = ApiKeys::load(&config)?;
    let state = AppState::new(config, measured, keys);
    let local = pull(&source, &state, &device, terminal).await?;
    let Description::Decoder(checkpoint) = &local.description else {
        return Err(Error::NotGenerating);
    };
    let spec = checkpoint.spec().clone();
    match load_in_thread(local, device, state).await? {
        Served::Generating(model) => Ok(StartedEngine { engine: model.engine.clone(), spec }),
        Served::Pooling(_) => Err(Error::NotGenerating),
    }
}
