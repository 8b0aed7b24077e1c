//! The start as a person at a terminal sees it: a bar while the model is loaded, and then what is served where.
//!
//! Without a terminal, and with `--log-format json`, the log says the same in plain lines.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use tokio::time::{MissedTickBehavior, interval};

use crate::config::{ByteSize, DefaultMaxTokens, ServeConfig};
use crate::lifecycle::bind::ServerAddress;
use crate::lifecycle::logging::Terminal;
use crate::model::served_model::Served;
use crate::model::state::AppState;

/// Interval at which the bar is updated. A start that takes less shows none.
const DRAW: Duration = Duration::from_millis(100);
const BAR: &str = "{prefix:.bold} {wide_bar} {bytes}/{total_bytes} {bytes_per_sec} {eta}";
const SPINNER: &str = "{spinner} {prefix:.bold} {elapsed}";

/// Runs `work`, which loads a model, and shows its phase meanwhile.
pub(super) async fn alongside<T>(
    work: impl Future<Output = T>,
    state: &AppState,
    terminal: &Terminal,
) -> T {
    let Some(place) = terminal.bars().filter(|_| terminal.shows_start()) else { return work.await };
    let style = |template| ProgressStyle::with_template(template).expect("the template is valid");
    let mut ticks = interval(DRAW);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    // The first tick comes at once.
    ticks.tick().await;
    let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::hidden());
    let mut is_shown = false;
    let mut work = std::pin::pin!(work);
    let result = loop {
        tokio::select! {
            result = &mut work => break result,
            _ = ticks.tick() => {}
        }
        let (_, health) = state.health();
        let progress = health.progress.filter(|progress| progress.bytes_total > 0);
        // The prefix comes last, since a change of it draws the bar.
        if let Some(progress) = progress {
            bar.set_length(progress.bytes_total);
            bar.set_position(progress.bytes_done);
        }
        bar.set_style(style(if progress.is_some() { BAR } else { SPINNER }));
        bar.set_prefix(match health.phase {
            Some("starting") => "Warming up",
            _ => "Loading the model",
        });
        if !is_shown {
            is_shown = true;
            terminal.set_has_bars(true);
            place.add(bar.clone());
        }
        bar.tick();
    };
    // A bar must be gone before the next line, or it would stay on the screen.
    bar.finish_and_clear();
    terminal.set_has_bars(false);
    result
}

/// Shows what is served where.
pub(super) fn show_ready(
    terminal: &Terminal,
    config: &ServeConfig,
    model: &Served,
    address: &ServerAddress,
) {
    if !terminal.shows_start() {
        return;
    }
    let url = address.url(config);
    let is_tcp = matches!(address, ServerAddress::Tcp(_));
    let names = match model {
        Served::Generating(model) => &model.names,
        Served::Pooling(model) => &model.names,
    };
    let mut rows = vec![("model", names.join(", "))];
    if is_tcp {
        rows.push(("API", format!("{url}/v1")));
        if config.shows_playground() {
            rows.push(("page", format!("{url}/")));
        }
        rows.push(("documentation", format!("{url}/docs")));
    } else {
        rows.push(("API", format!("{url} (`candlepower chat --url {url}`)")));
    }
    match model {
        Served::Generating(model) => {
            let info = model.engine.info();
            let (weights, cache) = (ByteSize(info.weights_bytes), ByteSize(info.kv_cache_bytes));
            rows.push(("context", format!("{} tokens", info.max_model_len)));
            rows.push((
                "memory",
                format!("{weights} of weights, {cache} of KV cache, on {}", info.device),
            ));
            if let DefaultMaxTokens::Tokens(tokens) = config.default_max_tokens {
                rows.push(("answers", format!("end after {tokens} tokens unless a request sets max_tokens; see --default-max-tokens")));
            }
        }
        Served::Pooling(model) => {
            let info = model.embedder.info();
            rows.push(("inputs", format!("up to {} tokens", info.max_model_len)));
            rows.push(("memory", format!("{} of weights", ByteSize(info.weights_bytes))));
        }
    }
    rows.push(("stop", "Ctrl-C".to_owned()));
    let lines = rows.iter().map(|(name, text)| format!("  {name:<14} {text}\n"));
    terminal.show(&format!("\n{}\n", lines.collect::<String>()));
}
