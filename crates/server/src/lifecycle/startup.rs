//! The lifecycle of the server: listen, load, serve, drain.

use std::any::Any;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use candlepower_checkpoint::BATCHED_TOKENS;
use candlepower_engine::{ChosenDevice, Device, EngineHealth};
use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;

use crate::config::{ByteSize, DefaultMaxTokens, Effective, ServeConfig, Source};
use crate::endpoints::health::VERSION;
use crate::http::connection::Stop;
use crate::http::listen::Door;
use crate::http::router::router;
use crate::http::tls::Tls;
use crate::http::unix_socket::SocketFile;
use crate::lifecycle::activity;
use crate::lifecycle::bind::{Listener, ServerAddress};
use crate::lifecycle::error::{Error, Result};
use crate::lifecycle::load::{chosen_device, load};
use crate::lifecycle::logging::{self, Terminal};
use crate::lifecycle::pull::{LocalModel, pull};
use crate::lifecycle::reload::Reloads;
use crate::lifecycle::signals::StopSignals;
use crate::lifecycle::source::ModelSource;
use crate::lifecycle::start_screen;
use crate::model::keys::ApiKeys;
use crate::model::metrics::{CacheConfig, Metrics};
use crate::model::served_model::{LoadedModel, PoolingModel, Served};
use crate::model::state::AppState;
use crate::model::trace::Tracer;

/// Time for which /health reports the reason of a failure before the process exits.
const FAILURE_SHOWN: Duration = Duration::from_secs(2);
/// Interval at which the server checks that the engine is alive.
const ENGINE_WATCHED: Duration = Duration::from_millis(200);
/// Time in which aborted requests can send their last event.
const ABORT_GRACE: Duration = Duration::from_secs(2);

/// Serves until a signal stops it; passes the address to `on_listening`.
///
/// # Errors
/// The server cannot listen, or the model cannot be loaded. The log has the reason too.
pub async fn serve(
    effective: Effective,
    terminal: Terminal,
    on_listening: impl FnOnce(SocketAddr),
) -> Result<()> {
    let begin = Instant::now();
    let mut server = Server::start(&effective, &terminal)
        .await
        .inspect_err(|error| tracing::error!("{error}"))?;
    let (source, device) = (server.source.clone(), server.device.clone());
    let state = server.state.clone();
    if let ServerAddress::Tcp(address) = server.address {
        on_listening(address);
    }
    let loading = async {
        let local = pull(&source, &state, &device, &terminal).await?;
        let loading = load_in_thread(local, device, state.clone());
        start_screen::alongside(loading, &state, &terminal).await
    };
    let loaded = tokio::select! {
        loaded = loading => loaded,
        // Loading may take minutes, and must not have to be waited for.
        () = server.signals.next() => {
            tracing::info!("stopped while loading");
            return Ok(());
        }
    };
    match loaded {
        Ok(model) => {
            announce_model(&effective.config, &model, &server.address, begin.elapsed());
            start_screen::show_ready(&terminal, &effective.config, &model, &server.address);
            // The engine's health is watched apart from the state, which is passed on.
            let engine = model.clone();
            if let Served::Generating(model) = &model {
                let info = model.engine.info();
                server.state.metrics().set_cache_config(&CacheConfig {
                    block_size: info.block_size,
                    num_blocks: info.num_blocks,
                    dtype: info.kv_cache_dtype,
                    caches_prefixes: effective.config.prefix_caching(),
                    gpu_memory_utilization: effective.config.gpu_memory_utilization,
                });
            }
            server.state.set_ready(model);
            tokio::select! {
                () = server.signals.next() => {}
                reason = death(&engine) => return server.failed(Error::EngineDied(reason)).await,
            }
            server.stop().await
        }
        Err(error) => {
            server.state.set_failed(error.to_string());
            server.failed(error).await
        }
    }
}

/// Waits until the engine stops, which happens only by a failure; returns the reason.
async fn death(model: &Served) -> String {
    let mut interval = tokio::time::interval(ENGINE_WATCHED);
    loop {
        interval.tick().await;
        if let EngineHealth::Dead(reason) = model.health() {
            return reason;
        }
    }
}

/// A server that listens, with or without a loaded model.
struct Server {
    source: ModelSource,
    device: Device,
    state: AppState,
    signals: StopSignals,
    address: ServerAddress,
    /// Ends `connections`.
    stop: watch::Sender<Stop>,
    connections: JoinHandle<()>,
    /// Removed with the server, however it ends.
    _socket_file: Option<SocketFile>,
}

impl Server {
    /// Checks the settings and begins to listen.
    async fn start(effective: &Effective, terminal: &Terminal) -> Result<Self> {
        let config = &effective.config;
        // The signals are caught before anything slow, so that an early one stops the server cleanly.
        let mut signals = StopSignals::new().map_err(Error::Signals)?;
        if SystemTime::now() < SystemTime::UNIX_EPOCH {
            return Err(Error::NoClock);
        }
        let chosen = chosen_device(config)?;
        let source = ModelSource::find(config)?;
        let metrics = Metrics::new(config.metrics_compat, &source.names(config)[0]);
        metrics.set_build(VERSION, config.framework.as_str());
        let dropped = |reason| metrics.dropped_log_lines(reason);
        logging::count_dropped_lines(dropped("write_failed"), dropped("queue_full"));
        // Keys and certificates are read before the server listens: wrong ones must not be found by clients.
        let keys = ApiKeys::load(config)?;
        let state = AppState::new(config.clone(), metrics.clone(), keys);
        if let Some(endpoint) = &config.otlp_endpoint {
            let tracer = Tracer::start(endpoint, &config.otlp_service_name, metrics.traces.clone());
            state.set_tracer(tracer.map_err(Error::Traces)?);
        }
        let tls = Tls::of(config).map_err(Error::Tls)?.map(Arc::new);
        if config.uds.is_some() && tls.is_some() {
            return Err(Error::SocketWithTls);
        }
        signals.reload_on_hangup(reloads(&state, tls.clone())).map_err(Error::Signals)?;
        let (listener, address, socket_file) = Listener::bind(config).await?;
        announce(effective, &chosen, &address, terminal);
        if let Some(file) = &config.api_keys_file {
            tracing::info!(
                "API keys (--api-keys-file {}): {}",
                file.display(),
                state.keys().describe()
            );
        }
        let (stop, stopped) = watch::channel(Stop::Serving);
        let door = Door::new(router(state.clone()), config.max_connections, tls, config.http2);
        let connections = match listener {
            Listener::Tcp(listener) => tokio::spawn(door.serve(listener, stopped)),
            Listener::Unix(listener) => tokio::spawn(door.serve(listener, stopped)),
        };
        tokio::spawn(activity::watch(state.clone()));
        let device = chosen.device;
        Ok(Self {
            source,
            device,
            state,
            signals,
            address,
            stop,
            connections,
            _socket_file: socket_file,
        })
    }

    /// Reports a failure in the log and, until a signal stops the process, at /health: supervisors poll it.
    async fn failed(mut self, error: Error) -> Result<()> {
        tracing::error!("{error}");
        // Requests that wait would hang until the process ends.
        self.state.abort();
        let _ = tokio::time::timeout(FAILURE_SHOWN, self.signals.next()).await;
        Err(error)
    }

    /// Drains running requests, then closes the connections.
    async fn stop(mut self) -> Result<()> {
        let Self { state, stop, signals, .. } = &mut self;
        let end = async {
            leave(state).await;
            let _ = stop.send(Stop::Draining); // the task holds the receiver until it ends
            drain(state).await;
        };
        tokio::select! {
            // Both may be ready at once; then the drain has succeeded.
            biased;
            () = end => {}
            () = signals.next_of_somebody() => {
                let error = Error::StoppedTwice;
                tracing::warn!("{error}");
                return Err(error);
            }
        }
        let _ = self.stop.send(Stop::Closing);
        let _ = tokio::time::timeout(ABORT_GRACE, self.connections).await;
        if let Some(tracer) = self.state.tracer() {
            tracer.flush(ABORT_GRACE).await;
        }
        tracing::info!("stopped");
        Ok(())
    }
}

/// The files that SIGHUP reloads.
fn reloads(state: &AppState, tls: Option<Arc<Tls>>) -> Reloads {
    let mut reloads = Reloads::new(state.metrics().clone());
    reloads.add("certificates", tls.map(|tls| move || tls.reload()));
    let keys = state.config().api_keys_file.is_some().then(|| {
        let state = state.clone();
        move || state.keys().reload(state.config()).map_err(|error| error.to_string())
    });
    reloads.add("keys", keys);
    reloads
}

/// Loads in its own thread, so that the runtime answers meanwhile and does not wait for it when the process exits.
pub(crate) async fn load_in_thread(
    local: LocalModel,
    device: Device,
    state: AppState,
) -> Result<Served> {
    let (sender, receiver) = oneshot::channel();
    let work = move || {
        let loaded =
            // A load that panicked ends the process, so nothing half-made is used.
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| load(local, device, &state)));
        let loaded =
            loaded.unwrap_or_else(|panic| Err(Error::LoadingPanicked(panic_message(&*panic))));
        let _ = sender.send(loaded); // the receiver is gone if the server was stopped meanwhile
    };
    let thread = std::thread::Builder::new().name("load".into()).spawn(work);
    thread.map_err(|error| Error::LoadingPanicked(error.to_string()))?;
    let loaded = receiver
        .await
        .unwrap_or_else(|_| Err(Error::LoadingPanicked("its thread ended".into())))?;
    // The sweep is a task of the runtime, which the loading thread does not have.
    if let Served::Generating(model) = &loaded {
        model.sessions.sweep_in_background();
    }
    Ok(loaded)
}

fn panic_message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "a panic without a message".into())
}

/// Accepts requests during the drain delay, while /health says draining. Kubernetes removes an endpoint at about the time of SIGTERM,
/// not before it, so that without a delay new requests are refused until all load balancers know.
async fn leave(state: &AppState) {
    let delay = state.config().drain_delay();
    if delay.is_zero() {
        return;
    }
    state.set_leaving();
    tracing::info!(
        "stopping: new requests are accepted for {} s more (drain_delay)",
        delay.as_secs()
    );
    tokio::time::sleep(delay).await;
}

/// Waits for running requests up to the timeout, then aborts them.
async fn drain(state: &AppState) {
    state.set_draining();
    let timeout = state.config().shutdown_timeout();
    tracing::info!(
        "stopping: running requests have {} s to finish (shutdown_timeout)",
        timeout.as_secs()
    );
    if tokio::time::timeout(timeout, state.wait_until_idle()).await.is_ok() {
        return;
    }
    tracing::warn!("requests did not finish within shutdown_timeout and are aborted");
    state.abort();
    // The aborted requests still send their last event.
    let _ = tokio::time::timeout(ABORT_GRACE, state.wait_until_idle()).await;
}

/// Logs the version, the settings and the device.
fn announce(
    effective: &Effective,
    chosen: &ChosenDevice,
    address: &ServerAddress,
    terminal: &Terminal,
) {
    let config = &effective.config;
    let settings: Vec<String> = effective
        .settings
        .iter()
        // The whole list fills half a terminal. `candlepower config` prints it.
        .filter(|setting| !terminal.shows_start() || setting.source != Source::Default)
        .map(|setting| match setting.source {
            Source::Default => format!("{}={}", setting.name, setting.value),
            source => format!("{}={} ({source})", setting.name, setting.value),
        })
        .collect();
    tracing::info!("candlepower {VERSION}, framework {}", config.framework.as_str());
    tracing::info!("config: {}", settings.join(", "));
    tracing::info!("machine: {}", candlepower_machine::describe());
    if let Some(note) = &chosen.note {
        tracing::info!("{note}");
    }
    if chosen.device.is_cpu() {
        for name in config.without_effect() {
            tracing::info!("{name} has no effect on the CPU");
        }
    } else if config.deterministic {
        tracing::warn!(
            "deterministic is experimental: its kernels were compared on an emulated GPU, and have never run on a real one"
        );
    }
    tracing::info!("listening on {}, loading the model", address.url(config));
}

/// Logs the model, its limits and the server's address.
fn announce_model(config: &ServeConfig, model: &Served, address: &ServerAddress, took: Duration) {
    match model {
        Served::Generating(model) => announce_generating(config, model),
        Served::Pooling(model) => announce_pooling(config, model),
    }
    // A client certificate is a proof as good as a key.
    let is_open = !config.needs_key() && config.ssl_ca_certs.is_none();
    if let ServerAddress::Tcp(address) = address
        && is_open
        && !address.ip().is_loopback()
    {
        tracing::warn!(
            "no API key is set: everybody who reaches {address} can use this server; set --api-key or --api-keys-file"
        );
    }
    let (url, seconds) = (address.url(config), took.as_secs_f64());
    match address {
        ServerAddress::Tcp(_) => tracing::info!(
            "ready: {url}/v1 (documentation: {url}/docs), {seconds:.1} s after the start"
        ),
        ServerAddress::Unix(_) => tracing::info!("ready: {url}, {seconds:.1} s after the start"),
    }
}

fn announce_pooling(config: &ServeConfig, model: &PoolingModel) {
    let info = model.embedder.info();
    let gives = match info.dimensions {
        Some(dimensions) => {
            let normalized = if info.normalizes { ", normalized" } else { "" };
            format!(
                "embeddings of {dimensions} dimensions ({} pooling{normalized})",
                info.pooling.as_str()
            )
        }
        None => "scores of text pairs".to_owned(),
    };
    tracing::info!(
        "model {}: {}, {} of {} weights, {gives}, inputs of up to {} tokens",
        model.names.join(", "),
        info.architecture,
        ByteSize(info.weights_bytes),
        info.weights_dtype,
        info.max_model_len
    );
    if info.dimensions.is_some() && config.pooling.is_none() && model.sentence.pooling.is_none() {
        tracing::warn!(
            "the model has no 1_Pooling/config.json: using {} pooling; set --pooling if its authors use another",
            info.pooling.as_str()
        );
    }
    tracing::info!(
        "no KV cache; at most {} batch tokens, on {} CPU threads",
        config.max_num_batched_tokens.unwrap_or(BATCHED_TOKENS),
        info.num_threads
    );
}

fn announce_generating(config: &ServeConfig, model: &LoadedModel) {
    let info = model.engine.info();
    tracing::info!(
        "model {}: {}, {} of {} weights, context of {} tokens",
        model.names.join(", "),
        info.architecture,
        ByteSize(info.weights_bytes),
        info.weights_dtype,
        info.max_model_len
    );
    tracing::info!(
        "KV cache: {} blocks of {} tokens, {} in {}; at most {} sequences and {} batch tokens, on {}",
        info.num_blocks,
        info.block_size,
        ByteSize(info.kv_cache_bytes),
        info.kv_cache_dtype,
        info.max_num_seqs,
        info.max_num_batched_tokens,
        match info.device.as_str() {
            "cpu" => format!("{} CPU threads", info.num_threads),
            device => device.to_owned(),
        }
    );
    if info.num_states > 0 {
        tracing::info!(
            "recurrent states: {} in {} state slots, for running sequences and for snapshots of cached prefixes",
            ByteSize(info.state_bytes),
            info.num_states
        );
    }
    if info.max_num_seqs < config.max_num_seqs {
        tracing::warn!(
            "at most {} concurrent sequences, not {} (max_num_seqs): each state slot takes {}, and half of the free memory is for the KV cache",
            info.max_num_seqs,
            config.max_num_seqs,
            ByteSize(info.state_bytes / info.num_states.max(1) as u64)
        );
    }
    if let DefaultMaxTokens::Tokens(tokens) = config.default_max_tokens {
        tracing::info!(
            "answers end after {tokens} tokens unless a request sets max_tokens; --default-max-tokens changes the default (a number, or max)"
        );
    }
    if model.chat_template.is_none() {
        tracing::warn!(
            "the model has no chat template: /v1/chat/completions answers 400; give one with --chat-template"
        );
    }
}
