//! Lines of the log while the server runs: the load now and then, and requests that were refused.

use std::time::{Duration, Instant};

use crate::model::engine_load::Counted;
use crate::model::state::AppState;

/// How often histograms are folded, so that they do not grow while nobody asks for them, and refusals are logged.
const UPKEEP: Duration = Duration::from_secs(5);

/// Looks at the server until it ends.
pub(crate) async fn watch(state: AppState) {
    let upkeep = async {
        let mut interval = tokio::time::interval(UPKEEP);
        loop {
            interval.tick().await;
            state.metrics().run_upkeep();
            state.refusals().tell(Instant::now());
        }
    };
    tokio::join!(upkeep, tell_load(&state));
}

async fn tell_load(state: &AppState) {
    let Some(pause) = state.config().stats_interval() else { return };
    let mut since = Counted::default();
    let mut last = Instant::now();
    loop {
        tokio::time::sleep(pause).await;
        let now = Instant::now();
        if let Some(line) = state.metrics().load().line(&mut since, now - last) {
            tracing::info!("{line}");
        }
        last = now;
    }
}
