//! `candlepower top`: the load of a server, shown anew each second.

mod sample;
mod screen;
mod view;

use std::collections::VecDeque;
use std::error::Error as _;
use std::io::IsTerminal;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use candlepower_client::tls::{Identity, Trust, client_config};
use candlepower_machine::{print, print_error};
use clap::Args;
use reqwest::{Client, Url};

use sample::Sample;
use screen::{Event, Screen};
use view::View;

/// Time limit of one scrape. A server under load answers in milliseconds.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum bytes of the metrics.
const MAX_ANSWER: usize = 16 << 20;
/// Time over which latencies are shown.
const WINDOW: Duration = Duration::from_secs(10);
/// Time between the two scrapes of `--once`.
const ONCE: Duration = Duration::from_secs(1);

#[derive(Args)]
pub(crate) struct Top {
    /// URL of the server
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:8000")]
    url: String,
    /// Print the load once, as plain text. A pipe does the same
    #[arg(long)]
    once: bool,
    /// Seconds between two scrapes
    #[arg(long, value_name = "SECONDS", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=3600))]
    interval: u64,
    /// PEM file with the server's certificate or its CA's, to trust besides the system's CAs
    #[arg(long, value_name = "FILE")]
    cacert: Option<PathBuf>,
    /// PEM file with a client certificate, for servers that ask for one
    #[arg(long, value_name = "FILE", requires = "key")]
    cert: Option<PathBuf>,
    /// PEM file with the private key of --cert
    #[arg(long, value_name = "FILE", requires = "cert")]
    key: Option<PathBuf>,
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
                print_error(format_args!("error: {error:#}"));
                ExitCode::FAILURE
            }
        }
    }

    async fn show(&self) -> Result<()> {
        let server = Server::new(self)?;
        let is_terminal = std::io::stdout().is_terminal() && std::io::stdin().is_terminal();
        if self.once || !is_terminal {
            let mut history = History::default();
            history.push(server.scrape().await?);
            tokio::time::sleep(ONCE).await;
            history.push(server.scrape().await?);
            print(&View::plain(&server.base).draw(&history));
            return Ok(());
        }
        self.watch(&server).await
    }

    async fn watch(&self, server: &Server) -> Result<()> {
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
                            Some(format!("{error:#}"))
                        }
                    };
                }
                _ = ticks.tick(), if is_idle => {
                    scraping.set(Some(server.scrape()));
                    // There is nothing new to show.
                    continue;
                }
            }
            let (width, height) = screen.size();
            let view = View::live(&server.base, width, height, failure.as_deref());
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

/// A server, by its URL.
struct Server {
    base: String,
    metrics: Url,
    client: Client,
}

impl Server {
    fn new(top: &Top) -> Result<Self> {
        let base = top.url.trim_end_matches('/');
        let base = base.strip_suffix("/v1").unwrap_or(base).to_owned();
        let metrics = Url::parse(&format!("{base}/metrics"));
        let metrics = metrics.with_context(|| format!("--url `{}` is no URL", top.url))?;
        if !matches!(metrics.scheme(), "http" | "https") {
            bail!("--url `{}`: an URL that begins with http:// or https:// is needed", top.url);
        }
        let host = metrics.host_str().unwrap_or_default();
        let is_local = host == "localhost" || host.starts_with("127.") || host == "[::1]";
        let mut client = Client::builder().timeout(TIMEOUT);
        if is_local {
            client = client.no_proxy();
        }
        if top.cacert.is_some() || top.cert.is_some() {
            let trust = match &top.cacert {
                Some(file) => Trust::SystemAnd(file),
                None => Trust::System,
            };
            let identity = top.cert.as_deref().zip(top.key.as_deref());
            let identity = identity.map(|(certificate, key)| Identity { certificate, key });
            let tls = client_config(trust, identity).map_err(anyhow::Error::msg)?;
            client = client.use_preconfigured_tls(tls);
        }
        let client = client.build().context("cannot start the HTTP client")?;
        Ok(Self { base, metrics, client })
    }

    /// # Errors
    /// The server cannot be reached, or its answer is no metrics of an inference server.
    async fn scrape(&self) -> Result<Sample> {
        let answer = self.client.get(self.metrics.clone()).send().await;
        let mut answer = answer.map_err(|error| self.failure(&error))?;
        if !answer.status().is_success() {
            bail!("{}/metrics: HTTP {}", self.base, answer.status());
        }
        let mut text = Vec::new();
        while let Some(part) = answer.chunk().await.map_err(|error| self.failure(&error))? {
            text.extend_from_slice(&part);
            if text.len() > MAX_ANSWER {
                bail!("{}/metrics: the answer has no end", self.base);
            }
        }
        let sample = Sample::parse(&String::from_utf8_lossy(&text), Instant::now());
        if !sample.has("num_requests_running") {
            bail!("{}/metrics: there are no metrics of candlepower or vLLM", self.base);
        }
        Ok(sample)
    }

    /// The innermost cause of a failed connection.
    fn failure(&self, error: &reqwest::Error) -> anyhow::Error {
        if error.is_timeout() {
            let seconds = TIMEOUT.as_secs();
            return anyhow::anyhow!("{}: no answer within {seconds} s", self.base);
        }
        let mut cause = error.source();
        // The outer errors of reqwest and hyper only say that a request failed.
        while let Some(deeper) = cause.and_then(|cause| cause.source()) {
            cause = Some(deeper);
        }
        let cause = cause.map_or_else(|| error.to_string(), ToString::to_string);
        anyhow::anyhow!("{}: cannot be reached: {cause}", self.base)
    }
}
