//! A model on the hub, from its name to a folder with all its files.

pub(crate) mod gguf;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use candlepower_checkpoint::{CheckpointFiles, Gguf, NamedWeights, SentenceSettings, WeightFiles};
use futures::{StreamExt, TryStreamExt, stream};
use hf_hub::Cache;
use hf_hub::api::tokio::{Api, ApiBuilder};
use tokio::sync::Mutex;
use tokio::time::sleep;

use crate::cache::{ModelCache, check_revision, is_commit};
use crate::in_use::InUse;
use crate::listing::{Asked, Listing, NoListing, RemoteFile};
use crate::model_id::{GgufName, ModelName};
use crate::progress::{DownloadProgress, FileProgress};
use crate::transfer::{Download, Transfer};
use crate::{Error, HubConfig, ModelId, Result};

/// Files that describe a model, apart from its weights and its code.
const DESCRIPTION: [&str; 21] = [
    CONFIG,
    "generation_config.json",
    GPTQ,
    MODELOPT,
    TOKENIZER,
    AWQ,
    // A repository with a `config.json` may still hold an adapter. Only this file tells.
    "adapter_config.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "chat_template.json",
    "preprocessor_config.json",
    "processor_config.json",
    INDEX,
    MODULES,
    "sentence_bert_config.json",
    "sentence_distilbert_config.json",
    "sentence_roberta_config.json",
    "sentence_xlm-roberta_config.json",
    "config_sentence_transformers.json",
];
const CONFIG: &str = "config.json";
/// Quantization in older GPTQ checkpoints, beside config.json.
const GPTQ: &str = "quantize_config.json";
/// The same in AWQ checkpoints.
const AWQ: &str = "quant_config.json";
/// The same in checkpoints of NVIDIA ModelOpt.
const MODELOPT: &str = "hf_quant_config.json";
const MODULES: &str = "modules.json";
const TOKENIZER: &str = "tokenizer.json";
/// Vocabularies of models without a `tokenizer.json`.
const VOCABULARIES: [&str; 6] = [
    "tiktoken.model",
    "tekken.json",
    "tokenizer.model",
    "spiece.model",
    "vocab.json",
    "merges.txt",
];
const INDEX: &str = "model.safetensors.index.json";
/// Folders with small files that describe a model, too.
const DESCRIPTION_FOLDERS: [(&str, &str); 2] =
    [("additional_chat_templates/", ".jinja"), ("1_Pooling/", "config.json")];

/// Number of concurrent downloads.
const FILES_AT_ONCE: usize = 4;
/// Interval of the checks whether another process has finished a file.
const LOOK_AGAIN: Duration = Duration::from_millis(200);

/// A hub and its cache.
#[derive(Clone, Debug)]
pub struct Hub(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    config: HubConfig,
    api: Api,
    transfer: Transfer,
    /// The hub's address in errors.
    address: String,
}

/// A model whose description is in the cache.
#[derive(Debug)]
pub struct HubModel {
    hub: Hub,
    id: ModelId,
    revision: String,
    commit: String,
    cache: ModelCache,
    /// `None` if no request was sent to the hub.
    listing: Option<Listing>,
    gguf: Option<GgufFiles>,
    /// Keeps the files from being removed.
    in_use: Arc<InUse>,
}

/// The GGUF files of a repository that form the chosen model.
#[derive(Debug)]
struct GgufFiles {
    /// Paths in the repository.
    names: Vec<String>,
    described: Arc<Gguf>,
}

impl Hub {
    /// Creates the client. No request is made.
    ///
    /// # Errors
    /// The token has characters that cannot be sent.
    pub fn new(config: HubConfig) -> Result<Self> {
        let transfer = Transfer::new(&config)?;
        // `ApiBuilder::new` panics without a home folder.
        let mut builder = ApiBuilder::from_cache(Cache::new(config.cache.clone()))
            .with_token(config.token.as_ref().map(|token| token.secret().to_owned()))
            .with_user_agent("candlepower", env!("CARGO_PKG_VERSION"));
        if let Some(endpoint) = &config.endpoint {
            builder = builder.with_endpoint(endpoint.clone());
        }
        let api = builder.build().map_err(|error| Error::Client(error.to_string()))?;
        // The library does not export its default address, so it is read from a URL.
        // No request is made for this, so any name will do.
        let url = api.model("a/b".to_owned()).url("");
        let address = url.split("/a/b/resolve/").next().unwrap_or_default().to_owned();
        Ok(Self(Arc::new(Inner { config, api, transfer, address })))
    }

    /// Finds a model at a revision (a branch, a tag or a commit) and fetches the files that describe it.
    ///
    /// A complete model in the cache is used if the hub does not answer, or must not be contacted. GGUF files are read
    /// only as far as their headers, and the headers are not kept.
    ///
    /// # Errors
    /// There is no such model, revision or file, access is denied, or the connection fails: see [`enum@Error`].
    pub async fn open(
        &self,
        name: &ModelName,
        revision: &str,
        progress: &DownloadProgress,
    ) -> Result<HubModel> {
        let id = &name.id;
        if let Some(wanted) = &name.gguf {
            return self.open_gguf(id, wanted, revision).await;
        }
        let model = self.find(id, revision, CONFIG, HubModel::missing_in_cache).await?;
        if let Some(only) = model.only_gguf() {
            return model.with_gguf(&only).await;
        }
        if let Some(listing) = &model.listing {
            // A repository without a configuration or with unusable weights is refused before its other files are
            // fetched.
            model.check_configuration(listing)?;
            let is_wanted = |name: &str| describes(name) || is_vocabulary(name, listing);
            model
                .fetch(listing.files.values().filter(|file| is_wanted(&file.name)), progress)
                .await?;
        }
        Ok(model)
    }

    /// Like [`open`](Self::open), but for the configuration alone. It includes the files that say how the model is
    /// quantized and whether it is an embedding model.
    ///
    /// # Errors
    /// See [`open`](Self::open).
    pub async fn open_configuration(&self, name: &ModelName, revision: &str) -> Result<HubModel> {
        let id = &name.id;
        if let Some(wanted) = &name.gguf {
            return self.open_gguf(id, wanted, revision).await;
        }
        let wanted = |name: &str| {
            [GPTQ, AWQ, MODELOPT, MODULES, "1_Pooling/config.json"].contains(&name)
                || is_dense(name)
        };
        self.open_one(id, revision, CONFIG, wanted).await
    }

    /// Like [`open`](Self::open), but for the tokenizer alone.
    ///
    /// # Errors
    /// See [`open`](Self::open).
    pub async fn open_tokenizer(&self, id: &ModelId, revision: &str) -> Result<HubModel> {
        let others = [
            "tokenizer_config.json",
            "special_tokens_map.json",
            "added_tokens.json",
            "chat_template.jinja",
            "chat_template.json",
        ];
        self.open_one(id, revision, TOKENIZER, |name| others.contains(&name)).await
    }

    /// Fetches the file `first`, which is required, and the wanted ones beside it.
    async fn open_one(
        &self,
        id: &ModelId,
        revision: &str,
        first: &str,
        wanted: impl Fn(&str) -> bool,
    ) -> Result<HubModel> {
        let missing = |model: &HubModel| {
            let is_file = |name: &str| model.folder().join(name).is_file();
            let is_there = is_file(first)
                || (first == CONFIG && model.only_gguf().is_some())
                || (first == TOKENIZER && VOCABULARIES.iter().any(|name| is_file(name)));
            (!is_there).then(|| first.to_owned())
        };
        let model = self.find(id, revision, first, missing).await?;
        if let Some(only) = model.only_gguf().filter(|_| first == CONFIG) {
            return model.with_gguf(&only).await;
        }
        if let Some(listing) = &model.listing {
            if first == CONFIG {
                model.check_configuration(listing)?;
            } else if !listing
                .files
                .keys()
                .any(|name| name == first || is_vocabulary(name, listing))
            {
                return Err(self.no_file(id, first));
            }
            let is_wanted = |name: &str| {
                name == first
                    || wanted(name)
                    || (first == TOKENIZER && is_vocabulary(name, listing))
            };
            let files = listing.files.values().filter(|file| is_wanted(&file.name));
            model.fetch(files, &DownloadProgress::default()).await?;
        }
        Ok(model)
    }

    /// Finds GGUF files and reads the model's description in them.
    async fn open_gguf(&self, id: &ModelId, wanted: &GgufName, revision: &str) -> Result<HubModel> {
        let words = || format!("the GGUF file `{wanted}`");
        let missing = |model: &HubModel| model.cached_gguf(wanted).is_none().then(words);
        let model = self.find(id, revision, &words(), missing).await?;
        model.with_gguf(wanted).await
    }

    /// Finds the commit of a revision, from the hub if necessary. `missing` names a part of the model that the cache
    /// lacks, and `first` is the part that is named if the cache has nothing.
    async fn find(
        &self,
        id: &ModelId,
        revision: &str,
        first: &str,
        missing: impl Fn(&HubModel) -> Option<String>,
    ) -> Result<HubModel> {
        check_revision(revision)?;
        let config = &self.0.config;
        let cache = || ModelCache::new(&config.cache, id);
        let model = async |commit: String, listing| HubModel {
            hub: self.clone(),
            id: id.clone(),
            revision: revision.to_owned(),
            in_use: Arc::new(InUse::mark(&cache().use_lock(&commit)).await),
            commit,
            cache: cache(),
            listing,
            gguf: None,
        };
        let cached = match cache().commit(revision) {
            Some(commit) => Some(model(commit, None).await),
            None => None,
        };
        let missing = cached.as_ref().map_or_else(|| Some(first.to_owned()), missing);
        let enough = missing.is_none();
        if let Some(missing) = missing.clone().filter(|_| config.offline) {
            let place = config.cache.clone();
            return Err(Error::OfflineNotCached { id: id.to_string(), missing, place });
        }
        // A commit never moves, so the hub could say nothing new.
        if enough && (config.offline || is_commit(revision)) {
            return Ok(cached.expect("a complete cache was found"));
        }
        match Listing::fetch(&self.0.api, self.asked(id, revision), config.silence).await {
            Ok(listing) => Ok(model(listing.commit.clone(), Some(listing)).await),
            // A refusal counts even if the cache has the model, since the user may have lost the right to it or
            // mistyped the revision.
            Err(NoListing::Refused(error)) => Err(error),
            Err(NoListing::Unreachable(cause)) if enough => {
                tracing::warn!(
                    "cannot reach the hub at {} ({cause}): {id} is taken from the cache as it was last seen",
                    self.0.address
                );
                Ok(cached.expect("a complete cache was found"))
            }
            Err(NoListing::Unreachable(cause)) => Err(Error::Unreachable {
                hub: self.0.address.clone(),
                cause,
                id: id.to_string(),
                missing: missing.unwrap_or_default(),
                place: config.cache.clone(),
            }),
        }
    }

    fn asked<'a>(&'a self, id: &'a ModelId, revision: &'a str) -> Asked<'a> {
        Asked { id, revision, token: self.0.config.token.as_ref(), hub: &self.0.address }
    }

    fn no_file(&self, id: &ModelId, file: &str) -> Error {
        Error::NoFile { id: id.to_string(), file: file.to_owned(), page: self.asked(id, "").page() }
    }
}

impl HubModel {
    /// The folder with its files.
    pub fn folder(&self) -> PathBuf {
        self.cache.snapshot(&self.commit)
    }

    /// The files that describe the model. Weights can be read through them after they were fetched.
    pub fn files(&self) -> CheckpointFiles {
        match &self.gguf {
            Some(gguf) => CheckpointFiles::Gguf(Arc::clone(&gguf.described)),
            None => CheckpointFiles::Folder(self.folder()),
        }
    }

    /// The commit of its revision.
    pub fn commit(&self) -> &str {
        &self.commit
    }

    /// The mark that keeps its files from being removed. A server holds it while the files are open.
    pub fn in_use(&self) -> Arc<InUse> {
        Arc::clone(&self.in_use)
    }

    /// Downloads the weights that are not in the cache, and then records the commit as the revision's.
    ///
    /// # Errors
    /// The model has no safetensors weights, the disk is too small, or the connection fails for good.
    pub async fn fetch_weights(&self, progress: &DownloadProgress) -> Result<()> {
        // `find` returns a model without a listing only if the cache has all of it.
        let Some(listing) = &self.listing else { return Ok(()) };
        let weights = self.weights(listing)?;
        self.check_disk(&weights)?;
        self.fetch(weights.into_iter(), progress).await?;
        // Only now does the revision move. An offline start would otherwise choose a commit without weights.
        self.cache.set_commit(&self.revision, &self.commit)
    }

    /// Adds the chosen GGUF files to the model, with their headers.
    async fn with_gguf(mut self, wanted: &GgufName) -> Result<Self> {
        let names = match &self.listing {
            Some(listing) => self.choose_gguf(wanted, listing)?,
            // `find` has checked the cache with the same function.
            None => self.cached_gguf(wanted).expect("nothing is missing in the cache"),
        };
        let described = Arc::new(self.read_gguf(&names).await?);
        self.gguf = Some(GgufFiles { names, described });
        Ok(self)
    }

    /// The first file of a complete model that the cache lacks, as text.
    fn missing_in_cache(&self) -> Option<String> {
        let folder = self.folder();
        if self.only_gguf().is_some() {
            return None;
        }
        if !folder.join(CONFIG).is_file() {
            return Some(CONFIG.to_owned());
        }
        let files = CheckpointFiles::Folder(folder.clone());
        match (WeightFiles::find(&files), dense_files(&files)) {
            (Ok(files), Ok(dense)) => files
                .names()
                .iter()
                .chain(&dense)
                .find(|name| !folder.join(name.as_str()).is_file())
                .cloned(),
            _ => Some("the weights".to_owned()),
        }
    }

    fn weights<'a>(&self, listing: &'a Listing) -> Result<Vec<&'a RemoteFile>> {
        let names = match &self.gguf {
            Some(gguf) => gguf.names.clone(),
            None => self.safetensors(listing)?,
        };
        let file =
            |name: &String| listing.files.get(name).ok_or_else(|| self.hub.no_file(&self.id, name));
        names.iter().map(file).collect()
    }

    fn safetensors(&self, listing: &Listing) -> Result<Vec<String>> {
        self.check_weights(listing)?;
        let folder = CheckpointFiles::Folder(self.folder());
        let mut names = match named_weights(listing) {
            Some(NamedWeights::Files(names)) => names,
            _ => WeightFiles::find(&folder)?.names().to_vec(),
        };
        names.extend(dense_files(&folder)?);
        Ok(names)
    }

    fn check_configuration(&self, listing: &Listing) -> Result<()> {
        if listing.files.contains_key(CONFIG) {
            return Ok(());
        }
        self.check_weights(listing)?;
        Err(self.hub.no_file(&self.id, CONFIG))
    }

    fn check_weights(&self, listing: &Listing) -> Result<()> {
        if named_weights(listing).is_some() {
            return Ok(());
        }
        if let Some(error) = self.no_gguf_named(listing) {
            return Err(error);
        }
        let is_weights = |name: &&String| {
            // A safetensors file with an unusual name is listed, too, so that the error explains why it was not used.
            [".bin", ".pt", ".pth", ".gguf", ".h5", ".onnx", ".safetensors"]
                .iter()
                .any(|end| name.ends_with(end))
        };
        let others: Vec<&str> =
            listing.files.keys().filter(is_weights).map(String::as_str).take(3).collect();
        let found =
            if others.is_empty() { String::new() } else { format!(", only {}", others.join(", ")) };
        let page = self.hub.asked(&self.id, &self.revision).page();
        Err(Error::NoSafetensors { id: self.id.to_string(), found, page })
    }

    /// Checks for disk space before any weights are downloaded.
    fn check_disk(&self, weights: &[&RemoteFile]) -> Result<()> {
        let is_missing =
            |file: &&&RemoteFile| !self.cache.has(&self.commit, file) && !self.cache.has_blob(file);
        // `incomplete_bytes` is at most the size, so the difference cannot be negative.
        let to_write = |file: &&RemoteFile| file.size - self.cache.incomplete_bytes(file);
        let needed = weights.iter().filter(is_missing).map(to_write).fold(0, u64::saturating_add);
        match self.cache.free_bytes() {
            // A file system that hides its free space refuses nothing. The write itself then fails.
            Some(free) if needed > free => Err(Error::DiskTooSmall {
                id: self.id.to_string(),
                needed,
                free,
                place: self.cache.root().to_owned(),
            }),
            _ => Ok(()),
        }
    }

    /// Downloads files that are not in the cache, several concurrently.
    async fn fetch(
        &self,
        files: impl Iterator<Item = &RemoteFile>,
        progress: &DownloadProgress,
    ) -> Result<()> {
        let missing = files.filter(|file| !self.cache.has(&self.commit, file));
        // The futures are collected before they run. A closure within the stream would make the whole future not
        // Send.
        let downloads: Vec<_> = missing.map(|file| self.fetch_one(file, progress)).collect();
        stream::iter(downloads).buffer_unordered(FILES_AT_ONCE).try_collect::<()>().await?;
        if self.cache.commit(&self.revision).is_none() {
            // The revision keeps its previous commit until the new one is complete, so that an interrupted download
            // leaves a model that works offline.
            self.cache.set_commit(&self.revision, &self.commit)?;
        }
        Ok(())
    }

    async fn fetch_one(&self, file: &RemoteFile, progress: &DownloadProgress) -> Result<()> {
        let progress = progress.add(&file.name, file.size);
        let lock = loop {
            // Two commits usually share most of their blobs. Such a file costs only a link.
            if self.cache.has_blob(file) {
                break None;
            }
            match self.cache.try_lock(&file.digest)? {
                // The previous holder of the lock may have finished the file.
                Some(_) if self.cache.has_blob(file) => break None,
                Some(lock) => break Some(lock),
                None => {
                    if !progress.waits() {
                        tracing::info!("waiting for another process that downloads {}", file.name);
                    }
                    progress.set_waits(true);
                    progress.set_bytes(self.cache.incomplete_bytes(file));
                    sleep(LOOK_AGAIN).await;
                }
            }
        };
        if lock.is_some() {
            progress.set_waits(false);
            self.hub.0.transfer.fetch(&self.download(file, &progress)).await?;
            self.cache.complete(&file.digest)?;
        }
        self.cache.link(&self.commit, file)?;
        progress.set_done();
        Ok(())
    }

    fn download<'a>(&'a self, file: &'a RemoteFile, progress: &'a FileProgress) -> Download<'a> {
        let asked = self.hub.asked(&self.id, &self.commit);
        Download {
            asked,
            file,
            // The commit and not the revision is in the URL, since a branch may move between two files.
            url: format!("{}/resolve/{}/{}", asked.page(), self.commit, escape(&file.name)),
            path: self.cache.incomplete(&file.digest),
            progress,
            location: Mutex::new(None),
        }
    }
}

/// The safetensors files with the weights.
fn named_weights(listing: &Listing) -> Option<NamedWeights> {
    WeightFiles::named(listing.files.keys().map(String::as_str))
}

/// The weights of sentence-transformers' dense layers.
fn dense_files(files: &CheckpointFiles) -> Result<Vec<String>> {
    let sentence = SentenceSettings::read(files)?;
    Ok(sentence.dense.into_iter().map(|dense| dense.file).collect())
}

/// Whether a file describes a dense layer of sentence-transformers.
fn is_dense(name: &str) -> bool {
    name.strip_suffix("_Dense/config.json").is_some_and(|index| index.parse::<u8>().is_ok())
}

/// Whether a file is the vocabulary of a repository without a `tokenizer.json`.
fn is_vocabulary(name: &str, listing: &Listing) -> bool {
    VOCABULARIES.contains(&name) && !listing.files.contains_key(TOKENIZER)
}

/// Whether a file describes a model.
fn describes(name: &str) -> bool {
    let is_index = || name.ends_with(".safetensors.index.json") && !name.contains('/');
    DESCRIPTION.contains(&name)
        || is_index()
        || is_dense(name)
        || DESCRIPTION_FOLDERS.iter().any(|(folder, end)| {
            name.strip_prefix(folder).is_some_and(|rest| rest.ends_with(end) && !rest.contains('/'))
        })
}

/// Escapes a path in a repository for a URL.
fn escape(name: &str) -> String {
    // These are the unreserved characters of RFC 3986, and the slash between folders.
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~/".contains(&byte);
    name.bytes()
        .map(|byte| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptions_are_small_files_of_known_names() {
        for name in [
            "config.json",
            "additional_chat_templates/rag.jinja",
            "1_Pooling/config.json",
            "2_Dense/config.json",
        ] {
            assert!(describes(name), "{name}");
        }
        for name in [
            "model.safetensors",
            // Only folders of known names count, since this configuration belongs to another form of the model.
            "onnx/config.json",
            "additional_chat_templates/a/b.jinja",
            "README.md",
        ] {
            assert!(!describes(name), "{name}");
        }
    }

    #[test]
    fn names_are_escaped_for_urls() {
        assert_eq!(escape("1_Pooling/a b#ü.json"), "1_Pooling/a%20b%23%C3%BC.json");
    }
}
