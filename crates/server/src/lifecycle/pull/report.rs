//! Reports the progress of a download: bars on a terminal, otherwise lines in the log.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use candlepower_hub::{DownloadProgress, FileProgress};
use indicatif::{MultiProgress, ProgressBar, ProgressStyle};
use tokio::time::{Instant, MissedTickBehavior, interval};

use crate::config::ByteSize;
use crate::lifecycle::logging::Terminal;

/// Interval at which the bars are updated.
const DRAW: Duration = Duration::from_millis(100);
/// Interval of lines in the log, if there are no bars.
const LOG: Duration = Duration::from_secs(10);
const BAR: &str = "{prefix:.bold} {wide_bar} {bytes}/{total_bytes} {bytes_per_sec} {eta} {msg}";

/// Runs `work`, which downloads files, and reports the progress meanwhile: by bars on a terminal, otherwise by lines in the log.
pub async fn alongside<T>(
    work: impl Future<Output = T>,
    progress: &DownloadProgress,
    terminal: &Terminal,
) -> T {
    let begin = Instant::now();
    let mut ticks = interval(if terminal.bars().is_some() { DRAW } else { LOG });
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    // The first tick comes at once, and would report nothing.
    ticks.tick().await;
    let mut bars = Bars::default();
    let mut work = std::pin::pin!(work);
    let result = loop {
        tokio::select! {
            result = &mut work => break result,
            _ = ticks.tick() => match terminal.bars() {
                Some(place) => {
                    terminal.set_has_bars(true);
                    bars.draw(place, &progress.files());
                }
                None => log(progress, begin),
            },
        }
    };
    // Bars must be gone before the next line, or they would stay on the screen.
    bars.clear();
    terminal.set_has_bars(false);
    let files = progress.files();
    let num_done = files.iter().filter(|file| file.is_done()).count();
    if num_done > 0 {
        let (bytes, _) = progress.bytes();
        let seconds = begin.elapsed().as_secs_f64();
        let files = if num_done == 1 { "file" } else { "files" };
        tracing::info!(bytes, seconds, "downloaded {num_done} {files}, {}", ByteSize(bytes));
    }
    result
}

fn log(progress: &DownloadProgress, begin: Instant) {
    let files = progress.files();
    let (bytes_done, bytes_total) = progress.bytes();
    // The files of the configuration may be complete before the sizes of the weights are known.
    if bytes_done == bytes_total {
        return;
    }
    let files_done = files.iter().filter(|file| file.is_done()).count();
    let rate = bytes_done as f64 / begin.elapsed().as_secs_f64();
    tracing::info!(
        bytes_done,
        bytes_total,
        files_done,
        files_total = files.len(),
        "downloading: {} of {}, {}/s",
        ByteSize(bytes_done),
        ByteSize(bytes_total),
        ByteSize(rate as u64)
    );
}

/// A bar for each file that is not complete.
#[derive(Default)]
struct Bars(HashMap<String, ProgressBar>);

impl Bars {
    fn draw(&mut self, place: &MultiProgress, files: &[Arc<FileProgress>]) {
        for file in files {
            if file.is_done() {
                if let Some(bar) = self.0.remove(file.name()) {
                    bar.finish_and_clear();
                }
                continue;
            }
            let bar = self.0.entry(file.name().to_owned()).or_insert_with(|| {
                let style = ProgressStyle::with_template(BAR).expect("the template is valid");
                let bar = ProgressBar::new(file.bytes_total()).with_style(style);
                place.add(bar.with_prefix(file.name().to_owned()))
            });
            bar.set_message(if file.waits() { "(by another process)" } else { "" });
            bar.set_position(file.bytes_done());
        }
    }

    fn clear(&mut self) {
        for (_, bar) in self.0.drain() {
            bar.finish_and_clear();
        }
    }
}
