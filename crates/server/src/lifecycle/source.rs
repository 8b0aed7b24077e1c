//! Finds the model that the settings name.

use std::path::{Path, PathBuf};

use candlepower_checkpoint::CheckpointFiles;
use candlepower_hub::{Hub, HubConfig, HubSettings, ModelName};

use crate::config::ServeConfig;
use crate::lifecycle::demo;
use crate::lifecycle::error::{Error, Result};

/// A model by its name: the demo, a folder, a GGUF file, or a hub id.
#[derive(Clone, Debug)]
pub(crate) struct ModelSource {
    pub(crate) place: Place,
    /// Its name in requests, unless `--served-model-name` gives others.
    name: String,
    /// The model as the user wrote it.
    pub(crate) root: String,
}

/// The location of a model's files.
#[derive(Clone, Debug)]
pub(crate) enum Place {
    /// On this machine.
    Here(CheckpointFiles),
    /// On the hub, and perhaps in its cache.
    Hub(ModelName),
}

impl Place {
    /// A folder or a GGUF file, or else a hub id. Local files come first.
    ///
    /// # Errors
    /// The name is none of them, or the GGUF file cannot be read.
    pub(crate) fn find(name: &str) -> Result<Self> {
        if let Some(files) = CheckpointFiles::find(Path::new(name))? {
            return Ok(Self::Here(files));
        }
        let found = ModelName::not_here(name).map_err(|_| Error::NoSuchModel(name.to_owned()))?;
        Ok(Self::Hub(found))
    }
}

impl ModelSource {
    /// Finds the model that the settings name.
    ///
    /// # Errors
    /// No model is named, the name is none of `demo`, folder, file and hub id, or the file cannot be read.
    pub(crate) fn find(config: &ServeConfig) -> Result<Self> {
        let root = config.model.clone().ok_or(Error::NoModel)?;
        if root == "demo" {
            return Ok(Self { place: Place::Here(demo::files()), name: root.clone(), root });
        }
        let place = Place::find(&root)?;
        let name = match &place {
            Place::Here(_) => path_name(&root).unwrap_or_else(|| root.clone()),
            Place::Hub(name) => name.to_string(),
        };
        Ok(Self { place, name, root })
    }

    /// Model names that requests may use; never empty.
    pub(crate) fn names(&self, config: &ServeConfig) -> Vec<String> {
        if config.served_model_name.is_empty() {
            vec![self.name.clone()]
        } else {
            config.served_model_name.clone()
        }
    }
}

/// The hub, by the settings and the environment.
///
/// # Errors
/// See [`HubConfig::new`] and [`Hub::new`].
pub fn hub(config: &ServeConfig) -> Result<Hub> {
    Ok(Hub::new(hub_config(config)?)?)
}

/// The folder of downloaded models, by the settings and the environment.
///
/// # Errors
/// See [`HubConfig::new`].
pub fn hub_cache(config: &ServeConfig) -> Result<PathBuf> {
    Ok(hub_config(config)?.cache().to_owned())
}

fn hub_config(config: &ServeConfig) -> Result<HubConfig> {
    let settings = HubSettings {
        home: config.hf_home.clone(),
        cache: config.hf_hub_cache.clone(),
        endpoint: config.hf_endpoint.clone(),
        offline: config.hf_hub_offline,
    };
    Ok(HubConfig::new(settings, |name| std::env::var(name).ok())?)
}

/// The name of a folder, or of a file without its extension.
fn path_name(path: &str) -> Option<String> {
    // The path may be `.` or a link, which would be no name.
    let path = PathBuf::from(path).canonicalize().ok()?;
    let name = if path.is_file() { path.file_stem() } else { path.file_name() };
    Some(name?.to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    use clap::{Args, Command, FromArgMatches};

    use super::*;

    fn find(model: &[&str]) -> Result<ModelSource> {
        let command = ServeConfig::augment_args(Command::new("serve").no_binary_name(true));
        let matches = command.try_get_matches_from(model).unwrap();
        ModelSource::find(&ServeConfig::from_arg_matches(&matches).unwrap())
    }

    #[test]
    fn a_model_is_demo_or_a_folder_or_an_id() {
        assert_eq!(find(&["demo"]).unwrap().name, "demo");
        let folder = find(&[env!("CARGO_MANIFEST_DIR")]).unwrap();
        assert_eq!(folder.name, "server");
        let file = candlepower_testing::goldens::folder("gguf-phi3").join("model.gguf");
        let file = find(&[file.to_str().unwrap()]);
        assert_eq!(file.unwrap().name, "model");
        assert!(matches!(find(&[]), Err(Error::NoModel)));
        let id = find(&["owner/name-7B.1"]).unwrap();
        assert_eq!(id.name, "owner/name-7B.1");
        assert!(matches!(id.place, Place::Hub(_)));
        let address = find(&["https://huggingface.co/owner/name-7B.1"]).unwrap();
        assert_eq!(address.name, "owner/name-7B.1");
        let gguf = find(&["owner/name:Q4_K_M"]).unwrap();
        assert_eq!(gguf.name, "owner/name:Q4_K_M");
        assert!(matches!(gguf.place, Place::Hub(ModelName { gguf: Some(_), .. })));
        // Paths with dots or more parts, and names without an owner, are no ids of the hub.
        for path in ["./here", "/nowhere/at/all", "a/b/c", "src/config/none.gguf", "nowhere", ""] {
            assert!(matches!(find(&[path]), Err(Error::NoSuchModel(_))), "{path}");
        }
    }
}
