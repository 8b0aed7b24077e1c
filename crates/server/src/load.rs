//! From the settings to a model that can be asked.

use std::path::{Path, PathBuf};
use std::time::Duration;

use candlepower_api::LoadProgress;
use candlepower_checkpoint::{Checkpoint, CheckpointFiles, SamplingDefaults};
use candlepower_engine::{
    Device, EngineConfig, EngineHandle, LoadDtype, LoadFormat as LoadFrom, LoadOptions,
    SchedulingPolicy, StartProgress,
};
use candlepower_tokenizer::{ChatTemplate, Tokenizer};

use crate::config::{Dtype, Framework, GenerationConfigSource, LoadFormat, ServeConfig};
use crate::demo;
use crate::error::{Error, Result};
use crate::prompt::unix_seconds;
use crate::state::{AppState, LoadedModel};

/// A step that takes longer makes /health report the engine as stuck. The longest honest step is a full token budget of
/// a large model on a small CPU.
const STUCK_AFTER: Duration = Duration::from_secs(300);

/// Where the model is.
#[derive(Clone, Debug)]
pub(crate) struct ModelSource {
    files: CheckpointFiles,
    /// Its own name, for requests unless other names are given.
    name: String,
    /// As the user named it.
    pub(crate) root: String,
}

impl ModelSource {
    /// Finds what the settings name.
    ///
    /// # Errors
    /// If nothing is named, or it is not here.
    pub(crate) fn find(config: &ServeConfig) -> Result<Self> {
        let root = config.model.clone().ok_or(Error::NoModel)?;
        if root == "demo" {
            return Ok(Self { files: demo::files(), name: root.clone(), root });
        }
        let folder = PathBuf::from(&root);
        if !folder.is_dir() {
            return Err(if is_hub_id(&root) {
                Error::HubId(root)
            } else {
                Error::NoSuchModel(root)
            });
        }
        Ok(Self {
            name: folder_name(&folder).unwrap_or_else(|| root.clone()),
            files: CheckpointFiles::Folder(folder),
            root,
        })
    }

    /// The names under which requests may ask for it; never empty.
    pub(crate) fn names(&self, config: &ServeConfig) -> Vec<String> {
        if config.served_model_name.is_empty() {
            vec![self.name.clone()]
        } else {
            config.served_model_name.clone()
        }
    }
}

fn folder_name(folder: &Path) -> Option<String> {
    let folder = folder.canonicalize().ok()?;
    Some(folder.file_name()?.to_string_lossy().into_owned())
}

/// Whether this has the form `owner/name`.
fn is_hub_id(model: &str) -> bool {
    let is_part = |part: &str| {
        part.starts_with(|c: char| c.is_ascii_alphanumeric())
            && part.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c))
    };
    model.split_once('/').is_some_and(|(owner, name)| is_part(owner) && is_part(name))
}

/// Loads the model and starts the engine, telling `state` how far it is. Takes its time: seconds to minutes.
///
/// # Errors
/// Whatever is wrong with the model or the settings, in one line.
pub(crate) fn load(source: &ModelSource, state: &AppState) -> Result<LoadedModel> {
    let config = state.config();
    state.set_initializing(None);
    let checkpoint = Checkpoint::open(source.files.clone())?;
    check_quantization(config, &checkpoint)?;
    let (tokenizer, chat_template) = load_text(config, source)?;
    let engine_config = engine_config(config, state);
    let engine = EngineHandle::start(&checkpoint, engine_config, &mut |progress| match progress {
        StartProgress::Loading { bytes_done, bytes_total } => {
            state.set_initializing(Some(LoadProgress { bytes_done, bytes_total }));
        }
        StartProgress::WarmingUp => state.set_starting(),
    })?;
    let knows_developer = chat_template
        .as_ref()
        .and_then(|template| template.source(None).ok())
        .is_some_and(|source| source.contains("developer"));
    let max_token_bytes = (0..tokenizer.vocab_size() as u32)
        .map(|id| tokenizer.token_bytes(id).len())
        .max()
        .unwrap_or(0)
        .max(1);
    Ok(LoadedModel {
        engine,
        tokenizer,
        chat_template,
        knows_developer,
        sampling_defaults: sampling_defaults(config, &checkpoint),
        names: source.names(config),
        root: source.root.clone(),
        created: unix_seconds(),
        max_token_bytes,
    })
}

fn check_quantization(config: &ServeConfig, checkpoint: &Checkpoint) -> Result<()> {
    let Some(asked) = config.quantization else { return Ok(()) };
    let found = checkpoint.quantization().map(|quantization| quantization.method.as_str());
    if found == Some(asked.as_str()) {
        return Ok(());
    }
    let found = found
        .map_or_else(|| "that they are not quantized".to_owned(), |method| format!("`{method}`"));
    Err(Error::QuantizationMismatch { asked: asked.as_str(), found })
}

fn load_text(
    config: &ServeConfig,
    source: &ModelSource,
) -> Result<(Tokenizer, Option<ChatTemplate>)> {
    let files = match &config.tokenizer {
        Some(folder) => CheckpointFiles::Folder(folder.clone()),
        None => source.files.clone(),
    };
    let tokenizer_json = files
        .read("tokenizer.json")?
        .ok_or_else(|| Error::FileMissing { file: "tokenizer.json", place: files.to_string() })?;
    let tokenizer_config = files.read("tokenizer_config.json")?;
    let tokenizer = Tokenizer::from_bytes(&tokenizer_json, tokenizer_config.as_deref())?;
    let template = match &config.chat_template {
        Some(path) => Some(
            std::fs::read_to_string(path)
                .map_err(|source| Error::ReadFile { path: path.clone(), source })?,
        ),
        None => files
            .read("chat_template.jinja")?
            .map(|bytes| String::from_utf8_lossy(&bytes).into_owned()),
    };
    let template = ChatTemplate::from_sources(template.as_deref(), tokenizer_config.as_deref())?;
    Ok((tokenizer, template))
}

fn engine_config(config: &ServeConfig, state: &AppState) -> EngineConfig {
    EngineConfig {
        load: LoadOptions {
            device: Device::Cpu,
            dtype: match config.dtype {
                Dtype::Auto => LoadDtype::Auto,
                Dtype::Float32 => LoadDtype::F32,
                Dtype::Float16 => LoadDtype::F16,
                Dtype::Bfloat16 => LoadDtype::Bf16,
            },
            load_format: match config.load_format {
                LoadFormat::Auto => LoadFrom::Auto,
                LoadFormat::Dummy => LoadFrom::Dummy,
            },
            max_model_len: config.max_model_len,
        },
        kv_cache_bytes: config.kv_cache_memory.map(|size| size.0),
        block_size: config.block_size,
        max_num_seqs: config.max_num_seqs,
        max_num_batched_tokens: config.max_num_batched_tokens,
        max_queued_seqs: config.max_queued_requests,
        enable_prefix_caching: config.prefix_caching(),
        scheduling_policy: match config.framework {
            Framework::Blaze => SchedulingPolicy::Fcfs,
            Framework::Prism => SchedulingPolicy::LongestPrefix,
        },
        num_threads: config.threads,
        seed: config.seed,
        stuck_after: STUCK_AFTER,
        metrics: state.metrics().engine.clone(),
    }
}

/// The model's own sampling, where it is asked for; values that no request could have are left out.
fn sampling_defaults(config: &ServeConfig, checkpoint: &Checkpoint) -> SamplingDefaults {
    if config.generation_config == GenerationConfigSource::None {
        return SamplingDefaults::default();
    }
    let found = checkpoint.generation().sampling.clone();
    let usable = SamplingDefaults {
        temperature: found.temperature.filter(|value| (0.0..=2.0).contains(value)),
        top_p: found.top_p.filter(|value| *value > 0.0 && *value <= 1.0),
        top_k: found.top_k.filter(|value| *value >= 1),
        min_p: found.min_p.filter(|value| (0.0..=1.0).contains(value)),
        repetition_penalty: found
            .repetition_penalty
            .filter(|value| (*value as f32).is_normal() && *value > 0.0),
        max_new_tokens: found.max_new_tokens.filter(|value| *value >= 1),
    };
    if usable != found {
        tracing::warn!(
            "generation_config.json has values out of range, which are not used: {found:?}"
        );
    }
    usable
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
    fn a_model_is_demo_or_a_folder() {
        assert_eq!(find(&["demo"]).unwrap().name, "demo");
        let folder = find(&[env!("CARGO_MANIFEST_DIR")]).unwrap();
        assert_eq!(folder.name, "server");
        assert!(matches!(find(&[]), Err(Error::NoModel)));
        assert!(matches!(find(&["owner/name-7B.1"]), Err(Error::HubId(_))));
        for path in ["./here", "/nowhere/at/all", "a/b/c", "nowhere", ""] {
            assert!(matches!(find(&[path]), Err(Error::NoSuchModel(_))), "{path}");
        }
    }
}
