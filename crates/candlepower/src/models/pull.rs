//! `candlepower pull`: downloads and verifies a model without serving it.

use std::ffi::OsString;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Result, bail};
use candlepower_checkpoint::Bytes;
use candlepower_hub::{DownloadProgress, HubModel, ModelName, stored};
use candlepower_machine::{Machine, print, print_error};
use candlepower_server::config::LogLevel;
use candlepower_server::{EndOfLog, ServeConfig, hub, hub_cache, init_logging, show_download};
use clap::Args;
use serde_json::Value;

use super::cache::CacheFlags;
use crate::{doctor, failure};

/// End of the long help.
pub(crate) const AFTER_HELP: &str = "Examples:\n  \
    candlepower pull Qwen/Qwen2.5-0.5B-Instruct\n  \
    candlepower pull Qwen/Qwen2.5-0.5B-Instruct-GGUF:Q4_K_M\n  \
    HF_TOKEN=.. candlepower pull meta-llama/Llama-3.2-1B-Instruct --revision main\n\n\
    The same files are downloaded as by `serve`, into the same folder, and every file's digest is checked. After Ctrl-C or a failure \
    the same command continues the download.\n\n\
    Exit status: 0 if the model is complete; 1 if not; 2 for an invalid command line; 130 after Ctrl-C.";

/// Exit status after Ctrl-C: 128 plus SIGINT, like a shell's.
const INTERRUPTED: u8 = 130;

/// `candlepower pull`.
#[derive(Debug, Args)]
pub(crate) struct Pull {
    /// Hub id owner/name; for a GGUF file owner/name:Q4_K_M or owner/name/FILE
    model: String,
    /// Branch, tag or commit of the model on the hub
    #[arg(long, value_name = "REVISION", default_value = "main")]
    revision: String,
    #[command(flatten)]
    cache: CacheFlags,
    /// URL of the hub or of a mirror; environment variable HF_ENDPOINT [default: `https://huggingface.co`]
    #[arg(long, value_name = "URL")]
    hf_endpoint: Option<String>,
}

/// The end of a download.
enum Ended {
    Complete(Box<HubModel>),
    Interrupted,
}

impl Pull {
    pub(crate) fn run(&self) -> ExitCode {
        match self.pull() {
            Ok(Ended::Complete(_)) => ExitCode::SUCCESS,
            Ok(Ended::Interrupted) => {
                print_error("stopped; the same command continues the download");
                ExitCode::from(INTERRUPTED)
            }
            Err(error) => {
                print_error(format_args!("error: {}", failure::text(&error)));
                ExitCode::FAILURE
            }
        }
    }

    fn pull(&self) -> Result<Ended> {
        let Ok(name) = ModelName::not_here(&self.model) else {
            bail!(
                "`{}` is no model of the hub: give its id as owner/name, or owner/name:Q4_K_M for a GGUF file",
                self.model
            );
        };
        let endpoint = self.hf_endpoint.iter().flat_map(|url| ["--hf-endpoint", url]);
        let mut config = self.cache.settings(endpoint.map(OsString::from).collect())?;
        config.revision.clone_from(&self.revision);
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
        let ended = runtime.block_on(fetched(config.clone(), &name));
        // Connections may still be open after Ctrl-C.
        runtime.shutdown_background();
        if let Ok(Ended::Complete(model)) = &ended {
            print(&summary(&config, &name, model)?);
        }
        ended
    }
}

/// Downloads a model, and shows the progress meanwhile.
async fn fetched(mut config: ServeConfig, name: &ModelName) -> Result<Ended> {
    let bars = std::io::IsTerminal::is_terminal(&std::io::stderr());
    // Bars show what lines would say.
    config.log_level = if bars { LogLevel::Warn } else { LogLevel::Info };
    let terminal = init_logging(&config)?;
    let hub = hub(&config)?;
    let progress = Arc::new(DownloadProgress::default());
    let download = async {
        let model = hub.open(name, &config.revision, &progress).await?;
        model.fetch_weights(&progress).await?;
        anyhow::Ok(Ended::Complete(Box::new(model)))
    };
    let work = async {
        tokio::select! {
            ended = download => ended,
            interrupted = tokio::signal::ctrl_c() => interrupted.map(|()| Ended::Interrupted).map_err(Into::into),
        }
    };
    let ended = show_download(work, &progress, &terminal).await;
    // Lines of the log come before the result.
    drop(EndOfLog);
    ended
}

/// The model's size and folder, and whether this machine can serve it.
fn summary(config: &ServeConfig, name: &ModelName, model: &HubModel) -> Result<String> {
    let repos = stored(&hub_cache(config)?)?;
    let repo = repos.iter().find(|repo| repo.id == name.id);
    let commit =
        repo.and_then(|repo| repo.commits.iter().find(|commit| commit.id == model.commit()));
    let size = commit.map_or(0, |commit| commit.bytes());
    let folder = model.folder();
    let report = doctor::report_on(&name.to_string(), model.files(), &Machine::probe());
    let advice = advice(name, report);
    Ok(format!("{name} is complete: {} in {}\n{advice}\n", Bytes(size), folder.display()))
}

/// The advice on a model whose report of `doctor` is this one.
fn advice(name: &ModelName, report: Result<Value>) -> String {
    let report = match report {
        Ok(report) => report,
        Err(error) => return format!("this version cannot serve it: {}", failure::text(&error)),
    };
    let mut plans = report["plans"].as_array().into_iter().flatten();
    match plans.any(|plan| plan["fits"] == true) {
        true => format!("`candlepower chat {name}` or `candlepower serve {name}` runs it"),
        false => {
            let reason = report["message"].as_str().unwrap_or_default();
            format!("it does not fit this machine: {reason}")
        }
    }
}

#[cfg(test)]
mod tests {
    use anyhow::anyhow;
    use serde_json::json;

    use super::*;

    #[test]
    fn the_advice_is_a_command_or_the_reason_why_there_is_none() {
        let name: ModelName = "acme/tiny".parse().unwrap();
        let fits = json!({"plans": [{"fits": false}, {"fits": true}], "message": null});
        let runs = "`candlepower chat acme/tiny` or `candlepower serve acme/tiny` runs it";
        assert_eq!(advice(&name, Ok(fits)), runs);
        let large =
            json!({"plans": [{"fits": false}], "message": "out of memory: 9 GiB are needed"});
        let reason = "it does not fit this machine: out of memory: 9 GiB are needed";
        assert_eq!(advice(&name, Ok(large)), reason);
        let unknown = anyhow!("architecture `Nothing` is not supported");
        let reason = "this version cannot serve it: architecture `Nothing` is not supported";
        assert_eq!(advice(&name, Err(unknown)), reason);
    }
}
