//! The flags of `serve` for the hub's cache, for commands that serve nothing.

use std::ffi::OsString;
use std::path::PathBuf;

use anyhow::Result;
use candlepower_server::ServeConfig;
use clap::Args;

/// Flags that choose the folder of downloaded models.
#[derive(Clone, Debug, Default, Args)]
pub(super) struct CacheFlags {
    /// Hugging Face folder; environment variable HF_HOME [default: ~/.cache/huggingface]
    #[arg(long, value_name = "FOLDER")]
    hf_home: Option<PathBuf>,
    /// Folder of downloaded models; environment variable HF_HUB_CACHE [default: `hub` inside HF_HOME]
    #[arg(long, value_name = "FOLDER")]
    hf_hub_cache: Option<PathBuf>,
}

impl CacheFlags {
    /// The settings of `serve` with these flags, `more`, and the environment.
    ///
    /// # Errors
    /// A setting is invalid.
    pub(super) fn settings(&self, more: Vec<OsString>) -> Result<ServeConfig> {
        let mut argv = vec![OsString::from("serve")];
        for (name, value) in [("--hf-home", &self.hf_home), ("--hf-hub-cache", &self.hf_hub_cache)]
        {
            if let Some(value) = value {
                argv.extend([name.into(), value.into()]);
            }
        }
        argv.extend(more);
        let flags =
            ServeConfig::augment_args(clap::Command::new("serve")).try_get_matches_from(argv)?;
        Ok(ServeConfig::resolve(&flags, std::env::vars_os())?.config)
    }

    /// The folder of downloaded models.
    ///
    /// # Errors
    /// A setting is invalid, or there is no home folder.
    pub(super) fn folder(&self) -> Result<PathBuf> {
        Ok(candlepower_server::hub_cache(&self.settings(Vec::new())?)?)
    }
}
