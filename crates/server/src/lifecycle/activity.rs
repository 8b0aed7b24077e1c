//! Periodic lines of the log: the load, and refused requests.

use std::time::{Duration, Instant};

use crate::model::engine_load::Counted;
use crate::model::state::AppState;

/// Interval at which histograms are aggregated and refusals are logged. Histograms that nobody scrapes would grow otherwise.
const UPKEEP: Duration = Duration::from_secs(5);

/// Logs until the server stops.
pub(crate) async fn watch(state: AppState) {
    let upkeep = async {
        let mut interval = tokio::time::interval(UPKEEP);
        loop {
            interval.tick().await;
            state.metrics().run_upkeep();
            state.refusals().report(Instant::now());
        }
    };
    tokio::join!(upkeep, log_load(&state));
}

async fn log_load(state: &AppState) {
    let Some(pause) = state.config().stats_interval() else { return };
    let mut since = Counted::default();
    let mut last = Instant::now();
    loop {
        // Each pause is measured, since a busy machine may sleep longer.
        tokio::time::sleep(pause).await;
        let now = Instant::now();
        if let Some(line) = state.metrics().load().line(&mut since, now - last) {
            tracing::info!("{line}");
        }
        last = now;
    }
}
