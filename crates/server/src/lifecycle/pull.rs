//! Gets all files of a model onto this machine. A model that cannot run here is refused before its weights are
//! downloaded.

pub(crate) mod report;
mod text;

use std::sync::Arc;

use candlepower_checkpoint::{CheckpointFiles, Description};
use candlepower_engine::{Device, LoadFormat};
use candlepower_hub::{DownloadProgress, HubModel, ModelName};
use candlepower_tokenizer::{ChatTemplate, Tokenizer};

use crate::config::ServeConfig;
use crate::lifecycle::error::{Error, Result};
use crate::lifecycle::logging::Terminal;
use crate::lifecycle::preflight;
use crate::lifecycle::source::{ModelSource, Place, hub};
use crate::model::image_input::NoImages;
use crate::model::state::AppState;

/// The revision of a tokenizer from another repository than the model's.
const TOKENIZER_REVISION: &str = "main";

/// A model whose files are on this machine and whose configuration is read. No weights are loaded yet.
pub(crate) struct LocalModel {
    pub(crate) description: Description,
    pub(crate) tokenizer: Tokenizer,
    pub(crate) chat_template: Option<ChatTemplate>,
    /// Model names that requests may use.
    pub(crate) names: Vec<String>,
    /// The model as the user wrote it.
    pub(crate) root: String,
    /// The reason why it takes no images, if it takes none.
    pub(crate) no_images: Option<NoImages>,
}

/// Downloads a model that can run on `device`, and reports the progress to `state` and `terminal`.
///
/// # Errors
/// The model, the settings or the hub's answer is invalid; the error has one line.
pub(crate) async fn pull(
    source: &ModelSource,
    state: &AppState,
    device: &Device,
    terminal: &Terminal,
) -> Result<LocalModel> {
    let progress = Arc::new(DownloadProgress::default());
    let work = async {
        let config = state.config();
        let (files, on_hub) = describe(source, state, &progress).await?;
        let text_files = match config.tokenizer.as_deref().map(Place::find).transpose()? {
            None => files.clone(),
            Some(Place::Here(files)) => files,
            Some(Place::Hub(ModelName { gguf: Some(_), .. })) => {
                return Err(Error::TokenizerInGguf(config.tokenizer.clone().unwrap_or_default()));
            }
            // The tokenizer's repository is another one, so the model's revision does not apply to it.
            Some(Place::Hub(name)) => {
                hub(config)?.open_tokenizer(&name.id, TOKENIZER_REVISION).await?.files()
            }
        };
        let (source, config, device) = (source.clone(), config.clone(), device.clone());
        let local = move || LocalModel::open(&source, (&config, &device), files, &text_files);
        // Parsing a large tokenizer takes seconds, in which the runtime must answer /health.
        let local = tokio::task::spawn_blocking(local)
            .await
            .map_err(|error| Error::LoadingPanicked(error.to_string()))??;
        // The weights come last: everything that can refuse the model is smaller.
        if let Some(on_hub) = on_hub.filter(|_| state.config().load_format != LoadFormat::Dummy) {
            on_hub.fetch_weights(&progress).await?;
        }
        Ok(local)
    };
    report::alongside(work, &progress, terminal).await
}

/// The model's configuration files, and its handle on the hub if it is from there.
async fn describe(
    source: &ModelSource,
    state: &AppState,
    progress: &Arc<DownloadProgress>,
) -> Result<(CheckpointFiles, Option<HubModel>)> {
    let name = match &source.place {
        Place::Here(files) => return Ok((files.clone(), None)),
        Place::Hub(name) => name,
    };
    let config = state.config();
    let hub = hub(config)?;
    state.set_pulling(Arc::clone(progress));
    let model = hub.open(name, &config.revision, progress).await?;
    state.keep(model.in_use());
    model.in_use().record_time();
    tracing::info!(
        "{} at {} is commit {}, in {}",
        name.id,
        config.revision,
        model.commit(),
        model.folder().display()
    );
    Ok((model.files(), Some(model)))
}

/// Checks that the model has embeddings for the tokens that `tokenizer_config.json` adds.
fn check_listed(tokenizer: &Tokenizer, description: &Description) -> Result<()> {
    let known = match description {
        Description::Decoder(checkpoint) => checkpoint.spec().vocab_size,
        Description::Encoder(checkpoint) => checkpoint.spec().vocab_size,
    };
    let mut tokens = tokenizer.listed_tokens().iter();
    match tokens.find(|token| token.id as usize >= known) {
        Some(token) => {
            let token = token.clone();
            Err(Error::TokenOutsideVocabulary { token: token.content, id: token.id, known })
        }
        None => Ok(()),
    }
}

/// The reason why a model takes no images, if it takes none. Its part for images is then left out.
fn no_images(
    config: &ServeConfig,
    description: &mut Description,
    device: &Device,
) -> Option<NoImages> {
    let Description::Decoder(checkpoint) = description else { return Some(NoImages::TextModel) };
    let reason = NoImages::reason(config, checkpoint, device.is_cpu());
    if let Some(reason) = reason {
        checkpoint.without_vision();
        if reason != NoImages::TextModel {
            tracing::info!("{}", reason.message());
        }
    }
    reason
}

impl LocalModel {
    /// Reads the configuration files of a model and checks that it can run here.
    fn open(
        source: &ModelSource,
        (config, device): (&ServeConfig, &Device),
        files: CheckpointFiles,
        text_files: &CheckpointFiles,
    ) -> Result<Self> {
        let mut description = Description::open(files)?;
        // The weights' form is part of the memory plan, so it is set before the check.
        if let (Some(kind), Description::Decoder(checkpoint)) =
            (config.quantize_on_load, &mut description)
        {
            checkpoint.quantize_on_load(kind)?;
        }
        let no_images = no_images(config, &mut description, device);
        description.check_keys(&config.ignore_config_key)?;
        // The check of memory precedes the tokenizer, since it is what users change settings for.
        preflight::check(config, &description, device)?;
        let (tokenizer, chat_template) = text::load(config, text_files)?;
        check_listed(&tokenizer, &description)?;
        if let Description::Decoder(checkpoint) = &mut description {
            checkpoint.add_ends(text::ends(&tokenizer));
            checkpoint.set_image_tokens(&|text| tokenizer.token_to_id(text))?;
        }
        for token in tokenizer.renamed_tokens() {
            tracing::warn!(
                "tokenizer_config.json names the token {} {:?}, and tokenizer.json names it {:?}: using the latter",
                token.id,
                token.listed,
                token.content
            );
        }
        for remark in description.remarks().into_iter().chain(text_files.remarks()) {
            tracing::warn!("{remark}");
        }
        Ok(Self {
            description,
            tokenizer,
            chat_template,
            names: source.names(config),
            root: source.root.clone(),
            no_images,
        })
    }

    /// A model on this machine, for tests.
    #[cfg(test)]
    pub(crate) fn here(config: &ServeConfig) -> Self {
        let source = ModelSource::find(config).unwrap();
        let Place::Here(files) = source.place.clone() else { panic!("{source:?} is not here") };
        let text_files = match config.tokenizer.as_deref().map(Place::find).transpose().unwrap() {
            Some(Place::Here(files)) => files,
            Some(place) => panic!("{place:?} is not here"),
            None => files.clone(),
        };
        Self::open(&source, (config, &Device::Cpu), files, &text_files).unwrap()
    }
}
