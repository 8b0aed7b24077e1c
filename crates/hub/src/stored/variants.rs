//! The models that the files of a commit form: one of safetensors, and one for each GGUF model.

use std::path::PathBuf;

use candlepower_checkpoint::{CheckpointFiles, Gguf, WeightFiles};

use super::{StoredCommit, StoredRepo};
use crate::model::gguf::{choose, is_model, split_path};
use crate::model_id::{GgufName, ModelName};

/// A model in the cache that can be served.
#[derive(Clone, Debug)]
pub struct StoredModel {
    /// Its name for `serve`.
    pub name: ModelName,
    /// Bytes of its files. Descriptions count for safetensors.
    pub bytes: u64,
    /// The GGUF file, or the folder of the commit.
    pub path: PathBuf,
    /// The first file that is missing.
    pub missing: Option<String>,
}

impl StoredRepo {
    /// The models of a commit.
    pub fn models(&self, commit: &StoredCommit) -> Vec<StoredModel> {
        let names = || commit.files.keys().map(String::as_str);
        let bytes_of = |name: &String| commit.files.get(name).map_or(0, |file| file.bytes);
        let mut models = Vec::new();
        for first in names().filter(|name| is_model(name)) {
            let (folder, file) = split_path(first);
            let parts: Vec<String> =
                Gguf::parts(file).into_iter().map(|part| format!("{folder}{part}")).collect();
            models.push(StoredModel {
                name: self.gguf_name(commit, first),
                bytes: parts.iter().map(bytes_of).sum(),
                path: commit.folder.join(first),
                missing: parts.into_iter().find(|part| !commit.files.contains_key(part)),
            });
        }
        let others = names().filter(|name| !name.to_ascii_lowercase().ends_with(".gguf"));
        if models.is_empty() || commit.files.contains_key("config.json") {
            models.push(StoredModel {
                name: ModelName { id: self.id.clone(), gguf: None },
                bytes: others.map(|name| bytes_of(&name.to_owned())).sum(),
                path: commit.folder.clone(),
                missing: missing_part(commit),
            });
        }
        models
    }

    /// The shortest name of a GGUF model: the end of its file's name, or the path where the end is ambiguous.
    fn gguf_name(&self, commit: &StoredCommit, file: &str) -> ModelName {
        let names = || commit.files.keys().map(String::as_str);
        let model = Gguf::model_name(split_path(file).1).unwrap_or_default();
        let end = model.rsplit(['-', '.']).next().unwrap_or(model);
        let short = GgufName::End(end.to_owned());
        let is_clear = choose(&short, names()).is_ok_and(|files| files[0] == file);
        let gguf = if is_clear { short } else { GgufName::Path(file.to_owned()) };
        ModelName { id: self.id.clone(), gguf: Some(gguf) }
    }
}

/// The first part that a commit lacks as a safetensors model.
fn missing_part(commit: &StoredCommit) -> Option<String> {
    if !commit.files.contains_key("config.json") {
        return Some("config.json".to_owned());
    }
    match WeightFiles::find(&CheckpointFiles::Folder(commit.folder.clone())) {
        Ok(weights) => {
            weights.names().iter().find(|name| !commit.files.contains_key(*name)).cloned()
        }
        Err(_) => Some("the weights".to_owned()),
    }
}
