//! `candlepower top`: the load of a server, shown anew each second.

mod sample;
mod screen;
mod view;

use std::collections::VecDeque;
use std::io::IsTerminal;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use candlepower_machine::{print, print_error};
use clap::Args;

use crate::api::{Api, TlsFlags, last_words};
use crate::failure;
use sample::Sample;
use screen::{Event, Screen};
use view::View;

/// Time limit of one scrape. A server under load answers in milliseconds.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Time over which latencies are shown.
const WINDOW: Duration = Duration::from_secs(10);
/// Time between the two scrapes of `--once`.
const ONCE: Duration = Duration::from_secs(1);

#[derive(Args)]
pub(crate) struct Top {
    /// URL of the server, or unix:PATH for a Unix socket
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:8000")]
    url: String,
    /// Print the load once, as plain text. A pipe does the same
    #[arg(long)]
    once: bool,
    /// Seconds between two scrapes
    #[arg(long, value_name = "SECONDS", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=3600))]
    interval: u64,
    #[command(flatten)]
    tls: TlsFlags,
}

impl Top {
    /// Shows the load until somebody ends it.
    pub(crate) fn run(&self) -> ExitCode {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let shown = runtime.context("cannot start the async runtime").and_then(|runtime| {
            let shown = runtime.block_on(self.show());
            // The thread that waits for keys may wait for ever.
            runtime.shutdown_background();
            shown
        });
        match shown {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                print_error(format_args!("error: {}", last_words(&error)));
                ExitCode::FAILURE
            }
        }
    }

    async fn show(&self) -> Result<()> {
        let server = Api::new(&self.url, None, Some(TIMEOUT), self.tls.transport())?;
        let is_terminal = std::io::stdout().is_terminal() && std::io::stdin().is_terminal();
        if self.once || !is_terminal {
            let mut history = History::default();
            history.push(scrape(&server).await?);
            tokio::time::sleep(ONCE).await;
            history.push(scrape(&server).await?);
            print(&View::plain(&server.shown).draw(&history));
            return Ok(());
        }
        self.watch(&server).await
    }

    async fn watch(&self, server: &Api) -> Result<()> {
        let mut screen = Screen::open()?;
        let mut history = History::default();
        let mut ticks = tokio::time::interval(Duration::from_secs(self.interval));
        // A slow answer delays the next scrape, and is not made up for.
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut scraping = std::pin::pin!(None);
        let mut failure = None;
        loop {
            let is_idle = scraping.is_none();
            let scraped = async {
                match scraping.as_mut().as_pin_mut() {
                    Some(answer) => answer.await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                event = screen.event() => match event {
                    Event::End => return Ok(()),
                    Event::Resized => {}
                },
                answer = scraped => {
                    scraping.set(None);
                    failure = match answer {
                        Ok(sample) => {
                            history.push(sample);
                            None
                        }
                        Err(error) => {
                            history = History::default();
                            Some(failure::text(&error))
                        }
                    };
                }
                _ = ticks.tick(), if is_idle => {
                    scraping.set(Some(scrape(server)));
                    // There is nothing new to show.
                    continue;
                }
            }
            let (width, height) = screen.size();
            let view = View::live(&server.shown, width, height, failure.as_deref());
            screen.draw(&view.draw(&history))?;
        }
    }
}

/// The last samples of a server, the newest at the end.
#[derive(Default)]
pub(crate) struct History {
    samples: VecDeque<Sample>,
    /// Generated tokens per second between each two samples, for as long as a line is wide.
    speeds: VecDeque<f64>,
}

impl History {
    /// Samples whose speeds are kept.
    const SPEEDS: usize = 512;

    fn push(&mut self, sample: Sample) {
        // A server that was started anew counts from zero.
        if self.samples.back().is_some_and(|last| last.is_of_another_process(&sample)) {
            *self = Self::default();
        }
        if let Some(last) = self.samples.back() {
            self.speeds.push_back(sample.rate_since(last, "generation_tokens_total", &[]));
        }
        self.samples.push_back(sample);
        while self.speeds.len() > Self::SPEEDS {
            self.speeds.pop_front();
        }
        let newest = self.samples.back().map(|sample| sample.at);
        let is_old = |sample: &Sample| newest.is_some_and(|newest| newest - sample.at > WINDOW);
        while self.samples.len() > 2 && is_old(&self.samples[1]) {
            self.samples.pop_front();
        }
    }
}

/// # Errors
/// The server cannot be reached, or its answer is no metrics of an inference server.
async fn scrape(server: &Api) -> Result<Sample> {
    let sample = Sample::parse(&server.text("/metrics").await?, Instant::now());
    if !sample.has("num_requests_running") {
        bail!("{}/metrics: there are no metrics of candlepower or vLLM", server.shown);
    }
    Ok(sample)
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;
    use crate::api::Transport;

    #[test]
    fn the_history_has_a_window_of_samples_and_a_line_of_speeds() {
        let begin = Instant::now();
        let mut history = History::default();
        for second in 0..=(History::SPEEDS as u64 + 100) {
            let text = format!("candlepower_generation_tokens_total {}", second * 7);
            history.push(Sample::parse(&text, begin + Duration::from_secs(second)));
        }
        assert_eq!((history.speeds.len(), history.speeds.back()), (History::SPEEDS, Some(&7.0)));
        // One sample is older than the window, so that rates are over the whole of it.
        let (oldest, newest) = (&history.samples[0], history.samples.back().unwrap());
        let age = newest.at - oldest.at;
        assert_eq!((history.samples.len(), age), (12, WINDOW + Duration::from_secs(1)));
    }

    #[tokio::test]
    async fn a_server_with_other_metrics_is_named() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            assert_ne!(stream.read(&mut [0; 1024]).await.unwrap(), 0);
            let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 13\r\n\r\nprocess_up 1\n";
            stream.write_all(answer).await.unwrap();
        });
        let server = Api::new(&url, None, Some(TIMEOUT), Transport::default()).unwrap();
        let error = scrape(&server).await.err().unwrap().to_string();
        assert_eq!(error, format!("{url}/metrics: there are no metrics of candlepower or vLLM"));
    }
}
