//! `candlepower rm`: removes a downloaded model.

use std::io::{IsTerminal, stdin};
use std::process::ExitCode;

use anyhow::{Result, bail};
use candlepower_checkpoint::Bytes;
use candlepower_client::{Client, Deployment};
use candlepower_hub::{ModelName, Removal, stored};
use candlepower_machine::{print, print_error};
use clap::Args;

use super::cache::CacheFlags;
use crate::failure;

/// End of the long help.
pub(crate) const AFTER_HELP: &str = "Examples:\n  \
    candlepower rm Qwen/Qwen2.5-0.5B-Instruct\n  \
    candlepower rm Qwen/Qwen2.5-0.5B-Instruct-GGUF:Q4_K_M --yes\n  \
    candlepower rm owner/name --revision v1\n\n\
    A model that a server of this user has open is not removed. Files that another revision shares stay, and nothing outside the folder \
    of downloaded models is touched.\n\n\
    Exit status: 0 if the model is removed; 1 if not; 2 for an invalid command line.";

/// `candlepower rm`.
#[derive(Debug, Args)]
pub(crate) struct Remove {
    /// Hub id owner/name; for one GGUF model owner/name:Q4_K_M or owner/name/FILE
    model: String,
    /// Branch, tag or commit to remove [default: all]
    #[arg(long, value_name = "REVISION")]
    revision: Option<String>,
    /// Remove without a question
    #[arg(long, short = 'y')]
    yes: bool,
    #[command(flatten)]
    cache: CacheFlags,
}

impl Remove {
    pub(crate) fn run(&self) -> ExitCode {
        match self.remove() {
            Ok(true) => ExitCode::SUCCESS,
            Ok(false) => {
                print_error("nothing is removed");
                ExitCode::FAILURE
            }
            Err(error) => {
                print_error(format_args!("error: {}", failure::text(&error)));
                ExitCode::FAILURE
            }
        }
    }

    /// Returns whether the model was removed.
    fn remove(&self) -> Result<bool> {
        let Ok(name) = self.model.parse::<ModelName>() else {
            bail!("`{}` is no downloaded model: `candlepower models` lists them", self.model);
        };
        let repos = stored(&self.cache.folder()?)?;
        let Some(repo) = repos.into_iter().find(|repo| repo.id == name.id) else {
            bail!("{} is not downloaded; `candlepower models` lists what is", name.id);
        };
        let removal = repo.removal(name.gguf.as_ref(), self.revision.as_deref())?;
        print(&described(&removal));
        for deployment in deployments_of(&name) {
            print(&format!(
                "The deployment {deployment} names this model, and would download it again.\n"
            ));
        }
        if !self.yes && !is_confirmed()? {
            return Ok(false);
        }
        removal.run()?;
        print(&format!("{} is removed\n", removal.name));
        Ok(true)
    }
}

fn described(removal: &Removal) -> String {
    let revision = |(commit, names): &(String, Vec<String>)| match names.as_slice() {
        [] => commit.chars().take(8).collect(),
        names => names.join(", "),
    };
    let revisions: Vec<String> = removal.commits.iter().map(revision).collect();
    let rest = if removal.is_whole { "" } else { "; other files of the repository stay" };
    format!(
        "{}: {}, revisions {}{rest}\n",
        removal.name,
        Bytes(removal.bytes),
        revisions.join("; ")
    )
}

/// The names of deployments of a model, as far as they can be listed.
fn deployments_of(name: &ModelName) -> Vec<String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let listed = runtime
        .map_err(anyhow::Error::from)
        .and_then(|runtime| Ok(runtime.block_on(Client::new().list())?));
    let found = listed.unwrap_or_else(|error| {
        print_error(format_args!("note: deployments cannot be listed: {error}"));
        Vec::new()
    });
    let names_it = |deployment: &Deployment| {
        deployment.model.parse::<ModelName>().is_ok_and(|model| {
            model.id == name.id && (name.gguf.is_none() || model.gguf == name.gguf)
        })
    };
    found.into_iter().filter(names_it).map(|deployment| deployment.name).collect()
}

fn is_confirmed() -> Result<bool> {
    if !stdin().is_terminal() {
        bail!("standard input is no terminal to ask at: give --yes");
    }
    print("Remove it? [y/N] ");
    let mut answer = String::new();
    stdin().read_line(&mut answer)?;
    Ok(["y", "yes"].contains(&answer.trim().to_ascii_lowercase().as_str()))
}
