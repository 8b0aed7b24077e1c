//! The model of a server that a conversation is held with.

use std::time::Duration;

use anyhow::{Result, bail};
use indicatif::{ProgressBar, ProgressStyle};
use reqwest::StatusCode;
use serde_json::Value;
use tokio::time::sleep;

use crate::api::Api;

/// Interval of the questions for a server's health while it starts.
const ASK_AGAIN: Duration = Duration::from_millis(50);
const BAR: &str = "{prefix:.bold} {wide_bar} {bytes}/{total_bytes} {bytes_per_sec} {eta}";
const SPINNER: &str = "{spinner} {prefix:.bold} {elapsed}";

/// A model.
#[derive(Clone, Debug)]
pub(super) struct Target {
    pub(super) model: String,
    pub(super) context: Option<u64>,
    /// Whether the server is candlepower.
    is_ours: bool,
    /// `None` if the server does not say.
    pub(super) takes_images: Option<bool>,
}

impl Target {
    /// `max_tokens` of requests that set none. candlepower's answers would end after its default of 16 tokens, and it cuts this number
    /// to the rest of the context. Other servers refuse more than that.
    pub(super) fn limit(&self) -> Option<u64> {
        self.context.filter(|_| self.is_ours)
    }

    /// The model with this name, or the first.
    ///
    /// # Errors
    /// The server cannot be asked, or it has no such model.
    pub(super) async fn find(api: &Api, name: Option<&str>) -> Result<Self> {
        let list = api.get("/v1/models").await?;
        let models: Vec<&Value> = list["data"].as_array().into_iter().flatten().collect();
        let id = |model: &&Value| model["id"].as_str().unwrap_or_default().to_owned();
        let found = models.iter().find(|model| name.is_none_or(|name| id(model) == name));
        let Some(model) = found else {
            let names: Vec<String> = models.iter().map(id).collect();
            match name.filter(|_| !names.is_empty()) {
                Some(name) => {
                    bail!("{} has no model {name}; it has {}", api.shown, names.join(", "))
                }
                None => bail!("{} has no model", api.shown),
            }
        };
        let modalities = model["input_modalities"].as_array();
        Ok(Self {
            model: id(model),
            context: model["max_model_len"].as_u64(),
            is_ours: model["owned_by"] == "candlepower",
            takes_images: modalities.map(|all| all.iter().any(|kind| kind == "image")),
        })
    }
}

/// Waits until a server is healthy, and shows the phases of its start. `check` fails once the server cannot become healthy. Until it
/// listens, `may_be_absent` lets failed connections pass.
///
/// # Errors
/// The server has failed or stops, or cannot be reached.
pub(super) async fn wait_until_ready(
    api: &Api,
    may_be_absent: bool,
    mut check: impl FnMut() -> Result<()>,
) -> Result<()> {
    let phases = Phases::new();
    loop {
        check()?;
        match api.status("/health").await {
            Err(_) if may_be_absent => {}
            Err(error) => return Err(error),
            // Other servers have other paths and bodies, and the first request shows whether they work.
            Ok((status, _)) if status != StatusCode::SERVICE_UNAVAILABLE => return Ok(()),
            Ok((_, health)) => match health["status"].as_str() {
                Some("starting") => phases.show(&health),
                Some("draining") => bail!("{} is stopping, and takes no new requests", api.shown),
                Some("failed" | "unhealthy") => {
                    bail!(
                        "{} has failed: {}",
                        api.shown,
                        health["message"].as_str().unwrap_or("no reason is known")
                    )
                }
                _ => return Ok(()),
            },
        }
        sleep(ASK_AGAIN).await;
    }
}

/// The phase of a start on standard error, if that is a terminal.
struct Phases(ProgressBar);

impl Phases {
    fn new() -> Self {
        let style = ProgressStyle::with_template(SPINNER).expect("the template is valid");
        Self(ProgressBar::new_spinner().with_style(style).with_prefix("Starting the server"))
    }

    fn show(&self, health: &Value) {
        let (bar, progress) = (&self.0, &health["progress"]);
        let total = progress["bytes_total"].as_u64().filter(|total| *total > 0);
        bar.set_length(total.unwrap_or(0));
        bar.set_position(progress["bytes_done"].as_u64().unwrap_or(0));
        // The prefix comes last, since a change of it draws the bar.
        let template = if total.is_some() { BAR } else { SPINNER };
        bar.set_style(ProgressStyle::with_template(template).expect("the template is valid"));
        bar.set_prefix(match health["phase"].as_str() {
            Some("pulling") => "Downloading",
            Some("initializing") => "Loading",
            Some("starting") => "Warming up",
            _ => "Starting the server",
        });
        bar.tick();
    }
}

impl Drop for Phases {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}
