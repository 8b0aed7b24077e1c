//! Commands on existing deployments: `ls`, `status`, `logs`, `restart`, `delete`, `events`.

use std::process::ExitCode;

use candlepower_client::{Deployment, Error, Event, Result};
use candlepower_machine::{print, print_error};
use clap::Args;
use serde_json::{Value, json};
use tokio::runtime::Builder;

use crate::place::Place;
use crate::table::table_of_words;

/// End of the long help.
pub(crate) const AFTER_HELP: &str = "Exit status: 0 success; 1 FAILED, the server stopped; 2 VALIDATION_ERROR, or an invalid command line; \
    3 NOT_FOUND; 4 NAME_IN_USE; 5 TIMEOUT; 6 RESOURCE_UNAVAILABLE; 7 OUT_OF_MEMORY; 8 GATED_MODEL; 9 QUANTIZATION_MISMATCH; \
    10 NETWORK_ERROR; 11 BACKEND_ERROR. With --json, errors are printed to standard output as \
    {\"error\": {\"code\", \"message\", \"retryable\", ..}}.";

/// The format of the output.
#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct Output {
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// `candlepower ls`.
#[derive(Debug, Args)]
pub(crate) struct List {
    #[command(flatten)]
    place: Place,
    #[command(flatten)]
    output: Output,
}

/// `candlepower status`.
#[derive(Debug, Args)]
pub(crate) struct Status {
    /// Name of the deployment
    name: String,
    #[command(flatten)]
    place: Place,
    #[command(flatten)]
    output: Output,
}

/// `candlepower logs`.
#[derive(Debug, Args)]
pub(crate) struct Logs {
    /// Name of the deployment
    name: String,
    /// Number of newest lines to show [default: all]
    #[arg(long, short = 'n', value_name = "N")]
    tail: Option<usize>,
    /// Follow the log until the deployment is deleted
    #[arg(long, short)]
    follow: bool,
    #[command(flatten)]
    place: Place,
    #[command(flatten)]
    output: Output,
}

/// `candlepower restart`.
#[derive(Debug, Args)]
pub(crate) struct Restart {
    /// Name of the deployment
    name: String,
    /// Seconds to wait until the server is ready
    #[arg(long, value_name = "SECONDS", default_value_t = 600)]
    timeout: u64,
    #[command(flatten)]
    place: Place,
    #[command(flatten)]
    output: Output,
}

/// `candlepower delete`.
#[derive(Debug, Args)]
pub(crate) struct Delete {
    /// Name of the deployment
    name: String,
    #[command(flatten)]
    place: Place,
    #[command(flatten)]
    output: Output,
}

/// `candlepower events`.
#[derive(Debug, Args)]
pub(crate) struct Events {
    /// Name of the deployment
    name: String,
    #[command(flatten)]
    place: Place,
    #[command(flatten)]
    output: Output,
}

impl List {
    pub(crate) fn run(&self) -> ExitCode {
        self.output.finish(async {
            let found = self.place.client()?.list().await?;
            let heads = ["NAME", "STATE", "PHASE", "BACKEND", "FRAMEWORK", "MODEL", "URL"];
            let mut lines = vec![heads.map(str::to_owned).to_vec()];
            lines.extend(found.iter().map(|found| {
                let words = [
                    found.name.as_str(),
                    found.state.as_str(),
                    found.phase.as_str(),
                    found.backend,
                    found.framework.as_str(),
                ];
                words
                    .into_iter()
                    .chain([found.model.as_str(), &found.url])
                    .map(str::to_owned)
                    .collect()
            }));
            let text = if found.is_empty() {
                "no deployments\n".to_owned()
            } else {
                table_of_words(&lines)
            };
            Ok(Shown { text, json: json!(found) })
        })
    }
}

impl Status {
    pub(crate) fn run(&self) -> ExitCode {
        self.output.finish(async { shown(&self.place.client()?.get(&self.name).await?).await })
    }
}

impl Logs {
    pub(crate) fn run(&self) -> ExitCode {
        self.output.finish(async {
            let client = self.place.client()?;
            if !self.follow {
                let lines = client.logs(&self.name, self.tail).await?;
                let text = lines.iter().map(|line| format!("{line}\n")).collect();
                return Ok(Shown { text, json: json!(lines) });
            }
            let mut stream = client.follow(&self.name, self.tail).await?;
            while let Some(line) = stream.next().await {
                let line = if self.output.json { json!(line).to_string() } else { line };
                // A reader such as `head` has closed the pipe.
                if !print(&format!("{line}\n")) {
                    break;
                }
            }
            Ok(Shown { text: String::new(), json: Value::Null })
        })
    }
}

impl Restart {
    pub(crate) fn run(&self) -> ExitCode {
        self.output.finish(async {
            let mut deployment = self.place.client()?.restart(&self.name).await?;
            let timeout = std::time::Duration::from_secs(self.timeout);
            deployment.wait_until_ready(timeout, |_| {}).await?;
            shown(&deployment).await
        })
    }
}

impl Delete {
    pub(crate) fn run(&self) -> ExitCode {
        self.output.finish(async {
            self.place.client()?.delete(&self.name).await?;
            let json = json!({"name": self.name, "state": "Deleted"});
            Ok(Shown { text: format!("{} is deleted\n", self.name), json })
        })
    }
}

impl Events {
    pub(crate) fn run(&self) -> ExitCode {
        self.output.finish(async {
            let events = self.place.client()?.events(&self.name).await?;
            let line = |event: &Event| {
                let words = [event.state.as_str(), event.phase.as_str(), &event.message];
                format!("{}  {:<12}  {:<12}  {}", date(event.time), words[0], words[1], words[2])
                    .trim_end()
                    .to_owned()
                    + "\n"
            };
            Ok(Shown { text: events.iter().map(line).collect(), json: json!(events) })
        })
    }
}

/// Seconds since 1970 as a UTC date.
fn date(seconds: u64) -> String {
    let seconds = i64::try_from(seconds).unwrap_or(i64::MAX);
    jiff::Timestamp::from_second(seconds)
        .map_or_else(|_| seconds.to_string(), |time| time.to_string())
}

/// A result as text and as JSON.
pub(crate) struct Shown {
    pub(crate) text: String,
    pub(crate) json: Value,
}

/// A deployment with its status.
pub(crate) async fn shown(deployment: &Deployment) -> Result<Shown> {
    let status = deployment.status().await?;
    let mut lines = vec![
        ("name", deployment.name.clone()),
        ("url", deployment.url.clone()),
        ("state", status.state.to_string()),
        ("phase", status.phase.to_string()),
        ("ready", format!("{} of {}", status.replicas_ready, status.replicas_desired)),
        ("framework", deployment.framework.to_string()),
        ("model", deployment.model.clone()),
        ("image", deployment.image.clone().unwrap_or_default()),
        ("restarts", status.restarts.to_string()),
        ("message", status.message.clone()),
    ];
    lines.retain(|(_, value)| !value.is_empty());
    let text = lines.iter().map(|(name, value)| format!("{name:<9}  {value}\n")).collect();
    let mut json = json!(deployment);
    // Keys of the status replace those of the deployment, so both are at one level.
    if let (Some(json), Value::Object(status)) = (json.as_object_mut(), json!(status)) {
        json.extend(status);
    }
    Ok(Shown { text, json })
}

impl Output {
    /// Runs a command and prints its result.
    pub(crate) fn finish(self, work: impl Future<Output = Result<Shown>>) -> ExitCode {
        let runtime = match crate::started(Builder::new_current_thread()) {
            Ok(runtime) => runtime,
            Err(code) => return code,
        };
        match runtime.block_on(work) {
            // A followed log was already printed line by line.
            Ok(Shown { json: Value::Null, .. }) => ExitCode::SUCCESS,
            Ok(shown) => {
                print(&if self.json { format!("{:#}\n", shown.json) } else { shown.text });
                ExitCode::SUCCESS
            }
            Err(error) => {
                self.show_error(&error);
                ExitCode::from(exit_code(&error))
            }
        }
    }

    fn show_error(self, error: &Error) {
        if self.json {
            print(&format!("{:#}\n", json!({"error": error.to_json()})));
            return;
        }
        for line in error.log() {
            print_error(format_args!("  {line}"));
        }
        print_error(format_args!("error: {error} ({})", error.code()));
    }
}

fn exit_code(error: &Error) -> u8 {
    match error {
        Error::Failed { .. } => 1,
        Error::Validation { .. } => 2,
        Error::NotFound { .. } => 3,
        Error::NameInUse { .. } => 4,
        Error::Timeout { .. } => 5,
        Error::ResourceUnavailable { .. } => 6,
        Error::OutOfMemory { .. } => 7,
        Error::GatedModel(_) => 8,
        Error::QuantizationMismatch { .. } => 9,
        Error::Network(_) => 10,
        Error::Backend { .. } => 11,
    }
}

#[cfg(test)]
mod tests {
    use candlepower_client::Leftover;
    use candlepower_hub::Error as HubError;

    use super::*;

    #[test]
    fn each_error_has_the_exit_status_that_the_help_says() {
        let (name, text) = ("chat".to_owned(), String::new);
        let hub = || Box::new(HubError::NoHome);
        let errors = [
            Error::Failed { name, reason: text(), log: Vec::new(), left: Leftover::Nothing },
            Error::Validation { field: "port", value: text(), reason: text() },
            Error::NotFound { name: text() },
            Error::NameInUse { name: text(), difference: text() },
            Error::ResourceUnavailable { asked: text(), available: text() },
            Error::GatedModel(hub()),
            Error::QuantizationMismatch { asked: text(), file: text(), found: text() },
            Error::Network(hub()),
            Error::Backend { doing: text(), cause: text() },
        ];
        for error in errors {
            let listed = format!(" {} {}", exit_code(&error), error.code());
            assert!(AFTER_HELP.contains(&listed), "{listed}");
        }
    }
}
